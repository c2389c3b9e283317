# SPDX-License-Identifier: Apache-2.0
"""The kernel for much padding: each tap runs only over the positions where it meets data.

With a dilation of a third of the image, four of nine taps meet padding at a position.  Vectors
of positions could not leave these out, since their lanes differ in it.  So lanes run over the
output channels, values of the data are broadcast, and each tap has its own rectangle of positions::

    parallel (group, split of output channels, image, block of rows):
        for each K-block of `depth` input channels:
            for each row of taps: copy the rows of data that it meets         -> inputs
            for each block of `vectors` vectors of output channels:
                copy its weights, unless they come packed                     -> weights
                for each tap, each row of positions where it meets data:
                    for each tile of `m_tile` positions:
                        for each input channel:
                            accumulators[m_tile][vectors] += inputs * weights -> acc
        for each block of output channels: transpose its sums, row by row     -> out

In the matrix product of a tap, M are the positions where it meets data, N output channels, K input
channels.  Left, `inputs` ``[input channel][row of taps][row][width]``, each broadcast; right,
`weights` ``[tap][input channel][lanes]``.

Tasks copy their weights for themselves: lines that another core wrote are slow to read.

It serves ``conv``, and ``conv_transpose`` without a stride, whose taps run the other way.  Padding
is never multiplied, so it has no effect, whatever the weights are.  Of images of symbolic size a
task has about as many rows as its room holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

from ...emit.arguments import Packed, tap_number
from ...spec.conv import DATA, Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts import prefetch
from ..parts.block_weights import BlockWeights
from ..parts.copies import copy
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.output_rows import Result, Rows
from ..parts.splits import Splits
from ..parts.transpose import Pitched, transpose_squares
from ..plan.valid_taps import ValidTapsPlan
from ..plan.vectors import square_side


def emit_body(problem: Convolution, plan: ValidTapsPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    data, weight, *extra, out = operands
    ValidTaps(problem, plan, weight, data, Result(problem, out, extra)).emit()


def packed_weights(problem: Convolution, plan: ValidTapsPlan) -> Packed:
    """Return size and dtype of the packed weights."""
    return Packed(plan.packed(problem), problem.acc_dtype)


def pack_weights(
    problem: Convolution, plan: ValidTapsPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of the weights."""
    _Weights(problem, plan, weight).pack(packed)


class _Sizes(NamedTuple):
    """Sizes of a task; symbolic ones are known at run time.

    Attributes
    ----------
    positions : tuple
        Positions along the four axes.
    rows : sequence
        Rows of a task along depth and height.
    pitch : int or expression
        Distance of two channels of `inputs`.
    acc_elements : int or expression
        Accumulators of a block of output channels.
    """

    positions: Sequence[Expr]
    rows: Sequence[Expr]
    pitch: Expr
    acc_elements: Expr

    @property
    def width(self) -> Expr:
        """Positions of a row."""
        return self.positions[-1]


class _Task(NamedTuple):
    """One task.

    Attributes
    ----------
    sizes : _Sizes
    group, split, image : Expr
    first, present : sequence
        The first of its rows along depth and height, and how many exist.
    """

    sizes: _Sizes
    group: Expr
    split: Expr
    image: Expr
    first: Sequence[Expr]
    present: Sequence[Expr]


class _Workspace(NamedTuple):
    """The arrays of a task.

    Attributes
    ----------
    inputs, weights : Array
        Rows of data, and weights of a block and K-block, or all packed weights.
    acc : Array
        Accumulators ``[block][row][position][channels]``.
    """

    inputs: Array
    weights: Array
    acc: Array


class _Weights:
    """The weights of a kernel, as stored or packed."""

    def __init__(self, problem: Convolution, plan: ValidTapsPlan, weight: Operand):
        self.problem, self.plan, self.weight = problem, plan, weight
        self.channels = plan.vectors * plan.lanes
        blocks = plan.blocks(problem)
        self.splits = Splits(blocks, plan.channel_splits, -(-blocks // plan.channel_splits))

    def pack(self, packed: Array) -> None:
        """Write packed[group][block][tap][input channel][channels]."""
        copied, groups = self.copied(self.problem.in_channels), self.problem.geometry.groups
        blocks = self.splits.blocks
        with emit.tasks(groups * blocks, self.plan.parallel) as task:
            group, block = map(emit.let, emit.unravel(task, (groups, blocks)))
            copied.copy(packed, group, block, 0, emit.opaque_base(task * copied.elements))

    def copied(self, count: int) -> BlockWeights:
        """Return the copy of the weights of a block and of `count` input channels."""
        problem, lanes, blocks = self.problem, self.plan.lanes, self.splits.blocks
        return BlockWeights(problem, self.weight, self.channels, blocks, count, lanes)


class ValidTaps(_Weights):
    """The emitter of one kernel."""

    def __init__(
        self,
        problem: Convolution,
        plan: ValidTapsPlan,
        weight: Operand,
        data: Operand,
        result: Result,
    ):
        super().__init__(problem, plan, weight)
        self.data, self.result = data, result
        self.dtype = problem.acc_dtype
        self.k_blocks = -(-problem.in_channels // plan.depth)
        # Whether a task keeps all sums of its split, or those of one block of output channels.
        self.holds_all = self.k_blocks > 1
        self.kernel = problem.geometry.kernel
        self.prefetches = problem.prepacked and prefetch.pays(
            packed_weights(problem, plan), prod(problem.positions), plan.m_tile
        )
        self.number_of = emit.let if problem.is_static else emit.opaque_value

    def _sizes(self) -> _Sizes:
        plan = self.plan
        positions = tuple(map(emit.opaque_value, self.problem.positions))
        rows: Sequence[Expr] = plan.rows
        if plan.room:
            height = plan.rows_of(positions[2], positions[3], emit.quotient, emit.most)
            rows = 1, emit.opaque_value(height)
        pitch = emit.opaque_value(plan.pitch(self.problem, rows))
        elements = emit.opaque_value(prod(rows) * positions[3] * self.channels)
        return _Sizes(positions, rows, pitch, elements)

    def emit(self) -> None:
        """Emit the whole kernel."""
        sizes = self._sizes()
        images, *rows, _ = sizes.positions
        counts = [
            emit.opaque_value(emit.ceil_div(size, block)) for size, block in zip(rows, sizes.rows)
        ]
        # One thread has images and rows of the same weights, if possible.
        extents = (self.problem.geometry.groups, self.splits.number, images, *counts)
        with emit.tasks(prod(extents), self.plan.parallel) as task:
            digits = emit.unravel(task, extents)
            group, split, image, *numbers = map(self.number_of, digits)
            first = [self.number_of(i * block) for i, block in zip(numbers, sizes.rows)]
            bounds = zip(first, rows, sizes.rows)
            present = [self.number_of(emit.clamped_extent(*bound)) for bound in bounds]
            self._task(_Task(sizes, group, split, image, first, present))

    # ------------------------------------------------------------ weights

    def _weights_of(
        self, task: _Task, weights: Array, block: Expr, first: Expr
    ) -> tuple[Expr, int]:
        """Return where the weights of a block and of the K-block from channel `first` on begin, and
        the distance of taps; copy them to `weights` unless all come packed."""
        channels, depth = self.problem.in_channels, self.plan.depth
        if self.problem.prepacked:
            pitch = channels * self.channels
            number = task.group * self.splits.blocks + block
            start = number * (self.problem.geometry.taps * pitch) + first * self.channels
            return emit.let(start), pitch
        # The last K-block may be a smaller one: it begins earlier, to fill all of its room.
        begin = first if channels % depth == 0 else emit.least(first, channels - depth)
        copied = self.copied(depth)
        copied.copy(weights, task.group, block, begin)
        return emit.let((first - begin) * self.channels), copied.pitch

    # ------------------------------------------------------------ one task

    def _task(self, task: _Task) -> None:
        """Emit one task: all K-blocks, then the rows of the result."""
        plan, channels, zero = self.plan, self.problem.in_channels, emit.constant(0, self.dtype)
        elements = task.sizes.acc_elements
        room = elements * (self.splits.per_split if self.holds_all else 1)
        inputs = emit.scratch(plan.depth * task.sizes.pitch, self.dtype)
        acc = emit.scratch(room, self.dtype)
        weights: Array = self.weight
        if not self.problem.prepacked:
            weights = emit.scratch(self.copied(plan.depth).elements, self.dtype)
        workspace = _Workspace(inputs, weights, acc)
        if self.holds_all:
            emit.fill(acc, 0, room, zero)
        for number in emit.loop(self.k_blocks):
            first = emit.let(number * plan.depth)
            count = emit.clamped_extent(first, channels, plan.depth)
            self._copy_inputs(task, inputs, first, count)
            for block, i in self.splits.blocks_of(task.split):
                if not self.holds_all:
                    emit.fill(acc, 0, elements, zero)
                begin, pitch = self._weights_of(task, weights, block, first)
                start = i * elements if self.holds_all else 0
                self._products(task, workspace, (begin, pitch), start, count)
                if not self.holds_all:
                    self._write(task, acc, start, block)
        if self.holds_all:
            for block, i in self.splits.blocks_of(task.split):
                self._write(task, acc, i * elements, block)

    def _valid(self, task: _Task, axis: int, tap: Expr) -> tuple[Expr, Expr]:
        """Return the first position of the task where a tap meets data along an axis, and how
        many there are."""
        access, size = self.problem.accesses[axis], self.problem.in_sizes[axis]
        low, high = access.meets(tap, self.problem.positions[axis], size, emit.most, emit.least)
        start, count = (*zip(task.first, task.present), (0, task.sizes.width))[axis - 1]
        begin = self.number_of(emit.most(low - start, 0))
        return begin, self.number_of(emit.most(emit.least(high - start, count) - begin, 0))

    def _row_of(self, task: _Task, taps: Sequence[Expr], rows: Sequence[Expr]) -> Expr:
        """Return where a row of inputs[...][depth tap][height tap][depth row][height row]
        begins."""
        index: Expr = 0
        for i, extent in zip((*taps, *rows), (*self.kernel[:2], *task.sizes.rows)):
            index = index * extent + i
        return index * self.problem.in_sizes[-1]

    def _copy_inputs(self, task: _Task, inputs: Array, first: Expr, count: Expr) -> None:
        """Copy the rows of data that each row of taps meets, of `count` input channels."""
        problem, plan = self.problem, self.plan
        channel = task.group * problem.in_channels + first
        accesses, step = problem.accesses, self.data.strides[DATA[-1]]
        # Rows that follow each other are copied together.
        joined = isinstance(task.sizes.width, int) and accesses[2].in_step == 1
        joined = joined and self.data.is_run(DATA[-2:])
        for taps in emit.grid(*self.kernel[:2]):
            valid = (self._valid(task, axis + 1, tap) for axis, tap in enumerate(taps))
            begins, counts = zip(*valid)
            width = problem.in_sizes[-1]
            # A number and no more: TVM 0.25 divides multiples of minima and maxima wrongly.
            length = emit.opaque_base(counts[1] * width) if joined else width
            runs = (counts[0], 1) if joined else counts
            for c, *numbers in emit.grid(count, *runs):
                rows = [begin + i for begin, i in zip(begins, numbers)]
                where = [
                    access.reads_at(tap, start + r)
                    for access, tap, start, r in zip(accesses[1:], taps, task.first, rows)
                ]
                source = self.data.at("C" + DATA, channel + c, task.image, *where, 0)
                into = emit.opaque_base(c * task.sizes.pitch + self._row_of(task, taps, rows))
                copy(inputs, into, self.data, emit.opaque_base(source), length, plan.lanes, step)

    def _products(
        self,
        task: _Task,
        workspace: _Workspace,
        weights: tuple[Expr, int],
        start: Expr,
        count: Expr,
    ) -> None:
        """acc[row][position][channels] += weights * inputs, of a block of output channels.

        Its accumulators begin at `start`.  `weights` are where the weights of its first tap begin,
        and the distance of those of the next tap.
        """
        plan, last, sizes = self.plan, self.problem.accesses[-1], task.sizes
        first, pitch = weights
        steps = (None, None) if isinstance(sizes.pitch, int) else (sizes.pitch, self.channels)

        def input_at(row: Expr, position: Expr, o: int, c: Expr) -> Expr:
            return row + (c * sizes.pitch + (position + o) * last.in_step)

        def weights_at(tap: Expr, c: Expr) -> Expr:
            return tap + c * self.channels

        for taps in emit.grid(*self.kernel):
            axes = [self._valid(task, axis + 1, tap) for axis, tap in enumerate(taps)]
            begins = [begin for begin, _ in axes]
            tap_start = emit.let(first + tap_number(self.problem, taps) * pitch)
            b = Matrix(workspace.weights, partial(weights_at, tap_start), steps[1])
            for numbers in emit.grid(*(n for _, n in axes[:-1])):
                rows = [begin + i for begin, i in zip(begins, numbers)]
                read = self._row_of(task, taps[:2], rows) + last.reads_at(taps[-1], begins[-1])
                read = emit.opaque_base(read)
                flat = (rows[0] * sizes.rows[1] + rows[1]) * sizes.width + begins[-1]
                into = emit.opaque_base(start + flat * self.channels)
                for p, size in emit.tiles_then_ones(axes[-1][1], plan.m_tile):
                    a = Matrix(workspace.inputs, partial(input_at, read, p), steps[0])
                    offsets = [into + (p + o) * self.channels for o in range(size)]
                    c = RegisterTile(workspace.acc, offsets, plan.vectors, plan.lanes)
                    ahead = None
                    if self.prefetches and steps[1] is None and size > 1:
                        row = numbers[0] * axes[1][1] + numbers[1]
                        block = (tap_start + pitch, (count, self.channels))
                        ahead = partial(prefetch.prefetch_block, self.weight, *block, row)
                    add_products((count,), a, b, c, fresh=False, prefetch=ahead)

    # ------------------------------------------------------------ output

    def _write(self, task: _Task, acc: Array, start: Expr, block: Expr) -> None:
        """Transpose the sums of a block, and write them: a row of positions and a vector of
        channels at a time."""
        problem, lanes, width = self.problem, self.plan.lanes, task.sizes.width
        transposed = emit.scratch(lanes * width, self.dtype)
        for v, *rows in emit.grid(self.plan.vectors, *task.present):
            flat = (rows[0] * task.sizes.rows[1] + rows[1]) * width
            source = emit.opaque_base(start + flat * self.channels + v * lanes)
            self._transpose(acc, source, transposed, width)
            first = emit.let(block * self.channels + v * lanes)
            count = emit.let(emit.most(emit.least(problem.out_channels - first, lanes), 0))
            where = [task.image, *(begin + r for begin, r in zip(task.first, rows)), 0]
            first = emit.let(first)
            for k in emit.loop(count):
                number = task.group * problem.out_channels + first + k
                row = Rows(self.result).row(number, where)
                row.put_all(0, transposed, emit.opaque_base(k * width), width, lanes)
                row.end(width)

    def _transpose(self, acc: Array, source: Expr, transposed: Array, width: Expr) -> None:
        """Write ``transposed[channel][position]`` of a vector of channels of a row."""
        lanes = self.plan.lanes
        side = square_side(width, lanes) if isinstance(width, int) else lanes
        for fits in emit.sides(emit.both(side > 0, width >= side)):
            if fits:
                for number in emit.loop(emit.ceil_div(width, side)):
                    p = emit.let(emit.least(number * side, width - side))
                    starts = [
                        emit.opaque_base(source + (p + i) * self.channels) for i in range(side)
                    ]
                    transpose_squares(
                        Pitched(transposed, p, width), starts, side, lanes,
                        lambda at: emit.let(acc[emit.lanes_of(at, side)]),
                    )  # fmt: skip
            else:
                for k, p in emit.grid(lanes, width):
                    emit.store(transposed, k * width + p, acc[source + p * self.channels + k])
