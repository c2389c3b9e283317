# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose``: one gather, with one phase or with many.

Lanes run over the positions of one phase, weights are scalars broadcast from a packed panel::

    parallel (batch, group, depth, height, width block, split of output channels):
        for each chunk of `depth` input channels:
            pack the input window of the block                           -> panel
            for each block of `channels` output channels:
                for each phase, for each tile of `vectors` vectors:
                    for each input channel, for each tap of the phase:
                        accumulators[channels][vectors] += weight * panel  -> acc
        for each output row: interleave its phases                       -> out

Of the matrix product, M are output channels, N positions of one phase, K input channels and taps of
the phase.  Left, weights ``[block][phase][input channel][tap][channels]``, each broadcast; right,
`panel` ``[input channel][residue][position]``, which a tap reads at an offset: no column is built.

``conv`` is the case of one phase; ``conv_transpose`` runs, for each phase, over its own taps only:
no zero is inserted and no product wasted.  Without chunks, a block is written out as soon as it is
summed.

Of few output channels, a tile may have all phases of its rows (`all_phases`): their taps read the
same data, which then is loaded once for all of them::

    accumulators[channels][phases of the row][vectors] += weight * panel

``conv`` may read its weights where they are: a row of each output channel; and for small images it
may give each tap a plane of the panel, so that no lane is lost between rows and images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from ...emit.arguments import Packed
from ...problem import TAPS, Problem
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.direct_weights import DirectWeights
from ..parts.output_rows import Result, Rows
from ..parts.pack_panel import Source, pack
from ..parts.panel import Panel, fitted_splits, window_of
from ..parts.phase_copy import PhaseCopy
from ..parts.phase_groups import SPATIAL, PhaseIndex
from ..parts.row_tiles import RowTiles
from ..parts.splits import Splits
from ..plan.direct import DirectPlan

OverTiles = Callable[[Callable[[Expr, int], None]], None]
"""``tile(start, vectors)`` for register tiles of the positions of one phase."""

OverBlocks = Callable[[Callable[[Expr, Expr], None]], None]
"""``step(block, where its sums are)`` for the blocks of output channels of a split."""

Products = Callable[[OverTiles, Expr, Expr], None]
"""The products of a block, whose sums are at a place, in some of its tiles."""

FEWEST_SUMS = 4
"""Sums in vectors, of a register tile, that go on while the first of them is added to."""


def emit_body(problem: Problem, plan: DirectPlan, operands: Sequence[Operand]) -> None:
    """What the PrimFunc does, with its arguments as `operands`."""
    data, weight, *extra, out = operands
    Direct(problem, plan, DirectWeights(problem, plan, weight), data, out, extra).emit()


def packed_weights(problem: Problem, plan: DirectPlan) -> Packed | None:
    """What the packed weights are; None where the plan packs none."""
    return DirectWeights(problem, plan).packed if plan.packed else None


def pack_weights(problem: Problem, plan: DirectPlan, weight: Operand, packed: Operand) -> None:
    """Pack them."""
    DirectWeights(problem, plan, weight).pack(packed)


@dataclass(frozen=True)
class Blocking:
    """How the positions and output channels of a kernel are divided, and what each task allocates;
    of symbolic sizes chosen at run time.

    Attributes
    ----------
    panel : Panel
        The input window of a block of positions.
    counts : list
        Blocks of positions along the four axes.
    tiles : RowTiles
        Register tiles of the positions of one phase.
    splits : Splits
        Of the output channels.
    acc_elements, acc_room : int or expression
        Accumulators of one block of output channels, and what is allocated for all that a task
        holds at a time.
    panel_room : int
        What is allocated for the panel.
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
        Packed ones, or the user's.
    rows : Rows
        By which it writes.
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


class Reduction(NamedTuple):
    """What the register tiles of one block of output channels sum over: a chunk of the K dimension.

    Attributes
    ----------
    task : Task
    block : Expr
        The block of output channels.
    first, steps : Expr
        The first step of input channels, and how many.
    panel : Array
        Input of these steps.
    acc : Array
        Accumulators ``[output channel][phase][position]``, from element `place` on.
    place : Expr
    fresh : bool
        Whether sums start from zero instead of from what `acc` holds.
    """

    task: Task
    block: Expr
    first: Expr
    steps: Expr
    panel: Array
    acc: Array
    place: Expr
    fresh: bool


class Direct:
    """One kernel while it is being emitted.

    Another kernel of the same loop nest may take its own way to pack and to sum a tile, and its own
    order of blocks and tiles.
    """

    def __init__(
        self,
        problem: Problem,
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
        self.gathers = plan.gathers(problem)
        self.phases = prod(gather.out_step for gather in problem.gathers)
        self.chunks = -(-self.steps.number // plan.depth)
        # Whether all sums of a split are held, or those of one block of output channels.
        self.holds_all = self.chunks > 1

    # ------------------------------------------------------------ blocking

    def _blocking(self) -> Blocking:
        """Choose the blocks."""
        problem, plan, blocks = self.problem, self.plan, self.weights.blocks
        width = plan.vectors * plan.lanes
        least = 1 if problem.is_static else self._fewest_blocks(width)
        window = window_of(problem, plan.window, self.gathers, plan.lanes, least)
        if problem.is_static:
            tiles = RowTiles.of_length(plan.window.length, plan.vectors, plan.lanes)
            row_room, splits = tiles.length, plan.channel_splits
        else:
            small = self._small_vectors
            tiles = RowTiles.emitted(window.length, plan.vectors, small, plan.lanes)
            row_room = (-(-plan.window.elements // width) + 1) * width
        panel = Panel(self.gathers, window, plan.lanes)
        counts = [
            emit.opaque_value(emit.ceil_div(p, b)) for p, b in zip(problem.positions, window.block)
        ]
        if not problem.is_static:
            tasks = emit.opaque_value(emit.most(prod(counts, start=problem.geometry.groups), 1))
            splits = fitted_splits(tasks, plan.tasks, blocks)
        per_split = emit.opaque_value(emit.ceil_div(blocks, splits))
        # What has to be allocated, in numbers.
        most = per_split if problem.is_static else blocks
        acc_room = plan.channels * self.phases * row_room * (most if self.holds_all else 1)
        panel_room = panel.room(plan.depth * self.steps.planes)
        panel_room += 0 if problem.is_static else width  # a last tile may end behind it
        return Blocking(
            panel, counts, tiles, Splits(blocks, splits, per_split),
            plan.channels * self.phases * tiles.length, acc_room, panel_room,
        )  # fmt: skip

    @property
    def _small_vectors(self) -> int:
        """Vectors of the tiles for what is left of a row of unknown length: sums for the units that
        multiply, which wait for each."""
        rows = self.gathers[-1].out_step if self.plan.all_phases else 1
        least = -(-FEWEST_SUMS // (self.plan.channels * rows))
        return min(self.plan.vectors, least)

    def _fewest_blocks(self, width: int) -> Expr:
        """Of symbolic sizes, into how many the positions are divided at least: into what output
        channels can't be divided, or, where there are fewer weights than data, for each thread,
        if a block still has `width` positions.  Every part of the channels packs the same data,
        and every block reads the same weights."""
        problem, groups = self.problem, self.problem.geometry.groups
        least = -(-self.plan.tasks // (groups * self.weights.blocks))
        wanted = -(-(self.plan.tasks // 2) // groups)  # one for each thread: parts are alike
        if wanted <= least:
            return least
        data = emit.opaque_value(prod(problem.in_sizes, start=problem.in_channels))
        filled = emit.quotient(emit.opaque_value(prod(problem.positions)), width)
        most = emit.opaque_value(emit.least(emit.most(filled, least), wanted))
        large = data > problem.weights_per_group
        return emit.opaque_value(emit.choose(large, lambda: most, emit.wide(least)))

    # ------------------------------------------------------------ the loop nest

    def emit(self) -> None:
        """The whole kernel."""
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
            with self.result.task(block[-1] * self.gathers[-1].out_step) as rows:
                self._task(Task(blocking, weights, rows, first, group, split))

    def _task(self, task: Task) -> None:
        """All chunks of input channels, and what becomes of the sums."""
        plan, blocking = self.plan, task.blocking
        panel = emit.scratch(blocking.panel_room, self.steps.panel_dtype)
        fresh = self.chunks == 1
        elements = blocking.acc_elements * (blocking.splits.per_split if self.holds_all else 1)
        acc = emit.scratch(blocking.acc_room, self.dtype)
        # Rows without taps are not read.
        if not fresh or self.gathers[-1].has_empty_phase:
            emit.fill(acc, 0, elements, emit.constant(0, self.dtype))

        def over_blocks(step: Callable[[Expr, Expr], None]) -> None:
            """``step(block, where its accumulators are)`` for the blocks of this split."""
            blocking.splits.over_blocks(
                task.split,
                lambda block, i: step(block, i * blocking.acc_elements if self.holds_all else 0),
            )

        if not fresh:
            self._begin_sums(task, acc, over_blocks)

        def copy_out(block: Expr, place: Expr) -> None:
            PhaseCopy(
                self.problem, plan, blocking.panel.window, task.rows, task.first,
                blocking.tiles.length,
            ).block(task.group, block, acc, place)  # fmt: skip

        def chunk(i: Expr) -> None:
            first = i * plan.depth
            count = emit.clamped_extent(first, self.steps.number, plan.depth)
            self._pack_data(task, panel, first, count)

            def products(over_tiles: OverTiles, block: Expr, place: Expr) -> None:
                reduction = Reduction(task, block, first, count, panel, acc, place, fresh)
                for kind in self.groups.kinds:
                    self.groups.over_phases(
                        kind, lambda phase: over_tiles(partial(self._tile, reduction, phase))
                    )
                if not self.holds_all:
                    copy_out(block, place)

            self._in_order(blocking.tiles.over, over_blocks, products)

        emit.loop(self.chunks, chunk)
        if self.holds_all:
            over_blocks(copy_out)

    def _in_order(self, over_tiles: OverTiles, over_blocks: OverBlocks, products: Products) -> None:
        """The products of every block of output channels and tile: tiles are the inner loop."""
        over_blocks(partial(products, over_tiles))

    def _begin_sums(self, task: Task, acc: Array, over_blocks: OverBlocks) -> None:
        """Write what sums begin with, where a task holds those of all its blocks: they are zero."""

    # ------------------------------------------------------------ operands

    def _pack_data(self, task: Task, panel: Array, first: Expr, count: Expr) -> None:
        """Fill the panel with `count` steps of a group's input channels."""
        channel = task.group * self.steps.number + first
        source = Source(self.data, channel, count, self.problem.in_sizes)
        pack(task.blocking.panel, panel, source, task.first)

    def _weight_at(
        self, reduction: Reduction, phase: PhaseIndex
    ) -> Callable[[int, Expr, Sequence[Expr]], Expr]:
        """The weight of an output channel of the tile for a step of the chunk and a tap."""
        plan, geometry, weights = self.plan, self.problem.geometry, reduction.task.weights
        group, layout = reduction.task.group, self.weights
        if plan.packed:
            block = group * layout.blocks + reduction.block
            base = emit.let(
                layout.offset_of(block, phase)
                + layout.step_offset(phase, reduction.first, [0] * len(SPATIAL))
            )
            return lambda o, step, taps: weights[base + layout.step_offset(phase, step, taps) + o]
        weight = layout.weight
        rows = []
        for o in range(plan.channels):
            k = reduction.block * plan.channels + o
            if geometry.k_per_group % plan.channels:
                k = emit.least(k, geometry.k_per_group - 1)  # the last again, and dropped
            k = group * geometry.k_per_group + k
            rows.append(emit.let(weight.at("OI", k, reduction.first)))
        return lambda o, channel, taps: weight[rows[o] + weight.at("I" + TAPS, channel, *taps)]

    # ------------------------------------------------------------ arithmetic

    def _tile(self, reduction: Reduction, phase: PhaseIndex, start: Expr, vectors: int) -> None:
        """accumulators[channels][vectors] += weight * panel, over input channels and taps."""
        plan, lanes, blocking = self.plan, self.plan.lanes, reduction.task.blocking
        last = self.gathers[-1]
        in_row = [0]
        if plan.all_phases:
            in_row = sorted(set(map(last.phase_of, range(last.kernel))))
        tile = list(product(range(plan.channels), in_row, range(vectors)))
        registers = dict(zip(tile, emit.registers(len(tile), lanes, self.dtype)))
        number, data_at = self._data_at(reduction.task, phase)
        rows, places = {}, {}
        for o, p, v in tile:
            rows[o, p] = o * self.phases + number + p
            row = reduction.place + rows[o, p] * blocking.tiles.length
            places[o, p, v] = emit.lanes_of(row + start + v * lanes, lanes)
        for at, (register, index) in registers.items():
            value = (
                emit.broadcast(
                    self._first_sum(reduction.task, reduction.block, rows[at[:2]]), lanes
                )
                if reduction.fresh
                else reduction.acc[places[at]]
            )
            emit.store(register, index, value)
        weight_at = self._weight_at(reduction, phase)

        def vectors_at(x: Expr) -> list[Expr]:
            indices = (emit.lanes_of(x + v * lanes, lanes) for v in range(vectors))
            return [emit.let(reduction.panel[index]) for index in indices]

        def add(channel: Expr, taps: Sequence[Expr], row: Sequence[Expr], p: int) -> None:
            for o in range(plan.channels):
                weight = emit.let(weight_at(o, channel, taps))
                for v, vector in enumerate(row):
                    register, index = registers[o, p, v]
                    factor = emit.broadcast(weight, lanes)
                    emit.store(register, index, self._add(register[index], factor, vector))

        def step(channel: Expr, taps: Sequence[Expr]) -> None:
            add(channel, taps, vectors_at(data_at(channel, taps) + start), 0)

        def step_of_row(channel: Expr, *outer: Expr) -> None:
            first = data_at(channel, (*outer, 0)) + start
            for shift, users in last.reads.items():
                row = vectors_at(first + shift)
                for p, tap in users:
                    add(channel, (*outer, tap), row, p)

        if plan.all_phases:
            emit.nest((reduction.steps, *phase.taps[:-1]), step_of_row)
        else:
            self.groups.over_taps(reduction.steps, phase, step)
        for at, (register, index) in registers.items():
            emit.store(reduction.acc, places[at], register[index])

    def _first_sum(self, task: Task, block: Expr, row: Expr) -> Expr:
        """What sums of a block begin with: those of a row, ``[output channel][phase]``."""
        return emit.constant(0, self.dtype)

    def _add(self, acc: Expr, weight: Expr, row: Expr) -> Expr:
        """A vector of accumulators, and a product for each."""
        return acc + weight * row

    def _data_at(
        self, task: Task, phase: PhaseIndex
    ) -> tuple[Expr, Callable[[Expr, Sequence[Expr]], Expr]]:
        """The number of a phase, and where its first position reads a plane, by tap.

        Of a whole row: that of its first phase, and where a tap that is not shifted reads.
        """
        panel = task.blocking.panel
        firsts = [group.first_tap + number for group, number in zip(*phase)]
        offsets = [emit.let(self.gathers[axis].phase_of(f)) for axis, f in zip(SPATIAL, firsts)]
        bases = [
            emit.let(self.gathers[axis].shift_of(offset, first))
            for axis, offset, first in zip(SPATIAL, offsets, firsts)
        ]
        if self.plan.all_phases:
            offsets[-1] = bases[-1] = 0
        number: Expr = 0
        for axis, offset in zip(SPATIAL, offsets):
            number = number * self.gathers[axis].out_step + offset

        def data_at(plane: Expr, taps: Sequence[Expr]) -> Expr:
            slots, shifts = [0], [0]
            for axis, base, first, tap in zip(SPATIAL, bases, firsts, taps):
                gather = self.gathers[axis]
                tap_number = first + tap * gather.tap_step
                slots.append(gather.slot_of(tap_number))
                # From the shift of the first tap, so that taps differ by constants.
                shifts.append(
                    base + tap * gather.shift_step
                    if gather.transposed
                    else gather.shift_of(offsets[axis - 1], tap_number)
                )
            return panel.plane(plane, slots) + panel.shifted(shifts)

        return number, data_at
