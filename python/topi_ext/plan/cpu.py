# SPDX-License-Identifier: Apache-2.0
"""Plans of the CPU kernels: blocks and register tiles from sizes, caches, registers and cores.

A plan follows from an estimate of cycles, never from a table of shapes.  Sizes that are symbolic
enter the estimate with a nominal value; the kernel is right for every size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod

from ..dtypes import byte_width
from ..filtering import Filter, filters_of
from ..geometry import Gather, conv_transpose_size
from .plans import (
    TILE,
    AmxPlan,
    ChannelsPlan,
    ColumnsPlan,
    DotPlan,
    EitherPlan,
    GatherPlan,
    PhasesPlan,
    Plan,
    ScatterPlan,
    WeightGradPlan,
    WeightTilesPlan,
    Window,
    WinogradPlan,
    row_lanes,
    square_size,
)
from .problem import NOMINAL, Machine, Problem, nominal

MOST_TERMS = 128
"""Terms of a tile, one for each kind of phase, that a kernel writes out."""

STREAMED_CACHES = 16
"""Least size of a result that is written past the caches, in second caches of all cores.

What cores share behind these is seldom larger."""

MOST_KINDS = 4
"""Kinds of phases that a kernel which saves products writes out: with eight, 3 s to build."""

MOST_ROW_TAPS = 64
"""Longest kernel along a row whose taps are all written out."""

FEW_CHANNELS = 8
"""With so many output channels, register tiles of one phase load little for their products."""

TILED_CHANNELS = 16
"""Least input channels for which rearranging a panel by register tiles pays."""

PARALLEL_CYCLES = 40_000
"""Work below this is done by the calling thread: waking the others takes about as long."""


@lru_cache(maxsize=1024)
def choose(problem: Problem, machine: Machine) -> Plan:
    """The plan that takes the fewest cycles, by estimate, of every kernel that serves `problem`."""
    plan = _fastest(problem, machine)
    if isinstance(plan, (GatherPlan, WinogradPlan, PhasesPlan)) and _streams(problem, machine):
        return replace(plan, streamed=True)
    return plan


def _streams(problem: Problem, machine: Machine) -> bool:
    """Whether a result is so large that no cache would keep it for who reads it next."""
    if not (machine.streams and problem.is_static and problem.rows_are_runs):
        return False
    if problem.dtypes[2] != problem.acc_dtype or not problem.acc_dtype.startswith("float"):
        return False
    channels = problem.geometry.groups * problem.out_channels
    size = channels * prod(problem.out_sizes) * byte_width(problem.acc_dtype)
    return size >= STREAMED_CACHES * machine.l2 * machine.threads


def _fastest(problem: Problem, machine: Machine) -> Plan:
    """The one of fewest cycles, whose result stays in the caches."""
    found: list[tuple[float, Plan] | None]
    if problem.face == "conv_weight_grad":
        found = [
            _plan_sums(problem, machine),
            _plan_channels(problem, machine),
            _plan_columns(problem, machine),
            _plan_weight_tiles(problem, machine),
        ]
    else:
        gather = _plan_gather(problem, machine)
        in_pairs = _plan_amx(problem, machine), _plan_dot(problem, machine)
        pairs = [one for one in in_pairs if one]
        if not problem.is_static:
            best: Plan = min([gather, *pairs], key=lambda one: one[0])[1]
            if best is not gather[1]:
                return best
            large = _plan_many_tiles(problem, machine) or gather[1]
            small = _plan_small(problem, machine)
            return EitherPlan(small, large) if small else large
        found = [
            gather,
            _plan_winograd(problem, machine),
            _plan_scatter(problem, machine),
            _plan_phases(problem, machine),
            *pairs,
        ]
    return min((one for one in found if one), key=lambda one: one[0])[1]


# -------------------------------------------------------------------- conv and conv_transpose


def _plan_gather(problem: Problem, machine: Machine) -> tuple[float, GatherPlan]:
    """Lanes over positions: the plan of :mod:`topi_ext.kernels.gather`, and its cycles."""
    lanes = problem.lanes(machine)
    positions = nominal(problem.positions)
    packed = not problem.weights_are_rows
    kinds = prod(len(gather.groups) for gather in problem.gathers)
    best: tuple[float, float, GatherPlan] | None = None
    may_spread = problem.is_static and not problem.transposed and problem.geometry.taps > 1
    orders = [(False, False)]
    orders += [(True, False)] if may_spread else []
    orders += [(False, True)] if _may_take_rows(problem, machine) else []
    for block, (spread, whole_rows) in product(_blocks(positions, lanes), orders):
        window = Window.of(block, problem.spread_gathers if spread else problem.gathers)
        vectors = -(-window.length // lanes)
        channels, width = (
            _row_tile(problem, vectors, machine)
            if whole_rows
            else _register_tile(problem.out_channels, vectors, machine, kinds)
        )
        counts = [-(-p // b) for p, b in zip(positions, block)]
        tasks = problem.geometry.groups * prod(counts)
        blocks = -(-problem.out_channels // channels)
        may_tile = window.extent == window.block and problem.in_channels >= TILED_CHANNELS
        may_tile = may_tile and not whole_rows
        for splits, depth, tiles_first, tiled in product(
            _splits(tasks, blocks, machine), _depths(problem.in_channels), (False, True),
            (False, True)[: 1 + may_tile],
        ):  # fmt: skip
            plan = GatherPlan(
                window, lanes, channels, width, splits, depth, packed, spread=spread,
                tasks=2 * machine.threads, tiles_first=tiles_first, tiled=tiled,
                whole_rows=whole_rows,
            )  # fmt: skip
            cycles = _gather_cycles(problem, plan, machine)
            if cycles is None:
                continue
            if problem.is_static and tasks * splits * cycles < PARALLEL_CYCLES:
                plan = replace(plan, parallel=False)
            cost = -(-tasks * splits // machine.threads) * cycles
            if best and cost >= best[0]:
                continue
            # One that holds more than operands and result take is the last choice, but not slower.
            price = 1.0
            if problem.is_static:
                busy = min(machine.threads if plan.parallel else 1, tasks * splits)
                held = _gather_elements(problem, plan, busy)
                price = 4.0 if held > problem.elements * 15 // 16 else 1.0
            if best is None or cost * price < best[0]:
                best = (cost * price, cost, plan)
    if best is None:
        raise AssertionError("a problem has at least one block")
    if not packed or problem.prepacked:
        return best[1:]
    weights = problem.weights
    each = 1.5 if machine.vector_bytes >= 64 else 2.5 if weights * 4 <= machine.l2 else 6.0
    each += _widening_cycles(problem.dtypes[1], problem.acc_dtype)
    if best[2].copies_squares(problem):
        near, far = machine.l2 * machine.threads, 16 * machine.l2
        each = 0.8 if weights * 4 <= near else 2.0 if weights * 4 <= far else 3.0
    return best[1] + weights * each / machine.threads, best[2]


def _gather_elements(problem: Problem, plan: GatherPlan, busy: int) -> int:
    """What the kernel holds beside its operands while `busy` tasks run."""
    lanes, gathers = plan.lanes, plan.gathers(problem)
    slots, phases = prod(g.slots for g in gathers), prod(g.out_step for g in gathers)
    row = -(-plan.window.length // lanes) * lanes
    blocks = -(-problem.out_channels // plan.channels)
    pitch, width = plan.window.pitch(lanes), plan.vectors * lanes
    if plan.tiled:
        # Whole register tiles, and the planes of one channel from which they are made.
        task = plan.depth * slots * -(-row // width) * width + slots * pitch + width
    else:
        task = plan.depth * slots * pitch
    together = (
        -(-blocks // plan.splits) if plan.depth < problem.in_channels or plan.tiles_first else 1
    )
    task += plan.channels * phases * row * together
    packed = 0
    if plan.packed and not problem.prepacked:
        groups, taps = problem.geometry.groups, problem.geometry.taps
        packed = groups * blocks * plan.channels * problem.in_channels * taps
    return packed + busy * task


def _widening_cycles(dtype: str, wanted: str) -> float:
    """Of one element that is not beside its neighbours."""
    return 0.0 if dtype == wanted else 3.0 if dtype == "float16" else 1.5


def _splits(tasks: int, blocks: int, machine: Machine) -> list[int]:
    """Candidates: a task for each thread, two, and more, if there are not enough without."""
    wanted = {-(-count * machine.threads // tasks) for count in (1, 2, 4, 8)}
    return sorted({min(blocks, count) for count in wanted if tasks < 2 * machine.threads} or {1})


def _depths(channels: int) -> list[int]:
    """Candidates: all channels at once, or equal parts of them."""
    return sorted(
        {-(-channels // i) for i in (1, 2, 4, 8, 16, 32) if i == 1 or channels // i >= 16}
    )


def _plan_winograd(problem: Problem, machine: Machine) -> tuple[float, WinogradPlan] | None:
    """Fewer products: the plan of :mod:`topi_ext.kernels.winograd`, and its cycles.

    None for integers, whose sums have to be exact, where no two taps are neighbours or a phase has
    none, for more kinds of phases or terms than are written out, and where the direct sum for data
    that is not finite would take more memory than operands and result.
    """
    if not problem.acc_dtype.startswith("float"):
        return None
    if any(gather.has_empty_phase for gather in problem.gathers):
        return None
    # Its weights come as they are.
    as_stored = replace(problem, prepacked=False)
    direct = _plan_gather(as_stored, machine)[1]
    tile = _tile_of(problem)
    if 2 not in tile:
        return None
    # No more than operands and result take together, with some left for tables.
    room = problem.elements * 1023 // 1024
    if problem.is_static:
        # Half as fast as it could be, and built sooner: no last tile, no taps written out.
        direct = replace(
            direct, channels=min(4, direct.channels), vectors=1, unrolled=1, whole_rows=False
        )
        counts = (-(-p // b) for p, b in zip(nominal(problem.positions), direct.window.block))
        busy = min(machine.threads, problem.geometry.groups * prod(counts) * direct.splits)
        held, depth = min(
            (_gather_elements(as_stored, replace(direct, depth=depth), busy), -depth)
            for depth in {direct.depth, *_depths(problem.in_channels)}
        )
        if held > room:
            return None
        direct = replace(direct, depth=-depth)
    geometry, lanes = problem.geometry, problem.lanes(machine)
    # The blocks follow.
    plan = WinogradPlan(tile, (1,) * 4, lanes, 1, 1, 1, 1, direct)
    combinations = list(product(*plan.filters(problem)))
    if len(combinations) > MOST_KINDS:
        return None
    # Along depth, where tiles have one output, terms are a loop.
    if sum(prod(len(f.terms) for f in kinds[1:]) for kinds in combinations) > MOST_TERMS:
        return None
    tiles = nominal(plan.tiles(problem))
    best: tuple[float, WinogradPlan] | None = None
    most = max(prod(len(f.points) for f in combination) for combination in combinations)
    values = _most_terms(combinations) * problem.in_channels * byte_width(problem.acc_dtype)
    for block, parts, shares, per_task, by_slice in _winograd_loops(problem, plan, machine):
        alone = shares > 0
        vectors = -(-prod(block) // lanes)
        channels, width = _register_tile(problem.out_channels, vectors, machine)
        positions = prod(-(-p // b) for p, b in zip(tiles, block))
        blocks = -(-problem.out_channels // channels)
        if parts > blocks:
            continue
        # None of them empty, and about as many in one task as in another.
        parts, blocks = -(-blocks // -(-blocks // parts)), -(-blocks // parts)
        per_task = -(-parts // -(-parts // per_task))
        tasks = geometry.groups * (-(-parts // per_task) * shares if alone else positions)
        splits = 1
        if tasks < 2 * machine.threads and not alone:
            splits = min(blocks, -(-2 * machine.threads // tasks))
        held = most * channels * width * lanes * byte_width(problem.acc_dtype)
        passes = -(-blocks * held // (splits * machine.l2 // 3))
        plan = WinogradPlan(
            tile, block, lanes, channels, width, splits, -(-blocks // (splits * passes)), direct,
            parts=parts, shares=shares, per_task=per_task, by_slice=by_slice,
            tasks=2 * machine.threads,
        )  # fmt: skip
        busy = min(machine.threads, tasks * splits)
        if _winograd_elements(problem, plan, combinations, busy) > room:
            continue
        # What a task combines has to be near.
        if per_task == 1 and values * plan.pitch > machine.l2 * 2:
            continue
        inputs, cycles = _winograd_cycles(problem, plan, combinations, machine)
        if alone:
            cycles *= -(-positions // shares)
            inputs *= -(-positions // shares)
            if not problem.prepacked:
                part = _combining_cycles(problem, plan, combinations, machine)
                cycles += part / (geometry.groups * parts)
            cycles = inputs + per_task * cycles
            cost = -(-tasks // machine.threads) * cycles
        else:
            cycles += inputs
            cost = -(-tasks * splits // machine.threads) * cycles * parts
            if not problem.prepacked:
                combining = _combining_cycles(problem, plan, combinations, machine)
                cost += combining / machine.threads
        if problem.is_static and tasks * splits * cycles < PARALLEL_CYCLES:
            plan = replace(plan, parallel=False)
        if best is None or cost < best[0]:
            best = cost, plan
    return best


def _combining_cycles(
    problem: Problem,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    machine: Machine,
) -> float:
    """Estimated cycles of combining all taps once, as measured.

    Lines that another core has read, as those of all threads together, are slow to write.
    """
    parts, shared = plan.parts, plan.shares == 0
    products = sum(prod(len(f.terms) * len(f.first_taps) for f in kinds) for kinds in combinations)
    pairs = problem.geometry.groups * problem.in_channels * problem.out_channels
    size = pairs * products * byte_width(problem.acc_dtype)
    # Each slice of the kernel is made from the same lines.
    slices = plan.slices(problem) if plan.by_slice else 1
    near = size <= machine.l2 * (1 if shared else parts * slices)
    near = near or (shared and machine.threads == 1)
    if machine.vector_bytes < 64:
        copied, each = 0.0, (2.2 if near else 3.5) if shared else (1.5 if near else 2.2)
    else:
        each = 0.2 if near else 0.3
        if shared and machine.threads > 1:
            # The further away the other core's copy is, the sooner it is given up.
            each = 6.0 if near else 5.0 if size <= 4 * parts * machine.l2 else 4.0
        stored = pairs * problem.geometry.taps * 4
        near = stored <= machine.l2 * (machine.threads if plan.shares == 1 else 1)
        copied = 1.4 if near else 2.6 if stored <= 16 * machine.l2 else 3.4
    if square_size(problem, plan.channels, plan.lanes):
        copied -= 0.9
    else:
        copied += _widening_cycles(problem.dtypes[1], problem.acc_dtype)
    return pairs * (problem.geometry.taps * copied * slices + products * each)


def _tile_of(problem: Problem) -> tuple[int, ...]:
    """Outputs of a tile along depth, height and width."""
    axes = zip(problem.gathers[2:], problem.positions[2:])
    can_save = (
        _saves_products(gather) and not (isinstance(p, int) and p < 2) for gather, p in axes
    )
    return (1, *(2 if can else 1 for can in can_save))


def _saves_products(gather: Gather) -> bool:
    """Whether two outputs along an axis take fewer products than twice those of one."""
    one, two = (
        sum(len(f.terms) * len(f.phases) for f in filters_of(gather, tile)) for tile in (1, 2)
    )
    return two < 2 * one


def _most_terms(combinations: Sequence[tuple[Filter, ...]]) -> int:
    """Rows of combined inputs for one input channel, of the phases that have most."""
    return max(prod(len(f.terms) for f in combination) for combination in combinations)


def _winograd_loops(
    problem: Problem, plan: WinogradPlan, machine: Machine
) -> Iterator[tuple[tuple[int, ...], int, int, int, bool]]:
    """Candidates: a block of tiles, parts of the output channels, the shares of a part if these are
    tasks, how many parts are one task, and whether slices of the kernel come one by one."""
    tiles = nominal(plan.tiles(problem))
    blocks = list(_blocks(tiles, problem.lanes(machine)))
    orders = (False, True)[: 1 + (plan.slices(problem) > 1 and not problem.prepacked)]
    for block, parts in product(blocks, (1,) if problem.prepacked else (1, 2, 4, 8)):
        yield block, parts, 0, 1, False
        if problem.is_static and not problem.prepacked and machine.threads > 1:
            yield from ((block, parts, machine.threads, 1, order) for order in orders)
    if not problem.is_static:
        return
    # Tasks for one group.
    tasks = -(-machine.threads // problem.geometry.groups)
    for per_task, order in product((1,) if problem.prepacked else (1, 2, 4, 8, 16), orders):
        yield tiles, tasks * per_task, 1, per_task, order
        if not problem.prepacked:
            yield from ((block, tasks * per_task, 1, 1, order) for block in blocks)


def _winograd_elements(
    problem: Problem,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    busy: int,
) -> int:
    """What the kernel holds beside its operands while `busy` tasks run."""
    blocks = -(-problem.out_channels // (plan.channels * plan.parts))
    # Rows of the taps, and of the inputs, of a slice of each kind, and how many slices there are.
    slices: dict[tuple[Filter, Filter], tuple[int, int, int]] = {}
    # Rows of data as they are, for each filter along the row.
    raw: dict[tuple[Filter, Filter], int] = {}
    most = 0
    for depth, height, last in combinations:
        kinds = depth, height, last
        # Of one phase; some are empty.
        rows = prod(len(f.terms) for f in kinds) * problem.in_channels
        rows += prod(len(f.points) for f in kinds) * plan.gap(problem)
        most = max(most, rows)
        raw[depth, height] = raw.get((depth, height), 0) + plan.lanes
        raw[depth, height] += prod(_input_rows(kinds, plan.block))
        # Each first tap is that of as many phases.
        number = len(depth.first_taps) * len(height.first_taps)
        phases = len(depth.phases) * len(height.phases) * len(last.phases) // number
        taps, inputs, _ = slices.get((depth, height), (0, 0, 0))
        taps, inputs = taps + rows * len(last.first_taps), inputs + rows * phases
        slices[depth, height] = taps, inputs, number
    if plan.by_slice:
        rows = max(taps for taps, _, _ in slices.values())
    else:
        rows = sum(taps * number for taps, _, number in slices.values())
    combined = blocks * plan.channels * rows
    width = plan.vectors * plan.lanes
    points = max(prod(len(f.points) for f in kinds) for kinds in combinations)
    outputs = prod(plan.tile) * combinations[0][2].out_step
    task = points * plan.pass_blocks * plan.channels * width
    task += -(-blocks // plan.splits) * plan.channels * outputs * plan.pitch
    task += max(raw.values())
    shared = 0
    if problem.prepacked:
        combined = 0
    else:
        # The weights of a block and 16 input channels are copied before they are combined.
        task += problem.geometry.taps * 16 * plan.channels
    if plan.shares:
        task += combined
    else:
        shared += combined
    if plan.inputs_first and plan.by_slice:
        most = max(inputs for _, inputs, _ in slices.values())
    elif plan.inputs_first:
        most = sum(inputs * number for _, inputs, number in slices.values())
    task += most * plan.pitch
    return shared * problem.geometry.groups + busy * task


def _winograd_cycles(
    problem: Problem,
    plan: WinogradPlan,
    combinations: Sequence[tuple[Filter, ...]],
    machine: Machine,
) -> tuple[float, float]:
    """Estimated cycles of one task: of combining its inputs, and all others."""
    lanes, block, width = plan.lanes, plan.block, byte_width(problem.acc_dtype)
    vectors = -(-prod(block) // lanes)
    rounds = -(-vectors // plan.vectors)
    tile_rows = prod(block[:-1])
    blocks = -(-problem.out_channels // plan.channels) / (plan.splits * plan.parts)
    outputs = prod(plan.tile)
    values = _most_terms(combinations) * problem.in_channels
    values *= rounds * plan.vectors * lanes * width
    slices = plan.slices(problem) if plan.by_slice else 1
    combined, total = 0.0, 1000.0
    for depth, height, last in combinations:
        phases = prod(len(f.phases) for f in (depth, height, last))
        terms = [len(f.terms) for f in (depth, height, last)]
        points = prod(len(f.points) for f in (depth, height, last))
        channel = _combined_inputs_cycles((depth, height, last), block, lanes)
        if values > machine.l2 // 4:
            # Taps come through the same cache.
            channel += prod(terms) * prod(block) * 0.5
        combined += phases * problem.in_channels * channel
        step = _tile_cycles(plan.channels, plan.vectors, machine)
        products = prod(terms) * problem.in_channels * blocks * rounds * step
        if values > machine.l2 * 3 // 4:
            products *= 1.15
        weights = prod(terms) * problem.in_channels * blocks * plan.channels * width
        read, held = 0.0, weights * phases * plan.splits
        if problem.prepacked:
            read, held = weights, held * plan.parts
        elif plan.shares:
            held *= machine.threads / slices
        # What cores share behind their second caches.
        products *= 1.05 if held <= 12 * machine.l2 else 1.3
        if plan.inputs_first:
            inputs = prod(terms) * problem.in_channels * rounds * plan.vectors * lanes * width
            read, held = read + inputs, max(held, inputs * phases / slices)
        if held > 16 * machine.l2:
            # From memory, as fast as a core was measured to read it.
            products = max(products, read / 2.5)
        sums = points * blocks * rounds * (10 + 3.0 * plan.channels * plan.vectors)
        sums += blocks * plan.channels * outputs * rounds * plan.vectors * 6
        stride = last.out_step * last.tile
        copy = blocks * plan.channels * prod(block) * outputs * (0.6 if stride <= 2 else 1.2)
        copy += blocks * plan.channels * tile_rows * prod(plan.tile[:-1]) * 12
        total += phases * (products + sums + copy)
    return combined, total


def _combined_inputs_cycles(filters: Sequence[Filter], block: Sequence[int], lanes: int) -> float:
    """Estimated cycles of combining the inputs of one channel, phase and block of tiles."""
    depth, height, last = filters
    count = row_lanes(block[3], lanes)
    rows, length = _input_rows(filters, block)
    vectors: int = -(-last.span(count) // count)
    mixed = vectors * 1.5 + len(last.reach) + 2 * len(last.terms)
    read = len(depth.reach) * len(height.reach) * vectors
    each = read + len(depth.terms) * len(height.terms) * mixed
    chunks = prod(block[:3]) * -(-block[3] // count)
    return rows * (6 + length * 0.2) + chunks * each * (0.6 if count == lanes else 0.3)


def _input_rows(filters: Sequence[Filter], block: Sequence[int]) -> tuple[int, int]:
    """Rows of one channel that a block of tiles reads, and their length."""
    rows = block[0]
    for f, tiles in zip(filters[:2], block[1:3]):
        rows *= len(f.residues) * (tiles * f.tile + f.beyond)
    return rows, filters[2].span(block[3])


def _plan_dot(problem: Problem, machine: Machine) -> tuple[float, DotPlan] | None:
    """Products of pairs: the plan of :mod:`topi_ext.kernels.dot_gather`, and its cycles.

    None where a processor has none, for other dtypes, and for an odd number of input channels, of
    which pairs can't be made.
    """
    if not machine.dots or problem.dtypes[:2] != ("bfloat16",) * 2 or problem.in_channels % 2:
        return None
    # One vector a cycle; else as numbers of float32, half as many.
    cycles, gather = _plan_gather(problem.in_pairs, replace(machine, fmas=1))
    return cycles, DotPlan(gather)


def _plan_amx(problem: Problem, machine: Machine) -> tuple[float, AmxPlan] | None:
    """Tiles instead of vectors: the plan of :mod:`topi_ext.kernels.amx_gather`, and its cycles.

    None where there is no matrix unit, for other dtypes, and for an odd number of input channels,
    of which pairs can't be made.
    """
    operands = problem.dtypes[:2]
    if not machine.amx or operands != ("bfloat16",) * 2 or problem.in_channels % 2:
        return None
    refused = _plan_gather(problem, machine)[1]
    steps = -(-problem.in_channels // (2 * TILE))
    # Of eight registers, four hold sums, or three if there is but one row of them.
    channels, width = (2 * TILE, 2) if problem.out_channels > TILE else (TILE, 3)
    blocks = -(-problem.out_channels // channels)
    positions = nominal(problem.positions)
    best: tuple[float, AmxPlan] | None = None
    for block in _blocks(positions, TILE):
        window = Window.of(block, problem.gathers)
        tasks = problem.geometry.groups * prod(-(-p // b) for p, b in zip(positions, block))
        depths = sorted({-(-steps // i) for i in (1, 2, 4, 8, 16)})
        for splits, depth, tiles_first in product(
            _splits(tasks, blocks, machine), depths, (False, True)
        ):
            gather = GatherPlan(
                window, TILE, channels, width, splits, depth, tasks=2 * machine.threads,
                tiles_first=tiles_first, unrolled=4,
            )  # fmt: skip
            plan = AmxPlan(gather, refused)
            cycles = _amx_cycles(problem, plan, machine)
            if problem.is_static and tasks * splits * cycles < PARALLEL_CYCLES:
                plan = replace(plan, gather=replace(gather, parallel=False))
            cost = -(-tasks * splits // machine.threads) * cycles
            if best is None or cost < best[0]:
                best = cost, plan
    if best is None:
        raise AssertionError("a problem has at least one block")
    if problem.prepacked:
        return best
    return best[0] + problem.weights * 1.2 / machine.threads, best[1]


def _amx_cycles(problem: Problem, plan: AmxPlan, machine: Machine) -> float:
    """Estimated cycles of one task.

    A product takes a cycle for each row.  A row of a tile is loaded in half a cycle from the first
    cache, in one if it begins anywhere, as those of the panel do; in 1.6 cycles from the second.
    """
    gather = plan.gather
    window, high = gather.window, gather.channels // TILE
    slots = prod(g.slots for g in problem.gathers)
    phases = prod(g.out_step for g in problem.gathers)
    busy = prod(sum(group.phases for group in g.groups) for g in problem.gathers)
    taps = problem.geometry.taps
    steps = -(-problem.in_channels // (2 * TILE))
    chunks = -(-steps // gather.depth)
    blocks = -(-problem.out_channels // gather.channels)
    per_split = -(-blocks // gather.splits)
    full, tail = divmod(-(-window.length // TILE), gather.vectors)
    tiles = full + bool(tail)
    near = machine.l1 // 2
    # What comes around again: the weights of a phase from tile to tile, or a tile's data.
    weights = gather.channels * gather.depth * TILE * 4 * -(-taps // busy)
    data = gather.vectors * TILE * 4 * gather.depth * TILE * slots
    weights_near = (tiles == 1 or not gather.tiles_first) and weights <= near
    data_near = data <= near if gather.tiles_first else data * tiles <= near
    each_weight = TILE * (0.5 if weights_near else 1.6)
    each_data = TILE * (1.0 if data_near else 3.2)

    def tile(width: int) -> float:
        loads = high * each_weight + width * each_data
        sums = 40 + high * width * TILE * (1.5 if chunks == 1 else 3.0)
        return gather.depth * taps * max(high * width * TILE, loads) + busy * sums

    compute = per_split * chunks * (full * tile(gather.vectors) + (tile(tail) if tail else 0))
    pack = _pack_cycles(problem.gathers, window, problem.in_channels // 2)
    panel = gather.depth * TILE * slots * window.pitch(TILE) * 4
    held = gather.channels * phases * tiles * gather.vectors * TILE * 4
    held *= per_split if chunks > 1 or gather.tiles_first else 1
    if panel + held > machine.l2 // 2:
        compute, pack = compute * 1.5, pack * 3
    out_rows = prod(window.block[:-1])
    copy = per_split * gather.channels * phases * (out_rows * 6 + prod(window.block) * 0.8)
    return 1000 + pack + compute + copy


def _plan_scatter(problem: Problem, machine: Machine) -> tuple[float, ScatterPlan] | None:
    """Lanes over weights: the plan of :mod:`topi_ext.kernels.scatter`, and its cycles.

    None for ``conv``, and for images that are symbolic or too large.
    """
    if not (problem.transposed and problem.is_static):
        return None
    geometry, lanes = problem.geometry, problem.lanes(machine)
    n, size, taps = problem.y_sizes[0], prod(geometry.y_size), geometry.taps
    k, c = geometry.k_per_group, geometry.c_per_group
    held = prod(ScatterPlan.extents(geometry))
    best: tuple[float, ScatterPlan] | None = None
    for images, c_block in product(_divisors(n), _channel_blocks(c, 1)):
        positions, vectors = images * size, -(-c_block * taps // lanes)
        bytes_held = positions * vectors * machine.vector_bytes
        if bytes_held > machine.l2 // 2 or held > _image_room(problem, machine):
            continue
        m_tile, width = _register_tile(positions, vectors, machine)
        # As many channels at a time as are near, and as operands and result have room for.
        near = machine.l2 // 4 // (vectors * machine.vector_bytes)
        room = problem.elements * 15 // 16 // machine.threads - (positions * vectors * lanes + held)
        most = max(16, min(96, near, room // (vectors * lanes + positions)))
        k_block = -(-k // -(-k // most))
        tiles = -(-positions // m_tile)
        step = _row_cycles(m_tile, vectors, width, machine)
        value = 2.0 + _widening_cycles(problem.dtypes[0], problem.acc_dtype)
        products = k * tiles * (step + m_tile * value)
        if bytes_held > machine.l2 // 4:
            products *= 1.12  # as measured
        products *= 1.1 if machine.vector_bytes >= 64 else 1.0  # as measured
        # Weights come from far away, once per task.
        stored = c * k * taps * 4
        far = 10.0 if stored <= 16 * machine.l2 else 20.0
        weights = k * vectors * (3.0 if stored <= machine.l2 else far)
        sums = -(-k // k_block) * tiles * m_tile * vectors * 2.0
        scatter = positions * c_block * taps * 1.3
        scatter += images * c_block * (held * 0.5 + prod(geometry.x_size) + 20)
        task = 1000 + products + weights + sums + scatter
        tasks = n // images * geometry.groups * -(-c // c_block)
        cost = -(-tasks // machine.threads) * task
        parallel = tasks * task >= PARALLEL_CYCLES
        rows = tiles * m_tile
        floats = k_block * (vectors * lanes + rows) + rows * vectors * lanes + held
        cost *= _memory_price(problem, floats * byte_width(problem.acc_dtype), machine)
        if best is None or cost < best[0]:
            sizes = (images, positions, held, lanes, c_block, k_block, m_tile, width)
            best = cost, ScatterPlan(*sizes, parallel)
    return best


def _plan_phases(problem: Problem, machine: Machine) -> tuple[float, PhasesPlan] | None:
    """Lanes over the phases of a row: the plan of :mod:`topi_ext.kernels.phases`, and its cycles.

    None for ``conv``, dilation, sizes that are symbolic or empty, strides below a vector, and where
    phases have different numbers of taps: products with zeros would turn infinity into NaN.
    """
    geometry, lanes = problem.geometry, problem.lanes(machine)
    if not (problem.transposed and problem.is_static) or geometry.stride[-1] < lanes:
        return None
    if min(problem.x_sizes) < 1 or max(geometry.dilation) > 1:
        return None
    if any(k % s for k, s in zip(geometry.kernel, geometry.stride)):
        return None
    width = byte_width(problem.acc_dtype)
    k, stride = geometry.k_per_group, geometry.stride[-1]
    taps, positions = PhasesPlan.taps(geometry), PhasesPlan.positions(geometry)
    values = k * prod(PhasesPlan.reads(geometry)[1])
    out_rows = prod(geometry.x_size[:-1])
    best: tuple[float, PhasesPlan] | None = None
    for images, c_block in product(
        sorted({-(-problem.n // i) for i in (1, 2, 4, 8, 16, 64)}),
        _channel_blocks(geometry.c_per_group, 1),
    ):
        vectors = c_block * -(-stride // lanes)
        m_tile, tile = _register_tile(positions, vectors, machine)
        tiles = -(-positions // m_tile)
        weights = prod(geometry.kernel[:-1]) * k * taps[-1] * vectors * lanes
        held = weights + values + tiles * m_tile * vectors * lanes
        full, tail = divmod(vectors, tile)
        step = _row_cycles(m_tile, vectors, tile, machine)
        # As measured: values of many channels are far apart.
        step *= 1.4 if k >= lanes else 1.0
        overhead = (full + bool(tail)) * (m_tile * tile * 1.5 + 15)
        row = tiles * (prod(taps) * k * step + overhead)
        row += c_block * geometry.x_size[-1] * 0.4 + c_block * positions * 6
        # From a cache that is further away they come as they are needed.
        near = weights // prod(geometry.kernel[:-1]) * prod(taps[:-1])
        row *= 1.0 if near * width <= machine.l2 else 1.2
        copies = weights * (1.2 if stride % lanes == 0 else 2.4)
        task = 1000 + copies + images * (values * 1.0 + out_rows * row)
        tasks = -(-problem.n // images) * geometry.groups * -(-geometry.c_per_group // c_block)
        cost = -(-tasks // machine.threads) * task
        cost *= _memory_price(problem, held * width, machine)
        if best is None or cost < best[0]:
            parallel = tasks * task >= PARALLEL_CYCLES
            best = cost, PhasesPlan(images, lanes, c_block, m_tile, tile, parallel)
    return best


def _plan_small(problem: Problem, machine: Machine) -> ScatterPlan | None:
    """Of symbolic sizes, the plan of small images, where there is one.

    It is that of the largest square image for which the scatter kernel takes fewer cycles than the
    other, with room for images that are longer or more.
    """
    if problem.prepacked or not problem.transposed:
        return None
    g = problem.geometry
    found: ScatterPlan | None = None
    for known in _squares(problem, NOMINAL[0]):
        scatter = _plan_scatter(known, machine)
        if scatter is None:
            break
        if scatter[0] < _plan_gather(known, machine)[0]:
            found = replace(scatter[1], most=prod(known.geometry.y_size))
    if found is None:
        return None
    vectors = -(-found.c_block * g.taps // found.lanes)
    positions = max(found.most, machine.l2 // 2 // (vectors * machine.vector_bytes))
    held = _image_room(problem, machine)
    return replace(found, positions=positions, held=held, parallel=True)


def _image_room(problem: Problem, machine: Machine) -> int:
    """The most elements of an image of x that a task holds."""
    return machine.l2 * 5 // 16 // byte_width(problem.acc_dtype)


def _plan_many_tiles(problem: Problem, machine: Machine) -> WinogradPlan | None:
    """Of symbolic sizes, the plan that saves products where there are enough tiles.

    Enough are those of the smallest square image for which it takes fewer cycles.
    """
    plan = _plan_winograd(problem, machine)
    if plan is None:
        return None
    for known in _squares(problem, 1):
        found = _plan_winograd(known, machine)
        if found and found[1].tile == plan[1].tile and found[0] < _plan_gather(known, machine)[0]:
            return replace(plan[1], least=prod(found[1].tiles(known)))
    return None


def _squares(problem: Problem, n: int) -> Iterator[Problem]:
    """The problem with symbolic sizes known: y as 1x1, 2x2, 4x4 image, and so on, n of them."""
    g = problem.geometry
    for exponent in range(9):
        y = [2**exponent if not isinstance(size, int) else size for size in g.y_size]
        x = [
            size if isinstance(size, int) else conv_transpose_size(*axis)
            for size, axis in zip(g.x_size, zip(y, *g.window))
        ]
        if min(x) >= 1:
            batch = problem.n if isinstance(problem.n, int) else n
            yield replace(problem, geometry=replace(g, x_size=tuple(x), y_size=tuple(y)), n=batch)
        if all(isinstance(size, int) for size in g.y_size):
            break


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, min(n, 4096) + 1) if n % i == 0]


def _gather_cycles(problem: Problem, plan: GatherPlan, machine: Machine) -> float | None:
    """Estimated cycles of one task; None where it holds more than pays."""
    window, lanes = plan.window, plan.lanes
    width = byte_width(problem.acc_dtype)
    gathers = plan.gathers(problem)
    slots = prod(g.slots for g in gathers)
    phases = prod(g.out_step for g in gathers)
    busy = prod(sum(group.phases for group in g.groups) for g in gathers)
    taps = problem.geometry.taps
    pack = _pack_cycles(gathers, window, problem.in_channels)
    panel = plan.depth * slots * window.pitch(lanes) * width
    if panel > machine.l2 // 2:
        pack *= 3
    blocks = -(-problem.out_channels // plan.channels)
    per_split = -(-blocks // plan.splits)
    vectors = -(-window.length // lanes)
    full, tail = divmod(vectors, plan.vectors)
    shifted = window.extent != window.block
    if plan.whole_rows:
        last = gathers[-1]
        step = _whole_row_cycles(last, plan.channels, vectors, plan.vectors, machine) / last.kernel
        passes = busy // sum(group.phases for group in last.groups)
    else:
        passes = busy
        step = _row_cycles(plan.channels, vectors, plan.vectors, machine, shifted=shifted)
    # Above half of the cache times vary from run to run, by up to 1.4 as measured.
    spill = 1.0 if panel <= machine.l2 // 2 else 1.15 if panel <= machine.l2 * 3 // 4 else 1.3
    if plan.spread:
        # As measured: planes are read in order, unless weights push them out of the same cache.
        spill = 0.94 if panel <= machine.l2 // 4 and not plan.tiles_first else 1.03
    if plan.tiled:
        # What a tile reads comes in order, from wherever it is.
        pack *= 1.5
        spill = 1.0 if plan.tiles_first else 1.03 if panel <= machine.l2 // 2 else 1.06
    compute = per_split * problem.in_channels * taps * step * spill
    chunks = -(-problem.in_channels // plan.depth)
    tiles = full + bool(tail)
    held = plan.channels * phases * vectors * lanes * width
    if plan.tiles_first:
        # All blocks of output channels read what one tile of positions needs from the first cache.
        halo = [g.last_shift - g.first_shift for g in gathers]
        rows = prod(1 + reach for reach in halo[:-1])
        row = (plan.vectors * lanes + halo[-1]) * width + 64
        taken = per_split * plan.depth * taps * plan.channels
        room = machine.threads * (panel + held * per_split)
        if not plan.tiled and plan.depth * slots * rows * row > machine.l1 * 3 // 4:
            return None
        if room > problem.data_elements * width:
            return None
        near = taken * width + panel <= machine.l2 * 3 // 4
        compute *= 1.0 if plan.tiled else 1.04
        compute += tiles * chunks * taken * (0.03 if near else 0.06 if plan.tiled else 0.15)
    elif not plan.tiled and panel + plan.depth * taps * plan.channels * width > machine.l1 * 3 // 4:
        # What one block of output channels reads: the panel, once per phase that has taps.
        lines = slots * passes * (vectors + tiles)
        # Planes that one tap reads come in order, and most of the way is hidden.
        slice_ = plan.depth * taps * (plan.vectors * lanes + plan.channels) * width
        has_one_tap = slots == 1 and taps <= phases
        hidden = has_one_tap or (plan.spread and slice_ <= machine.l1 // 2)
        compute += per_split * problem.in_channels * lines * (0.25 if hidden else 1.0)
    out_rows = prod(window.block[:-1])
    # Phases of long strides are put together one by one, and narrowed so.
    narrowed = 0.0 if problem.dtypes[2] == problem.acc_dtype else 25.0
    element = 0.6 if gathers[-1].out_step < lanes else 1.5 + narrowed
    copy = per_split * plan.channels * phases * (out_rows * 6 + prod(window.block) * element)
    if chunks > 1 or plan.tiles_first:
        held *= per_split
        sums = per_split * chunks * busy * plan.channels * vectors * 2.0
        compute += sums * (1 if held <= machine.l2 // 2 else 4)
    if held > machine.l2 // 2:
        copy *= 4
    # Every block reads the weights again, from wherever they fit.
    far = problem.weights_per_group * width > machine.l2
    weights = per_split * problem.in_channels * taps * plan.channels * (0.6 if far else 0.25)
    return 1000 + pack + compute + copy + weights


# -------------------------------------------------------------------- conv_weight_grad


def _plan_sums(problem: Problem, machine: Machine) -> tuple[float, WeightGradPlan]:
    """Lanes over positions: the plan of :mod:`topi_ext.kernels.weight_grad`, and its cycles."""
    geometry, lanes = problem.geometry, problem.lanes(machine)
    c, k, taps = geometry.c_per_group, geometry.k_per_group, geometry.taps
    last = geometry.kernel[-1]
    accumulators = machine.registers - 4
    tap_tile = last if last <= 4 else min(range(4, 1, -1), key=lambda t: -(-last // t) * t)
    c_tile = max(1, min(c, 4 // tap_tile))
    k_tile = max(1, min(k, accumulators // (c_tile * tap_tile), 6))
    positions = nominal(problem.positions)
    best: tuple[float, WeightGradPlan] | None = None
    for block in _blocks(positions, lanes):
        window = Window.of(block, problem.gathers)
        planes = window.pitch(lanes) * byte_width(problem.acc_dtype)
        for k_block, c_block in product(_channel_blocks(k, k_tile), _channel_blocks(c, c_tile)):
            partial = k_block * c_block * taps * machine.vector_bytes
            slots = prod(g.slots for g in problem.gathers)
            panels = (k_block + c_block * slots) * planes
            tasks = geometry.groups * -(-k // k_block) * -(-c // c_block)
            vectors = -(-window.length // lanes)
            rows = prod(window.extent[:-1])
            pack = k_block * (rows * 10 + window.elements * 0.6)
            pack += _pack_cycles(problem.gathers, window, c_block)
            tiles = -(-k_block // k_tile) * -(-c_block // c_tile) * (taps // last)
            tiles *= -(-last // tap_tile)
            size = k_tile * c_tile * tap_tile
            # Where a vector fills a cache line, those of x touch two.
            loads = (k_tile + c_tile * tap_tile * (2 if machine.vector_bytes >= 64 else 1)) / 2
            reload = 1.5 if partial <= machine.l1 // 2 else 3.5
            cycles = tiles * (vectors * max(size / machine.fmas, loads, 4) + reload * size + 8)
            # As measured, beside the kernel that follows.
            near = 1.1 if machine.vector_bytes >= 64 else 1.25
            chunk = pack + cycles * (near if panels + partial <= machine.l2 else 2.0)
            chunks = prod(-(-p // b) for p, b in zip(positions, block))
            task = chunks * chunk + k_block * c_block * taps * 6.0 + 1000
            cost = -(-tasks // machine.threads) * task
            cost *= _memory_price(problem, panels + partial, machine)
            parallel = not problem.is_static or tasks * task >= PARALLEL_CYCLES
            plan = WeightGradPlan(
                window, lanes, k_block, c_block, k_tile, c_tile, tap_tile, parallel
            )
            if best is None or cost < best[0]:
                best = (cost, plan)
    if best is None:
        raise AssertionError("a problem has at least one block")
    return best


def _plan_channels(problem: Problem, machine: Machine) -> tuple[float, ChannelsPlan] | None:
    """Lanes over channels of y: the plan of :mod:`topi_ext.kernels.weight_channels`."""
    geometry, lanes = problem.geometry, problem.lanes(machine)
    c, k, taps = geometry.c_per_group, geometry.k_per_group, geometry.taps
    slots = prod(g.slots for g in problem.gathers)
    width = byte_width(problem.acc_dtype)
    positions = nominal(problem.positions)
    best: tuple[float, ChannelsPlan] | None = None
    for k_block in _channel_blocks(k, lanes):
        vectors = -(-k_block // lanes)
        # The tile is one of channels alone: of neighbouring taps LLVM would keep what the next
        # position reads again in registers, and spill.
        c_tile, v_tile = _register_tile(c, vectors, machine)
        full, tail = divmod(vectors, v_tile)
        step = _row_cycles(c_tile, vectors, v_tile, machine)
        for block, c_block in product(_blocks(positions, lanes), _channel_blocks(c, c_tile)):
            size, rows = prod(block), prod(block[:-1])
            if size > 1024:
                continue
            window = Window.of(block, problem.gathers)
            pack = _pack_cycles(problem.gathers, window, c_block)
            turn = k_block * (size * 1.5 + rows * 5)
            # What is left over of the tiles goes one channel at a time.
            tiles = (c_block // c_tile + c_block % c_tile) * taps
            overhead = (full + bool(tail)) * (rows * 5 + c_tile * v_tile * 2 + 10)
            products = tiles * (size * step + overhead)
            held = c_block * slots * window.pitch(lanes) + size * vectors * lanes
            if held * width > machine.l2 // 2:
                products *= 1.4
            products *= 1.12 if machine.vector_bytes >= 64 else 1.0  # as measured
            counts = prod(-(-p // b) for p, b in zip(positions, block))
            # Weights of one tap are far apart.
            write = k_block * c_block * (taps * 2.0 + 6.0)
            task = 1000 + counts * (pack + turn + products) + write
            tasks = geometry.groups * -(-k // k_block) * -(-c // c_block)
            cost = -(-tasks // machine.threads) * task
            held += c_block * taps * vectors * lanes
            cost *= _memory_price(problem, held * width, machine)
            if best is None or cost < best[0]:
                parallel = not problem.is_static or tasks * task >= PARALLEL_CYCLES
                plan = ChannelsPlan(window, lanes, k_block, c_block, c_tile, v_tile, parallel)
                best = cost, plan
    return best


def _plan_columns(problem: Problem, machine: Machine) -> tuple[float, ColumnsPlan] | None:
    """Lanes over weights: the plan of :mod:`topi_ext.kernels.weight_columns`, and its cycles.

    None for positions that are symbolic or too many to be held at once.
    """
    if not problem.is_static:
        return None
    geometry, lanes = problem.geometry, problem.lanes(machine)
    n, taps = problem.y_sizes[0], geometry.taps
    c, k = geometry.c_per_group, geometry.k_per_group
    best: tuple[float, ColumnsPlan] | None = None
    for images, c_block in product(_divisors(n), _channel_blocks(c, 1)):
        positions, chunks = images * prod(geometry.y_size), n // images
        vectors = -(-c_block * taps // lanes)
        if positions * vectors * machine.vector_bytes > machine.l2 // 2:
            continue
        k_tile, width = _register_tile(k, vectors, machine)
        tasks = geometry.groups * -(-c // c_block)
        splits = 1 if tasks >= 2 * machine.threads else -(-2 * machine.threads // tasks)
        splits = min(splits, -(-k // k_tile))
        tiles = -(-k // (k_tile * splits))
        step = _row_cycles(k_tile, vectors, width, machine)
        rows = k_tile * (positions * 4 + vectors * (4 if chunks == 1 else 8))
        spread = (
            positions * c_block * (taps // geometry.kernel[-1]) * (4 + 1.5 * geometry.kernel[-1])
        )
        chunk = spread + tiles * (positions * step + rows)
        chunk *= 0.9 if machine.vector_bytes >= 64 else 1.0  # as measured
        task = 1000 + chunks * chunk
        cost = -(-tasks * splits // machine.threads) * task
        parallel = tasks * splits * task >= PARALLEL_CYCLES
        if best is None or cost < best[0]:
            best = cost, ColumnsPlan(images, lanes, c_block, splits, k_tile, width, parallel)
    return best


def _plan_weight_tiles(problem: Problem, machine: Machine) -> tuple[float, WeightTilesPlan] | None:
    """Fewer products: the plan of :mod:`topi_ext.kernels.weight_tiles`, and its cycles.

    None for integers, whose sums have to be exact, for symbolic sizes, and where no two taps are
    neighbours.
    """
    if not (problem.acc_dtype.startswith("float") and problem.is_static):
        return None
    tile = _tile_of(problem)
    if 2 not in tile or min(problem.y_sizes) < 1:
        return None
    geometry, lanes = problem.geometry, problem.lanes(machine)
    c, k, width = geometry.c_per_group, geometry.k_per_group, byte_width(problem.acc_dtype)
    vectors = -(-k // lanes)
    c_tile, v_tile = _register_tile(c, vectors, machine)
    # Slower than it could be, and built sooner.
    direct = replace(_plan_sums(problem, machine)[1], k_tile=2, c_tile=1, tap_tile=1)
    plan = WeightTilesPlan(tile, (1,) * 4, lanes, c_tile, c_tile, v_tile, direct)
    filters = [of_axis[0] for of_axis in plan.filters(problem)]
    terms, points = (prod(len(f.terms) for f in filters), prod(len(f.points) for f in filters))
    if prod(len(f.terms) for f in filters[1:]) > MOST_TERMS:
        return None
    limit = problem.elements * width * 15 // 16
    step = _row_cycles(c_tile, vectors, v_tile, machine)
    sums = (terms * vectors + 1) * lanes
    write = vectors * (terms * 3 + geometry.taps * lanes * 2.0)
    best: tuple[float, WeightTilesPlan] | None = None
    for block, c_block, parts, shares in product(
        _blocks(nominal(plan.tiles(problem)), lanes), _channel_blocks(c, c_tile), (1, 2, 4),
        sorted({1, machine.threads}),
    ):  # fmt: skip
        plan = replace(plan, block=block, c_block=c_block, parts=parts, shares=shares)
        tiles, passes = prod(block), plan.passes(problem)
        rows = points * tiles * vectors * lanes
        inputs = terms * c_block * plan.pitch + prod(_input_rows(filters, block)) + lanes
        tasks = -(-c // (c_block * parts))
        busy = min(machine.threads, tasks if shares == 1 else shares)
        held = rows + busy * inputs + sums * c_block * (busy if passes == 1 else tasks)
        if shares > 1:
            held = busy * (rows + inputs) + sums * c_block * tasks * shares
        if held * width > limit or (max(parts, shares) > 1 and passes == 1):
            continue
        line, tile_rows = block[3] * tile[2], prod(block[:-1])
        turn = tile_rows * prod(tile[:-1]) * (lanes * (10 + line * 1.2) + line)
        outputs = vectors * (turn + tiles * points * 2.5)
        # What is left over of the tiles goes one channel at a time.
        register_tiles = c_block // c_tile + c_block % c_tile
        task = 1000 + c_block * _combined_inputs_cycles(filters, block, lanes)
        # From a cache that is further away, and not of this core alone.
        near = rows + inputs + (sums * c_block * tasks if shares > 1 else 0)
        far = 1.0 if near * width <= machine.l2 * 3 // 4 else 1.4
        task += terms * register_tiles * tiles * step * far
        task += terms * c_block * vectors * (2.0 if passes == 1 else 5.0)
        turns = -(-tasks // machine.threads)
        written = turns * c_block * write
        if shares > 1:
            added = turns * c_block * sums * shares * 0.5
            cost = -(-passes // shares) * (outputs + tasks * task)
            cost *= 1.1 if machine.vector_bytes >= 64 else 1.0  # as measured
            cost += added + written + 30000
        else:
            # Lines that the other cores have read are slow to write.
            if machine.threads > 1:
                outputs += rows * (4.0 if machine.vector_bytes >= 64 else 1.0)
            cost = passes * (outputs / machine.threads + turns * task + 15000) + written
        cost *= geometry.groups * parts * 1.1
        if best is None or cost < best[0]:
            best = cost, replace(plan, parallel=cost * machine.threads >= PARALLEL_CYCLES)
    return best


def _memory_price(problem: Problem, held: int, machine: Machine) -> float:
    """What a plan costs more if its tasks hold more bytes than operands and result take."""
    limit = problem.elements * byte_width(problem.acc_dtype) * 15 // 16
    return 4.0 if machine.threads * held > limit else 1.0


def _channel_blocks(channels: int, tile: int) -> list[int]:
    """Candidates: the channels in equal parts, each whole tiles."""
    parts = {-(-channels // i) for i in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)}
    return sorted({min(channels, -(-part // tile) * tile) for part in parts})


# -------------------------------------------------------------------- shared


def _pack_cycles(gathers: Sequence[Gather], window: Window, channels: int) -> float:
    """Estimated cycles of packing one window: rows begin, elements follow."""
    slots = prod(gather.slots for gather in gathers)
    # Elements far apart each take a cache line.
    element = 0.6 if gathers[-1].in_step <= 4 else 3.0
    cycles = channels * slots * (prod(window.extent[:-1]) * 10 + window.elements * element)
    # One after the other, the taps read the same rows; with a step they do so one by one.
    if gathers[-1].spread and gathers[-1].in_step == 1:
        cycles *= 0.6
    return cycles


def _blocks(positions: Sequence[int], lanes: int) -> Iterator[tuple[int, ...]]:
    """Candidate blocks: axes are cut from the outside in, the last one only when it is long."""
    n, depth, height, width = positions
    widths = sorted(
        {-(-width // i) for i in (1, 2, 3, 4, 6, 8) if i == 1 or width // i >= 4 * lanes}
    )
    if width > 512:
        widths = sorted({-(-width // -(-width // limit)) for limit in (64, 128, 256, 512)})
    heights = sorted({-(-height // i) for i in range(1, min(height, 32) + 1)} | {1})
    depths = sorted({-(-depth // i) for i in range(1, min(depth, 16) + 1)} | {1})
    for w in widths:
        for h in heights if w == width else (1,):
            for d in depths if h == height and w == width else (1,):
                whole = (d, h, w) == (depth, height, width)
                images = {i for i in (1, 2, 4, 8, 16, n) if i <= n} if whole else {1}
                for i in sorted(images):
                    if i == 1 or i * d * h * w <= 4096:
                        yield (i, d, h, w)


@lru_cache(maxsize=4096)
def _register_tile(
    out_channels: int, vectors: int, machine: Machine, kinds: int = 1
) -> tuple[int, int]:
    """Output channels and vectors of the cheapest register tile.

    A smaller last one is code of its own, for each of so many `kinds` of phases.  Of 32 registers
    some are left for weights that LLVM loads ahead; of 16 none: x86 reads them from memory while it
    multiplies.
    """
    usable = machine.registers - (machine.registers - 16) // 4
    best: tuple[float, int, int] | None = None
    for channels, width in product(range(1, min(out_channels, 16) + 1), range(1, 9)):
        if width > vectors or channels * width + width + 1 > usable:
            continue
        cycles = _row_cycles(channels, vectors, width, machine) * -(-out_channels // channels)
        cycles *= 1 + (0.005 * kinds if vectors % width else 0.0)
        if best is None or cycles < best[0]:
            best = (cycles, channels, width)
    return best[1:] if best else (1, 1)


def _may_take_rows(problem: Problem, machine: Machine) -> bool:
    """Whether a register tile has room for all phases of a row, of one output channel."""
    last = problem.gathers[-1]
    phases = sum(group.phases for group in last.groups)
    few = problem.out_channels < FEW_CHANNELS and last.kernel <= MOST_ROW_TAPS
    return few and 1 < phases <= machine.registers // 2 - 4


def _row_tile(problem: Problem, vectors: int, machine: Machine) -> tuple[int, int]:
    """Output channels and vectors of the cheapest register tile of whole rows."""
    last, usable = problem.gathers[-1], machine.registers - (machine.registers - 16) // 4
    phases = sum(group.phases for group in last.groups)
    best: tuple[float, int, int] | None = None
    for channels, width in product(range(1, problem.out_channels + 1), range(1, 9)):
        fits = (channels * phases + 1) * width < usable
        fits = fits and channels * width * last.kernel <= 4 * MOST_ROW_TAPS
        if width > vectors or not (fits or channels == width == 1):
            continue
        cycles = _whole_row_cycles(last, channels, vectors, width, machine)
        cycles *= -(-problem.out_channels // channels)
        if best is None or cycles < best[0]:
            best = cycles, channels, width
    return best[1:] if best else (1, 1)


def _whole_row_cycles(
    gather: Gather, channels: int, vectors: int, width: int, machine: Machine
) -> float:
    """Cycles of all taps along a row of `vectors` vectors, for one tap along the other axes."""

    def tile(count: int) -> float:
        products = gather.kernel * channels * count / machine.fmas
        rows = len(gather.reads) * count * (2 if machine.vector_bytes >= 64 else 1)
        # Somewhat more, as measured, than the same products in tiles of one phase.
        return 1.05 * max(products, (rows + gather.kernel * channels) * 0.78, 4.0) + 0.4

    full, tail = divmod(vectors, width)
    return full * tile(width) + (tile(tail) if tail else 0)


def _row_cycles(
    channels: int, vectors: int, width: int, machine: Machine, *, shifted: bool = False
) -> float:
    """Cycles of one tap of `vectors` vectors, in register tiles of `width` and a smaller last."""
    full, tail = divmod(vectors, width)
    cycles = full * _tile_cycles(channels, width, machine, shifted=shifted)
    return cycles + (_tile_cycles(channels, tail, machine, shifted=shifted) if tail else 0)


def _tile_cycles(channels: int, vectors: int, machine: Machine, *, shifted: bool = False) -> float:
    """Cycles of one tap: its FMAs; as measured, four loads in three cycles; four cycles until a sum
    is ready.

    Rows that are `shifted` begin anywhere: where a vector fills a cache line, each touches two.
    """
    loads = channels + vectors * (2 if shifted and machine.vector_bytes >= 64 else 1)
    return max(channels * vectors / machine.fmas, loads * 0.78, 4.0) + 0.4
