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

In the matrix product, M are output channels, N positions, K input channels and taps.  Left, the
weights as the user stores them; right, `columns` ``[position][input channel][tap]`` of im2col: the
lanes run along K in both.

If the number of positions is not known, a task takes one N-block after the other, of as many
positions as its `room` holds.

Weights of float16 and bfloat16 are widened as they are read; of other dtypes than the sums they are
copied first, those of one tile of channels at a time, and bfloat16 where TVM reads no LLVM text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import product
from math import prod
from typing import NamedTuple

from ... import compat
from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..isa import widening
from ..parts.copies import copy
from ..parts.im2col import copy_column
from ..parts.output_rows import Result, Rows
from ..parts.pack_panel import Source
from ..plan.dot_product import DotProductPlan


def kernel_of(
    problem: Convolution, plan: DotProductPlan, operands: Sequence[Operand]
) -> DotProduct:
    """Return the emitter of the kernel, with the arguments of the PrimFunc as `operands`."""
    x, weight, *extra, out = operands
    positions = emit.opaque_value(prod(problem.y_sizes))
    return DotProduct(problem, plan, positions, x, weight, Result(problem, out, extra))


class _NBlock(NamedTuple):
    """A block of positions.

    Attributes
    ----------
    columns : Array
        The elements of x that they read.
    weights : Array, optional
        Memory for the weights of a tile of channels, if they are copied.
    first, count : Expr
        The first position, and how many.
    """

    columns: Array
    weights: Array | None
    first: Expr
    count: Expr


class DotProduct:
    """The emitter of one kernel."""

    def __init__(
        self,
        problem: Convolution,
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
        """Return whether the kernel can run: its N-blocks fit into any room."""
        return True

    def emit(self) -> None:
        """Emit the whole kernel."""
        with widening.instructions(self.plan.lanes) if self.widens else nullcontext():
            self._tasks()

    def _tasks(self) -> None:
        """Emit all tasks."""
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
            for begin, present in self._n_blocks():
                n_block = _NBlock(columns, weights, begin, present)
                self._copy_columns(n_block, group)
                for o, size in emit.tiles_or_ones(count, plan.channels):
                    # After the last channel, the last one is repeated.
                    numbers = [first + emit.least(o + i, count - 1) for i in range(size)]
                    self._channels(n_block, numbers)

    def _n_blocks(self) -> Iterator[tuple[Expr, Expr]]:
        """Emit ``for first, count in self._n_blocks()``: a loop over blocks of positions, all but
        the last of the same size."""
        if self.problem.is_static:
            yield 0, self.positions
            return
        blocks = emit.opaque_value(emit.ceil_div(self.positions, self.plan.room))
        each = emit.opaque_value(emit.ceil_div(self.positions, emit.most(blocks, 1)))
        for i in emit.loop(blocks):
            first = emit.opaque_value(i * each)
            yield first, emit.opaque_value(emit.least(each, self.positions - first))

    def _copy_columns(self, n_block: _NBlock, group: Expr) -> None:
        """Copy columns[position][input channel][tap] of an N-block."""
        problem, channels = self.problem, self.problem.in_channels
        for number in emit.loop(n_block.count):
            digits = emit.unravel(n_block.first + number, problem.y_sizes)
            at, position = number * self.pitch, [self.number_of(digit) for digit in digits]
            source = Source(self.x, group * channels, channels, problem.x_sizes)
            copy_column(problem, source, n_block.columns, at, position, self.plan.lanes)

    def _channels(self, n_block: _NBlock, numbers: Sequence[Expr]) -> None:
        """Compute all positions of the output channels of these numbers."""
        rows = [emit.opaque_base(self.weight.at("O", number)) for number in numbers]
        source: Array = self.weight
        if n_block.weights is not None:
            source = n_block.weights
            for i, start in enumerate(rows):
                copy(source, i * self.pitch, self.weight, start, self.terms, self.plan.lanes)
            rows = [i * self.pitch for i in range(len(numbers))]
        tiles = emit.tiles if self.problem.is_static else emit.tiles_then_ones
        for position, size in tiles(n_block.count, self.plan.m_tile):
            self._tile(n_block, source, rows, numbers, position, size)

    def _tile(
        self,
        n_block: _NBlock,
        source: Array,
        rows: Sequence[Expr],
        numbers: Sequence[Expr],
        position: Expr,
        size: int,
    ) -> None:
        """accumulators[channels][positions] += weights * columns; write the sums of their lanes."""
        lanes = self.plan.lanes
        tile = list(product(range(len(rows)), range(size)))
        accumulators = dict(zip(tile, emit.registers(len(tile), lanes, self.dtype)))
        zero = emit.broadcast(emit.constant(0, self.dtype), lanes)
        for register, index in accumulators.values():
            emit.store(register, index, zero)
        columns = [(position + p) * self.pitch for p in range(size)]
        for i in emit.loop(self.terms // lanes):
            values = [
                emit.let(n_block.columns[emit.lanes_of(column + i * lanes, lanes)])
                for column in columns
            ]
            for o, row in enumerate(rows):
                weights = emit.let(self._vector(source, row + i * lanes))
                for p, value in enumerate(values):
                    register, index = accumulators[o, p]
                    emit.store(register, index, register[index] + weights * value)
        rest = self.terms % lanes
        for (o, p), (register, index) in accumulators.items():
            added = self._added(register[index])
            total = emit.scratch(1, self.dtype)
            emit.store(total, 0, added)
            for i in emit.loop(rest):
                term = self.terms - rest + i
                value = n_block.columns[columns[p] + term]
                weight = source.load(rows[o] + term, self.dtype)
                if source.dtype != self.dtype:
                    weight = emit.via_memory(weight, self.dtype)
                emit.store(total, 0, total[0] + weight * value)
            self._write(numbers[o], n_block.first + position + p, total[0])

    def _vector(self, source: Array, start: Expr) -> Expr:
        """Load a vector of weights in the dtype of the sums."""
        lanes = self.plan.lanes
        if self.widens:
            value, dtype = widening.widened(source, start, lanes), "float32"
        else:
            value, dtype = source[emit.lanes_of(start, lanes)], source.dtype
        return value if dtype == self.dtype else source.converted(value, self.dtype, lanes)

    def _added(self, vector: Expr) -> Expr:
        """Return the sum of all lanes, half by half."""
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
        """Write the sum of a channel at a position."""
        *outer, last = map(self.number_of, emit.unravel(position, self.problem.y_sizes))
        self.rows.row(channel, (*outer, 0)).put(last, value)
