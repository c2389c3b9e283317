# SPDX-License-Identifier: Apache-2.0
"""Tiles of the matrix product over positions of a weight gradient, on the float32 lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ..machine import GpuMachine
from .estimate import (
    LAUNCH,
    LOAD,
    Blocks,
    SimtStep,
    launch_time,
    memory_time,
    resident,
    split_time,
    wgrad_blocks,
    wgrad_steps,
)
from .tiles import LEAST_STEPS, MOST_SUMS, PAD, WGRAD_SPLITS, Footprint, Plan, Tile


@dataclass(frozen=True)
class WgradGemmPlan(Plan):
    """A tile of channels of y by taps and channels of x, `depth` positions a step.

    Attributes
    ----------
    tile : Tile
    thread_rows, thread_columns : int
        Size of a thread's part of the tile.
    """

    tile: Tile
    thread_rows: int
    thread_columns: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        tile = self.tile
        return tile.rows // self.thread_rows * (tile.columns // self.thread_columns)

    @property
    def columns_at(self) -> int:
        """Elements of shared memory for the rows of a stage, which its columns follow."""
        return (self.tile.rows + PAD) * self.tile.depth

    @property
    def stage_elements(self) -> int:
        """Elements of shared memory for a stage."""
        return self.columns_at + (self.tile.columns + PAD) * self.tile.depth

    def footprint(self, problem: Convolution) -> Footprint:
        """Return the threads, registers and shared memory of a block."""
        width = byte_width(problem.acc_dtype)
        sums = self.thread_rows * self.thread_columns * width // 4
        return Footprint(self.threads, int(sums * 1.25) + 100, 2 * self.stage_elements * width)


TILES = (
    (128, 128, 8, 8), (128, 64, 8, 8), (64, 64, 8, 4), (64, 64, 4, 4), (64, 32, 4, 4),
    (32, 64, 4, 4), (32, 32, 4, 2), (32, 128, 4, 8),
)  # fmt: skip

DEPTHS = (8, 16)


def wgrad_gemm_candidates(
    problem: Convolution, machine: GpuMachine
) -> Iterator[tuple[float, WgradGemmPlan]]:
    """Yield all tiles and splits, each with its estimated nanoseconds."""
    width = byte_width(problem.acc_dtype)
    for (rows, columns, *of_thread), depth, splits in product(TILES, DEPTHS, WGRAD_SPLITS):
        plan = WgradGemmPlan(Tile(rows, columns, depth, splits), *of_thread)
        if prod(of_thread) * width > 4 * MOST_SUMS:
            continue
        if splits > 1 and wgrad_steps(problem, plan.tile) < splits * LEAST_STEPS:
            continue
        time = _time(problem, plan, machine)
        if time is not None:
            yield time, plan


def _time(problem: Convolution, plan: WgradGemmPlan, machine: GpuMachine) -> float | None:
    tile, width = plan.tile, byte_width(problem.acc_dtype)
    copied = (tile.rows + tile.columns) * tile.depth
    step = SimtStep(
        plan.threads, tile.depth, (plan.thread_rows, plan.thread_columns),
        (tile.rows * LOAD + tile.columns * 2 * LOAD) * tile.depth / plan.threads + 60,
        copied / 16, copied * byte_width(problem.dtypes[0]),
    )  # fmt: skip
    footprint = plan.footprint(problem)
    if resident(footprint, machine) < 1:
        return None
    steps = wgrad_steps(problem, tile) / tile.splits + 2
    blocks = Blocks(wgrad_blocks(problem, tile), footprint, steps, step.cycles(width, machine))
    time = max(launch_time(blocks, machine), memory_time(problem, machine) + LAUNCH)
    return time + split_time(problem, tile, machine)
