# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.winograd`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from ...kernel.registry import require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.minimal_filtering import Filter, joined_filters_of
from ...spec.size_hints import nominal
from ..machine import CpuMachine
from .direct import DirectPlan, direct_elements, direct_tasks, plan_direct
from .estimate import (
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
from .step_costs import WinogradCosts, costs_of
from .vectors import NARROW, odd_vectors, square_size
from .winograd_rows import COMBINED, WinogradRows
from .winograd_tiles import (
    MOST_TERMS,
    ROOMS,
    Tile,
    Tiled,
    candidate_tiles,
    fitted_blocks,
    input_rows,
    winograd_input_cycles,
    written_terms,
)


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
        """See :class:`~.base.Plan`."""
        return replace(self, streamed=enabled)

    def non_temporal_run(self, problem: Convolution, machine: CpuMachine) -> int:
        """See :class:`~.base.Plan`: a block's part of a row."""
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
    rule = f"input channels of a group must be at least {LEAST_CHANNELS}"
    require(problem.in_channels >= LEAST_CHANNELS, rule)
    return candidate_tiles(problem)


def winograd_candidates(
    problem: Convolution, machine: CpuMachine, tiles: Sequence[Tile] | None = None
) -> Iterator[tuple[float, WinogradPlan]]:
    """Yield plans that save products, and their cycles.

    Considers the tiles that may be faster, or these `tiles` among them.
    """
    tiles = [tile for tile in _tiles(problem) if tiles is None or tile in tiles]
    require(bool(tiles), "none of the given tiles saves products")
    direct = _direct(problem, machine)
    # The blocks follow.
    one = WinogradPlan(tiles[0], (1,) * 4, machine.lanes(problem.acc_dtype), 1, 1, 1, 1, direct)
    for tile in tiles:
        yield from _plans(problem, replace(one, tile=tile), machine)


def winograd_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[WinogradPlan, list[float]]]:
    """Yield plans that save products for symbolic sizes, and their cycles for all `known`
    sizes.
    """
    tiles = _tiles(problem)
    lanes = machine.lanes(problem.acc_dtype)
    direct = plan_direct(replace(problem, prepacked=False), machine)[1]
    one = WinogradPlan((1,) * 3, (1,) * 4, lanes, 1, 1, 1, 1, direct)
    shapes = {register_tile(problem.out_channels, vectors, machine) for vectors in (1, 2, 3, 4)}
    for tile in tiles:
        template = replace(one, tile=tile)
        forms = _Forms.of(problem, template)
        if forms is None:
            continue
        rooms = [(1, 1, 1, vectors * lanes) for vectors in ROOMS]
        loops = list(_loops_of_any_size(problem, forms, machine))
        # Loops that differ may become the same plan.
        plans = dict.fromkeys(
            _with_loops(problem, template, forms, order._replace(block=room), shape, machine)
            for room, order, shape in product(rooms, loops, shapes)
        )
        block_of = partial(_Block.of, problem, lanes, forms, machine, NARROW)
        fitted = fitted_blocks([template.tiles(one) for one in known], block_of)
        for plan in plans:
            if plan is not None and _fits(known[-1], plan, forms, machine):
                estimate = _Estimate(problem, plan, forms, machine)
                blocks = fitted(prod(plan.block), plan.position_splits or plan.tasks)
                yield plan, [estimate.cycles(*one)[0] for one in blocks]


def _loops_of_any_size(problem: Convolution, forms: _Forms, machine: CpuMachine) -> Iterator[Loops]:
    """Candidates: blocks of positions are tasks, or shares of parts are."""
    yield Loops((1,) * 4)
    tasks = -(-machine.threads // problem.geometry.groups)
    for parts in sorted({tasks * count for count in (1, 2, 4, 8)} | {1, -(-tasks // 2)}):
        shares = -(-tasks // parts)
        if not (problem.prepacked and parts > tasks):
            for order in forms.orders(problem):
                yield Loops((1,) * 4, parts, shares, by_slice=order)


def _room(problem: Convolution) -> int:
    """Return the workspace limit: no more than operands and result take, minus tables and collected
    rows.
    """
    return problem.elements * 511 // 512


def _direct(problem: Convolution, machine: CpuMachine) -> DirectPlan:
    """Return the sum for data that is not finite."""
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
    require(held <= _room(problem), "the sum for data that is not finite takes too much memory")
    return replace(plan, depth=-depth)


def _plans(
    problem: Convolution, template: WinogradPlan, machine: CpuMachine
) -> Iterator[tuple[float, WinogradPlan]]:
    """Yield the candidates with the tile of this one, and their cycles."""
    forms = _Forms.of(problem, template)
    if forms is None:
        return
    block_of = cache(partial(_Block.of, problem, template.lanes, forms, machine, 1))
    for loops in _loops(problem, template, forms, machine):
        vectors = -(-prod(loops.block) // template.lanes)
        tile = register_tile(problem.out_channels, vectors, machine, kinds=0)
        whole = _with_loops(problem, template, forms, loops, tile, machine)
        for plan in _chunked(problem, whole, forms, machine) if whole else ():
            if _fits(problem, plan, forms, machine):
                estimate = _Estimate(problem, plan, forms, machine)
                cycles, of_tasks = estimate.cycles(block_of(plan.block), _positions(problem, plan))
                yield cycles, replace(plan, parallel=of_tasks >= PARALLEL_CYCLES)


def _chunked(
    problem: Convolution, plan: WinogradPlan, forms: _Forms, machine: CpuMachine
) -> Iterator[WinogradPlan]:
    """Yield the plan, and where its inputs do not stay near, those of as few chunks as let them,
    and of twice as many, which hold less.
    """
    yield plan
    inputs, near = _inputs_bytes(problem, plan, forms), most_of(machine.l2)
    if plan.inputs_first or inputs <= near:
        return
    enough = [
        chunks
        for chunks in (2, 4, 8, 16)
        if problem.in_channels % (chunks * COMBINED) == 0 and inputs <= chunks * near
    ]
    yield from (replace(plan, chunks=chunks) for chunks in enough[:2])


class _Kind(NamedTuple):
    """How phases of one kind are computed, how many they are, and terms and points of a tile."""

    filters: tuple[Filter, ...]
    phases: int
    terms: float
    points: int


class _Forms(NamedTuple):
    """The kinds of phases with one tile: what depends neither on sizes nor on the rest of a plan.

    Attributes
    ----------
    kinds : tuple of _Kind
    rows, points : int
        Rows of combined inputs for one input channel, and points, of the phases that have most.
    terms : float
        Combined taps of two channels.
    slices : int
        Slices of the kernel.
    """

    kinds: tuple[_Kind, ...]
    rows: int
    points: int
    terms: float
    slices: int

    @classmethod
    def of(cls, problem: Convolution, plan: WinogradPlan) -> _Forms | None:
        """Return those of the tile of a plan; None if the unrolled code would be too large."""
        found = list(product(*plan.filters(problem)))
        if len(found) > MOST_KINDS or written_terms(found) > MOST_TERMS:
            return None
        kinds = (
            _Kind(
                filters,
                phases=prod(len(f.phases) for f in filters),
                terms=prod([f.mean_terms for f in filters]),
                points=prod(len(f.points) for f in filters),
            )
            for filters in found
        )
        return cls(
            tuple(kinds),
            rows=max(prod(len(f.terms) for f in filters) for filters in found),
            points=max(prod(len(f.points) for f in filters) for filters in found),
            terms=sum(prod(f.mean_terms * len(f.first_taps) for f in one) for one in found),
            slices=plan.slices(problem),
        )

    def orders(self, problem: Convolution) -> tuple[bool, ...]:
        """Candidates of `by_slice`."""
        return (False, True) if self.slices > 1 and not problem.prepacked else (False,)


def _fits(problem: Convolution, plan: WinogradPlan, forms: _Forms, machine: CpuMachine) -> bool:
    """Return whether there is room for what it holds, and what a task combines is near."""
    if not plan.inputs_first and _inputs_bytes(problem, plan, forms) > machine.l2 * 2:
        return False
    busy = min(machine.threads, _tasks(problem, plan))
    return _elements(problem, plan, forms, busy) <= _room(problem)


def _inputs_bytes(problem: Convolution, plan: WinogradPlan, forms: _Forms) -> int:
    """Return the combined inputs of one chunk and phase."""
    return forms.rows * plan.depth(problem) * plan.pitch * byte_width(problem.acc_dtype)


def _positions(problem: Convolution, plan: WinogradPlan) -> int:
    """Return the blocks of tiles."""
    return blocks_in(nominal(plan.tiles(problem)), plan.block)


def _tasks(problem: Convolution, plan: WinogradPlan) -> int:
    """Tasks that may run at once."""
    groups = problem.geometry.groups
    if plan.position_splits:
        return _tasks_of_parts(plan, groups)
    return groups * _positions(problem, plan) * plan.channel_splits


def _tasks_of_parts(plan: WinogradPlan, groups: int) -> int:
    return groups * -(-plan.channel_parts // plan.per_task) * plan.position_splits


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
    forms: _Forms,
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
    held = forms.points * channels * width * template.lanes * byte_width(problem.acc_dtype)
    passes = -(-blocks * held // (splits * machine.l2 // 3))
    return replace(plan, channel_splits=splits, pass_blocks=-(-blocks // (splits * passes)))


def _loops(
    problem: Convolution, plan: WinogradPlan, forms: _Forms, machine: CpuMachine
) -> Iterator[Loops]:
    """Candidates; the shares of a part are tasks, or there are none."""
    tiles = nominal(plan.tiles(problem))
    blocks = list(candidate_blocks(tiles, plan.lanes))
    orders = forms.orders(problem)
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


def _elements(problem: Convolution, plan: WinogradPlan, forms: _Forms, busy: int) -> int:
    """Return the elements that the kernel allocates while `busy` tasks run."""
    blocks = -(-problem.out_channels // (plan.channels * plan.channel_parts))
    rows = WinogradRows(problem, plan)
    width = plan.vectors * plan.lanes
    outputs = prod(plan.tile) * forms.kinds[0].filters[2].out_step
    task = forms.points * plan.pass_blocks * plan.channels * width
    task += -(-blocks // plan.channel_splits) * plan.channels * outputs * plan.pitch
    task += rows.inputs_held * plan.pitch
    # Rows of data as they are, for each filter along the row.
    raw: dict[tuple[Filter, ...], int] = {}
    for kind in forms.kinds:
        *pair, _ = kind.filters
        read = plan.lanes + prod(input_rows(kind.filters, plan.block))
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


class _Block(NamedTuple):
    """A block of tiles: their number, the rows of them, and the cycles of combining its inputs."""

    tiles: int
    rows: int
    inputs: float

    @classmethod
    def of(
        cls,
        problem: Convolution,
        lanes: int,
        forms: _Forms,
        machine: CpuMachine,
        narrowest: int,
        block: tuple[int, ...],
    ) -> _Block:
        """Return the block of so many tiles along the four axes; `narrowest` are the lanes of the
        narrowest vectors.
        """
        costs, inputs = costs_of(machine).tiles, 0.0
        for kind in forms.kinds:
            channel = winograd_input_cycles(kind.filters, block, lanes, costs, narrowest)
            inputs += kind.phases * problem.in_channels * channel
        return cls(prod(block), prod(block[:-1]), inputs)


class _Phases(NamedTuple):
    """The phases of one kind, as a task of a plan computes them.

    Attributes
    ----------
    kind : _Kind
    products, points : float
        Products and points of all its output channels, for one register tile of positions.
    keeps_taps : bool
        Whether combined taps stay near until all register tiles have read them.
    """

    kind: _Kind
    products: float
    points: float
    keeps_taps: bool


class _Estimate:
    """The estimate of a plan: what the block of positions does not change is computed once."""

    def __init__(
        self, problem: Convolution, plan: WinogradPlan, forms: _Forms, machine: CpuMachine
    ) -> None:
        self._plan, self._machine, self._costs = plan, machine, costs_of(machine).winograd
        self._groups = problem.geometry.groups
        width, depth = byte_width(problem.acc_dtype), plan.depth(problem)
        blocks = -(-problem.out_channels // plan.channels)
        share = blocks / (plan.channel_splits * plan.channel_parts)  # the mean of all tasks
        self._channels, self._outputs = share * plan.channels, prod(plan.tile)
        self._step = tile_cycles(plan.channels, plan.vectors, machine)
        self._slices = forms.slices if plan.by_slice else 1
        # Bytes of one combined tap of all channels, and of all combined taps that are held.
        self._of_term = problem.in_channels * share * plan.channels * width
        self._held = plan.channel_splits * self._of_term * forms.terms
        if problem.prepacked:
            self._held *= plan.channel_parts
        elif plan.position_splits:
            self._held *= machine.threads / self._slices
        self._prepacked = problem.prepacked
        # Bytes of combined inputs of a register tile of positions: of a term, and of a chunk.
        of_tile = plan.vectors * plan.lanes * width
        self._of_input, self._of_chunk = problem.in_channels * of_tile, forms.rows * depth * of_tile
        of_pass = depth * plan.pass_blocks * plan.channels * width
        self._phases = [
            _Phases(
                kind,
                products=kind.terms * problem.in_channels * share,
                points=kind.points * share,
                keeps_taps=kind.terms * of_pass <= machine.l2 // 2,
            )
            for kind in forms.kinds
        ]
        last = forms.kinds[0].filters[2]
        self._element = _element_cycles(last.out_step * last.tile, self._costs)
        self._combining = 0.0
        if not problem.prepacked:
            self._combining = _combining_cycles(problem, plan, forms, machine)

    def cycles(self, block: _Block, positions: int) -> tuple[float, float]:
        """Return the estimated cycles until the kernel is done, of so many blocks of positions, and
        of all its tasks but for combining taps.
        """
        plan, threads = self._plan, self._machine.threads
        cycles = self._task_cycles(block)
        if plan.position_splits:
            tasks = _tasks_of_parts(plan, self._groups)
            combining = self._combining / (self._groups * plan.channel_parts)
            turns = -(-positions // plan.position_splits)
            task = block.inputs * turns + plan.per_task * (cycles * turns + combining)
            return -(-tasks // threads) * task, tasks * task
        tasks = self._groups * positions * plan.channel_splits
        task = cycles + block.inputs
        cost = -(-tasks // threads) * task * plan.channel_parts + self._combining / threads
        return cost, tasks * task

    def _task_cycles(self, block: _Block) -> float:
        """Return the cycles of a task, but for combining its inputs."""
        plan, costs, channels = self._plan, self._costs, self._channels
        rounds = -(-block.tiles // (plan.lanes * plan.vectors))
        spill = self._spill(rounds * self._of_chunk)
        point = costs.point + costs.sum_vector * plan.channels * plan.vectors
        outputs = channels * self._outputs * rounds * plan.vectors * costs.out_vector
        copy = channels * block.tiles * self._outputs * self._element
        copy += channels * block.rows * prod(plan.tile[:-1]) * costs.out_row
        total = costs.task
        for phases in self._phases:
            products = self._product_cycles(phases, rounds, spill)
            sums = (phases.points * rounds * point + outputs) * plan.chunks
            total += phases.kind.phases * (products + sums + copy)
        return total

    def _spill(self, inputs: int) -> float:
        """Return how many times as long products take with combined inputs of so many bytes."""
        l2, costs = self._machine.l2, self._costs
        if inputs <= l2 * 3 // 8:
            return costs.near
        return costs.half_full if inputs <= most_of(l2) else costs.far

    def _product_cycles(self, phases: _Phases, rounds: int, spill: float) -> float:
        """Return the cycles of all products of a phase, or of reading their operands if that is
        longer.
        """
        plan, costs, l2, kind = self._plan, self._costs, self._machine.l2, phases.kind
        products = phases.products * rounds * self._step * spill
        # What cores share behind their second caches; the more vectors, the less is read again.
        reused = plan.vectors * (rounds if phases.keeps_taps else 1)
        is_shared = self._held <= SHARED_TAPS * l2
        products *= costs.taps_near if is_shared else 1 + costs.taps_far / reused
        if plan.chunks > 1:
            products *= costs.chunk
        read, far = kind.terms * self._of_term if self._prepacked else 0.0, self._held
        if plan.inputs_first:
            inputs = kind.terms * self._of_input * rounds
            read, far = read + inputs, max(far, inputs * kind.phases / self._slices)
        if far > SHARED_CACHES * l2:
            # From memory, as fast as a core was measured to read it.
            products = max(products, read / costs.memory_bytes)
        return products


def _element_cycles(stride: int, costs: WinogradCosts) -> float:
    """Return the cycles to write an output, of so many of a row's tile and phases."""
    if stride <= 4:
        return costs.out_element
    return costs.out_element_eighth if stride <= 8 else costs.out_element_apart


def _combining_cycles(
    problem: Convolution, plan: WinogradPlan, forms: _Forms, machine: CpuMachine
) -> float:
    """Return the estimated cycles of combining all taps once, as measured.

    Lines that another core has read, as those of all threads together, are slow to write.
    """
    costs = costs_of(machine).winograd
    parts, shared = plan.channel_parts, plan.position_splits == 0
    pairs = problem.geometry.groups * problem.in_channels * problem.out_channels
    size = pairs * forms.terms * byte_width(problem.acc_dtype)
    # Each slice of the kernel is made from the same lines.
    slices = forms.slices if plan.by_slice else 1
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
    return pairs * max(0.0, problem.geometry.taps * copied * slices + forms.terms * each)


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
