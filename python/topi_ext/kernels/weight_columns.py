# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_weight_grad`` for few positions: lanes run over the weights.

With few positions there is nothing to sum over and the weights are the work, so x is spread into
one row of columns (channel, tap) for each position, as the weights lie in memory::

    parallel (group, block of channels of x, split of the channels of y):
        for each position: x at every tap of every channel of the block   -> columns
        for each tile of `k_tile` channels of y:
            pack their values, position by position                       -> values
            for each tile of `vectors` vectors of columns:
                for each position:
                    accumulators[k_tile][vectors] += values * columns     -> held
            write the rows of weights                                     -> out
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from .. import emit
from ..emit import Array, Expr, Operand
from ..plan.cpu import ColumnsPlan, Problem
from . import DATA, TAPS
from .products import add_products
from .weight_grad import weight_function


def build(problem: Problem, plan: ColumnsPlan) -> Any:
    """The PrimFunc ``(x, y, out)`` of `problem`, scheduled by `plan`."""
    return weight_function(problem, lambda *operands: _Columns(problem, plan, *operands).emit())


class _Columns:
    """One kernel while it is being emitted."""

    def __init__(self, problem: Problem, plan: ColumnsPlan, x: Operand, y: Operand, out: Operand):
        self.problem, self.plan = problem, plan
        self.x, self.y, self.out = x, y, out
        self.dtype = problem.acc_dtype
        self.vectors = -(-plan.c_block * problem.geometry.taps // plan.lanes)
        self.row = self.vectors * plan.lanes
        self.weights = ("I" + TAPS, (problem.geometry.c_per_group, *problem.geometry.kernel))
        # Whole tiles whose rows lie in memory as the columns do need no intermediate copy.
        self.direct = (
            out.is_run(*self.weights)
            and out.dtype == self.dtype
            and problem.geometry.k_per_group % plan.k_tile == 0
            and problem.geometry.c_per_group % plan.c_block == 0
            and plan.c_block * problem.geometry.taps == self.row
        )

    def emit(self) -> None:
        """The whole kernel."""
        geometry, plan = self.problem.geometry, self.plan
        blocks = -(-geometry.c_per_group // plan.c_block)
        tiles = -(-geometry.k_per_group // plan.k_tile)
        per_split = -(-tiles // plan.splits)
        extents = (geometry.groups, blocks, plan.splits)
        with emit.tasks(prod(extents), plan.parallel) as task:
            group, block, split = map(emit.let, emit.unravel(task, extents))
            first_c = block * plan.c_block
            count: Expr = plan.c_block
            if geometry.c_per_group % plan.c_block:
                count = emit.let(emit.least(count, geometry.c_per_group - first_c))
            columns = emit.scratch(plan.positions * self.row, self.dtype)
            values = emit.scratch(plan.positions * plan.k_tile, self.dtype)
            if not self.direct:
                held = emit.scratch(plan.k_tile * self.row, self.dtype)
            self._spread(columns, group * geometry.c_per_group + first_c, count)

            def tile(i: Expr) -> None:
                first_k = (split * per_split + i) * plan.k_tile
                self._values(values, group, first_k)
                k = group * geometry.k_per_group + first_k
                if self.direct:
                    rows = [self.out.at("OI", k + o, first_c) for o in range(plan.k_tile)]
                    self._products(values, columns, self.out, rows)
                else:
                    rows = [o * self.row for o in range(plan.k_tile)]
                    self._products(values, columns, held, rows)
                    self._write(held, k, geometry.k_per_group - first_k, first_c, count)

            def numbered(i: Expr) -> None:
                inside = True if tiles % plan.splits == 0 else split * per_split + i < tiles
                emit.when(inside, lambda: tile(i))

            emit.loop(per_split, numbered)

    def _spread(self, columns: Array, channel: Expr, count: Expr) -> None:
        """columns[position][channel][taps]: x where the tap meets the position, or zero."""
        problem = self.problem
        zero = emit.constant(0, self.dtype)

        def element(*where: Expr) -> None:
            position, (c, *taps) = where[:4], where[4:]
            steps = zip(position[1:], taps, problem.gathers[1:])
            at = [
                p * gather.stride + r * gather.dilation - gather.pad_before
                for p, r, gather in steps
            ]
            inside = emit.both(
                *(test for i, size in zip(at, problem.x_sizes[1:]) for test in (i >= 0, i < size))
            )
            index: Expr = 0
            for p, size in zip(position, problem.y_sizes):
                index = index * size + p
            column = c
            for r, size in zip(taps, problem.geometry.kernel):
                column = column * size + r
            value = emit.choose(
                inside,
                lambda: self.x.load(
                    self.x.at("C" + DATA, channel + c, position[0], *at), self.dtype
                ),
                zero,
            )
            emit.store(columns, index * self.row + column, value)

        # Columns that no weight reads are computed and dropped: they only have to be numbers.
        emit.fill(columns, 0, self.plan.positions * self.row, zero)
        emit.nest((*problem.y_sizes, count, *problem.geometry.kernel), element)

    def _values(self, values: Array, group: Expr, first_k: Expr) -> None:
        """values[position][k_tile] of y; channels beyond the last repeat it."""
        geometry, k_tile = self.problem.geometry, self.plan.k_tile

        def element(o: Expr, *position: Expr) -> None:
            k = first_k + o
            if geometry.k_per_group % k_tile:
                k = emit.least(k, geometry.k_per_group - 1)
            index: Expr = 0
            for p, size in zip(position, self.problem.y_sizes):
                index = index * size + p
            source = self.y.at("C" + DATA, group * geometry.k_per_group + k, *position)
            emit.store(values, index * k_tile + o, self.y.load(source, self.dtype))

        emit.nest((k_tile, *self.problem.y_sizes), element)

    def _products(self, values: Array, columns: Array, held: Array, rows: Sequence[Expr]) -> None:
        """held[rows[o]][column] = sum over positions of values * columns."""
        plan = self.plan
        lanes, width = plan.lanes, plan.vectors * plan.lanes

        def tile(start: Expr, vectors: int) -> None:
            places = [row + start for row in rows]
            add_products(
                (plan.positions,),
                values,
                lambda o, p: p * plan.k_tile + o,
                columns,
                lambda p: p * self.row + start,
                held,
                places,
                vectors,
                lanes,
                fresh=True,
            )

        full, tail = divmod(self.vectors, plan.vectors)
        emit.loop(full, lambda i: tile(i * width, plan.vectors))
        if tail:
            tile(full * width, tail)

    def _write(self, held: Array, k: Expr, present: Expr, first_c: Expr, count: Expr) -> None:
        """The rows of one tile, in one run where the weights lie in memory as the columns do."""
        geometry = self.problem.geometry

        def row(o: Expr) -> None:
            def element(c: Expr, *taps: Expr) -> None:
                column = c
                for r, size in zip(taps, geometry.kernel):
                    column = column * size + r
                into = self.out.at("O" + self.weights[0], k + o, first_c + c, *taps)
                emit.store(self.out, into, held.load(o * self.row + column, self.out.dtype))

            def run(i: Expr) -> None:
                into = self.out.at("OI", k + o, first_c) + i
                emit.store(self.out, into, held.load(o * self.row + i, self.out.dtype))

            if self.out.is_run(*self.weights):
                emit.loop(count * geometry.taps, run)
            else:
                emit.nest((count, *geometry.kernel), element)

        whole = geometry.k_per_group % self.plan.k_tile == 0
        emit.loop(
            self.plan.k_tile, lambda o: emit.when(True if whole else o < present, lambda: row(o))
        )
