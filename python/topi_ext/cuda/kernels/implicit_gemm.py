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

A phase has the taps that meet it and no others; one without taps is written as zeros.  Nothing of
im2col's matrix is ever stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...emit.arguments import Packed, tap_number, weight_index
from ...problem import Problem
from .. import emit
from ..emit import Array, Expr, Operand, barrier, both, local, opaque_value, pick, store, when
from ..parts.gather_block import GatherBlock, blocks_of
from ..parts.gather_rows import GatherRow
from ..parts.output_tile import OutputTile, Threads, held_elements
from ..parts.packed_weights import PackedShape, packed_first, packed_of
from ..parts.packed_weights import pack_weights as pack
from ..parts.simt_tile import PAD, SimtTile
from ..parts.split_sums import add_shares, shares_of
from ..parts.tap_steps import TapSteps
from ..plan.implicit_gemm import GemmPlan


def packed_weights(problem: Problem, plan: GemmPlan) -> Packed | None:
    """What it finds in place of its weights."""
    return packed_of(problem, plan.tile) if plan.packed else None


def pack_weights(problem: Problem, plan: GemmPlan, weight: Operand, packed: Operand) -> None:
    """How weights become that."""
    pack(problem, plan.tile, weight, packed)


def emit_body(problem: Problem, plan: GemmPlan, operands: Sequence[Operand]) -> None:
    """All launches: packing, the product, the sum of shares."""
    data, weight, *extra, out = operands
    source: Array = weight
    if plan.packed and not problem.prepacked:
        source = packed_first(problem, plan.tile, weight)
    shares = shares_of(problem, plan.tile, out)
    with emit.launch(blocks_of(problem, plan.tile), plan.threads) as (block, thread):
        threads = Threads(opaque_value(thread), plan.threads)
        place = GatherBlock.emitted(problem, plan.tile, opaque_value(block))
        step = Step.emitted(problem, plan, place, threads, (data, source))
        made = _products(step)
        _write(step, made, shares, extra, out)
    if shares:
        add_shares(problem, plan.tile, shares, extra, out)


@dataclass(frozen=True)
class Step:
    """What a thread copies in each step.

    Attributes
    ----------
    problem, plan, block, threads
        What is computed, and where.
    data, weight : Array
    rows : tuple of GatherRow
        Positions, `spread` of the tile apart.
    first_channel : Expr
        Of the step's, the first that this thread copies of each position; others follow
        `channel_step` apart.
    steps : TapSteps
    """

    problem: Problem
    plan: GemmPlan
    block: GatherBlock
    threads: Threads
    data: Operand
    weight: Array
    row: Expr
    rows: tuple[GatherRow, ...]
    first_channel: Expr
    steps: TapSteps

    @classmethod
    def emitted(
        cls,
        problem: Problem,
        plan: GemmPlan,
        block: GatherBlock,
        threads: Threads,
        operands: tuple[Operand, Array],
    ) -> Step:
        """Neighbouring threads copy neighbours in memory: channels, or positions."""
        data, weight = operands
        tile = plan.tile
        if emit.along(data, "C") == 1 and tile.depth > 1:
            first, channel = emit.unravel(threads.number, (0, tile.depth))
            apart = plan.threads // tile.depth
        else:
            channel, first = emit.unravel(threads.number, (0, tile.rows))
            apart = tile.rows
        first, channel = opaque_value(first), opaque_value(channel)
        rows = tuple(
            GatherRow.emitted(problem, data, block, first + number * apart)
            for number in range(tile.rows // apart)
        )
        steps = TapSteps.emitted(problem, tile, block)
        return cls(problem, plan, block, threads, data, weight, first, rows, channel, steps)

    @property
    def rows_apart(self) -> int:
        """Distance in the tile of the positions that a thread copies."""
        return self.plan.tile.rows // len(self.rows)

    @property
    def channels(self) -> list[int]:
        """How far the channels that a thread copies of a position are behind its first."""
        per_row = self.plan.tile.rows * self.plan.tile.depth // self.threads.count // len(self.rows)
        return [number * (self.plan.tile.depth // per_row) for number in range(per_row)]

    @property
    def packs_four(self) -> bool:
        """Whether a thread copies four neighbouring packed weights at a time."""
        return self.plan.packed and self.weights_each % 4 == 0

    @property
    def weights_each(self) -> int:
        """Weights that a thread copies."""
        tile = self.plan.tile
        return tile.columns * tile.depth // self.threads.count

    def fetch(self, data: Array, weights: Array) -> None:
        """What the next step multiplies, to registers."""
        self._fetch_data(data)
        if self.plan.packed:
            self._fetch_packed(weights)
        else:
            self._fetch_weights(weights)
        self.steps.advance()

    def _fetch_data(self, held: Array) -> None:
        problem, tile, source = self.problem, self.plan.tile, self.data
        channel = opaque_value(self.steps.chunk * tile.depth + self.first_channel)
        is_whole = problem.in_channels % tile.depth == 0
        dtype = problem.acc_dtype
        for number, row in enumerate(self.rows):
            inside, index = row.read(problem, source, self.block, self.steps)
            for turn, behind in enumerate(self.channels):
                there = both(inside, is_whole or channel + behind < problem.in_channels)
                at = index + emit.flat(channel + behind) * emit.along(source, "C")
                value = pick(there, lambda: source.load(at, dtype), emit.constant(0, dtype))
                store(held, number * len(self.channels) + turn, value)

    def keep_data(self, held: Array, arena: Array, start: Expr) -> None:
        """Data, from registers to shared memory: ``[depth][rows]``."""
        pitch = self.plan.tile.rows + PAD
        for number in range(len(self.rows)):
            for turn, behind in enumerate(self.channels):
                row = self.row + number * self.rows_apart
                place = start + (self.first_channel + behind) * pitch + row
                store(arena, place, held[number * len(self.channels) + turn])

    def _weight_place(self, turn: int) -> tuple[Expr, Expr]:
        """Channel of the step and column of the tile of the thread's copy number `turn`."""
        tile = self.plan.tile
        if self.plan.packed:
            width = 4 if self.packs_four else 1
            number = self.threads.number * width + turn * self.threads.count * width
            return emit.unravel(number, (tile.depth, tile.columns))
        number = self.threads.number + turn * self.threads.count
        inner, outer = "IO" if not self.problem.transposed else "OI"
        if emit.along(self.weight, inner) <= emit.along(self.weight, outer):
            column, channel = emit.unravel(number, (tile.columns, tile.depth))
            return channel, column
        return emit.unravel(number, (tile.depth, tile.columns))

    def _fetch_packed(self, held: Array) -> None:
        problem, tile = self.problem, self.plan.tile
        shape = PackedShape.of(problem, tile)
        tap, row = self._tap(), self.steps.chunk * tile.depth
        start = shape.at(self.block.group, tap, row, self.block.first_column)
        start = opaque_value(start)
        width = 4 if self.packs_four else 1
        for turn in range(self.weights_each // width):
            channel, column = self._weight_place(turn)
            at = start + channel * shape.columns + column
            emit.set_vector(held, turn * width, width, emit.get_vector(self.weight, at, width))

    def _fetch_weights(self, held: Array) -> None:
        problem, tile, dtype = self.problem, self.plan.tile, self.problem.acc_dtype
        taps = self._taps()
        first = opaque_value(self.steps.chunk * tile.depth)
        for turn in range(self.weights_each):
            channel, column = self._weight_place(turn)
            channel, column = first + channel, self.block.first_column + column
            inside = both(
                problem.in_channels % tile.depth == 0 or channel < problem.in_channels,
                problem.out_channels % tile.columns == 0 or column < problem.out_channels,
            )
            at = weight_index(problem, self.weight, self.block.group, channel, column, taps)
            value = pick(inside, lambda: self.weight.load(at, dtype), emit.constant(0, dtype))
            store(held, turn, value)

    def keep_weights(self, held: Array, arena: Array, start: Expr) -> None:
        """Weights, from registers to shared memory: ``[depth][columns]``."""
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
        """Numbers of the current tap in the kernel."""
        axes = zip(self.block.axes, self.steps.taps, self.problem.gathers[1:])
        return [axis.first_tap + tap * gather.tap_step for axis, tap, gather in axes]

    def _tap(self) -> Expr:
        return tap_number(self.problem, self._taps())


def _products(step: Step) -> tuple[SimtTile, Array]:
    """All sums of the block, and shared memory for a slice of them."""
    plan, tile, dtype = step.plan, step.plan.tile, step.problem.acc_dtype
    tiles = (tile.rows, tile.columns), (plan.thread_rows, plan.thread_columns)
    sums = SimtTile.emitted(*tiles, step.threads.number, dtype)
    weights_at = (tile.rows + PAD) * tile.depth
    stage = weights_at + (tile.columns + PAD) * tile.depth
    # Two arrays, not one: TVM puts a barrier between reads and writes of one that may overlap.
    stages = [emit.shared(stage, dtype) for _ in range(2)]
    data = local(tile.rows * tile.depth // plan.threads, dtype)
    weights = local(step.weights_each, step.weight.dtype if plan.packed else dtype)
    count = step.steps.count

    def keep(number: int) -> None:
        step.keep_data(data, stages[number], 0)
        step.keep_weights(weights, stages[number], weights_at)

    def first() -> None:
        step.fetch(data, weights)
        keep(0)

    when(count > 0, first)
    barrier()

    def one(number: Expr, now: int) -> None:
        more = number + 1 < count
        when(more, lambda: step.fetch(data, weights))
        sums.add_products(tile.depth, (stages[now], 0), (stages[now], weights_at))
        when(more, lambda: keep(1 - now))
        barrier()

    def two(pair: Expr) -> None:
        one(pair * 2, 0)
        when(pair * 2 + 1 < count, lambda: one(pair * 2 + 1, 1))

    emit.loop(emit.ceil_div(count, 2), two)
    room = held_elements(tile.rows, sums.width)
    return sums, stages[0] if room <= stage else emit.shared(room, dtype)


def _write(
    step: Step,
    made: tuple[SimtTile, Array],
    shares: Operand | None,
    extra: Sequence[Operand],
    out: Operand,
) -> None:
    sums, arena = made
    if shares is None:
        tile = OutputTile(step.problem, step.block, step.plan.tile, step.threads, out, extra)
    else:
        plain = replace(step.problem, epilogue=())
        share = emit.flat(step.block.split) * shares.strides["S"]
        tile = OutputTile(plain, step.block, step.plan.tile, step.threads, shares, (), share)
    tile.write(sums, arena)
