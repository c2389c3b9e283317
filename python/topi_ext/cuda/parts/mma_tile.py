# SPDX-License-Identifier: Apache-2.0
"""The register tile of a matrix product on tensor cores: 16 x 8 sums of 16 products each.

Operands lie in shared memory by rows of 16-byte chunks, swizzled: chunk ``c`` of row ``r`` is at
``c ^ (r mod 8)``, so that eight rows of a column of chunks, which ``ldmatrix`` reads at once, lie in
different banks.  Rows of less than 128 bytes share a line, and are counted by lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import emit
from ..emit import Array, Expr, call, local, opaque_value, store, unrolled
from ..plan.implicit_gemm_mma import MmaPlan

CHUNK = 8
"""Halves in 16 bytes."""


def swizzled(row: Expr, chunk: Expr, chunks: int) -> Expr:
    """Byte of a chunk, of rows of so many."""
    line, period = max(1, 8 // chunks), min(8, chunks)
    mixed = emit.xor(chunk, emit.remainder(emit.quotient(row, line), period))
    return (row * chunks + mixed) * 16


@dataclass(frozen=True)
class MmaTile:
    """Sums of a warp's part of a tile, and how it reads operands.

    Attributes
    ----------
    plan : MmaPlan
    sums : Array
        By blocks of 16 rows, of 8 columns, four each: two of row g, two of row g + 8, g = lane / 4.
    rows_of, columns_of : Array
        Fragments of the operands.
    first_row, first_column : Expr
        Of the warp's part.
    lane : Expr
    """

    plan: MmaPlan
    sums: Array
    rows_of: Array
    columns_of: Array
    first_row: Expr
    first_column: Expr
    lane: Expr

    @classmethod
    def emitted(cls, plan: MmaPlan, thread: Expr) -> MmaTile:
        """Sums that are zero."""
        blocks, columns = plan.row_blocks, plan.column_blocks
        sums = local(blocks * columns * 4, "float32")
        unrolled(blocks * columns * 4, lambda i: store(sums, i, emit.constant(0, "float32")))
        warp_column, warp_row = emit.unravel(emit.quotient(thread, 32), (0, plan.warp_rows))
        return cls(
            plan,
            sums,
            local(blocks * 4, "uint32"),
            local(columns * 2, "uint32"),
            opaque_value(warp_row * (blocks * 16)),
            opaque_value(warp_column * (columns * 8)),
            opaque_value(emit.remainder(thread, 32)),
        )

    def add_products(self, arena: Array, rows_at: Expr, columns_at: Expr) -> None:
        """Add what a step multiplies: rows of input channels, then input channels of columns."""
        plan, tile = self.plan, self.plan.tile
        matrix, inner = emit.quotient(self.lane, 8), emit.remainder(self.lane, 8)
        half, other = emit.remainder(matrix, 2) * 8 + inner, emit.quotient(matrix, 2)
        row, chunk = opaque_value(self.first_row + half), opaque_value(other)
        channel = opaque_value(half)
        column = opaque_value(emit.quotient(self.first_column, CHUNK) + other)

        for part in range(tile.depth // 16):
            for block in range(plan.row_blocks):
                place = swizzled(row + block * 16, chunk + part * 2, tile.depth // CHUNK)
                self._load("topi_load_matrix", self.rows_of, block * 4, arena, rows_at + place)
            for pair in range(plan.column_blocks // 2):
                chunks = tile.columns // CHUNK
                place = swizzled(channel + part * 16, column + pair * 2, chunks)
                name = "topi_load_matrix_transposed"
                self._load(name, self.columns_of, pair * 4, arena, columns_at + place)
            unrolled(plan.row_blocks, lambda i: unrolled(plan.column_blocks, lambda j: self._add(i, j)))

    def _load(self, name: str, to: Array, at: int, arena: Array, byte: Expr) -> None:
        call(name, to.buffer.data, at, arena.buffer.data, byte)

    def _add(self, i: Expr, j: Expr) -> None:
        at = (i * self.plan.column_blocks + j) * 4
        operands = (self.rows_of.buffer.data, i * 4, self.columns_of.buffer.data, j * 2)
        call("topi_multiply", self.sums.buffer.data, at, *operands)

    @property
    def slice_blocks(self) -> int:
        """Blocks of 8 columns of a warp that are kept at once."""
        return 1 if self.plan.tile.columns >= 128 or self.plan.column_blocks % 2 else 2

    @property
    def slices(self) -> int:
        """Parts of the columns that are kept at once."""
        return self.plan.column_blocks // self.slice_blocks

    @property
    def width(self) -> int:
        """Columns of a part."""
        return self.plan.tile.columns // self.slices

    def column(self, part: int, number: Expr) -> Expr:
        """Column of the tile that is column `number` of a slice."""
        run = self.slice_blocks * 8
        warp_column, rest = emit.unravel(number, (0, run))
        return warp_column * (self.plan.column_blocks * 8) + part * run + rest

    def keep(self, part: int, held: Array, strides: tuple[int, int]) -> None:
        """Write the thread's sums of a slice to ``held[row, column]``."""
        run = self.slice_blocks * 8
        warp_column = emit.quotient(self.first_column, self.plan.column_blocks * 8)
        first = opaque_value(warp_column * run + emit.remainder(self.lane, 4) * 2)
        row = opaque_value(self.first_row + emit.quotient(self.lane, 4))
        for block in range(self.plan.row_blocks):
            for number in range(self.slice_blocks):
                at = (block * self.plan.column_blocks + part * self.slice_blocks + number) * 4
                for one in range(4):
                    place = (row + block * 16 + one // 2 * 8) * strides[0]
                    place = place + (first + number * 8 + one % 2) * strides[1]
                    store(held, place, self.sums[at + one])
