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
                    accumulators += rows * panel                          -> acc
        add up the lanes of acc                                           -> out

In the matrix product, M are channels of y, N channels of x and taps, K positions, along which the
lanes run.  Left, `rows` ``[channel of y][position]``; right, `panel` ``[channel of x][residue]
[position]``, read at a constant offset for each tap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from ...spec.axis_access import AxisAccess
from ...spec.conv import TAPS, Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.pack_panel import Source, pack
from ..parts.panel import Panel, window_of
from ..plan.wgrad_positions import WgradPositionsPlan

MOST_WRITTEN_OUT = 16
"""Taps along a row whose tiles are written out one after the other."""


def emit_body(problem: Convolution, plan: WgradPositionsPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc whose arguments are `operands`."""
    _WgradPositions(problem, plan, *operands).emit()


class _Blocking(NamedTuple):
    """Blocks of positions, and the panels of one.

    Attributes
    ----------
    x, y : Panel
        Panels of both operands, with the window of x, so that positions coincide.
    vectors : int or expression
        Vectors of positions of a plane.
    """

    x: Panel
    y: Panel
    vectors: Expr


class _Task(NamedTuple):
    """One block of channels of y and of x, and what it holds.

    Attributes
    ----------
    blocking : _Blocking
    k_count, c_count : int or expression
        How many of the channels of y and of x exist.
    rows, panel : Array
        Packed y and x.
    acc : Array
        Accumulators ``[channel of y][channel of x][tap][lanes]``.
    """

    blocking: _Blocking
    k_count: Expr
    c_count: Expr
    rows: Array
    panel: Array
    acc: Array


class _WgradPositions:
    """One kernel while it is being emitted."""

    def __init__(
        self, problem: Convolution, plan: WgradPositionsPlan, x: Operand, y: Operand, out: Operand
    ):
        self.problem, self.plan = problem, plan
        self.x, self.y, self.out = x, y, out
        self.dtype = problem.acc_dtype

    def _blocking(self) -> _Blocking:
        """Choose the blocks of positions."""
        problem, plan = self.problem, self.plan
        window = window_of(problem, plan.window, problem.accesses, plan.lanes)
        x = Panel(problem.accesses, window, plan.lanes)
        # y is read in place (kernel 1).
        y = Panel((AxisAccess(False, 1, 1, 1, 0),) * 4, window, plan.lanes)
        return _Blocking(x, y, emit.ceil_div(window.length, plan.lanes))

    def emit(self) -> None:
        """Emit the whole kernel."""
        geometry, plan, blocking = self.problem.geometry, self.plan, self._blocking()
        extents = (
            geometry.groups,
            -(-geometry.k_per_group // plan.k_block),
            -(-geometry.c_per_group // plan.c_block),
        )
        with emit.tasks(prod(extents), plan.parallel) as task:
            group, k, c = emit.unravel(task, extents)
            self._task(blocking, group, k * plan.k_block, c * plan.c_block)

    def _task(self, blocking: _Blocking, group: Expr, first_k: Expr, first_c: Expr) -> None:
        """Sum over all blocks of positions, for one block of channels of y and of x."""
        geometry, plan, sizes = self.problem.geometry, self.plan, self.problem.y_sizes
        # Blocks that the channels do not fill only work on those that exist.
        k_count = emit.clamped_extent(first_k, geometry.k_per_group, plan.k_block)
        c_count = emit.clamped_extent(first_c, geometry.c_per_group, plan.c_block)
        elements = plan.k_block * plan.c_block * geometry.taps * plan.lanes
        acc = emit.scratch(elements, self.dtype)
        rows = emit.scratch(blocking.y.room(plan.k_block), self.dtype)
        panel = emit.scratch(blocking.x.room(plan.c_block), self.dtype)
        emit.fill(acc, 0, elements, emit.constant(0, self.dtype))
        task = _Task(blocking, k_count, c_count, rows, panel, acc)
        block = blocking.x.window.block

        for numbers in emit.grid(*(emit.ceil_div(p, b) for p, b in zip(sizes, block))):
            first = [i * b for i, b in zip(numbers, block)]
            valid = [emit.least(b, size - f) for b, size, f in zip(block, sizes, first)]
            k = group * geometry.k_per_group + first_k
            pack(blocking.y, rows, Source(self.y, k, k_count, sizes), first, valid)
            c = group * geometry.c_per_group + first_c
            pack(blocking.x, panel, Source(self.x, c, c_count, self.problem.x_sizes), first)
            for is_finite in emit.sides(self._is_finite(task)):
                if is_finite:
                    self._tiles(task)
                else:
                    self._one_by_one(task, valid)
        self._add_lanes(task, group, first_k, first_c)

    # ------------------------------------------------------------ infinities

    def _is_finite(self, task: _Task) -> Expr:
        """Return whether the packed x has no infinity and no NaN.

        Zeros in the halo of y would not silence them: they would reach weights whose taps never
        meet them.
        """
        if not self.dtype.startswith("float"):
            return True
        lanes = self.plan.lanes
        zero = emit.broadcast(emit.constant(0, self.dtype), lanes)
        # Zero at run time: TVM takes a product with a constant zero for zero.
        ((factor, at),) = emit.registers(1, lanes, self.dtype)
        emit.store(factor, at, zero)
        ((total, index),) = emit.registers(1, lanes, self.dtype)
        emit.store(total, index, zero)

        panel = task.blocking.x
        for v in emit.loop(emit.ceil_div(task.c_count * panel.slots * panel.pitch, lanes)):
            product_ = task.panel[emit.lanes_of(v * lanes, lanes)] * factor[at]
            emit.store(total, index, total[index] + product_)
        lanes_left: Expr = total[0]
        for lane in range(1, lanes):
            lanes_left = lanes_left + total[lane]
        return emit.let(lanes_left) == emit.constant(0, self.dtype)

    def _one_by_one(self, task: _Task, valid: Sequence[Expr]) -> None:
        """Add the products of the block, without those with the halo."""
        accesses, acc, (x, y, _) = self.problem.accesses, task.acc, task.blocking
        steps = x.window.steps
        for k, c, *tap in emit.grid(task.k_count, task.c_count, *self.problem.geometry.kernel):
            slots = [emit.let(access.slot_of(r)) for access, r in zip(accesses, (0, *tap))]
            shifts = [emit.let(access.shift_of(0, r)) for access, r in zip(accesses, (0, *tap))]
            source = emit.let(x.plane(c, slots) + x.shifted(shifts))
            into = emit.let(self._weight(k, c, tap))
            for position in emit.grid(*valid):
                flat = sum(i * step for i, step in zip(position, steps))
                term = task.rows[k * y.pitch + flat] * task.panel[source + flat]
                emit.store(acc, into, acc[into] + term)

    # ------------------------------------------------------------ tiles

    def _tiles(self, task: _Task) -> None:
        """Compute every register tile of the block, remainders included."""
        kernel, plan = self.problem.geometry.kernel, self.plan
        for c, cs in emit.tiles_then_ones(task.c_count, plan.c_tile):
            for row in emit.grid(*kernel[:-1]):
                for k, ks in emit.tiles_then_ones(task.k_count, plan.k_tile):
                    for first, taps in self._tap_tiles():
                        self._tile(task, (k, ks), (c, cs), (*row, first), taps)

    def _tap_tiles(self) -> Iterator[tuple[Expr, int]]:
        """Emit the tiles of taps along a row: written out, or a loop where they are many."""
        taps, size = self.problem.geometry.kernel[-1], self.plan.tap_tile
        full, rest = divmod(taps, size)
        for i in range(full) if full * size <= MOST_WRITTEN_OUT else emit.loop(full):
            yield i * size, size
        if rest:
            yield taps - rest, rest

    def _tile(
        self,
        task: _Task,
        ks: tuple[Expr, int],
        cs: tuple[Expr, int],
        tap: tuple[Expr, Expr, Expr],
        taps: int,
    ) -> None:
        """Add rows * panel over positions to [channels of y][channels of x][taps]."""
        lanes = self.plan.lanes
        tiles = list(product(range(ks[1]), range(cs[1]), range(taps)))
        registers = emit.registers(len(tiles), lanes, self.dtype)
        places = []
        for k, c, t in tiles:
            index = self._weight(ks[0] + k, cs[0] + c, (*tap[:2], tap[2] + t))
            places.append(emit.lanes_of(index, lanes))
        for (register, index), place in zip(registers, places):
            emit.store(register, index, task.acc[place])
        sources, panel = {}, task.blocking.x
        for c, t in product(range(cs[1]), range(taps)):
            numbers = (0, *tap[:2], tap[2] + t)
            accesses = self.problem.accesses
            slots = [access.slot_of(r) for access, r in zip(accesses, numbers)]
            shifts = [access.shift_of(0, r) for access, r in zip(accesses, numbers)]
            sources[c, t] = panel.plane(cs[0] + c, slots) + panel.shifted(shifts)
        places_of_y = [(ks[0] + k) * task.blocking.y.pitch for k in range(ks[1])]
        if not self.problem.is_static:
            sources = {at: emit.opaque_value(source) for at, source in sources.items()}
            places_of_y = [emit.opaque_value(place) for place in places_of_y]

        for v in emit.loop(task.blocking.vectors):
            for (k, c, t), (register, index) in zip(tiles, registers):
                y = task.rows[emit.lanes_of(places_of_y[k] + v * lanes, lanes)]
                x = task.panel[emit.lanes_of(sources[c, t] + v * lanes, lanes)]
                emit.store(register, index, register[index] + y * x)
        for (register, index), place in zip(registers, places):
            emit.store(task.acc, place, register[index])

    def _weight(self, k: Expr, c: Expr, tap: Sequence[Expr]) -> Expr:
        """Return where the lanes of one weight are."""
        index = k * self.plan.c_block + c
        for r, count in zip(tap, self.problem.geometry.kernel):
            index = index * count + r
        return index * self.plan.lanes

    # ------------------------------------------------------------ output

    def _add_lanes(self, task: _Task, group: Expr, first_k: Expr, first_c: Expr) -> None:
        for k, c, *tap in emit.grid(task.k_count, task.c_count, *self.problem.geometry.kernel):
            index = self._weight(k, c, tap)
            terms = [task.acc[index + lane] for lane in range(self.plan.lanes)]
            while len(terms) > 1:
                half = len(terms) // 2
                terms = [a + b for a, b in zip(terms[:half], terms[half:])]
            outer = group * self.problem.geometry.k_per_group + first_k + k
            into = self.out.at("OI" + TAPS, outer, first_c + c, *tap)
            total = emit.scratch(1, self.dtype)
            emit.store(total, 0, terms[0])
            emit.store(self.out, into, total.load(0, self.out.dtype))
