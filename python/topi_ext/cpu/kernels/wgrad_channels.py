# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_weight_grad`` for many channels: lanes run over the channels of y.

y is turned so that its channels are neighbours; x is packed as for ``conv``, its values are
broadcast, and stride, dilation and taps are arithmetic of addresses. No column is ever built::

    parallel (group, block of channels of y, block of channels of x):
        for each block of positions:
            pack the channels of x with what the taps reach               -> panel
            turn the channels of y                                        -> rows
            for each tile of `vectors` vectors of channels of y:
                for each tile of `c_tile` channels of x, each tap:
                    for each position:
                        accumulators[c_tile][vectors] += panel * rows     -> partial
        turn the weights back                                             -> out

Where much of what the taps reach is padding (long dilations), each runs over the positions alone
where it meets data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ...emit.arguments import tap_number
from ...problem import DATA, TAPS, Problem
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.pack_panel import Source, pack
from ..parts.panel import Panel, window_of
from ..parts.transpose import Pitched, Runs, transpose
from ..plan.wgrad_channels import WgradChannelsPlan
from .wgrad_positions import weight_function


def build(problem: Problem, plan: WgradChannelsPlan) -> Any:
    """The PrimFunc ``(x, y, out)`` of `problem`, scheduled by `plan`."""
    return weight_function(problem, lambda operands: emit_body(problem, plan, operands))


def emit_body(problem: Problem, plan: WgradChannelsPlan, operands: Sequence[Operand]) -> None:
    """What that PrimFunc does, with its arguments as `operands`."""
    _Channels(problem, plan, *operands).emit()


class _Channels:
    """One kernel while it is being emitted."""

    def __init__(
        self, problem: Problem, plan: WgradChannelsPlan, x: Operand, y: Operand, out: Operand
    ):
        self.problem, self.plan = problem, plan
        self.x, self.y, self.out = x, y, out
        self.dtype = problem.acc_dtype
        self.vectors = -(-plan.k_block // plan.lanes)
        self.row = self.vectors * plan.lanes

    def _block_positions(self) -> None:
        """Choose the blocks of positions."""
        problem, plan = self.problem, self.plan
        self.window = window_of(problem, plan.window, problem.gathers, plan.lanes)
        self.panel = Panel(problem.gathers, self.window, plan.lanes)
        block = self.window.block
        self.steps = [*(emit.opaque_value(prod(block[axis:])) for axis in (1, 2, 3)), 1]
        self.positions = emit.opaque_value(prod(block))
        self.room = self.positions if problem.is_static else plan.window.elements

    def emit(self) -> None:
        """The whole kernel."""
        geometry, plan = self.problem.geometry, self.plan
        self._block_positions()
        extents = (
            geometry.groups,
            -(-geometry.k_per_group // plan.k_block),
            -(-geometry.c_per_group // plan.c_block),
        )
        with emit.tasks(prod(extents), plan.parallel) as task:
            group, k, c = map(emit.let, emit.unravel(task, extents))
            self._task(group, k * plan.k_block, c * plan.c_block)

    def _task(self, group: Expr, first_k: Expr, first_c: Expr) -> None:
        geometry, plan = self.problem.geometry, self.plan
        k_count = emit.clamped_extent(first_k, geometry.k_per_group, plan.k_block)
        c_count = emit.clamped_extent(first_c, geometry.c_per_group, plan.c_block)
        first_k = group * geometry.k_per_group + first_k
        acc = emit.scratch(plan.c_block * geometry.taps * self.row, self.dtype)
        panel = emit.scratch(self.panel.room(plan.c_block), self.dtype)
        rows = emit.scratch(self.room * self.row, self.dtype)
        zero = emit.constant(0, self.dtype)
        emit.fill(acc, 0, plan.c_block * geometry.taps * self.row, zero)
        # Lanes beyond the last channel are computed and dropped: they only have to be numbers.
        emit.fill(rows, 0, self.positions * self.row, zero)

        def block(*numbers: Expr) -> None:
            first = [i * b for i, b in zip(numbers, self.window.block)]
            bounds = zip(first, self.problem.y_sizes, self.window.block)
            extent = [emit.clamped_extent(*bound) for bound in bounds]
            c = group * geometry.c_per_group + first_c
            pack(self.panel, panel, Source(self.x, c, c_count, self.problem.x_sizes), first)
            self._turn(rows, first_k, k_count, first, extent)
            self._products(panel, rows, acc, c_count, first, extent)

        counts = [emit.ceil_div(p, b) for p, b in zip(self.problem.y_sizes, self.window.block)]
        emit.nest(counts, block)
        self._write(acc, first_k, k_count, first_c, c_count)

    def _place(self, position: tuple[Expr, ...], first: Expr, vectors: Expr) -> Expr:
        """Where a position of a tile of vectors is: rows[tile][position][lanes]."""
        index = sum(p * step for p, step in zip(position, self.steps))
        return (first * self.positions + index * vectors) * self.plan.lanes

    def _turn(
        self, rows: Array, first_k: Expr, count: Expr, first: list[Expr], extent: list[Expr]
    ) -> None:
        """rows[tile of vectors][position][channel] of y, run by run of neighbouring positions."""
        lanes, step = self.plan.lanes, self.y.strides[DATA[-1]]
        counts, length, longest = self._runs(extent)

        def vector(number: Expr, *outer: Expr) -> None:
            position = (*outer, 0)
            v = emit.let(emit.remainder(number, self.plan.vectors))
            vectors = emit.clamped_extent(number - v, self.vectors, self.plan.vectors)
            channels = emit.clamped_extent(number * lanes, count, lanes)
            where = [f + p for f, p in zip(first, position)]
            source = emit.opaque_base(self.y.at("C" + DATA, first_k + number * lanes, *where))
            into = emit.opaque_base(self._place(position, number - v, vectors) + v * lanes)
            runs = Runs(self.y, source, step, channels, length, longest)
            transpose(Pitched(rows, into, vectors * lanes), runs, lanes)

        emit.nest((self.vectors, *counts), vector)

    def _runs(self, extent: Sequence[Expr]) -> tuple[list[Expr], Expr, Expr]:
        """Runs of y along the outer axes, how long they are, and the most that they can be: whole
        rows are one run, and so are whole planes."""
        block, y_sizes = self.window.block, self.problem.y_sizes
        counts, length, longest = list(extent[:3]), extent[3], block[3]
        whole: Expr = True

        def joined(value: Expr, alone: Expr) -> Expr:
            return emit.let(emit.choose(whole, lambda: value, alone))

        for axis in (2, 1):
            whole = emit.both(whole, block[axis + 1] == y_sizes[axis + 1])
            if whole is False or not self.y.is_run(DATA[axis:]):
                break
            length = joined(length * extent[axis], length)
            longest = joined(longest * block[axis], longest)
            counts[axis] = joined(1, counts[axis])
        return counts, length, longest

    def _products(
        self,
        panel: Array,
        rows: Array,
        acc: Array,
        c_count: Expr,
        first: list[Expr],
        present: list[Expr],
    ) -> None:
        """Every register tile of the block, remainders included."""
        plan, gathers = self.plan, self.problem.gathers
        steps = self.window.steps

        def tap(vector: Expr, vectors: int, c: Expr, cs: int, *taps: Expr) -> None:
            slots = [0, *(emit.let(g.slot_of(r)) for g, r in zip(gathers[1:], taps))]
            shifts = [0, *(emit.let(g.shift_of(0, r)) for g, r in zip(gathers[1:], taps))]
            shifted = self.panel.shifted(shifts)
            sources = [self.panel.plane(c + o, slots) + shifted for o in range(cs)]
            begins, counts = self._met((0, *taps), first, present)

            def position(p: Sequence[Expr]) -> tuple[Expr, ...]:
                return tuple(begin + i for begin, i in zip(begins, p))

            def panel_at(o: int, *p: Expr) -> Expr:
                return sources[o] + sum(i * step for i, step in zip(position(p), steps))

            along = (None, None) if self.problem.is_static else (1, vectors * plan.lanes)
            places = [self._weight(c + o, taps) + vector * plan.lanes for o in range(cs)]
            add_products(
                counts,
                Matrix(panel, panel_at, along[0]),
                Matrix(rows, lambda *p: self._place(position(p), vector, vectors), along[1]),
                RegisterTile(acc, places, vectors, plan.lanes),
                fresh=False,
            )

        def channels(vector: Expr, vectors: int) -> None:
            def tile(c: Expr, cs: int) -> None:
                emit.nest(
                    self.problem.geometry.kernel,
                    lambda *taps: tap(vector, vectors, c, cs, *taps),
                )

            emit.tiles_then_ones(c_count, plan.c_tile, tile)

        emit.tiles(self.vectors, self.plan.vectors, channels)

    def _met(
        self, taps: Sequence[Expr], first: Sequence[Expr], present: Sequence[Expr]
    ) -> tuple[list[Expr], list[Expr]]:
        """The first position of the block and how many, along each axis, over which a tap runs."""
        if not self.plan.clipped:
            return [0] * 4, list(present)
        problem = self.problem
        number_of = emit.let if problem.is_static else emit.opaque_value
        axes = zip(problem.gathers, taps, problem.y_sizes, problem.x_sizes, first, present)
        begins, counts = [], []
        for gather, tap, positions, size, start, count in axes:
            low, high = gather.meets(tap, positions, size, emit.most, emit.least)
            begin = number_of(emit.most(low - start, 0))
            begins.append(begin)
            counts.append(number_of(emit.most(emit.least(high - start, count) - begin, 0)))
        return begins, counts

    def _weight(self, c: Expr, tap: tuple[Expr, ...]) -> Expr:
        """Where the row of channels of y of one weight is."""
        index = c
        for r, size in zip(tap, self.problem.geometry.kernel):
            index = index * size + r
        return index * self.row

    def _write(
        self, acc: Array, first_k: Expr, k_count: Expr, first_c: Expr, c_count: Expr
    ) -> None:
        """Turn the weights back, a vector of channels of y at a time."""
        lanes, kernel = self.plan.lanes, self.problem.geometry.kernel
        transposed = emit.scratch(prod(kernel) * lanes, self.dtype)

        def vector(v: Expr, c: Expr) -> None:
            start = emit.let(v * lanes)

            def tap(*taps: Expr) -> None:
                into = emit.lanes_of(tap_number(self.problem, taps) * lanes, lanes)
                row = self._weight(c, taps) + start
                emit.store(transposed, into, acc[emit.lanes_of(row, lanes)])

            emit.nest(kernel, tap)
            count = emit.clamped_extent(start, k_count, lanes)
            write_transposed(
                self.problem, self.out, transposed, lanes, first_k + start, count, first_c + c
            )

        # Neighbouring channels of x share lines of the result.
        emit.nest((emit.ceil_div(k_count, lanes), c_count), vector)


def write_transposed(
    problem: Problem,
    out: Operand,
    transposed: Array,
    lanes: int,
    first_k: Expr,
    count: Expr,
    c: Expr,
) -> None:
    """Write ``transposed[tap][lanes]``, the weights of `count` channels of y and one of x."""

    def channel(k: Expr) -> None:
        def weight(*taps: Expr) -> None:
            into = out.at("OI" + TAPS, first_k + k, c, *taps)
            place = tap_number(problem, taps) * lanes + k
            emit.store(out, into, transposed.load(place, out.dtype))

        emit.nest(problem.geometry.kernel, weight)

    emit.loop(count, channel)
