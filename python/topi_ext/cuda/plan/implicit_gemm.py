# SPDX-License-Identifier: Apache-2.0
"""Tiles of the implicit matrix product of a convolution, on the float32 lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ..machine import STATIC_SHARED, GpuMachine
from .estimate import (
    LAUNCH,
    LOAD,
    Blocks,
    SimtStep,
    block_count,
    launch_time,
    memory_time,
    packing_time,
    resident,
    split_time,
    steps_of,
)
from .tiles import (
    LEAST_STEPS,
    MOST_SUMS,
    PAD,
    SPLITS,
    TABLES,
    Footprint,
    Plan,
    Tile,
    held_elements,
    reads_channels,
    slice_columns,
)


@dataclass(frozen=True)
class ImplicitGemmPlan(Plan):
    """A tile, computed by warps of 8 x 4 threads.

    Attributes
    ----------
    tile : Tile
    thread_rows, thread_columns : int
        Size of a thread's part of the tile.
    packed : bool
        Whether weights are packed first: by the function's first kernel, unless they are packed
        ahead.
    word : int
        Input channels of one element of the product: 4 for bytes, by ``dp4a``.
    """

    tile: Tile
    thread_rows: int
    thread_columns: int
    packed: bool = False
    word: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        tile = self.tile
        return tile.rows // self.thread_rows * (tile.columns // self.thread_columns)

    @property
    def stage_elements(self) -> int:
        """Elements of shared memory for the operands of a step."""
        return (self.tile.rows + self.tile.columns + 2 * PAD) * self.elements

    @property
    def kept_elements(self) -> int:
        """Elements of shared memory for sums in addition to both stages; 0 if they fit into one."""
        groups = self.thread_columns // slice_columns(self.tile.columns, self.thread_columns)
        room = held_elements(self.tile.rows, self.tile.columns // groups)
        return room if room > self.stage_elements else 0

    def data_run(self, problem: Convolution) -> int:
        """Return the elements that a thread reads at once: four if channels are neighbours."""
        fits = self.tile.rows * self.elements % (4 * self.threads) == 0
        fours = reads_channels(problem) and problem.in_channels % 4 == 0
        return 4 if fits and fours and self.word == 1 and self.elements % 4 == 0 else 1

    @property
    def elements(self) -> int:
        """Elements of a step along the axis that is summed over."""
        return self.tile.depth // self.word

    def footprint(self, problem: Convolution) -> Footprint:
        """Return the threads, registers and shared memory of a block."""
        width, sums = byte_width(problem.acc_dtype), self.thread_rows * self.thread_columns
        # Each position that is not a neighbour of the last one in memory takes registers.
        each = self.tile.rows * self.elements // self.threads // self.data_run(problem)
        others = 84 + 6 * ((each if reads_channels(problem) else 1) - 1)
        held = (2 * self.stage_elements + self.kept_elements) * width
        registers = int(sums * width / 4 * 1.25) + others
        return Footprint(self.threads, registers, held + TABLES * self.tile.rows)


TILES = (
    (128, 128, 8, 8), (128, 64, 8, 8), (64, 128, 8, 8), (64, 64, 8, 4), (64, 64, 4, 4),
    (128, 32, 8, 4), (64, 32, 4, 4), (32, 64, 4, 4), (32, 128, 4, 8), (32, 32, 4, 2),
    (128, 16, 4, 4), (64, 16, 4, 2),
)  # fmt: skip
"""Rows and columns of a tile, then of a thread: the SIMT tiles of CUTLASS, and smaller ones for few
positions or few channels."""

DEPTHS = (8, 16)
"""Elements of a step."""


def implicit_gemm_candidates(
    problem: Convolution, machine: GpuMachine
) -> Iterator[tuple[float, ImplicitGemmPlan]]:
    """Yield all tiles, splits and ways to read weights, each with its estimated nanoseconds."""
    width, word = byte_width(problem.acc_dtype), 4 if multiplies_words(problem, machine) else 1
    for (rows, columns, over, across), elements, splits in product(TILES, DEPTHS, SPLITS):
        tile = Tile(rows, columns, elements * word, splits)
        if over * across * width > 4 * MOST_SUMS:
            continue
        if elements > DEPTHS[0] and problem.in_channels <= DEPTHS[0] * word:
            continue
        if splits > 1 and steps_of(problem, tile) < splits * LEAST_STEPS:
            continue
        for packed in (True,) if problem.prepacked else (False, True):
            plan = ImplicitGemmPlan(tile, over, across, packed, word)
            time = _time(problem, plan, machine)
            if time is not None:
                yield time, plan


def multiplies_words(problem: Convolution, machine: GpuMachine) -> bool:
    """Return whether four products of bytes are one instruction."""
    return (
        machine.has_dp4a
        and problem.acc_dtype == "int32"
        and set(problem.dtypes[:2]) <= {"int8", "uint8"}
        and problem.in_channels >= 4
    )


def _time(problem: Convolution, plan: ImplicitGemmPlan, machine: GpuMachine) -> float | None:
    tile, width, depth = plan.tile, byte_width(problem.acc_dtype), plan.elements
    data, weights = tile.rows * depth, tile.columns * depth
    read = byte_width(problem.dtypes[0]) * plan.word
    # Neighbouring taps find data in the L1 cache; each weight that is not packed takes a line of
    # it.
    taps_near = min(2, problem.geometry.taps)
    step = SimtStep(
        plan.threads, depth, (plan.thread_rows, plan.thread_columns),
        (data * LOAD / plan.data_run(problem) + weights * (0.5 if plan.packed else LOAD))
        / plan.threads,
        data / 32 + weights * (1 / 32 if plan.packed else 1),
        data * read / taps_near + weights * (read if plan.packed else 32 / taps_near),
    )  # fmt: skip
    footprint = plan.footprint(problem)
    if resident(footprint, machine) < 1 or footprint.shared > STATIC_SHARED:
        return None
    steps = steps_of(problem, tile) / tile.splits + 2
    blocks = Blocks(block_count(problem, tile), footprint, steps, step.cycles(width, machine))
    time = max(launch_time(blocks, machine), memory_time(problem, machine) + LAUNCH)
    return time + split_time(problem, tile, machine) + plan.packed * packing_time(problem, machine)
