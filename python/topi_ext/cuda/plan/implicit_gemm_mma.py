# SPDX-License-Identifier: Apache-2.0
"""Tiles of the implicit matrix product of float16 and bfloat16, on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ...kernel.registry import Refused
from ...spec.conv import Convolution
from ..machine import GpuMachine
from .estimate import (
    LAUNCH,
    MMA_SHARE,
    Blocks,
    block_count,
    launch_time,
    memory_time,
    mma_cycles,
    packing_time,
    resident,
    split_time,
    steps_of,
)
from .tiles import (
    HALVES,
    LEAST_STEPS,
    MOST_REGISTERS,
    MOST_SUMS,
    SPLITS,
    STAGES,
    TABLES,
    Footprint,
    Tile,
    WarpTiles,
    bounded,
    reads_channels,
)

CHUNKS, MANY_ROWS, ELEMENTS = 80, 104, 95
"""Registers of a thread besides its sums: if data are copied by 16 bytes, also with 64 sums for a
row or more of a thread, and if data are copied by elements.  Counted for sm_80 and sm_90."""


@dataclass(frozen=True)
class ImplicitGemmMmaPlan(WarpTiles):
    """A tile of positions by output channels.

    Raises
    ------
    ValueError
        If the tile has less than 16 bytes of data for every thread.
    """

    def __post_init__(self) -> None:
        if self.row_bytes < 16 * self.threads:
            raise ValueError(
                f"ImplicitGemmMmaPlan: {self.tile} must have 16 bytes of data for each thread"
            )

    def least_blocks(self, problem: Convolution) -> int:
        """Return the number of blocks that a multiprocessor is to hold: two for plans of 256
        threads for which 128 registers are enough, although the compiler might take a few more.
        """
        is_large = self.threads == 256 and self.sums == MOST_SUMS and self.width == 2
        is_simple = problem.is_static and reads_chunks(problem, self.chunk)
        return 2 if is_large and (is_simple or problem.kind == "conv_transpose") else 1

    def footprint(self, problem: Convolution) -> Footprint:
        """Return the threads, registers and shared memory of a block."""
        others = ELEMENTS
        if reads_chunks(problem, self.chunk):
            has_rows = self.sums == MOST_SUMS and self.tile.rows >= self.threads
            others = MANY_ROWS if has_rows else CHUNKS
        registers = self.registers_beside(others)
        registers = bounded(registers, self.threads, self.least_blocks(problem))
        return Footprint(self.threads, registers, self.arena_bytes + TABLES * self.tile.rows)


TILES = (
    (128, 256, 2, 4), (256, 128, 4, 2), (128, 128, 2, 2),
    (128, 128, 2, 4), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2), (128, 32, 4, 1),
    (64, 32, 2, 1), (32, 64, 1, 2), (32, 128, 1, 4), (64, 16, 2, 1), (128, 16, 4, 1),
)  # fmt: skip
"""Rows and columns of a tile, and the numbers of warps that share them."""

DEPTHS = (16, 32)

COPY, COPY_ANY_SIZE = 2.0, 8.5
"""Instructions of an element that is copied by way of a register, in addition to
:attr:`~topi_ext.cuda.plan.tiles.WarpTiles.instructions`: 0.5 to 3.6 in machine code for sm_90, 7.6
to 9 if the distance between channels is not known."""


def implicit_gemm_mma_candidates(
    problem: Convolution, machine: GpuMachine
) -> Iterator[tuple[float, ImplicitGemmMmaPlan]]:
    """Yield all tiles and splits, each with its estimated nanoseconds."""
    width = element_width(problem, machine)
    if width is None:
        raise Refused("tensor cores must multiply the dtypes: halves, or TF32 if allowed")
    choices = product(TILES, DEPTHS, SPLITS, STAGES)
    for (rows, columns, over, across), depth, splits, stages in choices:
        if 2 * rows * depth < 16 * 32 * over * across:
            continue
        tile = Tile(rows, columns, depth * 2 // width, splits)
        plan = ImplicitGemmMmaPlan(tile, over, across, stages, width)
        if depth > DEPTHS[0] and problem.in_channels <= DEPTHS[0]:
            continue
        if splits > 1 and steps_of(problem, plan.tile) < splits * LEAST_STEPS:
            continue
        time = _time(problem, plan, machine)
        if time is not None:
            yield time, plan


def element_width(problem: Convolution, machine: GpuMachine) -> int | None:
    """Return the bytes of an element that tensor cores multiply; None if they cannot be used."""
    first, second, _ = problem.dtypes
    if not machine.has_mma or first != second or problem.acc_dtype != "float32":
        return None
    if first in HALVES:
        return 2
    return 4 if machine.multiplies_tf32 else None


def reads_chunks(problem: Convolution, chunk: int) -> bool:
    """Return whether `chunk` channels are neighbours that begin at a multiple of their number."""
    return reads_channels(problem) and problem.in_channels % chunk == 0


def _time(problem: Convolution, plan: ImplicitGemmMmaPlan, machine: GpuMachine) -> float | None:
    tile = plan.tile
    # For float32, three TF32 products, each of which takes twice as long as one of float16.
    speed = machine.tensor * MMA_SHARE / (1 if plan.width == 2 else 6)
    products = tile.rows * tile.columns * tile.depth / speed
    chunks = reads_chunks(problem, plan.chunk)
    loads = tile.rows * tile.depth / (256 if chunks else 32) + tile.columns * tile.depth / 256
    copy = COPY if problem.is_static else COPY_ANY_SIZE
    by_registers = 0 if chunks else copy * tile.rows * tile.depth
    cycles = mma_cycles(plan, products, loads, by_registers)
    footprint = plan.footprint(problem)
    if footprint.registers > MOST_REGISTERS or resident(footprint, machine) < 1:
        return None
    blocks = Blocks(
        block_count(problem, tile), footprint,
        steps_of(problem, tile) / tile.splits + 2, cycles + 25,
        plan.stages - 1 if chunks else 1,
    )  # fmt: skip
    time = max(launch_time(blocks, machine), memory_time(problem, machine) + LAUNCH)
    return time + split_time(problem, tile, machine) + packing_time(problem, machine)
