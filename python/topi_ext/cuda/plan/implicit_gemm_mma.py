# SPDX-License-Identifier: Apache-2.0
"""Tiles of the implicit matrix product of float16 and bfloat16, on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from ...problem import Problem
from ..machine import GpuMachine
from .cost import LAUNCH, Blocks, launch_time, memory_time, resident
from .implicit_gemm import (
    LEAST_STEPS,
    SPLITS,
    Tile,
    block_count,
    packing_time,
    split_time,
    steps_of,
)
from .warp_tiles import WarpTiles

HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class MmaPlan(WarpTiles):
    """Positions by output channels.

    Raises
    ------
    ValueError
        Of a tile with less data than 16 bytes for every thread.
    """

    def __post_init__(self) -> None:
        if self.tile.rows * self.tile.depth < 8 * self.threads:
            raise ValueError(f"MmaPlan: {self.tile} must have 8 elements for each thread")


TILES = (
    (128, 128, 2, 4), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2), (128, 32, 4, 1),
    (64, 32, 2, 1), (32, 64, 1, 2), (32, 128, 1, 4), (64, 16, 2, 1), (128, 16, 4, 1),
)  # fmt: skip
"""Rows, columns, and the warps that share them."""

DEPTHS = (16, 32)

MMA_SHARE = 0.6
"""Of the tensor cores' products, what ``mma.sync`` reaches."""


def implicit_gemm_mma_candidates(
    problem: Problem, machine: GpuMachine
) -> Iterator[tuple[float, MmaPlan]]:
    """All tiles and splits, each with its estimated nanoseconds."""
    if not (machine.has_mma and problem.dtypes[0] in HALVES):
        return
    if problem.dtypes[0] != problem.dtypes[1] or problem.acc_dtype != "float32":
        return
    for (rows, columns, *warps), depth, splits in product(TILES, DEPTHS, SPLITS):
        if rows * depth < 8 * 32 * prod(warps):
            continue
        plan = MmaPlan(Tile(rows, columns, depth, splits), *warps)
        if depth > DEPTHS[0] and problem.in_channels <= DEPTHS[0]:
            continue
        if splits > 1 and steps_of(problem, plan.tile) < splits * LEAST_STEPS:
            continue
        time = _time(problem, plan, machine)
        if time is not None:
            yield time, plan


def reads_chunks(problem: Problem) -> bool:
    """Whether 8 channels of a position are neighbours that begin at a multiple of 8."""
    layout = problem.layouts.y if problem.transposed else problem.layouts.x
    return layout.endswith("C") and problem.in_channels % 8 == 0


def _time(problem: Problem, plan: MmaPlan, machine: GpuMachine) -> float | None:
    tile = plan.tile
    products = tile.rows * tile.columns * tile.depth / (machine.tensor * MMA_SHARE)
    chunks = reads_chunks(problem)
    loads = tile.rows * tile.depth / (256 if chunks else 32) + tile.columns * tile.depth / 256
    # Every warp reads its rows and its columns: 128 bytes a cycle.
    reads = plan.stage_bytes * (plan.warp_rows + plan.warp_columns) / 2 / 128
    held = max(plan.stages * plan.stage_bytes, 4 * (tile.rows + 4) * 32) + 8 * tile.rows
    registers = plan.row_blocks * plan.column_blocks * 4 + 56 + (0 if chunks else 16)
    blocks = Blocks(
        block_count(problem, tile), plan.threads, registers, held,
        steps_of(problem, tile) / tile.splits + 2, max(products, loads, reads) + 25,
        plan.stages - 1 if chunks else 1,
    )  # fmt: skip
    if resident(blocks, machine) < 1:
        return None
    time = max(launch_time(blocks, machine), memory_time(problem, machine) + LAUNCH)
    return time + split_time(problem, tile, machine) + packing_time(problem, machine)
