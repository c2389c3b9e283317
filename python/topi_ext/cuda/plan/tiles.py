# SPDX-License-Identifier: Apache-2.0
"""Tiles, and the limits of registers and shared memory, that planners and emitters share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...kernel.registry import Plan as BasePlan
from ...spec.conv import Convolution


class Footprint(NamedTuple):
    """Resources of a block, which bound how many blocks a multiprocessor holds.

    Attributes
    ----------
    threads : int
    registers : int
        Of a thread, estimated.
    shared : int
        Bytes of shared memory.
    """

    threads: int
    registers: int
    shared: int


class Plan(BasePlan):
    """Base of the plans of all kernels: tiles, and how sums are divided.

    Any plan gives a correct kernel; :mod:`topi_ext.cuda.select.choose` estimates which is fast.
    """

    def footprint(self, problem: Convolution) -> Footprint | None:
        """Return what a block takes; None for kernels whose blocks are not limited by it."""
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
        Into how many shares a sum is divided, which other blocks compute.
    """

    rows: int
    columns: int
    depth: int
    splits: int = 1


PAD = 4
"""Elements between rows of shared memory, so that columns do not share banks; 16 bytes or more, so
that reads by so many stay aligned."""

LAST_PAD = 8
"""Elements between rows of sums: pairs of columns of eight rows lie in different banks."""

TABLES = 16
"""Bytes of shared memory for each row: where it begins in the result, and in an operand of the
epilogue."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Into how many shares a sum over taps and input channels is divided."""

WGRAD_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Into how many shares a sum over positions is divided."""

STAGES = (3, 4)
"""Steps of tensor cores whose operands are in shared memory or on their way."""

LEAST_STEPS = 4
"""Of a share of a split sum."""

MOST_REGISTERS = 255
"""Of a thread."""

REGISTERS = 65536
"""Of a multiprocessor of any architecture."""

FRAGMENTS = 28
"""Registers that operands of more than 64 sums of a thread take beyond those of fewer."""

MOST_SUMS = 64
"""32-bit registers of a thread's sums."""

HALVES = ("float16", "bfloat16")
"""Dtypes that tensor cores multiply as they are."""


def reads_channels(problem: Convolution) -> bool:
    """Return whether channels of the data are neighbours in memory."""
    layout = problem.layouts.y if problem.transposed else problem.layouts.x
    return layout.endswith("C")


def slice_columns(columns: int, thread_columns: int) -> int:
    """Return how many columns of a thread keep their sums at once: fewer of large tiles, for less
    memory."""
    return min(4, thread_columns) if columns < 128 else min(2, thread_columns)


def held_elements(rows: int, columns: int) -> int:
    """Return the shared memory of sums of so many rows and columns, in either order."""
    return max(rows * (columns + LAST_PAD), (rows + PAD) * columns)


def bounded(registers: int, threads: int, least_blocks: int) -> int:
    """Return the registers of a thread where a multiprocessor is to hold so many blocks."""
    return registers if least_blocks == 1 else min(registers, REGISTERS // threads // least_blocks)


@dataclass(frozen=True)
class WarpTiles(Plan):
    """A tile that warps of tensor cores compute, by 16 x 8 sums.

    Attributes
    ----------
    tile : Tile
    warp_rows, warp_columns : int
        How many warps share the tile's rows, and its columns.
    stages : int
        Steps whose operands are in shared memory or on their way.
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
        """Shared memory of a step's rows, behind which are its columns."""
        return self.width * self.tile.rows * self.tile.depth

    @property
    def column_bytes(self) -> int:
        """Shared memory of a step's columns."""
        return self.width * self.tile.columns * self.tile.depth

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warp_rows * self.warp_columns

    @property
    def row_blocks(self) -> int:
        """Of 16 rows, of a warp."""
        return self.tile.rows // self.warp_rows // 16

    @property
    def column_blocks(self) -> int:
        """Of 8 columns, of a warp."""
        return self.tile.columns // self.warp_columns // 8

    @property
    def sums(self) -> int:
        """Registers of a thread's sums."""
        return 4 * self.row_blocks * self.column_blocks

    def registers_beside(self, others: int) -> int:
        """Return the registers of a thread that takes `others` beside its sums."""
        return self.sums + others + (FRAGMENTS if self.sums > MOST_SUMS else 0)

    @property
    def instructions(self) -> float:
        """Of a warp in a step, where operands are copied without a register.

        Counted in machine code for sm_90, 100 to 204 for five tiles: 6 % off at most, of four
        stages 11 % too many.
        """
        groups = self.tile.depth * self.width // 32
        products = self.row_blocks * self.column_blocks * groups
        loads = (self.row_blocks + self.column_blocks / 2) * groups
        copies = self.stage_bytes / 16 / self.threads
        # Of TF32, three products and four additions, and what splits the operands.
        return products * (1 if self.width == 2 else 10) + loads + 12 * copies + 34

    @property
    def shared_cycles(self) -> float:
        """Of a step, in which shared memory moves 128 bytes each.

        Every warp reads its rows and its columns; copies write both once.
        """
        read = (self.row_bytes * self.warp_columns + self.column_bytes * self.warp_rows) / 128
        return read + self.stage_bytes / 128

    @property
    def slice_blocks(self) -> int:
        """Blocks of 8 columns of a warp whose sums are kept at once."""
        return 1 if self.tile.columns >= 128 or self.column_blocks % 2 else 2

    @property
    def slices(self) -> int:
        """Parts of the columns that are kept at once."""
        return self.column_blocks // self.slice_blocks

    @property
    def arena_bytes(self) -> int:
        """Shared memory: of all stages, and later of a part of the sums."""
        kept = held_elements(self.tile.rows, self.tile.columns // self.slices)
        return max(self.stages * self.stage_bytes, 4 * kept)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a step's operands."""
        return self.row_bytes + self.column_bytes
