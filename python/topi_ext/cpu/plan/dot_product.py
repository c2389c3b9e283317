# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.dot_product`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from ...kernel.registry import require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ..machine import CACHE_LINE, CpuMachine
from .base import Plan
from .estimate import (
    PARALLEL_CYCLES,
    SHARED_CACHES,
    memory_price,
    register_tile,
    tile_cycles,
    widening_cycles,
)
from .step_costs import costs_of
from .vectors import odd_vectors


@dataclass(frozen=True)
class DotProductPlan(Plan):
    """Plan of the ``conv`` kernel for few positions.

    Attributes
    ----------
    lanes : int
        Elements per vector.
    k_block : int
        Output channels per task: whole register tiles.
    channels, m_tile : int
        Register tile: output channels by positions.
    parallel : bool
        Whether threads share the tasks.
    room : int
        For symbolic sizes, the maximum of positions at a time.
    """

    lanes: int
    k_block: int
    channels: int
    m_tile: int
    parallel: bool = True
    room: int = 0

    def pitch(self, problem: Convolution) -> int:
        """Return the distance of what two positions read: whole vectors, never a power of two of
        them.
        """
        vectors = -(-problem.in_channels * problem.geometry.taps // self.lanes)
        return odd_vectors(vectors) * self.lanes


FEW_POSITIONS = 64
"""With more, vectors of positions are full, or nearly so."""


def dot_product_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[DotProductPlan, list[float]]]:
    """Yield plans for few positions with symbolic sizes, and their cycles for all `known` sizes."""
    _require_runs(problem, machine)
    row = known[0].in_channels * problem.geometry.taps * byte_width(problem.acc_dtype)
    room = max(1, min(FEW_POSITIONS, machine.l2 // 2 // row))
    for plan in _candidates(problem, room, machine):
        plan = replace(plan, room=room // plan.m_tile * plan.m_tile)
        yield plan, [_fitted_cycles(one, plan, machine) for one in known]


def _require_runs(problem: Convolution, machine: CpuMachine) -> None:
    require(problem.weights_are_runs, "weights of an output channel must be neighbours in memory")
    require(machine.lanes(problem.acc_dtype) > 1, "a vector must hold two sums")


def _fitted_cycles(known: Convolution, plan: DotProductPlan, machine: CpuMachine) -> float:
    """Return the estimated cycles until a kernel for symbolic sizes is done."""
    return -(-_tasks(known, plan) // machine.threads) * _cycles(known, plan, machine)[0]


def dot_product_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, DotProductPlan]]:
    """Yield plans, with lanes over weights, and their cycles."""
    _require_runs(problem, machine)
    require(problem.is_static, "sizes must be known")
    is_few = 0 < prod(problem.y_sizes) <= FEW_POSITIONS
    require(is_few, f"positions must be 1 to {FEW_POSITIONS}")
    for plan in _candidates(problem, prod(problem.y_sizes), machine):
        tasks = _tasks(problem, plan)
        task, held = _cycles(problem, plan, machine)
        cycles = -(-tasks // machine.threads) * task
        # The sums of the lanes of a vector take less than this.
        room = problem.elements - min(tasks, machine.threads) * CACHE_LINE
        cycles *= memory_price(problem, min(tasks, machine.threads) * held, room)
        is_shared = tasks > 1 and tasks * task >= PARALLEL_CYCLES
        yield cycles, replace(plan, parallel=is_shared)


def _candidates(
    problem: Convolution, positions: int, machine: CpuMachine
) -> Iterator[DotProductPlan]:
    g = problem.geometry
    channels, m_tile = register_tile(g.k_per_group, positions, machine)
    for tile, blocks in product({channels, min(4, g.k_per_group), 1}, (1, 2, 4, 8)):
        wanted = -(-blocks * machine.threads // g.groups)
        k_block = -(-g.k_per_group // min(wanted, g.k_per_group))
        yield DotProductPlan(
            machine.lanes(problem.acc_dtype), -(-k_block // tile) * tile, tile, m_tile
        )


def _tasks(problem: Convolution, plan: DotProductPlan) -> int:
    return problem.geometry.groups * -(-problem.geometry.k_per_group // plan.k_block)


def _cycles(problem: Convolution, plan: DotProductPlan, machine: CpuMachine) -> tuple[float, int]:
    """Return the estimated cycles of a task, and elements that it holds."""
    positions, terms = prod(problem.y_sizes), problem.in_channels * problem.geometry.taps
    costs, common = costs_of(machine).dot_product, costs_of(machine).common
    vectors, rest = divmod(terms, plan.lanes)
    k_block = min(plan.k_block, problem.geometry.k_per_group)
    tiles = -(-k_block // plan.channels)
    held = -(-positions // -(-positions // plan.room)) if plan.room else positions
    full, tail = divmod(positions, plan.m_tile)
    step = full * tile_cycles(plan.channels, plan.m_tile, machine)
    if not plan.room:
        step += tile_cycles(plan.channels, tail, machine) if tail else 0.0
    else:  # one by one
        step += tail * tile_cycles(plan.channels, 1, machine)
    # Weights come as fast as the cache that they are in, once.
    size = problem.weights * byte_width(problem.dtypes[1])
    line = costs.line_far if size <= SHARED_CACHES * machine.l2 else costs.line_memory
    line = costs.line if size <= machine.l2 else line
    step = max(step, plan.channels * line * (machine.vector_bytes / CACHE_LINE))
    products = tiles * vectors * step * costs.products
    held *= plan.pitch(problem)
    if held * byte_width(problem.acc_dtype) > machine.l2 // 2:
        products *= costs.columns_far  # columns come from further away, for each tile of channels
    if problem.dtypes[1] != problem.acc_dtype:
        products *= costs.widened
        held += plan.channels * plan.pitch(problem)
    each = costs.sum + rest * costs.rest
    columns = (
        positions
        * terms
        * (costs.element + widening_cycles(problem.dtypes[0], problem.acc_dtype, common))
    )
    return costs.task + columns + products + k_block * positions * each, held
