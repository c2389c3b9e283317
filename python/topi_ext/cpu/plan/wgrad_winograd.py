# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.wgrad_winograd`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.minimal_filtering import Filter
from ...spec.size_hints import nominal
from ..machine import CpuMachine
from ..winograd.tiles import (
    MOST_TERMS,
    ROOMS,
    Tiled,
    candidate_tiles,
    fitted_block,
    input_rows,
    winograd_input_cycles,
    written_terms,
)
from .cost import (
    PARALLEL_CYCLES,
    candidate_blocks,
    candidate_channels,
    most_of,
    register_tile,
    room_for,
    row_cycles,
)
from .costs import costs_of
from .vectors import NARROW, odd_vectors
from .wgrad_positions import WgradPositionsPlan, plan_wgrad_positions


@dataclass(frozen=True)
class WgradWinogradPlan(Tiled):
    """Plan of the ``conv_weight_grad`` kernel that saves products.

    Attributes
    ----------
    tile : tuple of int
        Outputs per tile along depth, height and width: 1 or 2, along the width also 4.
    block : tuple of int
        Tiles that are reduced at a time along the four axes.
    lanes : int
        Elements per vector.
    c_block : int
        Channels of x per task.
    c_tile, vectors : int
        Register tile: channels of x by vectors of channels of y.
    direct : WgradPositionsPlan
        For data that is not finite.
    parallel : bool
        Whether threads share the tasks.
    channel_parts : int
        Parts of the channels of x that are computed one after the other, for less memory.
    position_splits : int
        Into how many tasks phases and blocks of tiles are divided, each with sums of its own; of 1,
        blocks of channels are tasks.
    """

    tile: tuple[int, ...]
    block: tuple[int, ...]
    lanes: int
    c_block: int
    c_tile: int
    vectors: int
    direct: WgradPositionsPlan
    parallel: bool = True
    channel_parts: int = 1
    position_splits: int = 1

    def passes(self, problem: Convolution) -> int:
        """Return how often sums are added to: for each block of tiles and each phase."""
        passes = prod(len(filters[0].phases) for filters in self.filters(problem))
        for count, size in zip(nominal(self.tiles(problem)), self.block):
            passes *= -(-count // size)
        return passes

    @property
    def pitch(self) -> int:
        """Distance of two rows of combined inputs: never a power of two of cache lines."""
        vectors = -(-prod(self.block) // self.lanes)
        return odd_vectors(vectors) * self.lanes

    @property
    def rows(self) -> int:
        """Rows of combined inputs from one term to the next: those of a channel, which are written
        together, lie in different sets of a cache."""
        return odd_vectors(self.c_block)


FAR_SUMS = 6
"""Second caches that sums of all channels fill if they are far away."""

MOST_ROWS = 16
"""Rows of sums, each taken up in pieces, in turns, that a processor reads ahead of us."""


def wgrad_winograd_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, WgradWinogradPlan]]:
    """Yield plans that save products, and their cycles.

    None are yielded for integers, whose sums have to be exact, for symbolic sizes, and where no two
    taps are neighbours.
    """
    if not problem.is_static or min(problem.y_sizes) < 1:
        return
    for one in _tiled(problem, machine):
        blocks = candidate_blocks(nominal(one.tiles(problem)), one.lanes)
        for block, plan in product(blocks, _candidates(problem, one, (1, 2, 4), machine)):
            plan = replace(plan, block=block)
            is_single = plan.passes(problem) == 1
            if is_single and max(plan.channel_parts, plan.position_splits) > 1:
                continue
            if _elements(problem, plan, machine) <= room_for(problem):
                cost = _cycles(problem, plan, machine, is_single=is_single)
                yield cost, replace(plan, parallel=cost * machine.threads >= PARALLEL_CYCLES)


def wgrad_winograd_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[WgradWinogradPlan, list[float]]]:
    """Yield plans that save products for symbolic sizes, and their cycles for all `known` sizes.

    None for what :func:`wgrad_winograd_candidates` has none for.
    """
    for one in _tiled(problem, machine):
        rooms = [(1, 1, 1, vectors * one.lanes) for vectors in ROOMS]
        for room, plan in product(rooms, _candidates(problem, one, (1,), machine)):
            plan = replace(plan, block=room)
            if _elements(known[-1], plan, machine) <= room_for(known[-1]):
                yield plan, [_fitted_cycles(size, plan, machine) for size in known]


def _fitted_cycles(known: Convolution, plan: WgradWinogradPlan, machine: CpuMachine) -> float:
    """Return the estimated cycles of a plan for symbolic sizes, whose block fits the known ones."""
    block = fitted_block(plan.tiles(known), prod(plan.block), plan.position_splits)
    plan = replace(plan, block=block)
    return _cycles(known, plan, machine, is_single=False, narrowest=NARROW)


def _tiled(problem: Convolution, machine: CpuMachine) -> Iterator[WgradWinogradPlan]:
    """Yield plans with the tiles that may pay, of which the blocks follow."""
    tiles = candidate_tiles(problem)
    if not tiles:
        return
    lanes = machine.lanes(problem.acc_dtype)
    vectors = -(-problem.geometry.k_per_group // lanes)
    c_tile, v_tile = register_tile(problem.geometry.c_per_group, vectors, machine)
    # Slower than it could be, and built sooner.
    direct = replace(plan_wgrad_positions(problem, machine)[1], k_tile=2, c_tile=1, tap_tile=1)
    for tile in tiles:
        plan = WgradWinogradPlan(tile, (1,) * 4, lanes, c_tile, c_tile, v_tile, direct)
        if written_terms([_filters(problem, plan)]) <= MOST_TERMS:
            yield plan


def _filters(problem: Convolution, plan: WgradWinogradPlan) -> list[Filter]:
    """Return how each axis is computed: an access from x to y has one kind of phases."""
    return [of_axis[0] for of_axis in plan.filters(problem)]


def _candidates(
    problem: Convolution, plan: WgradWinogradPlan, parts: Sequence[int], machine: CpuMachine
) -> Iterator[WgradWinogradPlan]:
    """Yield the plan with other channels, parts, none of them empty, and shares."""
    c = problem.geometry.c_per_group
    for c_block, count in product(candidate_channels(c, plan.c_tile), parts):
        blocks = -(-c // c_block)
        if blocks > (count - 1) * -(-blocks // count):
            for shares in sorted({1, machine.threads}):
                yield replace(plan, c_block=c_block, channel_parts=count, position_splits=shares)


def _sizes(problem: Convolution, plan: WgradWinogradPlan) -> tuple[int, int, int]:
    """Return the elements of the combined outputs of a block, of the inputs of a task, and of the
    sums of one channel of x.
    """
    filters = _filters(problem, plan)
    terms, points = (prod(len(f.terms) for f in filters), prod(len(f.points) for f in filters))
    vectors = -(-problem.geometry.k_per_group // plan.lanes)
    rows = points * prod(plan.block) * vectors * plan.lanes
    inputs = terms * plan.rows * plan.pitch + prod(input_rows(filters, plan.block)) + plan.lanes
    return rows, inputs, (terms * vectors + 1) * plan.lanes


def _tasks(problem: Convolution, plan: WgradWinogradPlan) -> int:
    """Return the blocks of channels of x in a part."""
    return -(-problem.geometry.c_per_group // (plan.c_block * plan.channel_parts))


def _elements(problem: Convolution, plan: WgradWinogradPlan, machine: CpuMachine) -> int:
    """Return the elements that the kernel allocates."""
    rows, inputs, sums = _sizes(problem, plan)
    # Outputs of a row of tiles, turned before they are combined.
    inputs += prod(plan.tile) * plan.block[-1] * plan.lanes
    tasks = _tasks(problem, plan)
    if plan.position_splits > 1:
        busy = min(machine.threads, plan.position_splits)
        return busy * (rows + inputs) + sums * plan.c_block * tasks * plan.position_splits
    busy = min(machine.threads, tasks)
    is_single = plan.passes(problem) == 1
    return rows + busy * inputs + sums * plan.c_block * (busy if is_single else tasks)


def _cycles(
    problem: Convolution,
    plan: WgradWinogradPlan,
    machine: CpuMachine,
    *,
    is_single: bool,
    narrowest: int = 1,
) -> float:
    """Return the estimated cycles; of a single pass sums are written once."""
    geometry, lanes, tile, block = problem.geometry, plan.lanes, plan.tile, plan.block
    filters, c_block, shares = _filters(problem, plan), plan.c_block, plan.position_splits
    width, costs, of_tiles = (
        byte_width(problem.acc_dtype),
        costs_of(machine).wgrad_winograd,
        costs_of(machine).tiles,
    )
    rows, inputs, sums = _sizes(problem, plan)
    tasks, passes = _tasks(problem, plan), plan.passes(problem)
    terms, points = (prod(len(f.terms) for f in filters), prod(len(f.points) for f in filters))
    vectors = -(-geometry.k_per_group // lanes)
    step = row_cycles(plan.c_tile, vectors, plan.vectors, machine)
    write = vectors * (terms * costs.term + geometry.taps * lanes * costs.write)
    line, tile_rows = block[3] * tile[2], prod(block[:-1])
    turn = (
        tile_rows * prod(tile[:-1]) * (lanes * (costs.turn_row + line * costs.turn_element) + line)
    )
    outputs = vectors * (turn + prod(block) * points * costs.point)
    # What is left over of the tiles goes one channel at a time.
    register_tiles = c_block // plan.c_tile + c_block % plan.c_tile
    task = costs.task + c_block * winograd_input_cycles(filters, block, lanes, of_tiles, narrowest)
    # From a cache that is further away, and not of this core alone.
    near = rows + inputs + (sums * c_block * tasks if shares > 1 else 0)
    far = 1.0 if near * width <= most_of(machine.l2) else costs.far
    task += terms * register_tiles * prod(block) * step * far
    # Sums that go on are read as well, from where those of all channels fit.
    is_far = sums * c_block * tasks * width > FAR_SUMS * machine.l2
    each = costs.sum_again_far if is_far else costs.sum_again
    if c_block > MOST_ROWS and vectors > plan.vectors:
        each += costs.sum_rows
    task += terms * c_block * vectors * (costs.sum_once if is_single else each)
    turns = -(-tasks // machine.threads)
    written = turns * c_block * write
    if shares > 1:
        added = turns * c_block * sums * shares * costs.add
        cost = -(-passes // shares) * (outputs + tasks * task)
        cost *= costs.shares
        cost += added + written + costs.share_tasks
    else:
        # Lines that the other cores have read are slow to write.
        if machine.threads > 1:
            outputs += rows * costs.shared_output
        cost = passes * (outputs / machine.threads + turns * task + costs.passes) + written
    return cost * geometry.groups * plan.channel_parts * costs.all
