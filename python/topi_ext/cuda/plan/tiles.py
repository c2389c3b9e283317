# SPDX-License-Identifier: Apache-2.0
"""Tiles, and limits of registers and shared memory, for planners and emitters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...kernel.registry import Plan as BasePlan
from ...spec.conv import Convolution


class Footprint(NamedTuple):
    """Resources of a block, which bound the number of blocks that a multiprocessor holds.

    Attributes
    ----------
    threads : int
    registers : int
        Estimated registers of a thread.
    shared : int
        Bytes of shared memory.
    """

    threads: int
    registers: int
    shared: int


class Plan(BasePlan):
    """Base class of the plans of all kernels: tiles, and divisions of sums.

    Any plan gives a correct kernel; :mod:`topi_ext.cuda.select.choose` selects by estimated time.
    """

    def footprint(self, problem: Convolution) -> Footprint | None:
        """Return the resources of a block; None for kernels that they do not limit."""
        return None


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a matrix product that a block of threads computes.

    Attributes
    ----------
    rows, columns : int
        Positions, and output channels.
    depth : int
        Input channels of a step.
    splits : int
        Number of shares of a sum; different blocks compute them.
    """

    rows: int
    columns: int
    depth: int
    splits: int = 1


PAD = 4
"""Padding of rows in shared memory, in elements, so that columns do not share banks; at least 16
bytes, so that reads of 16 bytes stay aligned."""

LAST_PAD = 8
"""Padding of rows of sums, in elements: pairs of columns of eight rows are in different banks."""

TABLES = 16
"""Bytes of shared memory for each row: its index in the result, and in an operand of the
epilogue."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Candidates: numbers of shares of a sum over taps and input channels."""

WGRAD_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Candidates: numbers of shares of a sum over positions."""

STAGES = (3, 4)
"""Candidates: steps on tensor cores whose operands are in shared memory or in flight."""

LEAST_STEPS = 4
"""Minimum steps of a share of a split sum."""

MOST_REGISTERS = 255
"""Maximum registers of a thread."""

REGISTERS = 65536
"""Registers of a multiprocessor of any architecture."""

FRAGMENTS = 28
"""Additional registers for the operands of a thread with more than 64 sums."""

MOST_SUMS = 64
"""Maximum 32-bit registers of a thread's sums."""

HALVES = ("float16", "bfloat16")
"""Dtypes that tensor cores multiply without conversion."""


def reads_channels(problem: Convolution) -> bool:
    """Return whether channels of the data are neighbours in memory."""
    layout = problem.layouts.y if problem.transposed else problem.layouts.x
    return layout.endswith("C")


def slice_columns(columns: int, thread_columns: int) -> int:
    """Return the number of columns of a thread whose sums are in shared memory at a time: fewer for
    large tiles, to need less memory.
    """
    return min(4, thread_columns) if columns < 128 else min(2, thread_columns)


def held_elements(rows: int, columns: int) -> int:
    """Return the elements of shared memory for sums of these rows and columns, in either order."""
    return max(rows * (columns + LAST_PAD), (rows + PAD) * columns)


def bounded(registers: int, threads: int, least_blocks: int) -> int:
    """Return the registers of a thread if a multiprocessor is to hold `least_blocks` blocks."""
    return registers if least_blocks == 1 else min(registers, REGISTERS // threads // least_blocks)


@dataclass(frozen=True)
class WarpTiles(Plan):
    """A tile that warps compute on tensor cores, by 16 x 8 sums.

    Attributes
    ----------
    tile : Tile
    warp_rows, warp_columns : int
        Numbers of warps that share the tile's rows, and its columns.
    stages : int
        Steps whose operands are in shared memory or in flight.
    width : int
        Bytes of an element.
    """

    tile: Tile
    warp_rows: int
    warp_columns: int
    stages: int = 3
    width: int = 2

    @property
    def chunk(self) -> int:
        """Elements in 16 bytes."""
        return 16 // self.width

    @property
    def row_bytes(self) -> int:
        """Bytes of shared memory for the rows of a step, which its columns follow."""
        return self.width * self.tile.rows * self.tile.depth

    @property
    def column_bytes(self) -> int:
        """Bytes of shared memory for the columns of a step."""
        return self.width * self.tile.columns * self.tile.depth

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warp_rows * self.warp_columns

    @property
    def row_blocks(self) -> int:
        """Blocks of 16 rows of a warp."""
        return self.tile.rows // self.warp_rows // 16

    @property
    def column_blocks(self) -> int:
        """Blocks of 8 columns of a warp."""
        return self.tile.columns // self.warp_columns // 8

    @property
    def sums(self) -> int:
        """Registers of a thread's sums."""
        return 4 * self.row_blocks * self.column_blocks

    def registers_beside(self, others: int) -> int:
        """Return the registers of a thread that needs `others` in addition to its sums."""
        return self.sums + others + (FRAGMENTS if self.sums > MOST_SUMS else 0)

    @property
    def instructions(self) -> float:
        """Instructions of a warp in a step whose operands are copied without a register.

        Counted in machine code for sm_90, 100 to 204 for five tiles.  The formula is off by 6 % at
        most,
        and 11 % too high for four stages.
        """
        groups = self.tile.depth * self.width // 32
        products = self.row_blocks * self.column_blocks * groups
        loads = (self.row_blocks + self.column_blocks / 2) * groups
        copies = self.stage_bytes / 16 / self.threads
        # TF32 takes three products, four additions, and the instructions that split the operands.
        return products * (1 if self.width == 2 else 10) + loads + 12 * copies + 34

    @property
    def shared_cycles(self) -> float:
        """Cycles of a step in which shared memory moves 128 bytes each.

        Every warp reads its rows and its columns; copies write both once.
        """
        read = (self.row_bytes * self.warp_columns + self.column_bytes * self.warp_rows) / 128
        return read + self.stage_bytes / 128

    @property
    def slice_blocks(self) -> int:
        """Blocks of 8 columns of a warp whose sums are in shared memory at a time."""
        return 1 if self.tile.columns >= 128 or self.column_blocks % 2 else 2

    @property
    def slices(self) -> int:
        """Number of slices of the columns; the sums of one are in shared memory at a time."""
        return self.column_blocks // self.slice_blocks

    @property
    def arena_bytes(self) -> int:
        """Bytes of shared memory: for all stages, and later for a slice of the sums."""
        kept = held_elements(self.tile.rows, self.tile.columns // self.slices)
        return max(self.stages * self.stage_bytes, 4 * kept)

    @property
    def stage_bytes(self) -> int:
        """Bytes of shared memory for the operands of a step."""
        return self.row_bytes + self.column_bytes
