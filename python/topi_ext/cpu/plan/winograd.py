# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.winograd`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.minimal_filtering import Filter, joined_filters_of
from ...spec.size_hints import elements, nominal
from ..machine import CpuMachine
from ..winograd.rows import COMBINED, WinogradRows
from ..winograd.tiles import (
    MOST_TERMS,
    ROOMS,
    Tile,
    Tiled,
    candidate_tiles,
    fitted_block,
    input_rows,
    winograd_input_cycles,
    written_terms,
)
from .cost import (
    PARALLEL_CYCLES,
    SHARED_CACHES,
    blocks_in,
    candidate_blocks,
    candidate_depths,
    most_of,
    register_tile,
    tile_cycles,
    widening_cycles,
)
from .costs import WinogradCosts, costs_of
from .direct import DirectPlan, direct_elements, direct_tasks, plan_direct
from .vectors import NARROW, odd_vectors, square_size


@dataclass(frozen=True)
class WinogradPlan(Tiled):
    """Plan of the kernel of ``conv`` and ``conv_transpose`` that saves products.

    Attributes
    ----------
    tile : tuple of int
        Outputs of a phase per tile along depth, height and width: 1 or 2, along the width also 4.
    block : tuple of int
        Tiles per task along the four axes.
    lanes : int
        Elements per vector.
    channels, vectors : int
        Register tile: output channels by vectors of tiles.
    channel_splits : int
        Into how many tasks the output channels of one block are divided.
    pass_blocks : int
        Blocks of output channels whose points are held at a time.
    direct : DirectPlan
        For data that is not finite, and for symbolic sizes of few tiles.
    parallel : bool
        Whether threads share the tasks.
    channel_parts : int
        Parts of the output channels: tasks, or one after the other, for less memory, if
        `position_splits` is zero.
    position_splits : int
        Into how many tasks the positions of a part are divided, each of which combines the taps of
        the part for itself; then `channel_splits` is 1.  Zero: all threads combine them together,
        and blocks of positions are tasks.
    per_task : int
        Parts that a task computes one after the other, if `position_splits` is not zero.  Of more
        than one, all positions are one block, whose inputs the task combines once, and
        `position_splits` is 1.
    by_slice : bool
        Whether a task computes the rows that one slice of the kernel serves before those of the
        next, for less memory, if `position_splits` is not zero.
    chunks : int
        Into how many equal parts the input channels are divided, which are summed one after the
        other; 1 if a task has several parts.
    streamed : bool
        Whether the result is written by non-temporal stores.
    least, tasks : int
        For symbolic sizes, how many positions of a phase there have to be, and how many tasks there
        should be.  The block is then the room for one, which the kernel fills when it runs.
    """

    tile: tuple[int, ...]
    block: tuple[int, ...]
    lanes: int
    channels: int
    vectors: int
    channel_splits: int
    pass_blocks: int
    direct: DirectPlan
    parallel: bool = True
    channel_parts: int = 1
    position_splits: int = 0
    per_task: int = 1
    by_slice: bool = False
    chunks: int = 1
    streamed: bool = False
    least: int = 0
    tasks: int = 1

    def with_non_temporal(self, enabled: bool) -> WinogradPlan:
        """See :class:`~.window.Plan`."""
        return replace(self, streamed=enabled)

    def non_temporal_run(self, problem: Convolution, machine: CpuMachine) -> int:
        """See :class:`~.window.Plan`: a block's part of a row."""
        of_block = self.block[-1] * self.tile[-1] * problem.accesses[-1].out_step
        run: int = min(problem.out_sizes[-1], of_block)
        return run

    def from_positions(self, problem: Convolution, least: int, machine: CpuMachine) -> WinogradPlan:
        """Return the plan for `least` positions of a phase or more, with `direct` for fewer.

        Where these are no more than a few vectors have, its register tiles are of one vector, and
        all of the same size: it builds sooner.
        """
        plan = replace(self, least=least)
        if least > 16 * plan.lanes:
            return plan
        channels, _ = register_tile(problem.out_channels, 1, machine)
        direct = replace(plan.direct, channels=channels, vectors=1, unrolled=1, all_phases=False)
        return replace(plan, direct=direct)

    def filters(self, problem: Convolution) -> tuple[tuple[Filter, ...], ...]:
        """Return how each spatial axis is computed; along depth, where terms are a loop, in one
        way.
        """
        _, height, width = super().filters(problem)
        return joined_filters_of(problem.accesses[1], self.tile[0]), height, width

    def depth(self, problem: Convolution) -> int:
        """Input channels of a chunk."""
        return problem.in_channels // self.chunks

    def slices(self, problem: Convolution) -> int:
        """Slices of the kernel along depth and height: the rows of a phase need one."""
        return prod(
            sum(len(f.first_taps) for f in filters) for filters in self.filters(problem)[:2]
        )

    @property
    def inputs_first(self) -> bool:
        """Return whether all inputs of a task are combined before its parts begin."""
        return self.per_task > 1

    def gap(self, problem: Convolution) -> int:
        """Return the rows that stay empty behind those of a point: one for each input channel and
        term.

        Streams whose distance is a power of two would push each other out of the first cache.  Of
        many channels there are as many rows as let combined taps begin with a cache line.
        """
        rows = self.lanes // gcd(self.lanes, self.channels)
        return rows if self.depth(problem) >= 16 * rows else 1

    @property
    def pitch(self) -> int:
        """Distance of two rows of tiles: one register tile, or never a power of two of lines."""
        rounds = -(-prod(self.block) // (self.vectors * self.lanes))
        vectors = rounds * self.vectors
        return (vectors if rounds == 1 else odd_vectors(vectors)) * self.lanes


SHARED_TAPS = 12
"""Second caches that combined taps fill which cores still find in what they share."""

MOST_KINDS = 4
"""Kinds of phases that a kernel which saves products writes out: with eight, 3 s to build."""


LEAST_CHANNELS = 2
"""Input channels of a group from which on products are saved.  With one, additions take as long as
the products that they save, and errors, which are relative to the neighbours of an element, are
large beside a sum of few products."""


def _tiles(problem: Convolution) -> list[Tile]:
    return candidate_tiles(problem) if problem.in_channels >= LEAST_CHANNELS else []


def winograd_candidates(
    problem: Convolution, machine: CpuMachine, tiles: Sequence[Tile] | None = None
) -> Iterator[tuple[float, WinogradPlan]]:
    """Yield plans that save products, and their cycles.

    Considers the tiles that may be faster, or these `tiles` among them.

    None are yielded for one input channel, for integers, whose sums have to be exact, where no two
    taps are neighbours or a phase has none, for more kinds of phases or terms than are written out,
    and where the direct sum for data that is not finite would take more memory than operands and
    result.
    """
    tiles = [tile for tile in _tiles(problem) if tiles is None or tile in tiles]
    direct = _direct(problem, machine) if tiles else None
    if direct is None:
        return
    # The blocks follow.
    one = WinogradPlan(tiles[0], (1,) * 4, machine.lanes(problem.acc_dtype), 1, 1, 1, 1, direct)
    for tile in tiles:
        yield from _plans(problem, replace(one, tile=tile), machine)


def winograd_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[WinogradPlan, list[float]]]:
    """Yield plans that save products for symbolic sizes, and their cycles for all `known` sizes.

    None for what :func:`winograd_candidates` has none for.
    """
    tiles = _tiles(problem)
    if not tiles:
        return
    lanes = machine.lanes(problem.acc_dtype)
    direct = plan_direct(replace(problem, prepacked=False), machine)[1]
    one = WinogradPlan((1,) * 3, (1,) * 4, lanes, 1, 1, 1, 1, direct)
    shapes = {register_tile(problem.out_channels, vectors, machine) for vectors in (1, 2, 3, 4)}
    loops = list(_loops_of_any_size(problem, machine))
    for tile in tiles:
        template = replace(one, tile=tile)
        combinations = _combinations(problem, template)
        if not combinations:
            continue
        for block, order, shape in product(ROOMS, loops, shapes):
            room = order._replace(block=(1, 1, 1, block * lanes))
            plan = _with_loops(problem, template, combinations, room, shape, machine)
            if plan is None or not _fits(known[-1], plan, combinations, machine):
                continue
            yield plan, [_fitted_cycles(one, plan, combinations, machine) for one in known]


def _fitted_cycles(
    known: Convolution,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    machine: CpuMachine,
) -> float:
    """Return the estimated cycles of a plan for symbolic sizes, whose block fits the known ones."""
    block = fitted_block(plan.tiles(known), prod(plan.block), plan.position_splits or plan.tasks)
    return _cycles(known, replace(plan, block=block), combinations, machine, NARROW)[0]


def _loops_of_any_size(problem: Convolution, machine: CpuMachine) -> Iterator[Loops]:
    """Candidates: blocks of positions are tasks, or shares of parts are."""
    yield Loops((1,) * 4)
    tasks = -(-machine.threads // problem.geometry.groups)
    for parts in sorted({tasks * count for count in (1, 2, 4, 8)} | {1, -(-tasks // 2)}):
        shares = -(-tasks // parts)
        orders = (False,) if problem.prepacked else (False, True)
        if not (problem.prepacked and parts > tasks):
            for order in orders:
                yield Loops((1,) * 4, parts, shares, by_slice=order)


def _room(problem: Convolution) -> int:
    """Return the workspace limit: no more than operands and result take, minus tables and collected
    rows.
    """
    return elements(problem) * 511 // 512


def _direct(problem: Convolution, machine: CpuMachine) -> DirectPlan | None:
    """Return the sum for data that is not finite, or None where there is no room for it."""
    # Its weights come as they are.
    as_stored = replace(problem, prepacked=False)
    plan = plan_direct(as_stored, machine)[1]
    # A third as fast as it could be, and built sooner: no last tile, no taps written out, one loop
    # for all phases.
    channels = min(4, plan.channels)
    plan = replace(plan, channels=channels, vectors=1, unrolled=1, all_phases=False, shared=3)
    busy = min(machine.threads, direct_tasks(problem, plan))
    held, depth = min(
        (direct_elements(as_stored, replace(plan, depth=depth), busy), -depth)
        for depth in {plan.depth, *candidate_depths(problem.in_channels)}
    )
    return replace(plan, depth=-depth) if held <= _room(problem) else None


def _plans(
    problem: Convolution, template: WinogradPlan, machine: CpuMachine
) -> Iterator[tuple[float, WinogradPlan]]:
    """Yield the candidates with the tile of this one, and their cycles."""
    combinations = _combinations(problem, template)
    for loops in _loops(problem, template, machine) if combinations else ():
        vectors = -(-prod(loops.block) // template.lanes)
        tile = register_tile(problem.out_channels, vectors, machine, kinds=0)
        whole = _with_loops(problem, template, combinations, loops, tile, machine)
        for plan in _chunked(problem, whole, combinations, machine) if whole else ():
            if _fits(problem, plan, combinations, machine):
                cycles, of_tasks = _cycles(problem, plan, combinations, machine)
                yield cycles, replace(plan, parallel=of_tasks >= PARALLEL_CYCLES)


def _chunked(
    problem: Convolution,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    machine: CpuMachine,
) -> Iterator[WinogradPlan]:
    """Yield the plan, and where its inputs do not stay near, those of as few chunks as let them,
    and of twice as many, which hold less.
    """
    yield plan
    inputs, near = _inputs_bytes(problem, plan, combinations), most_of(machine.l2)
    if plan.inputs_first or inputs <= near:
        return
    enough = [
        chunks
        for chunks in (2, 4, 8, 16)
        if problem.in_channels % (chunks * COMBINED) == 0 and inputs <= chunks * near
    ]
    yield from (replace(plan, chunks=chunks) for chunks in enough[:2])


def _combinations(problem: Convolution, plan: WinogradPlan) -> list[tuple[Filter, ...]]:
    """Return how the kinds of phases are computed; nothing if the unrolled code would be too
    large.
    """
    combinations = list(product(*plan.filters(problem)))
    if len(combinations) > MOST_KINDS or written_terms(combinations) > MOST_TERMS:
        return []
    return combinations


def _fits(
    problem: Convolution,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    machine: CpuMachine,
) -> bool:
    """Return whether there is room for what it holds, and what a task combines is near."""
    busy = min(machine.threads, _tasks(problem, plan))
    if _elements(problem, plan, combinations, busy) > _room(problem):
        return False
    return plan.inputs_first or _inputs_bytes(problem, plan, combinations) <= machine.l2 * 2


def _inputs_bytes(
    problem: Convolution, plan: WinogradPlan, combinations: Sequence[tuple[Filter, ...]]
) -> int:
    """Return the combined inputs of one chunk and phase."""
    rows = _most_terms(combinations) * plan.depth(problem)
    return rows * plan.pitch * byte_width(problem.acc_dtype)


def _cycles(
    problem: Convolution,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    machine: CpuMachine,
    narrowest: int = 1,
) -> tuple[float, float]:
    """Return the estimated cycles until the kernel is done, and of all its tasks but for combining
    taps.
    """
    tasks = _tasks(problem, plan)
    inputs, cycles = _task_cycles(problem, plan, combinations, machine, narrowest)
    combining = 0.0
    if not problem.prepacked:
        combining = _combining_cycles(problem, plan, combinations, machine)
    if plan.position_splits:
        combining /= problem.geometry.groups * plan.channel_parts
        turns = -(-_positions(problem, plan) // plan.position_splits)
        task = inputs * turns + plan.per_task * (cycles * turns + combining)
        return -(-tasks // machine.threads) * task, tasks * task
    task = cycles + inputs
    cost = -(-tasks // machine.threads) * task * plan.channel_parts + combining / machine.threads
    return cost, tasks * task


def _positions(problem: Convolution, plan: WinogradPlan) -> int:
    """Return the blocks of tiles."""
    return blocks_in(nominal(plan.tiles(problem)), plan.block)


def _tasks(problem: Convolution, plan: WinogradPlan) -> int:
    """Tasks that may run at once."""
    if plan.position_splits:
        return (
            problem.geometry.groups * -(-plan.channel_parts // plan.per_task) * plan.position_splits
        )
    return problem.geometry.groups * _positions(problem, plan) * plan.channel_splits


class Loops(NamedTuple):
    """A block of tiles, and how tasks go over parts of the output channels, as of WinogradPlan."""

    block: tuple[int, ...]
    channel_parts: int = 1
    position_splits: int = 0
    per_task: int = 1
    by_slice: bool = False


def _with_loops(
    problem: Convolution,
    template: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    loops: Loops,
    tile: tuple[int, int],
    machine: CpuMachine,
) -> WinogradPlan | None:
    """Return the plan with these loops and this register tile, or None for more parts than there
    are blocks of channels.
    """
    channels, width = tile
    blocks = -(-problem.out_channels // channels)
    if loops.channel_parts > blocks:
        return None
    # None of them empty, and about as many in one task as in another.
    parts, blocks = (
        -(-blocks // -(-blocks // loops.channel_parts)),
        -(-blocks // loops.channel_parts),
    )
    loops = loops._replace(channel_parts=parts, per_task=-(-parts // -(-parts // loops.per_task)))
    plan = replace(
        template, **loops._asdict(), channels=channels, vectors=width, tasks=2 * machine.threads
    )
    splits, tasks = 1, _tasks(problem, plan)
    if tasks < 2 * machine.threads and not loops.position_splits:
        splits = min(blocks, -(-2 * machine.threads // tasks))
    most = max(prod(len(f.points) for f in combination) for combination in combinations)
    held = most * channels * width * template.lanes * byte_width(problem.acc_dtype)
    passes = -(-blocks * held // (splits * machine.l2 // 3))
    return replace(plan, channel_splits=splits, pass_blocks=-(-blocks // (splits * passes)))


def _loops(problem: Convolution, plan: WinogradPlan, machine: CpuMachine) -> Iterator[Loops]:
    """Candidates; the shares of a part are tasks, or there are none."""
    tiles = nominal(plan.tiles(problem))
    blocks = list(candidate_blocks(tiles, plan.lanes))
    orders = (False, True)[: 1 + (plan.slices(problem) > 1 and not problem.prepacked)]
    for block, parts in product(blocks, (1,) if problem.prepacked else (1, 2, 4, 8)):
        yield Loops(block, parts)
        if problem.is_static and not problem.prepacked and machine.threads > 1:
            for order in orders:
                yield Loops(block, parts, machine.threads, by_slice=order)
    if not problem.is_static:
        return
    # Tasks for one group.
    tasks = -(-machine.threads // problem.geometry.groups)
    for per_task, order in product((1,) if problem.prepacked else (1, 2, 4, 8, 16), orders):
        yield Loops(tiles, tasks * per_task, 1, per_task, order)
        if not problem.prepacked:
            for block in blocks:
                yield Loops(block, tasks * per_task, 1, 1, order)


def _elements(
    problem: Convolution,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    busy: int,
) -> int:
    """Return the elements that the kernel allocates while `busy` tasks run."""
    blocks = -(-problem.out_channels // (plan.channels * plan.channel_parts))
    rows = WinogradRows(problem, plan)
    width = plan.vectors * plan.lanes
    points = max(prod(len(f.points) for f in kinds) for kinds in combinations)
    outputs = prod(plan.tile) * combinations[0][2].out_step
    task = points * plan.pass_blocks * plan.channels * width
    task += -(-blocks // plan.channel_splits) * plan.channels * outputs * plan.pitch
    task += rows.inputs_held * plan.pitch
    # Rows of data as they are, for each filter along the row.
    raw: dict[tuple[Filter, ...], int] = {}
    for *pair, last in combinations:
        read = plan.lanes + prod(input_rows((*pair, last), plan.block))
        raw[tuple(pair)] = raw.get(tuple(pair), 0) + read
    task += max(raw.values())
    if problem.prepacked:
        return busy * task
    combined = blocks * plan.channels * rows.taps_held * plan.chunks
    # The weights of a block and some input channels are copied before they are combined.
    task += problem.geometry.taps * COMBINED * plan.channels
    if plan.position_splits:
        return busy * (task + combined)
    return problem.geometry.groups * combined + busy * task


def _task_cycles(
    problem: Convolution,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    machine: CpuMachine,
    narrowest: int,
) -> tuple[float, float]:
    """Return the estimated cycles of one task: of combining its inputs, and all others."""
    costs, total, combined = costs_of(machine), costs_of(machine).winograd.task, 0.0
    task = _Task.of(problem, plan, combinations, machine)
    for kinds in combinations:
        phases = prod(len(f.phases) for f in kinds)
        channel = winograd_input_cycles(kinds, plan.block, plan.lanes, costs.tiles, narrowest)
        combined += phases * problem.in_channels * channel
        products = _product_cycles(problem, plan, kinds, task, machine)
        sums, copy = _output_cycles(plan, kinds, task, costs.winograd)
        total += phases * (products + sums + copy)
    return combined, total


class _Task(NamedTuple):
    """Sizes of one task, of which all parts of its estimate are made.

    Attributes
    ----------
    blocks : float
        Blocks of output channels, the mean of all tasks.
    rounds : int
        Register tiles of the positions of a block.
    values, of_term, held : float
        Bytes of combined inputs; of one combined tap of all channels; and of all combined taps that
        are held.
    slices : int
        Slices of the kernel that are made one after the other.
    """

    blocks: float
    rounds: int
    values: int
    of_term: float
    held: float
    slices: int

    @classmethod
    def of(
        cls,
        problem: Convolution,
        plan: WinogradPlan,
        combinations: Sequence[tuple[Filter, ...]],
        machine: CpuMachine,
    ) -> _Task:
        """Return the task of a plan."""
        width = byte_width(problem.acc_dtype)
        blocks = -(-problem.out_channels // plan.channels)
        share = blocks / (plan.channel_splits * plan.channel_parts)
        rounds = -(-prod(plan.block) // (plan.lanes * plan.vectors))
        values = _most_terms(combinations) * plan.depth(problem)
        values *= rounds * plan.vectors * plan.lanes * width
        slices = plan.slices(problem) if plan.by_slice else 1
        of_term = problem.in_channels * share * plan.channels * width
        held = plan.channel_splits * of_term * _terms(combinations)
        if problem.prepacked:
            held *= plan.channel_parts
        elif plan.position_splits:
            held *= machine.threads / slices
        return cls(share, rounds, values, of_term, held, slices)


def _product_cycles(
    problem: Convolution,
    plan: WinogradPlan,
    kinds: Sequence[Filter],
    task: _Task,
    machine: CpuMachine,
) -> float:
    """Return the cycles of all products of a phase, or of reading their operands if that is
    longer.
    """
    costs, width = costs_of(machine).winograd, byte_width(problem.acc_dtype)
    terms = prod([f.mean_terms for f in kinds])
    step = tile_cycles(plan.channels, plan.vectors, machine)
    products = terms * problem.in_channels * task.blocks * task.rounds * step
    if task.values <= machine.l2 * 3 // 8:
        products *= costs.near
    else:
        products *= costs.half_full if task.values <= most_of(machine.l2) else costs.far
    # What cores share behind their second caches; the more vectors, the less is read again.
    of_pass = terms * plan.depth(problem) * plan.pass_blocks * plan.channels * width
    reused = plan.vectors * (task.rounds if of_pass <= machine.l2 // 2 else 1)
    is_shared = task.held <= SHARED_TAPS * machine.l2
    products *= costs.taps_near if is_shared else 1 + costs.taps_far / reused
    if plan.chunks > 1:
        products *= costs.chunk
    read, far = terms * task.of_term if problem.prepacked else 0.0, task.held
    if plan.inputs_first:
        phases = prod(len(f.phases) for f in kinds)
        inputs = terms * problem.in_channels * task.rounds * plan.vectors * plan.lanes * width
        read, far = read + inputs, max(task.held, inputs * phases / task.slices)
    if far > SHARED_CACHES * machine.l2:
        # From memory, as fast as a core was measured to read it.
        products = max(products, read / costs.memory_bytes)
    return products


def _output_cycles(
    plan: WinogradPlan, kinds: Sequence[Filter], task: _Task, costs: WinogradCosts
) -> tuple[float, float]:
    """Return the cycles to sum all points of a phase and to write the resulting outputs."""
    channels, outputs, last = task.blocks * plan.channels, prod(plan.tile), kinds[2]
    points = prod(len(f.points) for f in kinds)
    point = costs.point + costs.sum_vector * plan.channels * plan.vectors
    sums = points * task.blocks * task.rounds * point
    sums += channels * outputs * task.rounds * plan.vectors * costs.out_vector
    sums *= plan.chunks
    stride = last.out_step * last.tile
    each = costs.out_element if stride <= 4 else costs.out_element_eighth
    each = each if stride <= 8 else costs.out_element_apart
    copy = channels * prod(plan.block) * outputs * each
    copy += channels * prod(plan.block[:-1]) * prod(plan.tile[:-1]) * costs.out_row
    return sums, copy


def _combining_cycles(
    problem: Convolution,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    machine: CpuMachine,
) -> float:
    """Return the estimated cycles of combining all taps once, as measured.

    Lines that another core has read, as those of all threads together, are slow to write.
    """
    costs = costs_of(machine).winograd
    parts, shared = plan.channel_parts, plan.position_splits == 0
    products = _terms(combinations)
    pairs = problem.geometry.groups * problem.in_channels * problem.out_channels
    size = pairs * products * byte_width(problem.acc_dtype)
    # Each slice of the kernel is made from the same lines.
    slices = plan.slices(problem) if plan.by_slice else 1
    near = size <= machine.l2 * (1 if shared else parts * slices)
    near = near or (shared and machine.threads == 1)
    if plan.inputs_first:
        # Inputs that would stay in the same cache are pushed out of it, and push taps out.
        inputs = WinogradRows(problem, plan).inputs_held * plan.pitch
        inputs *= byte_width(problem.acc_dtype)
        together = inputs + size / (parts * slices)
        near = near and not inputs <= machine.l2 < together * 4 / 5
    if not shared:
        each = costs.combine if near else costs.combine_far
    elif near:
        each = costs.combine_alone if machine.threads == 1 else costs.combine_shared
    else:
        is_mid = size <= 4 * parts * machine.l2
        each = costs.combine_shared_far if is_mid else costs.combine_shared_memory
    copied = _copied_cycles(problem, plan, machine)
    # Of few products of many taps the estimate would be less than nothing.
    return pairs * max(0.0, problem.geometry.taps * copied * slices + products * each)


def _copied_cycles(problem: Convolution, plan: WinogradPlan, machine: CpuMachine) -> float:
    """Return the cycles of copying a tap before it is transformed."""
    costs = costs_of(machine)
    pairs = problem.geometry.groups * problem.in_channels * problem.out_channels
    stored = pairs * problem.geometry.taps * byte_width("float32")
    is_near = stored <= machine.l2 * (machine.threads if plan.position_splits == 1 else 1)
    if is_near:
        copied = costs.winograd.copy_tap
    elif stored <= SHARED_CACHES * machine.l2:
        copied = costs.winograd.copy_tap_far
    else:
        copied = costs.winograd.copy_tap_memory
    if square_size(problem, plan.channels, plan.lanes):
        return copied - (costs.winograd.turned if is_near else costs.winograd.turned_far)
    return copied + widening_cycles(problem.dtypes[1], problem.acc_dtype, costs.common)


def _terms(combinations: Sequence[tuple[Filter, ...]]) -> float:
    """Combined taps of two channels."""
    return sum(prod(f.mean_terms * len(f.first_taps) for f in kinds) for kinds in combinations)


def _most_terms(combinations: Sequence[tuple[Filter, ...]]) -> int:
    """Return the rows of combined inputs for one input channel, of the phases that have most."""
    return max(prod(len(f.terms) for f in combination) for combination in combinations)
