# SPDX-License-Identifier: Apache-2.0
"""Columns of im2col: the elements of x that one position of y reads, in the order of weights,
(input channel, tap)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...spec.conv import DATA, Convolution
from .. import emit
from ..emit import Array, Expr
from .copies import copy
from .pack_panel import Source


def copy_column(
    problem: Convolution,
    source: Source,
    into: Array,
    at: Expr,
    position: Sequence[Expr],
    lanes: int,
) -> None:
    """Copy what a position reads of some channels of x to ``into[at + i]``; padding is zero.

    Parameters
    ----------
    position : sequence
        Its index along the four axes.
    """
    x, channel, channels, (_, *sizes) = source[:4]
    g, zero = problem.geometry, emit.constant(0, into.dtype)
    image, *numbers = position
    corner = [emit.let(i * stride - pad) for i, stride, pad in zip(numbers, g.stride, g.pad_before)]
    apart = x.strides[DATA[-1]]

    for i, depth, height in emit.grid(channels, *g.kernel[:2]):
        outer = [
            emit.let(first + tap * dilation)
            for first, tap, dilation in zip(corner, (depth, height), g.dilation)
        ]
        bounds = ((o >= 0, o < size) for o, size in zip(outer, sizes))
        inside = emit.both(*(bound for pair in bounds for bound in pair))
        number = ((i * g.kernel[0] + depth) * g.kernel[1] + height) * g.kernel[2]
        into_at = emit.opaque_base(at + number)
        start = emit.opaque_base(x.at("C" + DATA, channel + i, image, *outer, 0))
        # If all taps of a row meet data, LLVM would still test each of them.
        is_full: Expr = False
        if not problem.is_static:
            last = corner[2] + (g.kernel[2] - 1) * g.dilation[2]
            is_full = emit.both(inside, corner[2] >= 0, last < sizes[2])
        for has_no_padding in emit.sides(is_full):
            if has_no_padding:
                first, step = emit.let(start + corner[2] * apart), apart * g.dilation[2]
                copy(into, into_at, x, first, g.kernel[2], lanes, step)
            else:
                for tap in emit.loop(g.kernel[2]):
                    column = corner[2] + tap * g.dilation[2]
                    meets = emit.both(inside, column >= 0, column < sizes[2])
                    load = partial(x.load, start + column * apart, into.dtype)
                    value = emit.choose(meets, load, zero)
                    if x.dtype != into.dtype:
                        value = emit.via_memory(value, into.dtype)
                    emit.store(into, into_at + tap, value)
