# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.valid_taps`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from operator import floordiv, itemgetter
from statistics import mean
from typing import Any, NamedTuple

from ...kernel.registry import require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.geometry import Geometry
from ..machine import CpuMachine
from .base import Plan
from .estimate import (
    MOST_MEAN,
    PARALLEL_CYCLES,
    candidate_depths,
    candidate_splits,
    memory_price,
    most_of,
    room_for,
    tile_cycles,
    usable_registers,
    widening_cycles,
)
from .step_costs import costs_of
from .vectors import odd_vectors, square_size


@dataclass(frozen=True)
class ValidTapsPlan(Plan):
    """Plan of the kernel of plain accesses whose taps run only where they meet data.

    Attributes
    ----------
    rows : tuple of int
        Rows of positions per task, along depth and height; of symbolic images the kernel chooses.
    lanes : int
        Elements per vector.
    vectors : int
        Vectors of output channels of a block.
    m_tile : int
        Positions of a register tile.
    depth : int
        Input channels that are summed at a time.
    channel_splits : int
        Into how many tasks the output channels of one block of rows are divided.
    parallel : bool
        Whether threads share the tasks.  With symbolic images they do, because tasks size their
        workspace.
    room : int
        For symbolic images, the approximate number of positions of a task, at least one row.
    """

    rows: tuple[int, int]
    lanes: int
    vectors: int
    m_tile: int
    depth: int
    channel_splits: int
    parallel: bool = True
    room: int = 0

    def blocks(self, problem: Convolution) -> int:
        """Return the blocks of output channels of a group."""
        return -(-problem.out_channels // (self.vectors * self.lanes))

    def packed(self, problem: Convolution) -> int:
        """Return the elements of all packed weights."""
        g = problem.geometry
        channels = self.blocks(problem) * self.vectors * self.lanes
        return g.groups * channels * problem.in_channels * g.taps

    def rows_of(
        self,
        height: Any,
        width: Any,
        quotient: Callable[..., Any] = floordiv,
        most: Callable[..., Any] = max,
    ) -> Any:
        """Return the rows of a task along the height of symbolic images, once these sizes are
        known.

        About as many as of another task; `quotient` and `most` compute with expressions.
        """
        fit = most(quotient(self.room, most(width, 1)), 1)
        parts = most(quotient(height + fit - 1, fit), 1)
        return most(quotient(height + parts - 1, parts), 1)

    def positions(self, problem: Convolution) -> int:
        """Return the positions of a task."""
        width: int = problem.positions[-1]
        return prod(self.rows) * width

    def pitch(self, problem: Convolution, rows: Sequence[Any] = ()) -> Any:
        """Return the elements from one input channel to the next: never a power of two of cache
        lines.
        """
        held = prod(problem.geometry.kernel[:-1]) * prod(rows or self.rows)
        vectors = (held * problem.in_sizes[-1] + self.lanes - 1) // self.lanes
        return odd_vectors(vectors) * self.lanes


MOST_VALID = 0.97
"""Largest share of products with data for which it pays to leave out those with padding."""

MOST_POSITIONS = 12
"""Maximum of a register tile."""

MOST_PLANS = 8
"""For how many known sizes plans are made, to be rated for all."""


def valid_taps_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, ValidTapsPlan]]:
    """Yield plans, with lanes over output channels, and their cycles."""
    require(_leaves_out(problem), "of the products, some and enough must be with padding")
    for cycles, of_tasks, plan in _rated(problem, _of_image(problem, machine), machine):
        yield cycles, plan if of_tasks >= PARALLEL_CYCLES else replace(plan, parallel=False)


def _leaves_out(problem: Convolution) -> bool:
    """Return whether the kernel leaves out enough products with padding to be planned."""
    return problem.n != 0 and 0 < problem.valid_fraction < MOST_VALID


def valid_taps_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[ValidTapsPlan, list[float]]]:
    """Yield plans for symbolic sizes, and their cycles for all `known` sizes.

    They are infinite for sizes whose products are all with padding.
    """
    most = MOST_VALID if problem.images_are_known else MOST_MEAN
    require(problem.is_plain, "an output position must read one input for every tap")
    leaves_out = mean(one.valid_fraction for one in known) <= most
    require(leaves_out, "of the products, enough must be with padding")
    of_image: dict[Geometry, list[_Shared]] = {}
    plans = []
    for one in known[:: -(-len(known) // MOST_PLANS)]:
        if _leaves_out(one):
            if one.geometry not in of_image:
                of_image[one.geometry] = list(_of_image(one, machine))
            *_, plan = min(_rated(one, of_image[one.geometry], machine), key=itemgetter(0))
            plans.append((one, plan))
    if not problem.images_are_known:
        plans = [(one, replace(plan, rows=(1, 1), room=plan.positions(one))) for one, plan in plans]
    for plan in dict.fromkeys(plan for _, plan in plans):
        yield plan, [_fitted_cycles(one, plan, machine) for one in known]


def _fitted_cycles(known: Convolution, plan: ValidTapsPlan, machine: CpuMachine) -> float:
    """Return the estimated cycles until a kernel for symbolic sizes is done."""
    if not known.valid_fraction:
        return float("inf")
    if plan.room:
        plan = replace(plan, rows=(1, plan.rows_of(*known.positions[2:])))
    task = _task_cycles(known, plan, _width_of(known, plan.vectors, plan.m_tile, machine), machine)
    return _cycles(_tasks(known, plan), task, machine)


_Shared = tuple[ValidTapsPlan, float, int]
"""A plan, and what all batches share: the cycles of a task, and the elements that it holds."""


def _rated(
    problem: Convolution, plans: Iterable[_Shared], machine: CpuMachine
) -> Iterator[tuple[float, float, ValidTapsPlan]]:
    """Yield the cycles of the candidates, and of all their tasks."""
    room = room_for(problem)
    for plan, task, held in plans:
        tasks = _tasks(problem, plan)
        cycles = _cycles(tasks, task, machine)
        cycles *= memory_price(problem, min(machine.threads, tasks) * held, room)
        yield cycles, tasks * task, plan


def _of_image(problem: Convolution, machine: CpuMachine) -> Iterator[_Shared]:
    """Yield the candidates for images of this size, in whatever batch."""
    lanes, rows = machine.lanes(problem.acc_dtype), problem.positions[1:3]
    depths, heights = (
        sorted({-(-size // i) for i in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}) for size in rows
    )
    vectors = -(-problem.out_channels // lanes)
    tiles = {wide: _m_tile(problem, wide, machine) for wide in range(1, min(vectors, 6) + 1)}
    widths = {wide: _width_of(problem, wide, tile, machine) for wide, tile in tiles.items()}
    for height, depth, wide in product(heights, depths, widths):
        if depth > 1 and height < rows[1]:
            continue
        for channels, splits in product(
            candidate_depths(problem.in_channels),
            candidate_splits(1, -(-vectors // wide), machine),
        ):
            plan = ValidTapsPlan((depth, height), lanes, wide, tiles[wide], channels, splits)
            task = _task_cycles(problem, plan, widths[wide], machine)
            yield plan, task, _elements(problem, plan)


def _m_tile(problem: Convolution, vectors: int, machine: CpuMachine) -> int:
    """Return the register tile of fewest cycles, beside vectors of weights that are read once for
    it.
    """
    usable = usable_registers(machine) - 1
    most = max(1, min(usable // vectors - 1, MOST_POSITIONS))
    return min(
        range(most, 0, -1), key=lambda m_tile: _line_cycles(problem, m_tile, vectors, machine)
    )


def _line_cycles(problem: Convolution, m_tile: int, vectors: int, machine: CpuMachine) -> float:
    """Return the cycles of all taps of one input channel along a row of positions."""
    whole, one = (tile_cycles(count, vectors, machine) for count in (m_tile, 1))
    return sum(count // m_tile * whole + count % m_tile * one for count in problem.met[-1])


def _weights(problem: Convolution, plan: ValidTapsPlan) -> int:
    """Return the elements of the weights that a task copies at a time."""
    if problem.prepacked:
        return 0
    taps: int = problem.geometry.taps
    return plan.depth * plan.vectors * plan.lanes * taps


def _sums(problem: Convolution, plan: ValidTapsPlan) -> int:
    """Return the elements of the sums of a task."""
    blocks = (
        -(-plan.blocks(problem) // plan.channel_splits) if plan.depth < problem.in_channels else 1
    )
    return plan.positions(problem) * plan.vectors * plan.lanes * blocks


def _elements(problem: Convolution, plan: ValidTapsPlan) -> int:
    """Return the elements that a task allocates."""
    turned: int = plan.lanes * problem.positions[-1]
    inputs: int = plan.depth * plan.pitch(problem)
    return inputs + _weights(problem, plan) + _sums(problem, plan) + turned


def _tasks(problem: Convolution, plan: ValidTapsPlan) -> int:
    images, *rows, _ = problem.positions
    parts = prod(-(-size // part) for size, part in zip(rows, plan.rows))
    tasks: int = images * problem.geometry.groups * parts * plan.channel_splits
    return tasks


def _cycles(tasks: int, task: float, machine: CpuMachine) -> float:
    """Return the estimated cycles until the kernel is done."""
    return -(-tasks // machine.threads) * task * costs_of(machine).valid_taps.all


class _Width(NamedTuple):
    """Cycles of all taps of one input channel along a row, and of copying the weights of a
    block.
    """

    line: float
    packed: float


def _width_of(problem: Convolution, vectors: int, m_tile: int, machine: CpuMachine) -> _Width:
    """Return those of blocks of so many vectors of output channels."""
    packed = 0.0 if problem.prepacked else _weight_cycles(problem, vectors, machine)
    return _Width(_line_cycles(problem, m_tile, vectors, machine), packed)


def _task_cycles(
    problem: Convolution, plan: ValidTapsPlan, of_width: _Width, machine: CpuMachine
) -> float:
    """Return the estimated cycles of a task, the mean of all."""
    width, vectors, channels = byte_width(problem.acc_dtype), plan.vectors, problem.in_channels
    width_in: int = problem.in_sizes[-1]
    costs = costs_of(machine).valid_taps
    *sizes, last = problem.met
    outer = prod(map(sum, sizes))
    counts = [-(-size // part) for size, part in zip(problem.positions[1:], plan.rows)]
    share: float = outer / prod(counts)  # rows of taps and positions of a task
    blocks = -(-plan.blocks(problem) // plan.channel_splits)
    chunks = -(-channels // plan.depth)

    held = (plan.depth * plan.pitch(problem) + _weights(problem, plan)) * width
    weights = problem.weights_per_group * width // plan.channel_splits
    products = share * channels * of_width.line
    # Sums are taken up again by every tap, and weights read again for every row of positions.
    sums = share * chunks * sum(last) * vectors * costs.sum_vector
    far = costs.read if weights <= machine.l2 or not problem.prepacked else costs.read_far
    read = share * channels * len(last) * vectors * far
    spill = 1.0 if held <= most_of(machine.l2) else costs.half_full
    if plan.depth * vectors * machine.vector_bytes > most_of(machine.l1):
        spill *= costs.weights_far
    if _sums(problem, plan) * width > machine.l2:
        spill *= costs.sums_far  # sums come from further away, for each tap
    copied = share * channels * (costs.input_row + width_in * _each(problem, machine))
    written = plan.positions(problem) * vectors * plan.lanes * costs.out_element
    return (
        costs.task + copied + blocks * (products * spill + sums + read + of_width.packed + written)
    )


def _weight_cycles(problem: Convolution, vectors: int, machine: CpuMachine) -> float:
    """Return the cycles of copying the weights of a block."""
    lanes = machine.lanes(problem.acc_dtype)
    channels = vectors * lanes
    costs, common = costs_of(machine).valid_taps, costs_of(machine).common
    each = costs.weight + widening_cycles(problem.dtypes[1], problem.acc_dtype, common)
    if square_size(problem, channels, lanes):
        is_near = problem.weights * byte_width(problem.dtypes[1]) <= machine.l2 * machine.threads
        each = costs.turn_weight if is_near else costs.turn_weight_far
    taps: int = problem.geometry.taps
    return problem.in_channels * channels * taps * each


def _each(problem: Convolution, machine: CpuMachine) -> float:
    """Return the cycles of copying one input."""
    costs = costs_of(machine)
    widening = widening_cycles(problem.dtypes[0], problem.acc_dtype, costs.common)
    return costs.valid_taps.input + widening
