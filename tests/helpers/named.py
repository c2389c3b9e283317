# SPDX-License-Identifier: Apache-2.0
"""Calls that have names."""

from __future__ import annotations

from helpers.cases import Case

T = "conv_transpose"


C = "conv"


# Each is something that a kernel or a formula can get wrong on its own.
NAMED = {
    "stride larger than the kernel": Case(T, (4, 3), (2, 1), stride=(3, 4)),
    "phases without taps": Case(T, (4, 5), (3, 2), stride=(2, 4), dilation=(2, 2)),
    "phases without taps, output padding": Case(
        T, (3,), (1,), stride=(4,), output_padding=(3,), padding=(0, 1)
    ),
    "kernel 1": Case(T, (4, 3), (1, 1)),
    "kernel 1, stride 2": Case(T, (4, 3), (1, 1), stride=(2, 2), output_padding=(1, 0)),
    "depthwise": Case(T, (5, 6), (3, 3), ins=8, outs=8, groups=8, stride=(2, 2), padding=(1,) * 4),
    "depthwise with multiplier": Case(T, (5, 6), (3, 3), ins=4, outs=12, groups=4, stride=(2, 1)),
    "groups that join channels": Case(T, (5, 4), (3, 2), ins=12, outs=4, groups=4, stride=(1, 2)),
    "groups": Case(T, (5, 4), (3, 2), ins=6, outs=9, groups=3, stride=(2, 2)),
    "output padding between stride and dilation": Case(
        T, (4, 5), (3, 2), stride=(1, 2), dilation=(3, 4), output_padding=(2, 3)
    ),
    "output padding of stride - 1": Case(T, (4, 5), (3, 4), stride=(3, 2), output_padding=(2, 1)),
    "asymmetric padding": Case(T, (4, 5), (3, 4), stride=(2, 2), padding=(2, 0, 1, 3)),
    "negative padding": Case(T, (4, 5), (3, 4), stride=(2, 3), padding=(-1, -2, -3, 0)),
    "padding larger than the kernel": Case(T, (9, 8), (2, 3), stride=(2, 1), padding=(5, 3, 4, 2)),
    "size 1": Case(T, (1, 1), (4, 4)),
    "size 1 to size 1": Case(T, (1, 1), (3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
    "stride of one position": Case(T, (1, 1), (3, 2), stride=((1 << 31) - 1, 1 << 30)),
    "dilation of one tap": Case(T, (4, 5), (1, 2), dilation=(1 << 30, 1)),
    "batch 1": Case(T, (4, 5), (3, 4), n=1, stride=(2, 2)),
    "batch 5": Case(T, (4, 5), (3, 4), n=5, stride=(2, 2)),
    "empty batch": Case(T, (4, 5), (3, 4), n=0, stride=(2, 2)),
    "dilation": Case(T, (4, 5), (3, 4), dilation=(2, 3)),
    "dilation and stride share a factor": Case(T, (4, 5), (3, 4), dilation=(4, 2), stride=(2, 4)),
    "dilation and stride share none": Case(T, (4, 5), (4, 3), dilation=(3, 2), stride=(2, 3)),
    "DCGAN": Case(T, (4, 4), (4, 4), ins=64, outs=32, stride=(2, 2), padding=(1, 1, 1, 1)),
    "odd channels": Case(T, (7, 9), (3, 3), ins=17, outs=19, stride=(2, 2), padding=(1,) * 4),
    "one output channel": Case(T, (16, 16), (5, 5), ins=16, outs=1, stride=(2, 2)),
    "1-D": Case(T, (37,), (7,), ins=5, outs=6, stride=(3,), padding=(2, 3), output_padding=(1,)),
    "1-D long kernel": Case(T, (9,), (256,), ins=3, outs=2, stride=(128,), padding=(64, 64)),
    "3-D": Case(T, (3, 4, 2), (2, 3, 4), stride=(2, 1, 3), padding=(0, 1, 2, 1, 0, 1)),
    "3-D groups": Case(T, (3, 2, 4), (3, 2, 2), ins=4, outs=6, groups=2, stride=(2, 2, 1)),
    "3-D kernel 7": Case(T, (2, 3, 2), (7, 7, 7), stride=(2, 2, 2), padding=(3,) * 6),
    "conv stride larger than the kernel": Case(C, (9, 8), (2, 1), stride=(3, 4)),
    "conv stride that leaves a rest": Case(C, (9, 8), (3, 3), stride=(4, 3), padding=(0, 1, 0, 0)),
    "conv negative padding": Case(C, (9, 8), (3, 2), padding=(-1, 0, -2, -3)),
    "conv padding larger than the kernel": Case(C, (3, 2), (2, 3), padding=(4, 5, 3, 6)),
    "conv dilation": Case(C, (9, 8), (3, 2), dilation=(2, 3), stride=(2, 1), padding=(1, 2, 3, 0)),
    "conv dilation of one tap": Case(C, (9, 8), (1, 2), dilation=(1 << 30, 2)),
    "conv stride to one position": Case(C, (9, 8), (3, 2), stride=((1 << 31) - 1, 9)),
    "conv depthwise": Case(C, (9, 8), (3, 3), ins=8, outs=8, groups=8, padding=(1, 1, 1, 1)),
    "conv groups": Case(C, (9, 8), (3, 3), ins=6, outs=9, groups=3, stride=(2, 2)),
    "conv size 1": Case(C, (1, 1), (3, 3), padding=(1, 1, 1, 1)),
    "conv kernel 1": Case(C, (5, 6), (1, 1), ins=17, outs=19),
    "conv odd channels": Case(C, (9, 7), (3, 3), ins=17, outs=19, padding=(1,) * 4),
    "conv empty batch": Case(C, (9, 8), (3, 3), n=0),
    "conv 1-D": Case(C, (40,), (5,), ins=3, outs=4, stride=(2,), padding=(3, 1), dilation=(2,)),
    "conv 3-D": Case(C, (5, 6, 4), (2, 3, 2), ins=4, outs=6, groups=2, stride=(2, 1, 1)),
}
