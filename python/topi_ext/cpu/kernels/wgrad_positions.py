# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_weight_grad``: a reduction over the positions of y.

Both operands are packed alike, so that lanes run over positions and every tap is a constant offset
of x; the lanes are added up once, at the end::

    parallel (group, block of channels of y, block of channels of x):
        for each block of positions:
            pack the channels of y, zero in the halo                      -> rows
            pack the channels of x with what the taps reach               -> panel
            where an x is infinite or NaN, sum one by one; else:
            for each register tile (channels of y) x (channels of x x taps of the last axis):
                for each vector of positions:
                    accumulators += rows * panel                          -> partial
        add up the lanes of partial                                       -> out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

from ...emit.arguments import weight_grad_arguments
from ...gather import Gather
from ...problem import TAPS, Problem
from .. import emit
from ..emit import ATTRIBUTES, Array, Expr, Operand
from ..parts.pack_panel import Source, pack
from ..parts.panel import Panel, window_of
from ..plan.wgrad_positions import WgradPositionsPlan


def build(problem: Problem, plan: WgradPositionsPlan) -> Any:
    """The PrimFunc ``(x, y, out)`` of `problem`, scheduled by `plan`."""
    return weight_function(problem, lambda operands: emit_body(problem, plan, operands))


def emit_body(problem: Problem, plan: WgradPositionsPlan, operands: Sequence[Operand]) -> None:
    """What that PrimFunc does, with its arguments as `operands`."""
    _WeightGrad(problem, plan, *operands).emit()


def weight_function(problem: Problem, fill: Callable[[Sequence[Operand]], None]) -> Any:
    """The PrimFunc of a weight gradient whose body `fill` emits."""
    with emit.kernel(ATTRIBUTES) as made:
        with emit.body(*weight_grad_arguments(problem)) as operands:
            fill(operands)
    return made[0]


class _WeightGrad:
    """One kernel while it is being emitted."""

    def __init__(
        self, problem: Problem, plan: WgradPositionsPlan, x: Operand, y: Operand, out: Operand
    ):
        self.problem, self.plan = problem, plan
        self.x, self.y, self.out = x, y, out
        self.dtype = problem.acc_dtype

    def _block_positions(self) -> None:
        """Choose the blocks of positions."""
        problem, plan = self.problem, self.plan
        self.window = window_of(problem, plan.window, problem.gathers, plan.lanes)
        self.x_panel = Panel(problem.gathers, self.window, plan.lanes)
        # y is read in place (kernel 1) but with the window of x, so that positions coincide.
        self.y_panel = Panel((Gather(False, 1, 1, 1, 0),) * 4, self.window, plan.lanes)
        self.vectors = emit.ceil_div(self.window.length, plan.lanes)

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
            group, k, c = emit.unravel(task, extents)
            self._task(group, k * plan.k_block, c * plan.c_block)

    def _task(self, group: Expr, first_k: Expr, first_c: Expr) -> None:
        geometry, plan = self.problem.geometry, self.plan
        # Blocks that the channels do not fill only work on those that exist.
        self.k_count = emit.clamped_extent(first_k, geometry.k_per_group, plan.k_block)
        self.c_count = emit.clamped_extent(first_c, geometry.c_per_group, plan.c_block)
        partial_size = plan.k_block * plan.c_block * geometry.taps * plan.lanes
        partial = emit.scratch(partial_size, self.dtype)
        rows = emit.scratch(self.y_panel.room(plan.k_block), self.dtype)
        panel = emit.scratch(self.x_panel.room(plan.c_block), self.dtype)
        emit.fill(partial, 0, partial_size, emit.constant(0, self.dtype))

        def chunk(*numbers: Expr) -> None:
            first = [i * b for i, b in zip(numbers, self.window.block)]
            sizes = self.problem.y_sizes
            valid = [emit.least(b, size - f) for b, size, f in zip(self.window.block, sizes, first)]
            k = group * geometry.k_per_group + first_k
            pack(self.y_panel, rows, Source(self.y, k, self.k_count, sizes), first, valid)
            c = group * geometry.c_per_group + first_c
            source = Source(self.x, c, self.c_count, self.problem.x_sizes)
            pack(self.x_panel, panel, source, first)
            emit.when(
                self._is_finite(panel),
                lambda: self._tiles(rows, panel, partial),
                lambda: self._one_by_one(rows, panel, partial, valid),
            )

        counts = [emit.ceil_div(p, b) for p, b in zip(self.problem.y_sizes, self.window.block)]
        emit.nest(counts, chunk)
        self._add_lanes(group, first_k, first_c, partial)

    # ------------------------------------------------------------ infinities

    def _is_finite(self, panel: Array) -> Expr:
        """Whether the packed x has no infinity and no NaN, which zeros in the halo of y would not
        silence: they would reach weights whose taps never meet them."""
        if not self.dtype.startswith("float"):
            return True
        lanes = self.plan.lanes
        zero = emit.broadcast(emit.constant(0, self.dtype), lanes)
        # Zero at run time: TVM takes a product with a constant zero for zero.
        ((factor, at),) = emit.registers(1, lanes, self.dtype)
        emit.store(factor, at, zero)
        ((total, index),) = emit.registers(1, lanes, self.dtype)
        emit.store(total, index, zero)

        def vector(v: Expr) -> None:
            product_ = panel[emit.lanes_of(v * lanes, lanes)] * factor[at]
            emit.store(total, index, total[index] + product_)

        emit.loop(
            emit.ceil_div(self.c_count * self.x_panel.slots * self.x_panel.pitch, lanes), vector
        )
        lanes_left: Expr = total[0]
        for lane in range(1, lanes):
            lanes_left = lanes_left + total[lane]
        return emit.let(lanes_left) == emit.constant(0, self.dtype)

    def _one_by_one(self, rows: Array, panel: Array, partial: Array, valid: Sequence[Expr]) -> None:
        """The sums of the block, products with the halo left out."""
        gathers, steps = self.problem.gathers, self.window.steps

        def weight(k: Expr, c: Expr, *tap: Expr) -> None:
            slots = [emit.let(gather.slot_of(r)) for gather, r in zip(gathers, (0, *tap))]
            shifts = [emit.let(gather.shift_of(0, r)) for gather, r in zip(gathers, (0, *tap))]
            source = emit.let(self.x_panel.plane(c, slots) + self.x_panel.shifted(shifts))
            into = emit.let(self._partial(k, c, tap))

            def position(*p: Expr) -> None:
                flat = sum(i * step for i, step in zip(p, steps))
                term = rows[k * self.y_panel.pitch + flat] * panel[source + flat]
                emit.store(partial, into, partial[into] + term)

            emit.nest(valid, position)

        emit.nest((self.k_count, self.c_count, *self.problem.geometry.kernel), weight)

    # ------------------------------------------------------------ tiles

    def _tiles(self, rows: Array, panel: Array, partial: Array) -> None:
        """Every register tile of the block, remainders included."""
        geometry, plan = self.problem.geometry, self.plan
        last = geometry.kernel[-1]

        def over_taps(k: Expr, ks: int, c: Expr, cs: int, depth: Expr, height: Expr) -> None:
            def tile(first: Expr, taps: int) -> None:
                self._tile(rows, panel, partial, (k, ks), (c, cs), (depth, height, first), taps)

            full, rest = divmod(last, plan.tap_tile)
            if full * plan.tap_tile <= 16:
                for i in range(full):
                    tile(i * plan.tap_tile, plan.tap_tile)
            else:
                emit.loop(full, lambda i: tile(i * plan.tap_tile, plan.tap_tile))
            if rest:
                tile(last - rest, rest)

        def channels_of_y(c: Expr, cs: int, *row: Expr) -> None:
            emit.tiles_then_ones(
                self.k_count, plan.k_tile, lambda k, ks: over_taps(k, ks, c, cs, *row)
            )

        emit.tiles_then_ones(
            self.c_count,
            plan.c_tile,
            lambda c, cs: emit.nest(geometry.kernel[:-1], lambda *row: channels_of_y(c, cs, *row)),
        )

    def _tile(
        self,
        rows: Array,
        panel: Array,
        partial: Array,
        ks: tuple[Expr, int],
        cs: tuple[Expr, int],
        tap: tuple[Expr, Expr, Expr],
        taps: int,
    ) -> None:
        """accumulators[channels of y][channels of x][taps] += rows * panel over positions."""
        lanes = self.plan.lanes
        tiles = list(product(range(ks[1]), range(cs[1]), range(taps)))
        acc = emit.registers(len(tiles), lanes, self.dtype)
        places = []
        for k, c, t in tiles:
            index = self._partial(ks[0] + k, cs[0] + c, (*tap[:2], tap[2] + t))
            places.append(emit.lanes_of(index, lanes))
        for (register, index), place in zip(acc, places):
            emit.store(register, index, partial[place])
        sources = {}
        for c, t in product(range(cs[1]), range(taps)):
            numbers = (0, *tap[:2], tap[2] + t)
            gathers = self.problem.gathers
            slots = [gather.slot_of(r) for gather, r in zip(gathers, numbers)]
            shifts = [gather.shift_of(0, r) for gather, r in zip(gathers, numbers)]
            sources[c, t] = self.x_panel.plane(cs[0] + c, slots) + self.x_panel.shifted(shifts)
        places_of_y = [(ks[0] + k) * self.y_panel.pitch for k in range(ks[1])]
        if not self.problem.is_static:
            sources = {at: emit.opaque_value(source) for at, source in sources.items()}
            places_of_y = [emit.opaque_value(place) for place in places_of_y]

        def vector(v: Expr) -> None:
            for (k, c, t), (register, index) in zip(tiles, acc):
                y = rows[emit.lanes_of(places_of_y[k] + v * lanes, lanes)]
                x = panel[emit.lanes_of(sources[c, t] + v * lanes, lanes)]
                emit.store(register, index, register[index] + y * x)

        emit.loop(self.vectors, vector)
        for (register, index), place in zip(acc, places):
            emit.store(partial, place, register[index])

    def _partial(self, k: Expr, c: Expr, tap: tuple[Expr, ...]) -> Expr:
        """Where the lanes of one weight are."""
        index = k * self.plan.c_block + c
        for r, count in zip(tap, self.problem.geometry.kernel):
            index = index * count + r
        return index * self.plan.lanes

    # ------------------------------------------------------------ output

    def _add_lanes(self, group: Expr, first_k: Expr, first_c: Expr, partial: Array) -> None:
        def element(k: Expr, c: Expr, *tap: Expr) -> None:
            index = self._partial(k, c, tap)
            terms = [partial[index + lane] for lane in range(self.plan.lanes)]
            while len(terms) > 1:
                half = len(terms) // 2
                terms = [a + b for a, b in zip(terms[:half], terms[half:])]
            outer = group * self.problem.geometry.k_per_group + first_k + k
            into = self.out.at("OI" + TAPS, outer, first_c + c, *tap)
            total = emit.scratch(1, self.dtype)
            emit.store(total, 0, terms[0])
            emit.store(self.out, into, total.load(0, self.out.dtype))

        emit.nest((self.k_count, self.c_count, *self.problem.geometry.kernel), element)
