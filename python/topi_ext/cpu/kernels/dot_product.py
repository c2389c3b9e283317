# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` for few positions: inner products with rows of weights.

With fewer positions than a vector has lanes, vectors of positions would be mostly padding.  So
lanes run over the weights of an output channel as they lie in memory, (input channel, tap), and
over what each position reads, in the same order::

    parallel (group, block of output channels):
        for each position, each input channel, each tap: copy what it reads     -> columns
        for each tile of `channels` output channels, each tile of `m_tile` positions:
            for each vector of weights:
                accumulators[channels][m_tile] += weights * columns
            add up the lanes of each accumulator                                -> out

Of the matrix product, M are output channels, N positions, K input channels and taps.  Left, the
weights as the user stores them; right, `columns` ``[position][input channel][tap]`` of im2col: the
lanes run along K in both.

Where it is not known how many positions there are, it takes as many at a time as there is `room`
for.

Weights of float16 and bfloat16 are widened as they are read; of other dtypes than the sums they are
copied first, those of one tile of channels at a time, and bfloat16 where TVM reads no LLVM text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from ... import compat
from ...problem import Problem
from .. import emit
from ..emit import Array, Expr, Operand
from ..isa import widening
from ..parts.copies import copy
from ..parts.im2col import copy_column
from ..parts.output_rows import Result, Rows
from ..parts.pack_panel import Source
from ..plan.dot_product import DotProductPlan


def kernel_of(problem: Problem, plan: DotProductPlan, operands: Sequence[Operand]) -> DotProduct:
    """The kernel with the arguments of the PrimFunc as `operands`."""
    x, weight, *extra, out = operands
    positions = emit.opaque_value(prod(problem.y_sizes))
    return DotProduct(problem, plan, positions, x, weight, Result(problem, out, extra))


class _Part(NamedTuple):
    """Some positions of a task.

    Attributes
    ----------
    columns : Array
        What they read.
    weights : Array, optional
        Room for the weights of a tile of channels, if they are copied.
    begin, present : Expr
        The first position, and how many.
    """

    columns: Array
    weights: Array | None
    begin: Expr
    present: Expr


class DotProduct:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Problem,
        plan: DotProductPlan,
        positions: Expr,
        x: Operand,
        weight: Operand,
        result: Result,
    ):
        self.problem, self.plan, self.positions = problem, plan, positions
        self.x, self.weight, self.rows = x, weight, Rows(result)
        self.dtype = problem.acc_dtype
        self.terms = problem.in_channels * problem.geometry.taps
        self.pitch = plan.pitch(problem)
        self.number_of = emit.let if problem.is_static else emit.opaque_value
        self.widens = weight.dtype == "bfloat16" and compat.reads_llvm()
        self.is_copied = not self.widens and weight.dtype not in (self.dtype, "float16")

    def fits(self) -> Expr:
        """Whether there is room: it takes as many positions at a time as there is room for."""
        return True

    def emit(self) -> None:
        """The whole kernel."""
        with widening.instructions(self.plan.lanes) if self.widens else nullcontext():
            self._all_channels()

    def _all_channels(self) -> None:
        plan, g = self.plan, self.problem.geometry
        room = self.positions if self.problem.is_static else plan.room
        blocks = -(-g.k_per_group // plan.k_block)
        with emit.tasks(g.groups * blocks, plan.parallel) as task:
            group, block = map(emit.let, emit.unravel(task, (g.groups, blocks)))
            columns, weights = emit.scratch(room * self.pitch, self.dtype), None
            if self.is_copied:
                weights = emit.scratch(plan.channels * self.pitch, self.dtype)
            first = block * plan.k_block
            count = emit.clamped_extent(first, g.k_per_group, plan.k_block)
            first = emit.let(group * g.k_per_group + first)

            def of_part(begin: Expr, present: Expr) -> None:
                part = _Part(columns, weights, begin, present)
                self._copy_columns(part, group)
                emit.tiles_or_ones(
                    count,
                    plan.channels,
                    lambda o, size: self._channels(part, first, o, size, count),
                )

            self._over_parts(of_part)

    def _over_parts(self, part: Callable[[Expr, Expr], None]) -> None:
        """``part(first, count)`` for parts of the positions, all but the last of the same size."""
        if self.problem.is_static:
            part(0, self.positions)
            return
        parts = emit.opaque_value(emit.ceil_div(self.positions, self.plan.room))
        each = emit.opaque_value(emit.ceil_div(self.positions, emit.most(parts, 1)))

        def numbered(i: Expr) -> None:
            begin = emit.opaque_value(i * each)
            part(begin, emit.opaque_value(emit.least(each, self.positions - begin)))

        emit.loop(parts, numbered)

    def _copy_columns(self, part: _Part, group: Expr) -> None:
        """columns[position][input channel][tap] of one part."""
        problem, channels = self.problem, self.problem.in_channels

        def position(number: Expr) -> None:
            digits = emit.unravel(part.begin + number, problem.y_sizes)
            at, place = number * self.pitch, [self.number_of(digit) for digit in digits]
            source = Source(self.x, group * channels, channels, problem.x_sizes)
            copy_column(problem, source, part.columns, at, place, self.plan.lanes)

        emit.loop(part.present, position)

    def _channels(self, part: _Part, first: Expr, o: Expr, size: int, count: Expr) -> None:
        """All positions of some output channels; beyond the last, the last again."""
        numbers = [first + emit.least(o + i, count - 1) for i in range(size)]
        rows = [emit.opaque_base(self.weight.at("O", number)) for number in numbers]
        source: Array = self.weight
        if self.is_copied:
            source = part.weights
            for i, start in enumerate(rows):
                copy(source, i * self.pitch, self.weight, start, self.terms, self.plan.lanes)
            rows = [i * self.pitch for i in range(size)]
        tile = partial(self._tile, part, source, rows, numbers)
        if self.problem.is_static:
            emit.tiles(part.present, self.plan.m_tile, tile)
        else:
            emit.tiles_then_ones(part.present, self.plan.m_tile, tile)

    def _tile(
        self,
        part: _Part,
        source: Array,
        rows: Sequence[Expr],
        numbers: Sequence[Expr],
        m: Expr,
        size: int,
    ) -> None:
        """accumulators[channels][positions] += weights * columns, and what they add up to."""
        lanes = self.plan.lanes
        tile = list(product(range(len(rows)), range(size)))
        accumulators = dict(zip(tile, emit.registers(len(tile), lanes, self.dtype)))
        zero = emit.broadcast(emit.constant(0, self.dtype), lanes)
        for register, index in accumulators.values():
            emit.store(register, index, zero)

        def term(i: Expr) -> None:
            values = [
                emit.let(part.columns[emit.lanes_of((m + p) * self.pitch + i * lanes, lanes)])
                for p in range(size)
            ]
            for o, row in enumerate(rows):
                weights = emit.let(self._vector(source, row + i * lanes))
                for p, value in enumerate(values):
                    register, index = accumulators[o, p]
                    emit.store(register, index, register[index] + weights * value)

        emit.loop(self.terms // lanes, term)
        rest = self.terms % lanes
        for (o, p), (register, index) in accumulators.items():
            added = self._added(register[index])
            total = emit.scratch(1, self.dtype)
            emit.store(total, 0, added)

            def left(i: Expr, o: int = o, p: int = p, total: Array = total) -> None:
                place = self.terms - rest + i
                value = part.columns[(m + p) * self.pitch + place]
                weight = source.load(rows[o] + place, self.dtype)
                if source.dtype != self.dtype:
                    weight = emit.via_memory(weight, self.dtype)
                emit.store(total, 0, total[0] + weight * value)

            emit.loop(rest, left)
            self._write(numbers[o], part.begin + m + p, total[0])

    def _vector(self, source: Array, start: Expr) -> Expr:
        """Neighbours, in the dtype of the sums."""
        lanes = self.plan.lanes
        if self.widens:
            value, dtype = widening.widened(source, start, lanes), "float32"
        else:
            value, dtype = source[emit.lanes_of(start, lanes)], source.dtype
        return value if dtype == self.dtype else source.converted(value, self.dtype, lanes)

    def _added(self, vector: Expr) -> Expr:
        """The sum of all lanes, half by half."""
        count = self.plan.lanes
        while count > 2:
            count //= 2
            both = emit.let(vector)
            halves = (emit.shuffled([both], range(at, at + count)) for at in (0, count))
            low, high = halves
            vector = low + high
        ((pair, index),) = emit.registers(1, 2, self.dtype)
        emit.store(pair, index, vector)
        return pair[0] + pair[1]

    def _write(self, channel: Expr, position: Expr, value: Expr) -> None:
        *outer, last = map(self.number_of, emit.unravel(position, self.problem.y_sizes))
        self.rows.row(channel, (*outer, 0)).put(last, value)
