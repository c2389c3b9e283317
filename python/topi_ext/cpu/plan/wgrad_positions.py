# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.wgrad_positions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from ...kernel.registry import cost_of
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.size_hints import nominal
from ..machine import CACHE_LINE, CpuMachine
from .cost import (
    PARALLEL_CYCLES,
    blocks_in,
    candidate_blocks,
    candidate_channels,
    memory_price,
    pack_cycles,
)
from .costs import costs_of
from .window import Plan, Window


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
    return min(wgrad_positions_candidates(problem, machine), key=cost_of)


def wgrad_positions_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, WgradPositionsPlan]]:
    """Yield plans, with lanes over positions, and their cycles."""
    geometry, lanes = problem.geometry, machine.lanes(problem.acc_dtype)
    c, k, taps = geometry.c_per_group, geometry.k_per_group, geometry.taps
    last = geometry.kernel[-1]
    accumulators, width = machine.registers - 4, byte_width(problem.acc_dtype)
    costs, common = costs_of(machine).wgrad_positions, costs_of(machine).common
    tap_tile = last if last <= 4 else min(range(4, 1, -1), key=lambda t: -(-last // t) * t)
    c_tile = max(1, min(c, 4 // tap_tile))
    k_tile = max(1, min(k, accumulators // (c_tile * tap_tile), 6))
    positions = nominal(problem.positions)
    for block in candidate_blocks(positions, lanes):
        window = Window.of(block, problem.accesses)
        planes = window.pitch(lanes) * width
        for k_block, c_block in product(
            candidate_channels(k, k_tile), candidate_channels(c, c_tile)
        ):
            partial = k_block * c_block * taps * machine.vector_bytes
            slots = prod(g.slots for g in problem.accesses)
            panels = (k_block + c_block * slots) * planes
            tasks = geometry.groups * -(-k // k_block) * -(-c // c_block)
            vectors = -(-window.length // lanes)
            rows = prod(window.extent[:-1])
            pack = k_block * (rows * costs.row + window.elements * costs.element)
            pack += pack_cycles(problem.accesses, window, c_block, common)
            tiles = -(-k_block // k_tile) * -(-c_block // c_tile) * (taps // last)
            tiles *= -(-last // tap_tile)
            size = k_tile * c_tile * tap_tile
            # Where a vector fills a cache line, those of x touch two.
            touched = 2 if machine.vector_bytes >= CACHE_LINE else 1
            loads = (k_tile + c_tile * tap_tile * touched) / costs.loads
            reload = costs.sums if partial <= machine.l1 // 2 else costs.sums_far
            step = max(size / machine.fmas, loads, costs.sum_ready)
            cycles = tiles * (vectors * step + reload * size + costs.tile)
            chunk = pack + cycles * (costs.near if panels + partial <= machine.l2 else costs.far)
            chunks = blocks_in(positions, block)
            task = chunks * chunk + k_block * c_block * taps * costs.write + costs.task
            cost = -(-tasks // machine.threads) * task
            held = (panels + partial) // width
            cost *= memory_price(problem, min(tasks, machine.threads) * held)
            parallel = not problem.is_static or tasks * task >= PARALLEL_CYCLES
            plan = WgradPositionsPlan(
                window, lanes, k_block, c_block, k_tile, c_tile, tap_tile, parallel
            )
            yield cost, plan


def wgrad_positions_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[WgradPositionsPlan, list[float]]]:
    """Return the plan for symbolic sizes, and its cycles for all `known` sizes."""
    cycles = [plan_wgrad_positions(one, machine)[0] for one in known]
    yield plan_wgrad_positions(problem, machine)[1], cycles
