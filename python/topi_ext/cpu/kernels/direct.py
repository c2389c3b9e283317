# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` that serves every shape: one phase, or many.

Lanes run over the positions of one phase, weights are scalars broadcast from a packed panel::

    parallel (batch, group, depth, height, width block, split of output channels):
        for each K-block of `depth` input channels:
            pack the input window of the block                           -> panel
            for each block of `channels` output channels:
                for each phase, for each tile of `vectors` vectors:
                    for each input channel, for each tap of the phase:
                        accumulators[channels][vectors] += weight * panel  -> acc
        for each output row: interleave its phases                       -> out

In the matrix product, M are output channels, N positions of one phase, K input channels and taps of
the phase.  Left, weights ``[block][phase][input channel][tap][channels]``, each broadcast; right,
`panel` ``[input channel][residue][position]``, which a tap reads at an offset: no column is built.

``conv`` is the case of one phase; ``conv_transpose`` runs, for each phase, over its own taps only:
no zero is inserted and no product wasted.  With one K-block, a block of output channels is written
out as soon as it is summed.

With few output channels, a tile may have all phases of its rows (`all_phases`): their taps read the
same data, which then is loaded once for all of them::

    accumulators[channels][phases of the row][vectors] += weight * panel

``conv`` may read its weights where they are: a row of each output channel; and for small images it
may give each tap a plane of the panel, so that no lane is lost between rows and images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from ...emit.arguments import Packed
from ...spec.conv import TAPS, Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts import prefetch
from ..parts.direct_weights import DirectWeights
from ..parts.output_rows import Result, Rows
from ..parts.pack_panel import Source, pack
from ..parts.panel import Panel, fitted_splits, window_of
from ..parts.phase_copy import PhaseCopy
from ..parts.phase_groups import SPATIAL, PhaseIndex
from ..parts.row_tiles import RowTiles
from ..parts.splits import Splits
from ..plan.direct import DirectPlan

DataAt = Callable[[Expr, Sequence[Expr]], Expr]
"""Index in the panel that the first position of a phase reads, by step and tap."""

PackedAt = Callable[[Expr, Sequence[Expr]], Expr]
"""Index of the packed weights of a tile, by step and tap."""

PrefetchAt = Callable[[Expr, Sequence[Expr]], None]
"""Emits the prefetch that belongs to a step and tap."""

FEWEST_SUMS = 4
"""The fewest vectors of sums of a register tile: while one waits for its addition, the others go
on."""


def emit_body(problem: Convolution, plan: DirectPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    data, weight, *extra, out = operands
    Direct(problem, plan, DirectWeights(problem, plan, weight), data, out, extra).emit()


def packed_weights(problem: Convolution, plan: DirectPlan) -> Packed | None:
    """Return size and dtype of the packed weights; None where the plan packs none."""
    return DirectWeights(problem, plan).packed if plan.packed else None


def pack_weights(problem: Convolution, plan: DirectPlan, weight: Operand, packed: Operand) -> None:
    """Emit the packing of the weights."""
    DirectWeights(problem, plan, weight).pack(packed)


@dataclass(frozen=True)
class Blocking:
    """The division of the positions and output channels of a kernel, and the memory of each task;
    chosen at run time for symbolic sizes.

    Attributes
    ----------
    panel : Panel
        The input window of a block of positions.
    counts : list
        Number of blocks of positions along the four axes.
    tiles : RowTiles
        Register tiles of the positions of one phase.
    splits : Splits
        Splits of the output channels.
    acc_elements, acc_room : int or expression
        Accumulators of one block of output channels, and elements that are allocated for all that
        a task keeps at a time.
    panel_room : int
        Elements that are allocated for the panel.
    """

    panel: Panel
    counts: Sequence[Expr]
    tiles: RowTiles
    splits: Splits
    acc_elements: Expr
    acc_room: int
    panel_room: int


class Task(NamedTuple):
    """One task: a block of positions, a group, and a split of its output channels.

    Attributes
    ----------
    blocking : Blocking
    weights : Array
        Packed weights, or the user's.
    rows : Rows
        The rows of the result that it writes.
    first : sequence
        The first position of the block along the four axes.
    group, split : Expr
    """

    blocking: Blocking
    weights: Array
    rows: Rows
    first: Sequence[Expr]
    group: Expr
    split: Expr


class KBlock(NamedTuple):
    """A block of the K dimension: some steps of input channels.

    Attributes
    ----------
    first, steps : Expr
        The first step, and how many.
    panel : Array
        Input of these steps.
    fresh : bool
        Whether sums start from zero instead of from what the accumulators hold.
    """

    first: Expr
    steps: Expr
    panel: Array
    fresh: bool


class Reduction(NamedTuple):
    """The sums of one block of output channels over one K-block.

    Attributes
    ----------
    task : Task
    k_block : KBlock
    block : Expr
        The block of output channels.
    acc : Array
        Accumulators ``[output channel][phase][position]``, from element `start` on.
    start : Expr
    """

    task: Task
    k_block: KBlock
    block: Expr
    acc: Array
    start: Expr


class Direct:
    """The emitter of one kernel.

    A kernel of the same loop nest may override how data are packed and how a tile is summed, and
    the order of blocks and tiles.
    """

    def __init__(
        self,
        problem: Convolution,
        plan: DirectPlan,
        weights: DirectWeights,
        data: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        self.problem, self.plan, self.weights, self.data = problem, plan, weights, data
        self.dtype = problem.acc_dtype
        self.result = Result(problem, out, extra, plan.lanes if plan.streamed else 0)
        self.steps, self.groups = weights.steps, weights.groups
        self.accesses = plan.accesses(problem)
        self.phases = prod(access.out_step for access in problem.accesses)
        self.k_blocks = -(-self.steps.number // plan.depth)
        # Whether a task keeps all sums of its split, or those of one block of output channels.
        self.holds_all = self.k_blocks > 1

    # ------------------------------------------------------------ blocking

    def _blocking(self) -> Blocking:
        """Choose the blocking, of symbolic sizes at run time."""
        problem, plan, blocks = self.problem, self.plan, self.weights.blocks
        width = plan.vectors * plan.lanes
        least = 1 if problem.is_static else self._fewest_blocks(width)
        window = window_of(problem, plan.window, self.accesses, plan.lanes, least)
        if problem.is_static:
            tiles = RowTiles.of_length(plan.window.length, plan.vectors, plan.lanes)
            row_room, splits = tiles.length, plan.channel_splits
        else:
            small = self._small_vectors
            tiles = RowTiles.emitted(window.length, plan.vectors, small, plan.lanes)
            row_room = (-(-plan.window.elements // width) + 1) * width
        panel = Panel(self.accesses, window, plan.lanes)
        counts = [
            emit.opaque_value(emit.ceil_div(p, b)) for p, b in zip(problem.positions, window.block)
        ]
        if not problem.is_static:
            tasks = emit.opaque_value(emit.most(prod(counts, start=problem.geometry.groups), 1))
            splits = fitted_splits(tasks, plan.tasks, blocks)
        per_split = emit.opaque_value(emit.ceil_div(blocks, splits))
        # Allocated sizes are integers.
        most = per_split if problem.is_static else blocks
        acc_room = plan.channels * self.phases * row_room * (most if self.holds_all else 1)
        panel_room = panel.room(plan.depth * self.steps.planes)
        panel_room += 0 if problem.is_static else width  # a last tile may end after it
        return Blocking(
            panel, counts, tiles, Splits(blocks, splits, per_split),
            plan.channels * self.phases * tiles.length, acc_room, panel_room,
        )  # fmt: skip

    @property
    def _small_vectors(self) -> int:
        """Vectors of the small tiles that end a row of unknown length: at least `FEWEST_SUMS`
        vectors of sums."""
        rows = self.accesses[-1].out_step if self.plan.all_phases else 1
        least = -(-FEWEST_SUMS // (self.plan.channels * rows))
        return min(self.plan.vectors, least)

    def _fewest_blocks(self, width: int) -> Expr:
        """Return the fewest blocks of positions of symbolic sizes.

        There are as many as keep all threads busy where output channels cannot be divided further.
        Where there are fewer weights than data, there is one for each thread, if a block still has
        `width` positions: every split of the channels packs the same data, and every block reads
        the same weights.
        """
        problem, groups = self.problem, self.problem.geometry.groups
        least = -(-self.plan.tasks // (groups * self.weights.blocks))
        per_thread = -(-(self.plan.tasks // 2) // groups)
        if per_thread <= least:
            return least
        data = emit.opaque_value(prod(problem.in_sizes, start=problem.in_channels))
        filled = emit.quotient(emit.opaque_value(prod(problem.positions)), width)
        most = emit.opaque_value(emit.least(emit.most(filled, least), per_thread))
        large = data > problem.weights_per_group
        return emit.opaque_value(emit.choose(large, lambda: most, emit.wide(least)))

    # ------------------------------------------------------------ the loop nest

    def emit(self) -> None:
        """Emit the whole kernel."""
        problem, plan, blocking = self.problem, self.plan, self._blocking()
        counts = blocking.counts
        extents = (counts[0], problem.geometry.groups, *counts[1:], blocking.splits.number)
        weights: Array = self.weights.weight
        if plan.packed and not problem.prepacked:
            weights = emit.scratch(*self.weights.packed)
            self.weights.pack(weights)
        tasks: Expr = 1
        for extent in extents:
            tasks = tasks * extent
        block = blocking.panel.window.block
        with self.result.kernel(), emit.tasks(tasks, plan.parallel) as task:
            digits = emit.unravel(task, extents)
            number_of = emit.let if problem.is_static else emit.opaque_value
            image, group, depth, height, width, split = map(number_of, digits)
            first = [i * b for i, b in zip((image, depth, height, width), block)]
            with self.result.task(block[-1] * self.accesses[-1].out_step) as rows:
                self._task(Task(blocking, weights, rows, first, group, split))

    def _task(self, task: Task) -> None:
        """Emit one task: all K-blocks, then the rows of the result."""
        plan, blocking = self.plan, task.blocking
        panel = emit.scratch(blocking.panel_room, self.steps.panel_dtype)
        fresh = self.k_blocks == 1
        elements = blocking.acc_elements * (blocking.splits.per_split if self.holds_all else 1)
        acc = emit.scratch(blocking.acc_room, self.dtype)
        # Rows without taps are not read.
        if not fresh or self.accesses[-1].has_empty_phase:
            emit.fill(acc, 0, elements, emit.constant(0, self.dtype))
        if not fresh:
            self._begin_sums(task, acc)
        for number in emit.loop(self.k_blocks):
            first = number * plan.depth
            steps = emit.clamped_extent(first, self.steps.number, plan.depth)
            self._pack_data(task, panel, first, steps)
            self._products(task, KBlock(first, steps, panel, fresh), acc)
        if self.holds_all:
            for block, start in self._blocks_of(task):
                self._write(task, block, acc, start)

    def _products(self, task: Task, k_block: KBlock, acc: Array) -> None:
        """Sum every block of output channels and tile over a K-block; tiles are the inner loop."""
        for block, start in self._blocks_of(task):
            reduction = Reduction(task, k_block, block, acc, start)
            for phase in self.groups.phases():
                for position, vectors in task.blocking.tiles.tiles():
                    self._tile(reduction, phase, position, vectors)
            if not self.holds_all:
                self._write(task, block, acc, start)

    def _blocks_of(self, task: Task) -> Iterator[tuple[Expr, Expr]]:
        """Emit ``for block, start in self._blocks_of(task)``: a loop over the blocks of output
        channels of a task, whose accumulators begin at `start`."""
        blocking = task.blocking
        for block, i in blocking.splits.blocks_of(task.split):
            yield block, i * blocking.acc_elements if self.holds_all else 0

    def _begin_sums(self, task: Task, acc: Array) -> None:
        """Write the initial sums, where a task keeps those of all its blocks: they are zero."""

    def _write(self, task: Task, block: Expr, acc: Array, start: Expr) -> None:
        """Write the rows of a block of output channels, whose accumulators begin at `start`."""
        blocking = task.blocking
        window, pitch = blocking.panel.window, blocking.tiles.length
        copy = PhaseCopy(self.problem, self.plan, window, task.rows, task.first, pitch)
        copy.block(task.group, block, acc, start)

    # ------------------------------------------------------------ operands

    def _pack_data(self, task: Task, panel: Array, first: Expr, count: Expr) -> None:
        """Fill the panel with `count` steps of a group's input channels."""
        channel = task.group * self.steps.number + first
        source = Source(self.data, channel, count, self.problem.in_sizes)
        pack(task.blocking.panel, panel, source, task.first)

    def _weight_at(
        self, reduction: Reduction, phase: PhaseIndex
    ) -> Callable[[int, Expr, Sequence[Expr]], Expr]:
        """Return the weight of an output channel of the tile, by step of the K-block and tap."""
        plan, geometry, weights = self.plan, self.problem.geometry, reduction.task.weights
        group, layout = reduction.task.group, self.weights
        if plan.packed:
            packed_at = self._packed_at(reduction, phase)
            return lambda o, step, taps: weights[packed_at(step, taps) + o]
        weight = layout.weight
        rows = []
        for o in range(plan.channels):
            k = reduction.block * plan.channels + o
            if geometry.k_per_group % plan.channels:
                k = emit.least(k, geometry.k_per_group - 1)  # the last again, and dropped
            k = group * geometry.k_per_group + k
            rows.append(emit.let(weight.at("OI", k, reduction.k_block.first)))
        return lambda o, channel, taps: weight[rows[o] + weight.at("I" + TAPS, channel, *taps)]

    def _packed_at(self, reduction: Reduction, phase: PhaseIndex) -> PackedAt:
        """Return where the packed weights of a tile are, by step of the K-block and tap."""
        layout, first = self.weights, reduction.k_block.first
        block = reduction.task.group * layout.blocks + reduction.block
        start = layout.offset_of(block, phase)
        base = emit.let(start + layout.step_offset(phase, first, [0] * len(SPATIAL)))
        return lambda step, taps: base + layout.step_offset(phase, step, taps)

    def _prefetch(
        self, reduction: Reduction, phase: PhaseIndex, position: Expr
    ) -> PrefetchAt | None:
        """Return how a tile prefetches the weights that are read after those of a step and tap,
        where it pays: of the next phase or block of output channels."""
        layout, k_block = self.weights, reduction.k_block
        if not (self.plan.packed and self.problem.prepacked):
            return None
        tile = self.plan.vectors * self.plan.lanes
        if not prefetch.pays(layout.packed, prod(self.problem.positions), tile):
            return None
        packed_at = self._packed_at(reduction, phase)
        ahead: Expr = layout.block_elements
        if k_block.fresh:
            ahead = layout.step_offset(phase, k_block.steps, [0] * len(SPATIAL))
        number, count = emit.quotient(position, tile), layout.steps.weights

        def prefetch_at(step: Expr, taps: Sequence[Expr]) -> None:
            start = packed_at(step, taps) + ahead
            prefetch.prefetch_share(layout.weight, start, count, number)

        return prefetch_at

    # ------------------------------------------------------------ arithmetic

    def _tile(self, reduction: Reduction, phase: PhaseIndex, position: Expr, vectors: int) -> None:
        """accumulators[channels][vectors] += weight * panel, over input channels and taps."""
        plan, lanes, (task, k_block, _, acc, _) = self.plan, self.plan.lanes, reduction
        last = self.accesses[-1]
        in_row = [0]
        if plan.all_phases:
            in_row = sorted(set(map(last.phase_of, range(last.kernel))))
        tile = list(product(range(plan.channels), in_row, range(vectors)))
        registers = dict(zip(tile, emit.registers(len(tile), lanes, self.dtype)))
        number, data_at = self._data_at(task, phase)
        rows, indices = {}, {}
        for o, p, v in tile:
            rows[o, p] = o * self.phases + number + p
            row = reduction.start + rows[o, p] * task.blocking.tiles.length
            indices[o, p, v] = emit.lanes_of(row + position + v * lanes, lanes)
        for at, (register, index) in registers.items():
            value = (
                emit.broadcast(self._first_sum(task, reduction.block, rows[at[:2]]), lanes)
                if k_block.fresh
                else acc[indices[at]]
            )
            emit.store(register, index, value)
        weight_at = self._weight_at(reduction, phase)
        prefetch_at = self._prefetch(reduction, phase, position)
        for step, taps, data, p in self._reads(k_block, phase, data_at, position, vectors):
            if prefetch_at:
                prefetch_at(step, taps)
            for o in range(plan.channels):
                weight = emit.let(weight_at(o, step, taps))
                for v, vector in enumerate(data):
                    register, index = registers[o, p, v]
                    factor = emit.broadcast(weight, lanes)
                    emit.store(register, index, self._add(register[index], factor, vector))
        for at, (register, index) in registers.items():
            emit.store(acc, indices[at], register[index])

    def _reads(
        self, k_block: KBlock, phase: PhaseIndex, data_at: DataAt, position: Expr, vectors: int
    ) -> Iterator[tuple[Expr, Sequence[Expr], list[Expr], int]]:
        """Emit the loops over input channels and taps of a tile; yield step, taps, data and phase.

        `data` are the vectors of the panel that a tap reads, and the phase is that to which they
        are summed: one of those along a row if the tile has all of them, else 0.
        """
        lanes = self.plan.lanes

        def loaded(start: Expr) -> list[Expr]:
            indices = (emit.lanes_of(start + v * lanes, lanes) for v in range(vectors))
            return [emit.let(k_block.panel[index]) for index in indices]

        if not self.plan.all_phases:
            for step, taps in self.groups.taps(k_block.steps, phase):
                yield step, taps, loaded(data_at(step, taps) + position), 0
            return
        for step, *outer in emit.grid(k_block.steps, *phase.taps[:-1]):
            first = data_at(step, (*outer, 0)) + position
            for shift, users in self.accesses[-1].reads.items():
                data = loaded(first + shift)
                for p, tap in users:
                    yield step, (*outer, tap), data, p

    def _first_sum(self, task: Task, block: Expr, row: Expr) -> Expr:
        """Return the initial sum of a row ``[output channel][phase]`` of a block."""
        return emit.constant(0, self.dtype)

    def _add(self, acc: Expr, weight: Expr, row: Expr) -> Expr:
        """Return a vector of accumulators, to each of which a product is added."""
        return acc + weight * row

    def _data_at(self, task: Task, phase: PhaseIndex) -> tuple[Expr, DataAt]:
        """Return the number of a phase, and where its first position reads a plane, by tap.

        For all phases of a row: the number of the first, and where a tap without a shift reads.
        """
        panel = task.blocking.panel
        firsts = [group.first_tap + number for group, number in zip(*phase)]
        offsets = [emit.let(self.accesses[axis].phase_of(f)) for axis, f in zip(SPATIAL, firsts)]
        bases = [
            emit.let(self.accesses[axis].shift_of(offset, first))
            for axis, offset, first in zip(SPATIAL, offsets, firsts)
        ]
        if self.plan.all_phases:
            offsets[-1] = bases[-1] = 0
        number: Expr = 0
        for axis, offset in zip(SPATIAL, offsets):
            number = number * self.accesses[axis].out_step + offset

        def data_at(plane: Expr, taps: Sequence[Expr]) -> Expr:
            slots, shifts = [0], [0]
            for axis, base, first, tap in zip(SPATIAL, bases, firsts, taps):
                access = self.accesses[axis]
                tap_number = first + tap * access.tap_step
                slots.append(access.slot_of(tap_number))
                # From the shift of the first tap, so that taps differ by constants.
                shifts.append(
                    base + tap * access.shift_step
                    if access.transposed
                    else access.shift_of(offsets[axis - 1], tap_number)
                )
            return panel.plane(plane, slots) + panel.shifted(shifts)

        return number, data_at
