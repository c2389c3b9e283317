# SPDX-License-Identifier: Apache-2.0
"""The kernel where taps meet padding: each runs over those positions alone where it meets data.

Of a dilation that is a third of the image, four of nine taps meet padding at a position.  Vectors
of positions could not leave these out, since their lanes differ in it.  So lanes run over the
output channels, values of the data are broadcast, and each tap has its own rectangle of positions::

    parallel (group, split of output channels, image, block of rows):
        for each chunk of `depth` input channels:
            for each row of taps: copy the rows of data that it meets         -> inputs
            for each block of `vectors` vectors of output channels:
                copy its weights, unless they come packed                     -> weights
                for each tap, each row of positions where it meets data:
                    for each tile of `m_tile` positions:
                        for each input channel:
                            accumulators[m_tile][vectors] += inputs * weights -> sums
        for each block of output channels: turn its sums, row by row          -> out

Tasks copy their weights for themselves: lines that another core wrote are slow to read.

It serves ``conv``, and ``conv_transpose`` without a stride, whose taps run the other way.  Padding
is never multiplied, so it has no effect, whatever the weights are.  Of images of symbolic size a
task has about as many rows as its room holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from ...emit.arguments import Packed, conv_arguments, packed_weight, stored_weight, tap_number
from ...problem import DATA, Problem
from .. import emit
from ..emit import ATTRIBUTES, Array, Expr, Operand
from ..parts.block_weights import BlockWeights
from ..parts.copies import copy
from ..parts.outer_product import add_products
from ..parts.output_rows import Result
from ..parts.transpose import transpose_squares
from ..plan.valid_taps import ValidTapsPlan
from ..plan.vectors import square_side


def build(problem: Problem, plan: ValidTapsPlan) -> Any:
    """The PrimFunc ``(data, weight, *operands of the epilogue, out)``, scheduled by `plan`."""
    with emit.kernel(ATTRIBUTES) as made:
        packed = packed_weights(problem, plan) if problem.prepacked else None
        with emit.body(*conv_arguments(problem, packed)) as operands:
            emit_body(problem, plan, operands)
    return made[0]


def emit_body(problem: Problem, plan: ValidTapsPlan, operands: Sequence[Operand]) -> None:
    """What that PrimFunc does, with its arguments as `operands`."""
    kernel_of(problem, plan, operands).emit()


def kernel_of(problem: Problem, plan: ValidTapsPlan, operands: Sequence[Operand]) -> ValidTaps:
    """The kernel with these arguments."""
    data, weight, *extra, out = operands
    return ValidTaps(problem, plan, weight, data, Result(problem, out, extra))


def is_prepacked(problem: Problem, plan: ValidTapsPlan) -> bool:
    """Whether the kernel wants its weights as :func:`build_packing` writes them."""
    return problem.prepacked


def build_packing(problem: Problem, plan: ValidTapsPlan) -> Any:
    """The PrimFunc ``(weight, packed)`` that packs weights for the kernel of the same plan."""
    with emit.kernel(ATTRIBUTES) as made:
        arguments = stored_weight(problem), packed_weight(packed_weights(problem, plan))
        with emit.body(*arguments) as (weight, packed):
            ValidTaps(problem, plan, weight).pack_weights(packed)
    return made[0]


def packed_weights(problem: Problem, plan: ValidTapsPlan) -> Packed:
    """What the packed weights are."""
    return Packed(plan.packed(problem), problem.acc_dtype)


class ValidTaps:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Problem,
        plan: ValidTapsPlan,
        weight: Operand,
        data: Operand | None = None,
        result: Result | None = None,
    ):
        self.problem, self.plan, self.weight = problem, plan, weight
        self.data, self.result = data, result
        self.dtype = problem.acc_dtype
        self.channels = plan.vectors * plan.lanes
        self.blocks = plan.blocks(problem)
        self.per_split = -(-self.blocks // plan.channel_splits)
        self.chunks = -(-problem.in_channels // plan.depth)
        self.kernel = problem.geometry.kernel
        self.number_of = emit.let if problem.is_static else emit.opaque_value

    def fits(self) -> Expr:
        """Whether there is room: tasks size what they hold."""
        return True

    def emit(self) -> None:
        """The whole kernel."""
        problem, plan = self.problem, self.plan
        images, *rows, self.width = map(emit.opaque_value, problem.positions)
        self.rows: Sequence[Expr] = plan.rows
        if plan.room:
            height = plan.rows_of(rows[1], self.width, emit.quotient, emit.most)
            self.rows = 1, emit.opaque_value(height)
        self.pitch = emit.opaque_value(plan.pitch(problem, self.rows))
        # Sums of a block of output channels.
        self.block_sums = emit.opaque_value(prod(self.rows) * self.width * self.channels)
        counts = [
            emit.opaque_value(emit.ceil_div(size, part)) for size, part in zip(rows, self.rows)
        ]
        # Images and rows of the same weights are one thread's, if possible.
        extents = (problem.geometry.groups, plan.channel_splits, images, *counts)
        with emit.tasks(prod(extents), plan.parallel) as task:
            digits = emit.unravel(task, extents)
            self.group, split, self.image, *numbers = map(self.number_of, digits)
            self.first = [self.number_of(i * part) for i, part in zip(numbers, self.rows)]
            bounds = zip(self.first, rows, self.rows)
            self.present = [self.number_of(emit.clamped_extent(*bound)) for bound in bounds]
            self._task(split)

    def pack_weights(self, packed: Array) -> None:
        """packed[group][block][tap][input channel][channels]."""
        copied, groups = self._copied(self.problem.in_channels), self.problem.geometry.groups
        with emit.tasks(groups * self.blocks, self.plan.parallel) as task:
            group, block = map(emit.let, emit.unravel(task, (groups, self.blocks)))
            copied.copy(packed, group, block, 0, emit.opaque_base(task * copied.elements))

    def _copied(self, count: int) -> BlockWeights:
        """The weights of a block and of `count` input channels."""
        problem, lanes = self.problem, self.plan.lanes
        return BlockWeights(problem, self.weight, self.channels, self.blocks, count, lanes)

    # ------------------------------------------------------------ one task

    def _task(self, split: Expr) -> None:
        plan, channels, zero = self.plan, self.problem.in_channels, emit.constant(0, self.dtype)
        holds_all = self.chunks > 1
        room = self.block_sums * (self.per_split if holds_all else 1)
        inputs = emit.scratch(plan.depth * self.pitch, self.dtype)
        sums = emit.scratch(room, self.dtype)
        copied = self._copied(plan.depth)
        weights: Array = self.weight
        if not self.problem.prepacked:
            weights = emit.scratch(copied.elements, self.dtype)

        def blocks(step: Callable[[Expr, Expr], None]) -> None:
            """``step(block, where its sums are)`` for the blocks of this split."""

            def numbered(i: Expr) -> None:
                number = split * self.per_split + i
                inside = True if self.blocks % plan.channel_splits == 0 else number < self.blocks
                emit.when(inside, lambda: step(number, i * self.block_sums if holds_all else 0))

            emit.loop(self.per_split, numbered)

        def weights_of(number: Expr, first: Expr) -> tuple[Expr, int]:
            """Where those of a block and chunk begin, and how far taps are apart."""
            if self.problem.prepacked:
                pitch = channels * self.channels
                block = self.group * self.blocks + number
                place = block * (self.problem.geometry.taps * pitch) + first * self.channels
                return emit.let(place), pitch
            # The last chunk may be a smaller one: all of its room is filled.
            begin = (
                first if channels % plan.depth == 0 else emit.least(first, channels - plan.depth)
            )
            copied.copy(weights, self.group, number, begin)
            return emit.let((first - begin) * self.channels), copied.pitch

        def chunk(i: Expr) -> None:
            first = emit.let(i * plan.depth)
            count = emit.clamped_extent(first, channels, plan.depth)
            self._copy_inputs(inputs, first, count)

            def block(number: Expr, place: Expr) -> None:
                if not holds_all:
                    emit.fill(sums, 0, self.block_sums, zero)
                self._products(inputs, weights, *weights_of(number, first), sums, place, count)
                if not holds_all:
                    self._write(sums, place, number)

            blocks(block)

        if holds_all:
            emit.fill(sums, 0, room, zero)
        emit.loop(self.chunks, chunk)
        if holds_all:
            blocks(lambda number, place: self._write(sums, place, number))

    def _met(self, axis: int, tap: Expr) -> tuple[Expr, Expr]:
        """The first position of the block, and how many, where a tap meets data along an axis."""
        gather, size = self.problem.gathers[axis], self.problem.in_sizes[axis]
        low, high = gather.meets(tap, self.problem.positions[axis], size, emit.most, emit.least)
        start, count = (*zip(self.first, self.present), (0, self.width))[axis - 1]
        begin = self.number_of(emit.most(low - start, 0))
        return begin, self.number_of(emit.most(emit.least(high - start, count) - begin, 0))

    def _row_of(self, taps: Sequence[Expr], rows: Sequence[Expr]) -> Expr:
        """inputs[...][depth tap][height tap][depth row][height row][width]: where a row begins."""
        index: Expr = 0
        for i, extent in zip((*taps, *rows), (*self.kernel[:2], *self.rows)):
            index = index * extent + i
        return index * self.problem.in_sizes[-1]

    def _copy_inputs(self, inputs: Array, first: Expr, count: Expr) -> None:
        """The rows of data that each row of taps meets, of `count` input channels."""
        problem, plan = self.problem, self.plan
        channel = self.group * problem.in_channels + first
        gathers, step = problem.gathers, self.data.strides[DATA[-1]]
        # Rows that follow each other are copied together.
        joined = isinstance(self.width, int) and gathers[2].in_step == 1
        joined = joined and self.data.is_run(DATA[-2:])

        def of_taps(*taps: Expr) -> None:
            begins, counts = zip(*(self._met(axis + 1, tap) for axis, tap in enumerate(taps)))
            width = problem.in_sizes[-1]
            length = emit.let(counts[1] * width) if joined else width

            def run(c: Expr, *numbers: Expr) -> None:
                rows = [begin + i for begin, i in zip(begins, numbers)]
                where = [
                    gather.reads_at(tap, start + r)
                    for gather, tap, start, r in zip(gathers[1:], taps, self.first, rows)
                ]
                source = self.data.at("C" + DATA, channel + c, self.image, *where, 0)
                into = emit.opaque_base(c * self.pitch + self._row_of(taps, rows))
                copy(inputs, into, self.data, emit.opaque_base(source), length, plan.lanes, step)

            runs = (counts[0], 1) if joined else counts
            emit.nest((count, *runs), run)

        emit.nest(self.kernel[:2], of_taps)

    def _products(
        self,
        inputs: Array,
        weights: Array,
        first: Expr,
        pitch: int,
        sums: Array,
        place: Expr,
        count: Expr,
    ) -> None:
        """sums[row][position][channels] of a block of output channels, from `place` on.

        The weights of its first tap begin at `first`, those of the next one `pitch` behind.
        """
        problem, plan, last = self.problem, self.plan, self.problem.gathers[-1]
        steps = None if isinstance(self.pitch, int) else (self.pitch, self.channels)

        def of_tap(*taps: Expr) -> None:
            axes = [self._met(axis + 1, tap) for axis, tap in enumerate(taps)]
            begins = [begin for begin, _ in axes]
            start = emit.let(first + tap_number(problem, taps) * pitch)

            def of_row(*numbers: Expr) -> None:
                rows = [begin + i for begin, i in zip(begins, numbers)]
                read = self._row_of(taps[:2], rows) + last.reads_at(taps[-1], begins[-1])
                read = emit.opaque_base(read)
                flat = (rows[0] * self.rows[1] + rows[1]) * self.width + begins[-1]
                into = emit.opaque_base(place + flat * self.channels)

                def tile(p: Expr, size: int) -> None:
                    add_products(
                        (count,),
                        inputs,
                        lambda o, c: read + (c * self.pitch + (p + o) * last.in_step),
                        weights,
                        lambda c: start + c * self.channels,
                        sums,
                        [into + (p + o) * self.channels for o in range(size)],
                        plan.vectors,
                        plan.lanes,
                        fresh=False,
                        steps=steps,
                    )

                emit.tiles_then_ones(axes[-1][1], plan.m_tile, tile)

            emit.nest([n for _, n in axes[:-1]], of_row)

        emit.nest(self.kernel, of_tap)

    # ------------------------------------------------------------ output

    def _write(self, sums: Array, place: Expr, block: Expr) -> None:
        """Turn the sums of a block: a row of positions and a vector of channels at a time."""
        problem, plan, lanes = self.problem, self.plan, self.plan.lanes
        transposed = emit.scratch(lanes * self.width, self.dtype)
        side = square_side(self.width, lanes) if isinstance(self.width, int) else lanes

        def vector(v: Expr, *rows: Expr) -> None:
            flat = (rows[0] * self.rows[1] + rows[1]) * self.width
            source = emit.opaque_base(place + flat * self.channels + v * lanes)

            def square(number: Expr) -> None:
                p = emit.let(emit.least(number * side, self.width - side))
                starts = [emit.opaque_base(source + (p + i) * self.channels) for i in range(side)]
                transpose_squares(
                    transposed, p, self.width, starts, side, lanes,
                    lambda at: emit.let(sums[emit.lanes_of(at, side)]),
                )  # fmt: skip

            def element(k: Expr, p: Expr) -> None:
                emit.store(transposed, k * self.width + p, sums[source + p * self.channels + k])

            emit.when(
                emit.both(side > 0, self.width >= side),
                lambda: emit.loop(emit.ceil_div(self.width, side), square),
                lambda: emit.nest((lanes, self.width), element),
            )
            first = emit.let(block * self.channels + v * lanes)
            count = emit.let(emit.most(emit.least(problem.out_channels - first, lanes), 0))
            where = [self.image, *(start + r for start, r in zip(self.first, rows)), 0]
            emit.loop(count, partial(channel, emit.let(first), where))

        def channel(first: Expr, where: Sequence[Expr], k: Expr) -> None:
            number = self.group * problem.out_channels + first + k
            row = self.result.row(number, where)
            source = emit.opaque_base(k * self.width)
            row.put_all(0, transposed, source, self.width, lanes)
            row.end(self.width)

        emit.nest((plan.vectors, *self.present), vector)
