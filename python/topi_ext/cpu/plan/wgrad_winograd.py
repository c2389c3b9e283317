# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.wgrad_winograd`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from ...kernel.registry import require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.minimal_filtering import Filter
from ...spec.size_hints import nominal
from ..machine import CpuMachine
from .estimate import (
    PARALLEL_CYCLES,
    blocks_in,
    candidate_blocks,
    candidate_channels,
    most_of,
    register_tile,
    room_for,
    row_cycles,
)
from .step_costs import costs_of
from .vectors import NARROW, odd_vectors
from .wgrad_positions import WgradPositionsPlan, plan_wgrad_positions
from .winograd_tiles import (
    MOST_TERMS,
    ROOMS,
    Tiled,
    candidate_tiles,
    fitted_blocks,
    input_rows,
    winograd_input_cycles,
    written_terms,
)


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
    """Yield plans that save products, and their cycles."""
    require(problem.is_static, "sizes must be known")
    require(min(problem.y_sizes) > 0, "y must have elements")
    room = room_for(problem)
    for one in _tiled(problem, machine):
        size, form = nominal(one.tiles(problem)), _Form.of(problem, one)
        plans = list(_candidates(problem, one, (1, 2, 4), machine))
        for sizes in candidate_blocks(size, one.lanes):
            block = _Block.of(problem, one, form, machine, 1, sizes)
            count = blocks_in(size, sizes)
            is_single = form.phases * count == 1
            for plan in plans:
                if is_single and max(plan.channel_parts, plan.position_splits) > 1:
                    continue
                if _elements(problem, plan, form, block, machine, is_single=is_single) <= room:
                    cost = _cycles(problem, plan, form, block, count, machine, is_single=is_single)
                    parallel = cost * machine.threads >= PARALLEL_CYCLES
                    yield cost, replace(plan, block=sizes, parallel=parallel)


def wgrad_winograd_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[WgradWinogradPlan, list[float]]]:
    """Yield plans that save products for symbolic sizes, and their cycles for all `known`
    sizes.
    """
    most = room_for(known[-1])
    for one in _tiled(problem, machine):
        form, sizes = _Form.of(problem, one), [one.tiles(each) for each in known]
        block_of = partial(_Block.of, problem, one, form, machine, NARROW)
        fitted = fitted_blocks(sizes, block_of)
        plans = list(_candidates(problem, one, (1,), machine))
        for room in (vectors * one.lanes for vectors in ROOMS):
            whole = block_of((1, 1, 1, room))
            is_single = form.phases * blocks_in(sizes[-1], whole.sizes) == 1
            for plan in plans:
                if _elements(problem, plan, form, whole, machine, is_single=is_single) <= most:
                    yield (
                        replace(plan, block=whole.sizes),
                        [
                            _cycles(problem, plan, form, *each, machine, is_single=False)
                            for each in fitted(room, plan.position_splits)
                        ],
                    )


def _tiled(problem: Convolution, machine: CpuMachine) -> Iterator[WgradWinogradPlan]:
    """Yield plans with the tiles that may pay, of which the blocks follow."""
    tiles = candidate_tiles(problem)
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


class _Form(NamedTuple):
    """How each axis is computed with one tile; its terms and points, and the phases."""

    filters: list[Filter]
    terms: int
    points: int
    phases: int

    @classmethod
    def of(cls, problem: Convolution, plan: WgradWinogradPlan) -> _Form:
        """Return the form of the tile of a plan."""
        filters = _filters(problem, plan)
        counts = ((len(f.terms), len(f.points), len(f.phases)) for f in filters)
        return cls(filters, *map(prod, zip(*counts)))


class _Block(NamedTuple):
    """A block of tiles, with whatever channels of x.

    Attributes
    ----------
    sizes : tuple of int
    tiles, pitch : int
        Their number, and the distance of two rows of combined inputs.
    rows, raw : int
        Elements of its combined outputs, and of the inputs of a channel as they are.
    inputs, outputs : float
        Cycles of combining the inputs of a channel, and all outputs.
    """

    sizes: tuple[int, ...]
    tiles: int
    pitch: int
    rows: int
    raw: int
    inputs: float
    outputs: float

    @classmethod
    def of(
        cls,
        problem: Convolution,
        plan: WgradWinogradPlan,
        form: _Form,
        machine: CpuMachine,
        narrowest: int,
        sizes: tuple[int, ...],
    ) -> _Block:
        """Return the block of so many tiles along the four axes; `narrowest` are the lanes of the
        narrowest vectors.
        """
        lanes, tile, tiles = plan.lanes, plan.tile, prod(sizes)
        costs, of_tiles = costs_of(machine).wgrad_winograd, costs_of(machine).tiles
        vectors = -(-problem.geometry.k_per_group // lanes)
        line, tile_rows = sizes[3] * tile[2], prod(sizes[:-1])
        row = lanes * (costs.turn_row + line * costs.turn_element) + line
        turn = tile_rows * prod(tile[:-1]) * row
        return cls(
            sizes,
            tiles,
            replace(plan, block=sizes).pitch,
            rows=form.points * tiles * vectors * lanes,
            raw=prod(input_rows(form.filters, sizes)) + lanes,
            inputs=winograd_input_cycles(form.filters, sizes, lanes, of_tiles, narrowest),
            outputs=vectors * (turn + tiles * form.points * costs.point),
        )


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


def _sizes(
    problem: Convolution, plan: WgradWinogradPlan, form: _Form, block: _Block
) -> tuple[int, int, int]:
    """Return the elements of the combined outputs of a block, of the inputs of a task, and of the
    sums of one channel of x.
    """
    vectors = -(-problem.geometry.k_per_group // plan.lanes)
    inputs = form.terms * plan.rows * block.pitch + block.raw
    return block.rows, inputs, (form.terms * vectors + 1) * plan.lanes


def _tasks(problem: Convolution, plan: WgradWinogradPlan) -> int:
    """Return the blocks of channels of x in a part."""
    return -(-problem.geometry.c_per_group // (plan.c_block * plan.channel_parts))


def _elements(
    problem: Convolution,
    plan: WgradWinogradPlan,
    form: _Form,
    block: _Block,
    machine: CpuMachine,
    *,
    is_single: bool,
) -> int:
    """Return the elements that the kernel allocates; of a single pass each task has sums."""
    rows, inputs, sums = _sizes(problem, plan, form, block)
    # Outputs of a row of tiles, turned before they are combined.
    inputs += prod(plan.tile) * block.sizes[-1] * plan.lanes
    tasks = _tasks(problem, plan)
    if plan.position_splits > 1:
        busy = min(machine.threads, plan.position_splits)
        return busy * (rows + inputs) + sums * plan.c_block * tasks * plan.position_splits
    busy = min(machine.threads, tasks)
    return rows + busy * inputs + sums * plan.c_block * (busy if is_single else tasks)


def _cycles(
    problem: Convolution,
    plan: WgradWinogradPlan,
    form: _Form,
    block: _Block,
    count: int,
    machine: CpuMachine,
    *,
    is_single: bool,
) -> float:
    """Return the estimated cycles of so many blocks; of a single pass sums are written once."""
    geometry, lanes, passes = problem.geometry, plan.lanes, form.phases * count
    c_block, shares, terms = plan.c_block, plan.position_splits, form.terms
    width, costs = byte_width(problem.acc_dtype), costs_of(machine).wgrad_winograd
    rows, inputs, sums = _sizes(problem, plan, form, block)
    tasks = _tasks(problem, plan)
    vectors = -(-geometry.k_per_group // lanes)
    step = row_cycles(plan.c_tile, vectors, plan.vectors, machine)
    write = vectors * (terms * costs.term + geometry.taps * lanes * costs.write)
    # What is left over of the tiles goes one channel at a time.
    register_tiles = c_block // plan.c_tile + c_block % plan.c_tile
    task = costs.task + c_block * block.inputs
    # From a cache that is further away, and not of this core alone.
    near = rows + inputs + (sums * c_block * tasks if shares > 1 else 0)
    far = 1.0 if near * width <= most_of(machine.l2) else costs.far
    task += terms * register_tiles * block.tiles * step * far
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
        cost = -(-passes // shares) * (block.outputs + tasks * task)
        cost *= costs.shares
        cost += added + written + costs.share_tasks
    else:
        outputs = block.outputs
        # Lines that the other cores have read are slow to write.
        if machine.threads > 1:
            outputs += rows * costs.shared_output
        cost = passes * (outputs / machine.threads + turns * task + costs.passes) + written
    return cost * geometry.groups * plan.channel_parts * costs.all
