# SPDX-License-Identifier: Apache-2.0
"""Tiles of the matrix product over positions that a weight gradient is, on the lanes of float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from ...dtypes import byte_width
from ...nominal import nominal
from ...problem import Problem
from ..machine import GpuMachine
from .base import Plan
from .cost import LAUNCH, Blocks, SimtStep, bytes_time, launch_time, memory_time, resident
from .implicit_gemm import LEAST_STEPS, LOAD, MOST_SUMS, Tile


@dataclass(frozen=True)
class WgradGemmPlan(Plan):
    """A tile of channels of y by taps and channels of x, `depth` positions a step.

    Attributes
    ----------
    tile : Tile
    thread_rows, thread_columns : int
        Of a thread.
    """

    tile: Tile
    thread_rows: int
    thread_columns: int

    @property
    def threads(self) -> int:
        """Of a block."""
        tile = self.tile
        return tile.rows // self.thread_rows * (tile.columns // self.thread_columns)


TILES = (
    (128, 128, 8, 8), (128, 64, 8, 8), (64, 64, 8, 4), (64, 64, 4, 4), (64, 32, 4, 4),
    (32, 64, 4, 4), (32, 32, 4, 2), (32, 128, 4, 8),
)  # fmt: skip

DEPTHS = (8, 16)

SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)


def wgrad_gemm_candidates(
    problem: Problem, machine: GpuMachine
) -> Iterator[tuple[float, WgradGemmPlan]]:
    """All tiles and splits, each with its estimated nanoseconds."""
    width = byte_width(problem.acc_dtype)
    for (rows, columns, *of_thread), depth, splits in product(TILES, DEPTHS, SPLITS):
        plan = WgradGemmPlan(Tile(rows, columns, depth, splits), *of_thread)
        if prod(of_thread) * width > 4 * MOST_SUMS:
            continue
        if splits > 1 and wgrad_steps(problem, plan.tile) < splits * LEAST_STEPS:
            continue
        time = _time(problem, plan, machine)
        if time is not None:
            yield time, plan


def wgrad_steps(problem: Problem, tile: Tile) -> int:
    """Of a sum that is not split."""
    return -(-prod(nominal(problem.y_sizes)) // tile.depth)


def wgrad_blocks(problem: Problem, tile: Tile) -> int:
    """Blocks of a launch."""
    g = problem.geometry
    rows, columns = -(-g.k_per_group // tile.rows), -(-g.taps * g.c_per_group // tile.columns)
    return rows * columns * g.groups * tile.splits


def wgrad_split_time(problem: Problem, tile: Tile, machine: GpuMachine) -> float:
    """Nanoseconds in which shares of a split sum are written, read and added."""
    if tile.splits == 1:
        return 0.0
    sums = problem.weights * byte_width(problem.acc_dtype) * tile.splits
    speed = 3.0 if sums < machine.l2 // 2 else 1.0
    return LAUNCH + bytes_time(2 * sums, machine) / speed


def _time(problem: Problem, plan: WgradGemmPlan, machine: GpuMachine) -> float | None:
    tile, width = plan.tile, byte_width(problem.acc_dtype)
    copied = (tile.rows + tile.columns) * tile.depth
    step = SimtStep(
        plan.threads, tile.depth, (plan.thread_rows, plan.thread_columns),
        (tile.rows * LOAD + tile.columns * 2 * LOAD) * tile.depth / plan.threads + 60,
        copied / 16, copied * byte_width(problem.dtypes[0]),
    )  # fmt: skip
    held = 2 * (tile.rows + tile.columns + 8) * tile.depth * width
    sums = plan.thread_rows * plan.thread_columns * width // 4
    blocks = Blocks(
        wgrad_blocks(problem, tile), plan.threads, int(sums * 1.25) + 100, held,
        wgrad_steps(problem, tile) / tile.splits + 2, step.cycles(width, machine),
    )  # fmt: skip
    if resident(blocks, machine) < 1:
        return None
    time = max(launch_time(blocks, machine), memory_time(problem, machine) + LAUNCH)
    return time + wgrad_split_time(problem, tile, machine)
