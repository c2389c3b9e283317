# SPDX-License-Identifier: Apache-2.0
"""How warps of tensor cores share a tile."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Plan
from .implicit_gemm import Tile


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
    def stage_bytes(self) -> int:
        """Shared memory of a step's operands."""
        return self.width * (self.tile.rows + self.tile.columns) * self.tile.depth
