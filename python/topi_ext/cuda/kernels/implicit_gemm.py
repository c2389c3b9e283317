# SPDX-License-Identifier: Apache-2.0
"""conv and conv_transpose as an implicit matrix product on the lanes of a multiprocessor.

M = positions of a phase, N = output channels of a group, K = its taps x input channels::

    blocks (phase, group, share of K, M by tile.rows, N by tile.columns):
        fetch step 0                                             -> registers -> shared[0]
        for steps (tile.depth input channels, one tap of the phase):
            fetch the next step                                  -> registers
            sums[thread_rows, thread_columns] += shared[step % 2] products
            registers                                            -> shared[(step + 1) % 2]
            barrier
        sums -> shared -> epilogue -> out, or the share's part of a workspace
    of a split K: blocks of outputs: the shares, in order -> epilogue -> out

A phase uses only the taps that meet it; a phase without taps is written as zeros.  The matrix of
im2col is never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...emit.arguments import Packed, tap_number, weight_index
from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr, Operand, both, local, opaque_value, pick, store
from ..isa.dp4a import add_four, functions, word
from ..isa.vectors import FUNCTIONS as VECTORS
from ..parts.gather_block import GatherBlock, blocks_of
from ..parts.gather_rows import GatherRow
from ..parts.output_tile import OutputTile, Threads
from ..parts.packed_weights import PackedShape, packed_first, packed_of
from ..parts.packed_weights import pack_weights as pack
from ..parts.pipeline import double_buffered
from ..parts.simt_tile import SimtTile, multiply_add
from ..parts.split_sums import add_shares, shares_of
from ..parts.tap_steps import TapSteps
from ..plan.implicit_gemm import ImplicitGemmPlan
from ..plan.tiles import PAD


def packed_weights(problem: Convolution, plan: ImplicitGemmPlan) -> Packed | None:
    """Return the form of packed weights; None for a plan that reads them as stored."""
    return packed_of(problem, _shape(problem, plan)) if plan.packed else None


def pack_weights(
    problem: Convolution, plan: ImplicitGemmPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of weights."""
    pack(problem, _shape(problem, plan), weight, packed)


def _shape(problem: Convolution, plan: ImplicitGemmPlan) -> PackedShape:
    return PackedShape.of(problem, plan.tile, plan.word)


def emit_body(problem: Convolution, plan: ImplicitGemmPlan, operands: Sequence[Operand]) -> None:
    """Emit all launches: packing, the product, the sum of shares."""
    data, weight, *extra, out = operands
    source = weight
    if plan.packed and not problem.prepacked:
        source = packed_first(problem, _shape(problem, plan), weight)
    shares = shares_of(problem, plan.tile, out)
    called = VECTORS + (functions(*problem.dtypes[:2]) if plan.word > 1 else "")
    with emit.launch(blocks_of(problem, plan.tile), plan.threads, called) as (block, thread):
        threads = Threads(opaque_value(thread), plan.threads)
        place = GatherBlock.emitted(problem, plan.tile, opaque_value(block))
        step = Step.emitted(problem, plan, place, threads, (data, source))
        sums, arena = _products(step)
        results = OutputTile.of(problem, place, plan.tile, threads, (shares, extra, out))
        results.write(sums, arena, is_free=True)
    if shares:
        add_shares(problem, plan.tile, shares, extra, out)


@dataclass(frozen=True)
class Step:
    """The copies of a thread in each step.

    Attributes
    ----------
    problem, plan, block, threads
        The problem, its plan, and the block and thread that compute it.
    data, weight : Operand
    row, first : Expr
        First position of the tile, and first element of the step, that this thread copies.
    rows : tuple of GatherRow
        Positions that the thread copies, at equal distances.
    steps : TapSteps
    """

    problem: Convolution
    plan: ImplicitGemmPlan
    block: GatherBlock
    threads: Threads
    data: Operand
    weight: Operand
    row: Expr
    rows: tuple[GatherRow, ...]
    first: Expr
    steps: TapSteps

    @classmethod
    def emitted(
        cls,
        problem: Convolution,
        plan: ImplicitGemmPlan,
        block: GatherBlock,
        threads: Threads,
        operands: tuple[Operand, Operand],
    ) -> Step:
        """Divide copies: neighbouring threads copy neighbours in memory, channels or positions."""
        data, weight = operands
        tile = plan.tile
        if emit.along(data, "C") == 1:
            run = plan.data_run(problem)
            first, channel = emit.unravel(threads.number, (0, plan.elements // run))
            channel, apart = channel * run, plan.threads * run // plan.elements
        else:
            channel, first = emit.unravel(threads.number, (0, tile.rows))
            apart = tile.rows
        row, first = opaque_value(first), opaque_value(channel)
        rows = tuple(
            GatherRow.emitted(problem, data, block, row + number * apart)
            for number in range(tile.rows // apart)
        )
        steps = TapSteps.emitted(problem, tile, block)
        return cls(problem, plan, block, threads, data, weight, row, rows, first, steps)

    @property
    def rows_apart(self) -> int:
        """Distance in the tile of the positions that a thread copies."""
        return self.plan.tile.rows // len(self.rows)

    @property
    def behind(self) -> list[int]:
        """Offsets of the elements that a thread copies of a position from the first of them."""
        run, elements = self.plan.data_run(self.problem), self.plan.elements
        if run > 1:
            return list(range(run))
        each = self.plan.tile.rows * elements // self.threads.count // len(self.rows)
        return [number * (elements // each) for number in range(each)]

    @property
    def packs_four(self) -> bool:
        """Return whether a thread copies four neighbouring packed weights at a time."""
        return self.plan.packed and self.weights_each % 4 == 0

    @property
    def weights_each(self) -> int:
        """Number of weights that a thread copies."""
        tile = self.plan.tile
        return tile.columns * self.plan.elements // self.threads.count

    def fetch(self, data: Array, weights: Array) -> None:
        """Read the operands of the next step to registers."""
        self._fetch_data(data)
        if self.plan.packed:
            self._fetch_packed(weights)
        else:
            self._fetch_weights(weights)
        self.steps.advance()

    def _fetch_data(self, held: Array) -> None:
        source, stride, word = self.data, emit.along(self.data, "C"), self.plan.word
        channel = opaque_value(self.steps.chunk * self.plan.tile.depth + self.first * word)
        for number, row in enumerate(self.rows):
            inside, index = row.read(self.problem, source, self.block, self.steps)
            if self.plan.data_run(self.problem) > 1:
                self._read_four(held, number * 4, index, channel, inside)
                continue
            for turn, behind in enumerate(self.behind):
                at = channel + behind * word
                place = index + emit.flat(at) * stride
                value = self._element(source, place, stride, at, inside)
                store(held, number * len(self.behind) + turn, value)

    def _read_four(self, held: Array, at: int, index: Expr, channel: Expr, inside: Expr) -> None:
        is_whole = self.problem.in_channels % self.plan.tile.depth == 0
        there = both(inside, is_whole or channel < self.problem.in_channels)
        source = self.data.buffer.data, emit.wide(index + emit.flat(channel))
        emit.call("topi_read4", held.buffer.data, at, *source, emit.condition(there))

    def _element(
        self, source: Operand, place: Expr, stride: Expr, channel: Expr, inside: Expr
    ) -> Expr:
        """Return one element of an input channel, or a word of it and of the next channels."""
        problem, dtype = self.problem, self.problem.acc_dtype
        is_whole = problem.in_channels % self.plan.tile.depth == 0
        if self.plan.word > 1:
            left = self.plan.word if is_whole else problem.in_channels - channel
            count = emit.pick(inside, lambda: emit.typed(left), emit.constant(0, "int32"))
            return word(source, emit.wide(place), emit.wide(stride), emit.typed(count))
        there = both(inside, is_whole or channel < problem.in_channels)
        return pick(there, lambda: source.load(place, dtype), emit.constant(0, dtype))

    def keep_data(self, held: Array, arena: Array, start: Expr) -> None:
        """Write data from registers to shared memory: ``[elements][rows]``."""
        pitch = self.plan.tile.rows + PAD
        for number in range(len(self.rows)):
            for turn, behind in enumerate(self.behind):
                row = self.row + number * self.rows_apart
                place = start + (self.first + behind) * pitch + row
                store(arena, place, held[number * len(self.behind) + turn])

    def _weight_place(self, turn: int) -> tuple[Expr, Expr]:
        """Return the element of the step and the column of the tile of the thread's copy `turn`."""
        tile, elements = self.plan.tile, self.plan.elements
        if self.plan.packed:
            width = 4 if self.packs_four else 1
            number = self.threads.number * width + turn * self.threads.count * width
            return emit.unravel(number, (elements, tile.columns))
        number = self.threads.number + turn * self.threads.count
        inner, outer = "IO" if not self.problem.transposed else "OI"
        if emit.along(self.weight, inner) <= emit.along(self.weight, outer):
            column, element = emit.unravel(number, (tile.columns, elements))
            return element, column
        return emit.unravel(number, (elements, tile.columns))

    def _fetch_packed(self, held: Array) -> None:
        shape = _shape(self.problem, self.plan)
        tap, row = self._tap(), self.steps.chunk * self.plan.elements
        start = shape.at(self.block.group, tap, row, self.block.first_column)
        start = opaque_value(start)
        width = 4 if self.packs_four else 1
        for turn in range(self.weights_each // width):
            channel, column = self._weight_place(turn)
            at = start + channel * shape.columns + column
            if width == 4:
                weights = self.weight.buffer.data, emit.flat(emit.typed(at))
                emit.call("topi_load4", held.buffer.data, turn * 4, *weights)
            else:
                store(held, turn, self.weight[at])

    def _fetch_weights(self, held: Array) -> None:
        problem, tile = self.problem, self.plan.tile
        taps = self._taps()
        first = opaque_value(self.steps.chunk * tile.depth)
        stride = emit.along(self.weight, "O" if problem.transposed else "I")
        for turn in range(self.weights_each):
            element, column = self._weight_place(turn)
            channel = first + element * self.plan.word
            column = self.block.first_column + column
            inside = problem.out_channels % tile.columns == 0 or column < problem.out_channels
            at = weight_index(problem, self.weight, self.block.group, channel, column, taps)
            store(held, turn, self._element(self.weight, at, stride, channel, inside))

    def keep_weights(self, held: Array, arena: Array, start: Expr) -> None:
        """Write weights from registers to shared memory: ``[elements][columns]``."""
        width = 4 if self.packs_four else 1
        pitch = self.plan.tile.columns + PAD
        for turn in range(self.weights_each // width):
            channel, column = self._weight_place(turn)
            place = start + channel * pitch + column
            if width == 1:
                store(arena, place, held.load(turn, self.problem.acc_dtype))
            else:
                emit.set_vector(arena, place, 4, emit.get_vector(held, turn * 4, 4))

    def _taps(self) -> list[Expr]:
        """Return the numbers of the current tap in the kernel."""
        axes = zip(self.block.axes, self.steps.taps, self.problem.accesses[1:])
        return [axis.first_tap + tap * access.tap_step for axis, tap, access in axes]

    def _tap(self) -> Expr:
        return tap_number(self.problem, self._taps())


@dataclass(frozen=True)
class _Buffers:
    """Registers and shared memory that hold the operands of a step.

    Attributes
    ----------
    step : Step
    stages : list of Array
        Shared memory of each stage: the data, then at `weights_at` the weights.
    data, weights : Array
        Registers.
    """

    step: Step
    stages: list[Array]
    data: Array
    weights: Array

    @classmethod
    def emitted(cls, step: Step) -> _Buffers:
        """Allocate registers and shared memory."""
        plan, tile, dtype = step.plan, step.plan.tile, step.problem.acc_dtype
        # Two arrays, because TVM inserts a barrier between reads and writes of one that may
        # overlap.
        stages = [emit.shared(plan.stage_elements, dtype) for _ in range(2)]
        data = local(tile.rows * plan.elements // plan.threads, dtype)
        weights = local(step.weights_each, step.weight.dtype if plan.packed else dtype)
        return cls(step, stages, data, weights)

    @property
    def weights_at(self) -> int:
        """Offset of the weights in a stage."""
        return (self.step.plan.tile.rows + PAD) * self.step.plan.elements

    def fetch(self, number: Expr) -> None:
        """Read the next step to registers."""
        self.step.fetch(self.data, self.weights)

    def keep(self, stage: int) -> None:
        """Write registers to a stage."""
        self.step.keep_data(self.data, self.stages[stage], 0)
        self.step.keep_weights(self.weights, self.stages[stage], self.weights_at)


def _products(step: Step) -> tuple[SimtTile, Array]:
    """Compute all sums of the block; return them, and shared memory for a slice of them."""
    plan, tile, dtype = step.plan, step.plan.tile, step.problem.acc_dtype
    tiles = (tile.rows, tile.columns), (plan.thread_rows, plan.thread_columns)
    sums = SimtTile.emitted(*tiles, step.threads.number, dtype)
    buffers = _Buffers.emitted(step)
    add = add_four(*step.problem.dtypes[:2]) if plan.word > 1 else multiply_add
    for stage in double_buffered(step.steps.count, buffers):
        array = buffers.stages[stage]
        sums.add_products(plan.elements, (array, 0), (array, buffers.weights_at), add)
    slice_ = emit.shared(plan.kept_elements, dtype) if plan.kept_elements else buffers.stages[0]
    return sums, slice_
