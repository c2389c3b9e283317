# SPDX-License-Identifier: Apache-2.0
"""Tiles of the implicit matrix product that a gather is, on the lanes of float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from ...dtypes import byte_width
from ...nominal import nominal
from ...problem import Problem
from ..machine import STATIC_SHARED, GpuMachine
from .base import Plan
from .cost import (
    LAUNCH,
    Blocks,
    SimtStep,
    bytes_time,
    launch_time,
    memory_time,
    positions,
    resident,
)


@dataclass(frozen=True)
class Tile:
    """What a block of threads computes.

    Attributes
    ----------
    rows, columns : int
        Positions, and output channels.
    depth : int
        Input channels of a step.
    splits : int
        Into how many shares a sum is divided, which other blocks compute.
    """

    rows: int
    columns: int
    depth: int
    splits: int = 1


@dataclass(frozen=True)
class GemmPlan(Plan):
    """A tile, computed by warps of 8 x 4 threads.

    Attributes
    ----------
    tile : Tile
    thread_rows, thread_columns : int
        Of a thread.
    packed : bool
        Whether weights are packed first: by the function's first kernel, where they do not come so.
    word : int
        Input channels of one element of what is multiplied: 4 of bytes, by ``dp4a``.
    """

    tile: Tile
    thread_rows: int
    thread_columns: int
    packed: bool = False
    word: int = 1

    @property
    def threads(self) -> int:
        """Of a block."""
        tile = self.tile
        return tile.rows // self.thread_rows * (tile.columns // self.thread_columns)

    @property
    def stage_elements(self) -> int:
        """Shared memory of a step's operands."""
        return (self.tile.rows + self.tile.columns + 2 * PAD) * self.elements

    @property
    def kept_elements(self) -> int:
        """Shared memory beside both stages, through which sums go: none where they fit into one."""
        groups = self.thread_columns // slice_columns(self.tile.columns, self.thread_columns)
        room = held_elements(self.tile.rows, self.tile.columns // groups)
        return room if room > self.stage_elements else 0

    def data_run(self, problem: Problem) -> int:
        """Elements of data that a thread reads at once: four, of channels that are neighbours."""
        fits = self.tile.rows * self.elements % (4 * self.threads) == 0
        fours = reads_channels(problem) and problem.in_channels % 4 == 0
        return 4 if fits and fours and self.word == 1 and self.elements % 4 == 0 else 1

    @property
    def elements(self) -> int:
        """Of a step, along what is summed over."""
        return self.tile.depth // self.word


PAD = 4
"""Elements between rows of shared memory, so that columns do not share banks; 16 bytes or more, so
that reads by so many stay aligned."""

LAST_PAD = 8
"""The same of sums by rows: pairs of columns of eight rows lie in different banks."""

TABLES = 16
"""Bytes of shared memory for each row: where it begins in the result, and in an operand of the
epilogue."""


def reads_channels(problem: Problem) -> bool:
    """Whether channels of the data are neighbours in memory."""
    layout = problem.layouts.y if problem.transposed else problem.layouts.x
    return layout.endswith("C")


def slice_columns(columns: int, thread_columns: int) -> int:
    """Columns of a thread whose sums are kept at once: fewer of large tiles, for less memory."""
    return min(4, thread_columns) if columns < 128 else min(2, thread_columns)


def held_elements(rows: int, columns: int) -> int:
    """Shared memory of sums of so many rows and columns, in either order."""
    return max(rows * (columns + LAST_PAD), (rows + PAD) * columns)


TILES = (
    (128, 128, 8, 8), (128, 64, 8, 8), (64, 128, 8, 8), (64, 64, 8, 4), (64, 64, 4, 4),
    (128, 32, 8, 4), (64, 32, 4, 4), (32, 64, 4, 4), (32, 128, 4, 8), (32, 32, 4, 2),
    (128, 16, 4, 4), (64, 16, 4, 2),
)  # fmt: skip
"""Rows, columns, and those of a thread: CUTLASS' SIMT tiles, and smaller ones for few positions or
few channels."""

DEPTHS = (8, 16)
"""Elements of a step."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)

LEAST_STEPS = 4
"""Of a share of a split sum."""

MOST_SUMS = 64
"""32-bit registers of a thread's sums."""


def implicit_gemm_candidates(
    problem: Problem, machine: GpuMachine
) -> Iterator[tuple[float, GemmPlan]]:
    """All tiles, splits and ways to read the weights, each with its estimated nanoseconds."""
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
            plan = GemmPlan(tile, over, across, packed, word)
            time = _time(problem, plan, machine)
            if time is not None:
                yield time, plan


def multiplies_words(problem: Problem, machine: GpuMachine) -> bool:
    """Whether four products of bytes are one instruction."""
    return (
        machine.has_dp4a
        and problem.acc_dtype == "int32"
        and set(problem.dtypes[:2]) <= {"int8", "uint8"}
        and problem.in_channels >= 4
    )


def steps_of(problem: Problem, tile: Tile) -> float:
    """Of a block, in the mean over its phases: every tap belongs to one."""
    phases = prod(gather.out_step for gather in problem.gathers)
    return -(-problem.in_channels // tile.depth) * problem.geometry.taps / phases


def block_count(problem: Problem, tile: Tile) -> int:
    """Blocks of a launch."""
    phases = prod(gather.out_step for gather in problem.gathers)
    rows, columns = -(-positions(problem) // tile.rows), -(-problem.out_channels // tile.columns)
    return rows * columns * phases * problem.geometry.groups * tile.splits


def split_time(problem: Problem, tile: Tile, machine: GpuMachine) -> float:
    """Nanoseconds in which shares of a split sum are written, read and added."""
    if tile.splits == 1:
        return 0.0
    channels = problem.geometry.groups * problem.out_channels
    sums = prod(nominal(problem.out_sizes)) * channels * byte_width(problem.acc_dtype)
    # What fits into the second cache stays there.
    speed = 3.0 if sums * tile.splits < machine.l2 // 2 else 1.0
    return LAUNCH + bytes_time(2 * tile.splits * sums, machine) / speed


def packing_time(problem: Problem, machine: GpuMachine) -> float:
    """Nanoseconds of the kernel that packs weights, where they do not come packed."""
    if problem.prepacked:
        return 0.0
    moved = problem.weights * byte_width(problem.dtypes[1])
    return LAUNCH + PACKING * bytes_time(moved, machine)


PACKING = 4.0
"""Times, of reading and writing weights in two orders."""

LOAD = 5
"""Instructions that load an element, with what says where it lies, and keep it."""


def _time(problem: Problem, plan: GemmPlan, machine: GpuMachine) -> float | None:
    tile, width, depth = plan.tile, byte_width(problem.acc_dtype), plan.elements
    data, weights = tile.rows * depth, tile.columns * depth
    read = byte_width(problem.dtypes[0]) * plan.word
    # Neighbouring taps find data in the first cache; loose weights take a line of it each.
    taps_near = min(2, problem.geometry.taps)
    step = SimtStep(
        plan.threads, depth, (plan.thread_rows, plan.thread_columns),
        (data * LOAD / plan.data_run(problem) + weights * (0.5 if plan.packed else LOAD))
        / plan.threads,
        data / 32 + weights * (1 / 32 if plan.packed else 1),
        data * read / taps_near + weights * (read if plan.packed else 32 / taps_near),
    )  # fmt: skip
    cycles, sums = step.cycles(width, machine), plan.thread_rows * plan.thread_columns
    # Positions that are not neighbours in memory take registers each.
    run = plan.data_run(problem)
    positions_each = data // plan.threads // run if reads_channels(problem) else 1
    others = 84 + 6 * (positions_each - 1)
    held = (2 * plan.stage_elements + plan.kept_elements) * width
    blocks = Blocks(
        block_count(problem, tile), plan.threads, int(sums * width / 4 * 1.25) + others,
        held + TABLES * tile.rows, steps_of(problem, tile) / tile.splits + 2, cycles,
    )  # fmt: skip
    if resident(blocks, machine) < 1 or held + TABLES * tile.rows > STATIC_SHARED:
        return None
    time = max(launch_time(blocks, machine), memory_time(problem, machine) + LAUNCH)
    return time + split_time(problem, tile, machine) + plan.packed * packing_time(problem, machine)
