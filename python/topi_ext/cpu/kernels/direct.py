# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose``: one gather, with one phase or with many.

Lanes run over the positions of one phase, weights are scalars broadcast from a packed panel::

    parallel (batch, group, depth, height, width block, split of output channels):
        for each chunk of `depth` input channels:
            pack the input window of the block                           -> panel
            for each block of `channels` output channels:
                for each phase, for each tile of `vectors` vectors:
                    for each input channel, for each tap of the phase:
                        accumulators[channels][vectors] += weight * panel  -> held
        for each output row: interleave its phases                       -> out

``conv`` is the case of one phase; ``conv_transpose`` runs, for each phase, over its own taps only:
no zero is inserted and no product wasted.  Without chunks, a block is written out as soon as it is
summed.  With `tiles_first` the loop over tiles is the outer one: what a tile reads of the panel
then stays in the first cache while all blocks of output channels pass over it.  Where no tap is
shifted (1x1 kernels, kernels as large as the stride), the panel may be stored by tiles
(`panel_by_tile`): what a tile reads of all planes lies together, and comes as fast from a cache
that is further away.

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
from typing import Any, NamedTuple

from ...emit.arguments import (
    Packed,
    conv_arguments,
    packed_weight,
    stored_weight,
    tap_number,
    weight_index,
)
from ...gather import Gather, TapGroup
from ...problem import TAPS, Problem
from .. import emit
from ..emit import ATTRIBUTES, Array, Expr, Operand
from ..parts.block_weights import BlockWeights
from ..parts.output_rows import Result
from ..parts.pack_panel import pack
from ..parts.panel import Panel, fitted_splits, window_of
from ..plan.direct import DirectPlan

FEWEST_SUMS = 4
"""Sums in vectors, of a register tile, that go on while the first of them is added to."""

MOST_LOOKED_UP = 64
"""Phases of which a kernel writes a table."""

SPATIAL = (1, 2, 3)
"""Of the four axes, those that have taps."""


def build(problem: Problem, plan: DirectPlan) -> Any:
    """The PrimFunc ``(data, weight, *operands of the epilogue, out)``, scheduled by `plan`."""
    with emit.kernel(ATTRIBUTES) as made:
        packed = packed_weights(problem, plan) if is_prepacked(problem, plan) else None
        with emit.body(*conv_arguments(problem, packed)) as operands:
            emit_body(problem, plan, operands)
    return made[0]


def emit_body(problem: Problem, plan: DirectPlan, operands: Sequence[Operand]) -> None:
    """What that PrimFunc does, with its arguments as `operands`."""
    data, weight, *extra, out = operands
    Direct(problem, plan, weight, data, out, extra).emit()


def is_prepacked(problem: Problem, plan: DirectPlan) -> bool:
    """Whether the kernel wants its weights as :func:`build_packing` writes them."""
    return problem.prepacked and plan.packed


def build_packing(problem: Problem, plan: DirectPlan) -> Any:
    """The PrimFunc ``(weight, packed)`` that packs weights for the kernel of the same plan."""
    with emit.kernel(ATTRIBUTES) as made:
        arguments = stored_weight(problem), packed_weight(packed_weights(problem, plan))
        with emit.body(*arguments) as (weight, packed):
            Direct(problem, plan, weight).pack_weights(packed)
    return made[0]


def packed_weights(problem: Problem, plan: DirectPlan) -> Packed:
    """What the packed weights are."""
    return Packed(Direct(problem, plan).packed_elements, problem.acc_dtype)


def _has_taps(gather: Gather) -> Callable[[Expr], Expr]:
    """Whether a phase meets a tap: looked up, or of many phases computed."""
    if gather.out_step > MOST_LOOKED_UP:
        return lambda phase: gather.first_tap_of(phase) < gather.kernel
    phases = range(gather.out_step)
    found = emit.table([int(gather.first_tap_of(phase) < gather.kernel) for phase in phases])
    return lambda phase: found(phase) > 0


class Steps(NamedTuple):
    """How input channels are summed: in how many steps, and what each takes.

    Attributes
    ----------
    number : int
        Steps of all input channels of a group.
    planes, panel_dtype
        Planes of the panel for each step and slot, and what it consists of.
    weights, packed_dtype
        Packed weights for each step, tap and block of output channels, and what they consist of.
    """

    number: int
    planes: int
    panel_dtype: str
    weights: int
    packed_dtype: str


@dataclass(frozen=True)
class AnyTaps(TapGroup):
    """One of the phases of two groups, which run the same code: its taps are counted at run time.

    Attributes
    ----------
    groups : tuple of TapGroup
        The two groups.
    """

    groups: tuple[TapGroup, ...] = ()


@dataclass(frozen=True)
class Sums:
    """What the tiles of one block sum up: a chunk of input channels, and where the sums are."""

    group: Expr
    block: Expr
    first: Expr
    count: Expr
    panel: Array
    held: Array
    place: Expr
    fresh: bool


class Direct:
    """One kernel while it is being emitted.

    Another kernel of the same loop nest may take its own way to pack and to sum a tile.
    """

    def __init__(
        self,
        problem: Problem,
        plan: DirectPlan,
        weight: Operand | None = None,
        data: Operand | None = None,
        out: Operand | None = None,
        extra: Sequence[Operand] = (),
    ):
        self.problem, self.plan = problem, plan
        self.weight, self.data, self.out, self.extra = weight, data, out, extra
        self.dtype = problem.acc_dtype
        self.steps = self._steps()
        self.gathers = plan.gathers(problem)
        self.blocks = -(-problem.out_channels // plan.channels)
        self.phases = prod(gather.out_step for gather in problem.gathers)
        groups = [problem.gathers[axis].groups for axis in SPATIAL]
        self.tap_steps = [problem.gathers[axis].tap_step for axis in SPATIAL]
        if plan.all_phases:
            # One piece of code for all phases along a row, which know their taps.
            groups[-1] = (TapGroup(0, 1, problem.gathers[-1].kernel),)
            self.tap_steps[-1] = 1
        self.combinations = list(product(*groups))
        # Along outer axes, phases with different numbers of taps may share code: it builds sooner.
        self.shared, self.kinds = groups[: plan.shared], list(product(*groups[plan.shared :]))
        self.block_weights = self.steps.number * problem.geometry.taps * self.steps.weights
        self.packed_elements = problem.geometry.groups * self.blocks * self.block_weights
        self.chunks = -(-self.steps.number // plan.depth)
        # Whether all sums of a split are held, or those of one block of output channels.
        self.holds_all = self.chunks > 1 or plan.tiles_first

    def _steps(self) -> Steps:
        """One input channel at a time."""
        return Steps(self.problem.in_channels, 1, self.dtype, self.plan.channels, self.dtype)

    def _block_positions(self) -> list[Expr]:
        """Choose the blocks, and say how many there are along the four axes."""
        problem, plan = self.problem, self.plan
        width = plan.vectors * plan.lanes
        blocks = 1 if problem.is_static else self._fewest_blocks(width)
        self.window = window_of(problem, plan.window, self.gathers, plan.lanes, blocks)
        if problem.is_static:
            self.row: Expr = -(-plan.window.length // plan.lanes) * plan.lanes
            row_room, self.channel_splits = self.row, plan.channel_splits
        else:
            self.row = self._unknown_row()
            row_room = (-(-plan.window.elements // width) + 1) * width
        self.panel = Panel(self.gathers, self.window, plan.lanes)
        counts = [
            emit.opaque_value(emit.ceil_div(p, b))
            for p, b in zip(problem.positions, self.window.block)
        ]
        if not problem.is_static:
            tasks = emit.opaque_value(emit.most(prod(counts, start=problem.geometry.groups), 1))
            self.channel_splits = fitted_splits(tasks, plan.tasks, self.blocks)
        self.per_split = emit.opaque_value(emit.ceil_div(self.blocks, self.channel_splits))
        self.block_held = plan.channels * self.phases * self.row
        # What has to be allocated, in numbers.
        most = self.per_split if problem.is_static else self.blocks
        self.held_room = plan.channels * self.phases * row_room * (most if self.holds_all else 1)
        self.planes = plan.depth * self.steps.planes * self.panel.slots
        self.panel_room = self.panel.room(plan.depth * self.steps.planes)
        self.panel_room += 0 if problem.is_static else width  # a last tile may end behind it
        if plan.panel_by_tile:
            self.panel_room = self.planes * -(-row_room // width) * width
        return counts

    def _unknown_row(self) -> Expr:
        """Choose the tiles of a row of unknown length, and say how long they are together."""
        lanes, vectors = self.plan.lanes, self.plan.vectors
        present = emit.opaque_value(emit.ceil_div(self.window.length, lanes))
        if self.small == vectors:
            self.whole_tiles, self.small_tiles = (
                emit.opaque_value(emit.ceil_div(present, vectors)),
                0,
            )
        else:
            self.whole_tiles = emit.opaque_value(emit.quotient(present, vectors))
            left = present - self.whole_tiles * vectors
            self.small_tiles = emit.opaque_value(emit.ceil_div(left, self.small))
        tiled = self.whole_tiles * vectors + self.small_tiles * self.small
        return emit.opaque_value(tiled * lanes)

    def _fewest_blocks(self, width: int) -> Expr:
        """Of symbolic sizes, into how many the positions are divided at least: into what output
        channels can't be divided, or, where there are fewer weights than data, for each thread,
        if a block still has `width` positions.  Every part of the channels packs the same data,
        and every block reads the same weights."""
        problem, groups = self.problem, self.problem.geometry.groups
        least = -(-self.plan.tasks // (groups * self.blocks))
        wanted = -(-(self.plan.tasks // 2) // groups)  # one for each thread: parts are alike
        if wanted <= least:
            return least
        data = emit.opaque_value(prod(problem.in_sizes, start=problem.in_channels))
        filled = emit.quotient(emit.opaque_value(prod(problem.positions)), width)
        most = emit.opaque_value(emit.least(emit.most(filled, least), wanted))
        large = data > problem.weights_per_group
        return emit.opaque_value(emit.choose(large, lambda: most, emit.wide(least)))

    def emit(self) -> None:
        """The whole kernel."""
        problem, plan = self.problem, self.plan
        counts = self._block_positions()
        extents = (counts[0], problem.geometry.groups, *counts[1:], self.channel_splits)
        self.packed: Array = self.weight
        if plan.packed and not problem.prepacked:
            self.packed = emit.scratch(self.packed_elements, self.steps.packed_dtype)
            self.pack_weights(self.packed)
        tasks: Expr = 1
        for extent in extents:
            tasks = tasks * extent
        self.result = Result(problem, self.out, self.extra, plan.lanes if plan.streamed else 0)
        with self.result.kernel(), emit.tasks(tasks, plan.parallel) as task:
            digits = emit.unravel(task, extents)
            number_of = emit.let if problem.is_static else emit.opaque_value
            image, group, depth, height, width, split = map(number_of, digits)
            numbers = (image, depth, height, width)
            self.first = [i * b for i, b in zip(numbers, self.window.block)]
            with self.result.task(self.window.block[-1] * self.gathers[-1].out_step):
                self._task(group, split)

    # ------------------------------------------------------------ weights

    def pack_weights(self, packed: Array) -> None:
        """packed[group][block][combination][phases][step][taps][channels]."""
        groups = self.problem.geometry.groups
        with emit.tasks(groups * self.blocks, self.plan.parallel) as task:
            group, block = emit.unravel(task, (groups, self.blocks))
            copied = self._copied_weights()
            if copied:
                self._pack_copied(copied, packed, group, block)
            else:
                self._pack_steps(
                    packed,
                    task,
                    0,
                    self.steps.number,
                    lambda step, taps: partial(self._weight, group, block, step, taps),
                )

    def _copied_weights(self) -> BlockWeights | None:
        """A copy of some of a block's weights, where packing is faster by way of it."""
        problem, plan = self.problem, self.plan
        count = plan.copied_channels(problem)
        as_stored = self.steps.packed_dtype == self.dtype and self.weight.dtype == problem.dtypes[1]
        if not (count and as_stored):
            return None
        return BlockWeights(problem, self.weight, plan.channels, self.blocks, count, plan.lanes)

    def _pack_copied(self, copied: BlockWeights, packed: Array, group: Expr, block: Expr) -> None:
        """By way of that copy, which is made of some input channels at a time."""
        problem, held = self.problem, emit.scratch(copied.elements, self.dtype)

        def chunk(number: Expr) -> None:
            first = emit.let(emit.least(number * copied.count, problem.in_channels - copied.count))
            copied.copy(held, group, block, first)

            def weights(step: Expr, taps: Sequence[Expr]) -> Callable[[int], Expr]:
                row = tap_number(problem, taps) * copied.pitch + (step - first) * copied.channels
                return lambda o: held[row + o]

            task = group * self.blocks + block
            self._pack_steps(packed, task, first, copied.count, weights)

        emit.loop(-(-problem.in_channels // copied.count), chunk)

    def _pack_steps(
        self,
        packed: Array,
        block: Expr,
        first: Expr,
        count: int,
        weights: Callable[[Expr, Sequence[Expr]], Callable[[int], Expr]],
    ) -> None:
        """``weights(step, taps)(output channel)`` for `count` steps from `first` on, of a block."""

        def element(
            i: Expr, combination: Sequence[TapGroup], phases: Sequence[Expr], *taps: Expr
        ) -> None:
            numbers = self.tap_numbers(combination, phases, taps)
            into = self._weights_of(block, combination, phases)
            into = into + self._weight_step(combination, first + i, taps)
            weight = weights(first + i, numbers)
            for o in range(self.plan.channels):
                emit.store(packed, into + o, weight(o))

        def of_phase(i: Expr, combination: Sequence[TapGroup], *phases: Expr) -> None:
            counts = [group.taps for group in combination]
            emit.nest(counts, partial(element, i, combination, phases))

        def of_step(i: Expr) -> None:
            for kind in self.kinds:
                self._over_phases(kind, partial(of_phase, i))

        emit.loop(count, of_step)

    def tap_numbers(
        self, combination: Sequence[TapGroup], phases: Sequence[Expr], taps: Sequence[Expr]
    ) -> list[Expr]:
        """Along the three axes of the kernel, the taps of a phase."""
        return [
            tap_group.first_tap + phase + tap * step
            for tap_group, phase, tap, step in zip(combination, phases, taps, self.tap_steps)
        ]

    def _weight(self, group: Expr, block: Expr, step: Expr, taps: Sequence[Expr], o: int) -> Expr:
        """What one step multiplies by, or zero beyond the last output channel."""
        out_channel = block * self.plan.channels + o
        inside: Expr = True
        if self.problem.out_channels % self.plan.channels:
            inside = out_channel < self.problem.out_channels
        return emit.choose(
            inside,
            lambda: self._present_weight(group, step, out_channel, taps),
            emit.constant(0, self.steps.packed_dtype),
        )

    def _present_weight(
        self, group: Expr, step: Expr, out_channel: Expr, taps: Sequence[Expr]
    ) -> Expr:
        index = weight_index(self.problem, self.weight, group, step, out_channel, taps)
        return self.weight.load(index, self.dtype)

    def _weights_of(
        self, block: Expr, combination: Sequence[TapGroup], phases: Sequence[Expr]
    ) -> Expr:
        """Offset of the packed weights of one phase."""
        unknown = [axis for axis, group in enumerate(combination) if isinstance(group, AnyTaps)]
        if unknown:
            return self._weights_of_either(block, combination, phases, unknown[0])
        before = 0
        for other in self.combinations[: self.combinations.index(tuple(combination))]:
            before += prod(group.phases * group.taps for group in other)
        number: Expr = 0
        for group, phase in zip(combination, phases):
            number = number * group.phases + phase
        taps = prod(group.taps for group in combination)
        unit = self.steps.number * self.steps.weights
        return block * self.block_weights + before * unit + number * (taps * unit)

    def _weights_of_either(
        self, block: Expr, combination: Sequence[TapGroup], phases: Sequence[Expr], axis: int
    ) -> Expr:
        """The same of a phase that is one of two groups' along this axis."""
        one, other = combination[axis].groups

        def of_group(group: TapGroup, phase: Expr) -> Expr:
            groups, numbers = list(combination), list(phases)
            groups[axis], numbers[axis] = group, phase
            return self._weights_of(block, groups, numbers)

        phase = phases[axis]
        offset = emit.choose(
            phase < one.phases,
            lambda: of_group(one, phase),
            of_group(other, phase - one.phases),
        )
        return emit.let(offset)

    def _weight_step(
        self, combination: Sequence[TapGroup], step: Expr, taps: Sequence[Expr]
    ) -> Expr:
        """Offset of a step and tap in the packed weights of its phase."""
        for group, tap in zip(combination, taps):
            step = step * group.taps + tap
        return step * self.steps.weights

    # ------------------------------------------------------------ one task

    def _task(self, group: Expr, split: Expr) -> None:
        plan = self.plan
        panel = emit.scratch(self.panel_room, self.steps.panel_dtype)
        fresh = self.chunks == 1
        elements = self.block_held * (self.per_split if self.holds_all else 1)
        held = emit.scratch(self.held_room, self.dtype)
        # Rows without taps are not read.
        if not fresh or self.gathers[-1].has_empty_phase:
            emit.fill(held, 0, elements, emit.constant(0, self.dtype))

        def blocks(step: Callable[[Expr, Expr], None]) -> None:
            """``step(block, where it is held)`` for the blocks of this split."""

            def numbered(i: Expr) -> None:
                number = split * self.per_split + i
                is_even = (
                    isinstance(self.channel_splits, int) and self.blocks % self.channel_splits == 0
                )
                inside = True if is_even else number < self.blocks
                emit.when(
                    inside, lambda: step(number, i * self.block_held if self.holds_all else 0)
                )

            emit.loop(self.per_split, numbered)

        def chunk(i: Expr) -> None:
            first = i * plan.depth
            count = emit.clamped_extent(first, self.steps.number, plan.depth)
            self._pack_data(panel, group, first, count)

            def products(number: Expr, place: Expr, tiles: Callable[..., None]) -> None:
                sums = Sums(group, number, first, count, panel, held, place, fresh)
                for kind in self.kinds:
                    self._over_phases(
                        kind, lambda c, *phases: tiles(partial(self._tile, sums, c, phases))
                    )

            def block(number: Expr, place: Expr) -> None:
                products(number, place, self._tiles)
                if not self.holds_all:
                    self._copy_out(group, number, held, place)

            if plan.tiles_first:
                self._tiles(
                    lambda start, vectors: blocks(
                        lambda number, place: products(
                            number, place, lambda tile: tile(start, vectors)
                        )
                    )
                )
            else:
                blocks(block)

        emit.loop(self.chunks, chunk)
        if self.holds_all:
            blocks(lambda number, place: self._copy_out(group, number, held, place))

    def _over_phases(self, kind: Sequence[TapGroup], step: Callable[..., None]) -> None:
        """``step(combination, *phases)`` for all phases of the axes that share code, and of these
        groups along the others."""

        def group_of(groups: Sequence[TapGroup], phase: Expr) -> TapGroup:
            if len(groups) == 1:
                return groups[0]
            one, other = groups
            taps = emit.choose(phase < one.phases, lambda: one.taps, other.taps)
            return AnyTaps(0, one.phases + other.phases, emit.let(taps), (one, other))

        def of_phases(*phases: Expr) -> None:
            step((*map(group_of, self.shared, phases), *kind), *phases)

        counts = [sum(group.phases for group in groups) for groups in self.shared]
        emit.nest((*counts, *(group.phases for group in kind)), of_phases)

    def _pack_data(self, panel: Array, group: Expr, first: Expr, count: Expr) -> None:
        """Fill the panel with `count` steps of a group's input channels."""
        channel = group * self.steps.number + first
        sizes = self.problem.in_sizes
        if self.plan.panel_by_tile:
            emit.loop(count, lambda i: self._pack_tiles(panel, channel + i, i))
        else:
            pack(self.panel, panel, self.data, channel, count, self.first, sizes)

    def _pack_tiles(self, panel: Array, channel: Expr, step: Expr) -> None:
        """panel[tile][step][slot][vectors] of one input channel, from its planes."""
        lanes, slots, width = self.plan.lanes, self.panel.slots, self.plan.vectors * self.plan.lanes
        planes = emit.scratch(self.panel.room(1) + width, self.steps.panel_dtype)
        pack(self.panel, planes, self.data, channel, 1, self.first, self.problem.in_sizes)

        def tile(slot: Expr, start: Expr, vectors: int) -> None:
            source = emit.let(slot * self.panel.pitch + start)
            into = emit.let(start * self.planes + (step * slots + slot) * width)
            for v in range(vectors):
                value = planes[emit.lanes_of(source + v * lanes, lanes)]
                emit.store(panel, emit.lanes_of(into + v * lanes, lanes), value)

        emit.loop(slots, lambda slot: self._tiles(partial(tile, slot)))

    def _tiles(self, tile: Callable[[Expr, int], None]) -> None:
        """``tile(start, vectors)`` for all tiles of a row; of a row of unknown length what is left
        goes by small ones."""
        lanes, vectors = self.plan.lanes, self.plan.vectors
        if isinstance(self.row, int):
            emit.tiles(self.row // lanes, vectors, lambda v, size: tile(v * lanes, size))
            return
        width, small = vectors * lanes, self.small * lanes
        # TVM would put where a tile is into every index.
        emit.loop(self.whole_tiles, lambda i: tile(emit.opaque_value(i * width), vectors))
        rest = self.whole_tiles * width
        emit.loop(self.small_tiles, lambda i: tile(emit.opaque_value(rest + i * small), self.small))

    @property
    def small(self) -> int:
        """Vectors of the tiles for what is left of a row of unknown length: sums for the units that
        multiply, which wait for each, or what the panel is tiled by."""
        rows = self.gathers[-1].out_step if self.plan.all_phases else 1
        least = -(-FEWEST_SUMS // (self.plan.channels * rows))
        return self.plan.vectors if self.plan.panel_by_tile else min(self.plan.vectors, least)

    def _tile(
        self,
        sums: Sums,
        combination: Sequence[TapGroup],
        phases: Sequence[Expr],
        start: Expr,
        vectors: int,
    ) -> None:
        """accumulators[channels][vectors] += weight * panel, over input channels and taps."""
        plan, lanes = self.plan, self.plan.lanes
        last = self.gathers[-1]
        in_row = [0]
        if plan.all_phases:
            in_row = sorted(set(map(last.phase_of, range(last.kernel))))
        tiles = list(product(range(plan.channels), in_row, range(vectors)))
        acc = dict(zip(tiles, emit.registers(len(tiles), lanes, self.dtype)))
        zero = emit.broadcast(emit.constant(0, self.dtype), lanes)
        number, data_of = self._phase(combination, phases)
        places = {
            (o, p, v): emit.lanes_of(
                sums.place + (o * self.phases + number + p) * self.row + start + v * lanes, lanes
            )
            for o, p, v in tiles
        }
        for tile, (register, index) in acc.items():
            emit.store(register, index, zero if sums.fresh else sums.held[places[tile]])
        weight_of = self._weights_of_tile(sums, combination, phases)
        place = start * self.planes if plan.panel_by_tile else start

        def rows_at(x: Expr) -> list[Expr]:
            places = (emit.lanes_of(x + v * lanes, lanes) for v in range(vectors))
            return [emit.let(sums.panel[place]) for place in places]

        def add(channel: Expr, taps: Sequence[Expr], rows: Sequence[Expr], p: int) -> None:
            for o in range(plan.channels):
                weight = emit.let(weight_of(o, channel, taps))
                for v, row in enumerate(rows):
                    register, index = acc[o, p, v]
                    total = self._add_products(register[index], emit.broadcast(weight, lanes), row)
                    emit.store(register, index, total)

        def step(channel: Expr, taps: Sequence[Expr]) -> None:
            add(channel, taps, rows_at(data_of(channel, taps) + place), 0)

        def step_of_row(channel: Expr, outer: Sequence[Expr]) -> None:
            first = data_of(channel, (*outer, 0)) + place
            for shift, users in last.reads.items():
                rows = rows_at(first + shift)
                for p, tap in users:
                    add(channel, (*outer, tap), rows, p)

        if plan.all_phases:
            outer = [group.taps for group in combination[:-1]]
            emit.nest((sums.count, *outer), lambda i, *taps: step_of_row(i, taps))
        else:
            self._over_taps(sums.count, combination, step)
        for tile, (register, index) in acc.items():
            emit.store(sums.held, places[tile], register[index])

    def _add_products(self, sums: Expr, weight: Expr, row: Expr) -> Expr:
        """A vector of sums, and a product for each."""
        return sums + weight * row

    def _phase(
        self, combination: Sequence[TapGroup], phases: Sequence[Expr]
    ) -> tuple[Expr, Callable[[Expr, Sequence[Expr]], Expr]]:
        """The number of a phase, and where its first position reads a plane, by tap.

        Of a whole row: that of its first phase, and where a tap that is not shifted reads.
        """
        firsts = [group.first_tap + phase for group, phase in zip(combination, phases)]
        offsets = [emit.let(self.gathers[axis].phase_of(f)) for axis, f in zip(SPATIAL, firsts)]
        bases = [
            emit.let(self.gathers[axis].shift_of(offset, first))
            for axis, offset, first in zip(SPATIAL, offsets, firsts)
        ]
        if self.plan.all_phases:
            offsets[-1] = bases[-1] = 0
        phase: Expr = 0
        for axis, offset in zip(SPATIAL, offsets):
            phase = phase * self.gathers[axis].out_step + offset

        def data_of(plane: Expr, taps: Sequence[Expr]) -> Expr:
            slots, shifts = [0], [0]
            for axis, base, first, tap in zip(SPATIAL, bases, firsts, taps):
                gather = self.gathers[axis]
                number = first + tap * gather.tap_step
                slots.append(gather.slot_of(number))
                # From the shift of the first tap, so that taps differ by constants.
                shifts.append(
                    base + tap * gather.shift_step
                    if gather.transposed
                    else gather.shift_of(offsets[axis - 1], number)
                )
            if self.plan.panel_by_tile:
                # Of one tile; no tap is shifted.
                return self.panel.number(plane, slots) * (self.plan.vectors * self.plan.lanes)
            return self.panel.plane(plane, slots) + self.panel.shifted(shifts)

        return phase, data_of

    def _over_taps(
        self,
        count: Expr,
        combination: Sequence[TapGroup],
        step: Callable[[Expr, Sequence[Expr]], None],
    ) -> None:
        """``step(i, taps)`` for `count` steps and all taps of a phase."""
        counts = [group.taps for group in combination]
        unrolled = len(counts)
        # Every kind is code of its own; taps that are counted at run time are not written out.
        limit = self.plan.unrolled // len(self.kinds)
        least = max((a + 1 for a, groups in enumerate(self.shared) if len(groups) > 1), default=0)
        while unrolled > least and prod(counts[unrolled - 1 :]) <= limit:
            unrolled -= 1

        def over_taps(i: Expr, *outer: Expr) -> None:
            for inner in product(*(range(count) for count in counts[unrolled:])):
                step(i, (*outer, *inner))

        emit.nest((count, *counts[:unrolled]), over_taps)

    def _weights_of_tile(
        self, sums: Sums, combination: Sequence[TapGroup], phases: Sequence[Expr]
    ) -> Callable[[int, Expr, Sequence[Expr]], Expr]:
        """The weight of an output channel of the tile for a channel of the chunk and a tap."""
        plan, geometry = self.plan, self.problem.geometry
        if plan.packed:
            block = sums.group * self.blocks + sums.block
            base = emit.let(
                self._weights_of(block, combination, phases)
                + self._weight_step(combination, sums.first, [0] * len(SPATIAL))
            )
            return lambda o, channel, taps: self.packed[
                base + self._weight_step(combination, channel, taps) + o
            ]
        rows = []
        for o in range(plan.channels):
            k = sums.block * plan.channels + o
            if geometry.k_per_group % plan.channels:
                k = emit.least(k, geometry.k_per_group - 1)  # the last again, and dropped
            k = sums.group * geometry.k_per_group + k
            rows.append(emit.let(self.weight.at("OI", k, sums.first)))
        return lambda o, channel, taps: self.weight[
            rows[o] + self.weight.at("I" + TAPS, channel, *taps)
        ]

    # ------------------------------------------------------------ output

    def _copy_out(self, group: Expr, block: Expr, held: Array, place: Expr) -> None:
        """Interleave the phases of one block of channels into the output."""
        problem, plan = self.problem, self.plan
        steps = [gather.out_step for gather in self.gathers]
        sizes = problem.out_sizes
        extent = [b * s for b, s in zip(self.window.block, steps)]
        origin = [f * s for f, s in zip(self.first, steps)]
        last = steps[-1]
        present = [emit.least(e, size - o) for e, size, o in zip(extent, sizes, origin)]
        zero = emit.constant(0, self.dtype)
        # Of axes with phases that have no taps, whether a phase has some.
        filled = {
            axis: _has_taps(gather)
            for axis, gather in enumerate(self.gathers[:-1])
            if gather.has_empty_phase
        }

        def channel(o: Expr) -> None:
            number = block * plan.channels + o
            inside: Expr = True
            if problem.out_channels % plan.channels:
                inside = number < problem.out_channels
            emit.when(inside, lambda: emit.nest(present[:-1], lambda *u: row(o, number, u)))

        def row(o: Expr, number: Expr, outer: Sequence[Expr]) -> None:
            phase: Expr = o
            flat: Expr = 0
            offsets = [emit.let(u % s) for u, s in zip(outer, steps)]
            for u, s, offset, step in zip(outer, steps, offsets, self.window.steps):
                phase, flat = phase * s + offset, flat + emit.let(u // s) * step
            where = [a + u for a, u in zip(origin, (*outer, 0))]
            all_channels = group * problem.out_channels + number
            written = self.result.row(all_channels, where)
            source = emit.opaque_base(place + phase * last * self.row + flat)

            def element(position: Expr, a: Expr) -> None:
                written.put(position * last + a, held[source + (a * self.row + position)])

            def whole(position: Expr) -> None:
                if last <= 4:
                    for a in range(last):
                        element(position, a)
                else:
                    emit.loop(last, lambda a: element(position, a))

            def interleave() -> None:
                if last == 1 and not problem.is_static:
                    # LLVM would take the row for a long one.
                    written.put_all(0, held, source, present[-1], plan.lanes)
                    return
                count = present[-1] // last
                emit.loop(count, whole)
                emit.loop(present[-1] % last, lambda a: element(count, a))

            has_taps = emit.both(*(is_filled(offsets[a]) for a, is_filled in filled.items()))
            emit.when(
                has_taps, interleave, lambda: emit.loop(present[-1], lambda i: written.put(i, zero))
            )
            written.end(present[-1])

        emit.loop(plan.channels, channel)
