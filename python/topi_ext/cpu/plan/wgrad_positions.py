# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.wgrad_positions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from ...kernel.registry import cost_of
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.size_hints import nominal
from ..machine import CACHE_LINE, CpuMachine
from .base import Plan
from .estimate import (
    PARALLEL_CYCLES,
    blocks_in,
    candidate_blocks,
    candidate_channels,
    memory_price,
    plane_cycles,
    room_for,
)
from .step_costs import costs_of
from .window import Window


@dataclass(frozen=True)
class WgradPositionsPlan(Plan):
    """Plan of the ``conv_weight_grad`` kernel.

    Attributes
    ----------
    window : Window
        Block of positions of y that is reduced at a time and what it reads of x.
    lanes : int
        Elements per vector.
    k_block, c_block : int
        Channels of y and of x that one task holds partial sums for.
    k_tile, c_tile, tap_tile : int
        Register tile: channels of y by (channels of x times taps along the last axis).
    parallel : bool
        Whether threads share the tasks.
    """

    window: Window
    lanes: int
    k_block: int
    c_block: int
    k_tile: int
    c_tile: int
    tap_tile: int
    parallel: bool = True


@lru_cache(maxsize=64)
def plan_wgrad_positions(
    problem: Convolution, machine: CpuMachine
) -> tuple[float, WgradPositionsPlan]:
    """Return the cheapest candidate, and its cycles; every problem has one."""
    cycles, fields = min(_rated(problem, machine), key=cost_of)
    return cycles, WgradPositionsPlan(*fields)


def wgrad_positions_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, WgradPositionsPlan]]:
    """Yield plans, with lanes over positions, and their cycles."""
    for cycles, fields in _rated(problem, machine):
        yield cycles, WgradPositionsPlan(*fields)


def _rated(problem: Convolution, machine: CpuMachine) -> Iterator[tuple[float, tuple[Any, ...]]]:
    """Yield the cycles of plans, and their fields."""
    geometry, lanes = problem.geometry, machine.lanes(problem.acc_dtype)
    c, k, taps = geometry.c_per_group, geometry.k_per_group, geometry.taps
    last = geometry.kernel[-1]
    accumulators, width = machine.registers - 4, byte_width(problem.acc_dtype)
    costs, common = costs_of(machine).wgrad_positions, costs_of(machine).common
    tap_tile = last if last <= 4 else min(range(4, 1, -1), key=lambda t: -(-last // t) * t)
    c_tile = max(1, min(c, 4 // tap_tile))
    k_tile = max(1, min(k, accumulators // (c_tile * tap_tile), 6))
    positions, room, is_static = nominal(problem.positions), room_for(problem), problem.is_static
    slots, size = prod(g.slots for g in problem.accesses), k_tile * c_tile * tap_tile
    # Where a vector fills a cache line, those of x touch two.
    touched = 2 if machine.vector_bytes >= CACHE_LINE else 1
    loads = (k_tile + c_tile * tap_tile * touched) / costs.loads
    step = max(size / machine.fmas, loads, costs.sum_ready)
    channels = list(product(candidate_channels(k, k_tile), candidate_channels(c, c_tile)))
    for block in candidate_blocks(positions, lanes):
        window, chunks = Window.of(block, problem.accesses), blocks_in(positions, block)
        planes, vectors = window.pitch(lanes) * width, -(-window.length // lanes)
        turned = prod(window.extent[:-1]) * costs.row + window.elements * costs.element
        packed = plane_cycles(problem.accesses[-1], window, common)
        for k_block, c_block in channels:
            partial = k_block * c_block * taps * machine.vector_bytes
            panels = (k_block + c_block * slots) * planes
            tasks = geometry.groups * -(-k // k_block) * -(-c // c_block)
            tiles = -(-k_block // k_tile) * -(-c_block // c_tile) * (taps // last)
            tiles *= -(-last // tap_tile)
            reload = costs.sums if partial <= machine.l1 // 2 else costs.sums_far
            cycles = tiles * (vectors * step + reload * size + costs.tile)
            chunk = k_block * turned + c_block * slots * packed
            chunk += cycles * (costs.near if panels + partial <= machine.l2 else costs.far)
            task = chunks * chunk + k_block * c_block * taps * costs.write + costs.task
            cost = -(-tasks // machine.threads) * task
            held = (panels + partial) // width
            cost *= memory_price(problem, min(tasks, machine.threads) * held, room)
            parallel = not is_static or tasks * task >= PARALLEL_CYCLES
            yield cost, (window, lanes, k_block, c_block, k_tile, c_tile, tap_tile, parallel)


def wgrad_positions_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[WgradPositionsPlan, list[float]]]:
    """Return the plan for symbolic sizes, and its cycles for all `known` sizes."""
    cycles = [plan_wgrad_positions(one, machine)[0] for one in known]
    yield plan_wgrad_positions(problem, machine)[1], cycles
