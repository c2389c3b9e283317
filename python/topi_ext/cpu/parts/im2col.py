# SPDX-License-Identifier: Apache-2.0
"""Columns of im2col: what one position of y reads of x, in the order of weights, (input channel,
tap)."""

from __future__ import annotations

from collections.abc import Sequence

from ...problem import DATA, Problem
from .. import emit
from ..emit import Array, Expr
from .copies import copy
from .pack_panel import Source


def copy_column(
    problem: Problem, source: Source, into: Array, at: Expr, position: Sequence[Expr], lanes: int
) -> None:
    """Copy what a position reads of some channels of x to ``into[at + i]``; zero where there is
    padding.

    Parameters
    ----------
    position : sequence
        Along the four axes.
    """
    x, channel, channels, (_, *sizes) = source[:4]
    g, zero = problem.geometry, emit.constant(0, into.dtype)
    image, *numbers = position
    corner = [emit.let(i * stride - pad) for i, stride, pad in zip(numbers, g.stride, g.pad_before)]
    apart = x.strides[DATA[-1]]

    def row(i: Expr, depth: Expr, height: Expr) -> None:
        outer = [
            emit.let(first + tap * dilation)
            for first, tap, dilation in zip(corner, (depth, height), g.dilation)
        ]
        bounds = ((o >= 0, o < size) for o, size in zip(outer, sizes))
        inside = emit.both(*(bound for pair in bounds for bound in pair))
        number = ((i * g.kernel[0] + depth) * g.kernel[1] + height) * g.kernel[2]
        into_at = emit.opaque_base(at + number)
        start = emit.opaque_base(x.at("C" + DATA, channel + i, image, *outer, 0))

        def tap(width: Expr) -> None:
            place = corner[2] + width * g.dilation[2]
            there = emit.both(inside, place >= 0, place < sizes[2])
            value = emit.choose(there, lambda: x.load(start + place * apart, into.dtype), zero)
            if x.dtype != into.dtype:
                value = emit.via_memory(value, into.dtype)
            emit.store(into, into_at + width, value)

        if problem.is_static:
            emit.loop(g.kernel[2], tap)
            return
        # Where all taps of a row meet data, LLVM would ask for each of them.
        begin, last = corner[2], corner[2] + (g.kernel[2] - 1) * g.dilation[2]
        emit.when(
            emit.both(inside, begin >= 0, last < sizes[2]),
            lambda: copy(
                into, into_at, x, emit.let(start + begin * apart), g.kernel[2], lanes,
                apart * g.dilation[2],
            ),
            lambda: emit.loop(g.kernel[2], tap),
        )  # fmt: skip

    emit.nest((channels, *g.kernel[:2]), row)
