# SPDX-License-Identifier: Apache-2.0
"""Tiles of the weight gradient of float16 and bfloat16, on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from ...kernel.registry import require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ..machine import GpuMachine
from .estimate import (
    LAUNCH,
    MMA_SHARE,
    Blocks,
    bytes_time,
    launch_time,
    memory_time,
    mma_cycles,
    resident,
    split_time,
    wgrad_blocks,
    wgrad_steps,
)
from .tiles import (
    HALVES,
    LEAST_STEPS,
    MOST_REGISTERS,
    MOST_SUMS,
    STAGES,
    WGRAD_SPLITS,
    Footprint,
    Tile,
    WarpTiles,
    bounded,
)


@dataclass(frozen=True)
class WgradMmaPlan(WarpTiles):
    """A tile of channels of y by taps and channels of x, `depth` positions a step."""

    def footprint(self, problem: Convolution) -> Footprint:
        """Return the threads, registers and shared memory of a block."""
        others = 70 if copies_chunks(problem) else 160
        registers = self.registers_beside(others)
        registers = bounded(registers, self.threads, self.least_blocks(problem))
        return Footprint(self.threads, registers, self.stages * self.stage_bytes)

    def least_blocks(self, problem: Convolution) -> int:
        """Return the number of blocks that a multiprocessor is to hold: two for plans of 256
        threads that need 128 registers at most.
        """
        is_large = self.threads == 256 and self.sums == MOST_SUMS
        is_simple = problem.is_static and copies_chunks(problem) and not self.has_parts(problem)
        return 2 if is_large and is_simple else 1

    @property
    def part_steps(self) -> int:
        """Steps whose products tensor cores sum before the lanes add that sum to the others."""
        return MOST_TERMS // self.tile.depth

    def has_parts(self, problem: Convolution) -> bool:
        """Return whether a share of the positions may have more than one part."""
        most = self.tile.splits * MOST_TERMS
        return not problem.is_static or prod(problem.y_sizes) > most

    def needs_workspace(self, problem: Convolution) -> bool:
        """Return whether sums go to a workspace: shares, or parts that the result cannot store."""
        is_narrow = problem.dtypes[2] != problem.acc_dtype
        return self.tile.splits > 1 or (is_narrow and self.has_parts(problem))


TILES = (
    (128, 256, 2, 4), (256, 128, 4, 2), (128, 128, 2, 2),
    (128, 128, 2, 4), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2), (32, 64, 1, 2),
    (32, 128, 1, 4), (64, 32, 2, 1),
)  # fmt: skip

DEPTHS = (16, 32)

COPY = 9.5
"""Instructions of an element that is copied by way of a register, including those that compute its
position: 8.6 to 16 in machine code for sm_90."""

MOST_TERMS = 8192
"""Maximum number of products that tensor cores sum without a rounded addition.

They truncate sums, so that errors of one sign accumulate: half of ``4 sqrt(terms) eps`` after
32,768 terms of one sign, more than all of it after 131,072.  After 8,192 it is 0.28 of it."""


def wgrad_mma_candidates(
    problem: Convolution, machine: GpuMachine
) -> Iterator[tuple[float, WgradMmaPlan]]:
    """Yield all tiles and splits, each with its estimated nanoseconds."""
    first, second, _ = problem.dtypes
    is_half = first == second and first in HALVES and problem.acc_dtype == "float32"
    require(machine.has_mma and is_half, "tensor cores must multiply the dtypes: halves")
    choices = product(TILES, DEPTHS, WGRAD_SPLITS, STAGES)
    for (rows, columns, over, across), depth, splits, stages in choices:
        plan = WgradMmaPlan(Tile(rows, columns, depth, splits), over, across, stages)
        if splits > 1 and wgrad_steps(problem, plan.tile) < splits * LEAST_STEPS:
            continue
        time = _time(problem, plan, machine)
        if time is not None:
            yield time, plan


def copies_chunks(problem: Convolution) -> bool:
    """Return whether 8 channels are neighbours that begin at a multiple of 8, in x and in y."""
    g, layouts = problem.geometry, problem.layouts
    last = layouts.x.endswith("C") and layouts.y.endswith("C")
    return last and g.c_per_group % 8 == 0 and g.k_per_group % 8 == 0


def _time(problem: Convolution, plan: WgradMmaPlan, machine: GpuMachine) -> float | None:
    tile, chunks = plan.tile, copies_chunks(problem)
    products = tile.rows * tile.columns * tile.depth / (machine.tensor * MMA_SHARE)
    elements = (tile.rows + tile.columns) * tile.depth
    loads = elements / (256 if chunks else 12)
    cycles = mma_cycles(plan, products, loads, 0 if chunks else COPY * elements)
    footprint = plan.footprint(problem)
    if footprint.registers > MOST_REGISTERS or resident(footprint, machine) < 1:
        return None
    blocks = Blocks(
        wgrad_blocks(problem, tile), footprint,
        wgrad_steps(problem, tile) / tile.splits + 2, cycles + 40,
        plan.stages - 1 if chunks else 1,
    )  # fmt: skip
    time = max(launch_time(blocks, machine), memory_time(problem, machine) + LAUNCH)
    return time + split_time(problem, tile, machine) + _parts_time(problem, plan, machine)


def _parts_time(problem: Convolution, plan: WgradMmaPlan, machine: GpuMachine) -> float:
    """Return the nanoseconds in which parts are added to earlier ones and the sum is rounded."""
    splits = plan.tile.splits
    parts = -(-wgrad_steps(problem, plan.tile) // splits // plan.part_steps)
    moved = 2 * (parts - 1) * splits * problem.weights * byte_width(problem.acc_dtype)
    launch = LAUNCH if splits == 1 and plan.needs_workspace(problem) else 0.0
    return launch + bytes_time(moved, machine)
