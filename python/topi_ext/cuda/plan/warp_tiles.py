# SPDX-License-Identifier: Apache-2.0
"""How warps of tensor cores share a tile."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Plan
from .implicit_gemm import Tile, held_elements


@dataclass(frozen=True)
class WarpTiles(Plan):
    """A tile, computed by warps of 16 x 8 sums.

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
        return self.width * (self.tile.rows + self.tile.columns) * self.tile.depth
