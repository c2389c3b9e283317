# SPDX-License-Identifier: Apache-2.0
"""The register tile of a matrix product on tensor cores: 16 x 8 sums of 32 bytes of products.

Shared memory holds operands in rows of 16-byte chunks, swizzled: chunk ``c`` of row ``r`` is stored
at ``c ^ (r mod 8)``.  ``ldmatrix`` reads eight rows of a column of chunks at once, and these are in
different banks.  Rows of less than 128 bytes share a line of 128 bytes, and ``r`` counts lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import emit
from ..emit import Array, Expr, call, local, opaque_value, store, unrolled
from ..isa.tensor_core import multiply
from ..plan.tiles import WarpTiles

_LOADS = {False: "topi_load_matrix", True: "topi_load_matrix_transposed"}
"""Load function by whether the rows in shared memory are the axis that is summed over."""


def swizzled(row: Expr, chunk: Expr, chunks: int) -> Expr:
    """Return the byte offset of a chunk, in rows of `chunks` chunks."""
    line, period = max(1, 8 // chunks), min(8, chunks)
    mixed = emit.xor(chunk, emit.remainder(emit.quotient(row, line), period))
    return (row * chunks + mixed) * 16


@dataclass(frozen=True)
class MmaTile:
    """Sums of a warp's part of a tile, and the layout of its operands.

    Attributes
    ----------
    plan : WarpTiles
    dtype : str
        Dtype of the operands.
    sums : Array
        Four for each block of 16 rows and 8 columns: two of row g, two of row g + 8, g = lane / 4.
    rows_of, columns_of : Array
        Fragments of the operands.
    first_row, first_column : Expr
        First row and column of the warp's part.
    lane : Expr
    rows_by_depth, columns_by_depth : bool
        Layout of the operands in shared memory: ``[depth][rows]`` instead of ``[rows][depth]``,
        ``[depth][columns]`` instead of ``[columns][depth]``; for float16 and bfloat16.
    """

    plan: WarpTiles
    dtype: str
    sums: Array
    rows_of: Array
    columns_of: Array
    first_row: Expr
    first_column: Expr
    lane: Expr
    rows_by_depth: bool
    columns_by_depth: bool

    @classmethod
    def emitted(
        cls, plan: WarpTiles, dtype: str, thread: Expr, rows_by_depth: bool, columns_by_depth: bool
    ) -> MmaTile:
        """Allocate the sums, which `clear` sets to zero."""
        blocks, columns = plan.row_blocks, plan.column_blocks
        sums = local(plan.sums, "float32")
        warp_column, warp_row = emit.unravel(emit.quotient(thread, 32), (0, plan.warp_rows))
        return cls(
            plan,
            dtype,
            sums,
            local(blocks * 4, "uint32"),
            local(columns * 2, "uint32"),
            opaque_value(warp_row * (blocks * 16)),
            opaque_value(warp_column * (columns * 8)),
            opaque_value(emit.remainder(thread, 32)),
            rows_by_depth,
            columns_by_depth,
        )

    def clear(self) -> None:
        """Set the sums to zero."""
        for i in unrolled(self.plan.sums):
            store(self.sums, i, emit.constant(0, "float32"))

    def add_products(self, arena: Array, rows_at: Expr, columns_at: Expr) -> None:
        """Add the products of a step, whose operands begin at these bytes of shared memory."""
        plan = self.plan
        matrix, inner = emit.quotient(self.lane, 8), emit.remainder(self.lane, 8)
        odd, high = emit.remainder(matrix, 2), emit.quotient(matrix, 2)
        # This lane names one row of one of the four 8 x 8 squares of a 16 x 16 block.  Rows of
        # squares are rows of the product, or of the axis that is summed over.
        by_odd = opaque_value(odd * 8 + inner), opaque_value(high)
        by_high = opaque_value(high * 8 + inner), opaque_value(odd)
        for part in range(plan.tile.depth // plan.chunk // 2):
            for block in range(plan.row_blocks):
                place = self._rows_place(by_high if self.rows_by_depth else by_odd, block, part)
                name = _LOADS[self.rows_by_depth]
                self._load(name, self.rows_of, block * 4, arena, rows_at + place)
            for pair in range(plan.column_blocks // 2):
                lanes = by_odd if self.columns_by_depth else by_high
                place = self._columns_place(lanes, pair, part)
                name = _LOADS[self.columns_by_depth]
                self._load(name, self.columns_of, pair * 4, arena, columns_at + place)
            for i in unrolled(plan.row_blocks):
                for j in unrolled(plan.column_blocks):
                    self._add(i, j)

    def _rows_place(self, lanes: tuple[Expr, Expr], block: int, part: int) -> Expr:
        tile, size, (inner, chunk) = self.plan.tile, self.plan.chunk, lanes
        if self.rows_by_depth:
            first = emit.quotient(self.first_row, size) + block * 2
            return swizzled(inner + part * 16, first + chunk, tile.rows // size)
        return swizzled(self.first_row + block * 16 + inner, chunk + part * 2, tile.depth // size)

    def _columns_place(self, lanes: tuple[Expr, Expr], pair: int, part: int) -> Expr:
        tile, size, (inner, chunk) = self.plan.tile, self.plan.chunk, lanes
        if self.columns_by_depth:
            first = emit.quotient(self.first_column, size) + pair * 2
            return swizzled(inner + part * 16, first + chunk, tile.columns // size)
        row = self.first_column + pair * 16 + inner
        return swizzled(row, chunk + part * 2, tile.depth // size)

    def _load(self, name: str, to: Array, at: int, arena: Array, byte: Expr) -> None:
        call(name, to.buffer.data, at, arena.buffer.data, byte)

    def _add(self, i: Expr, j: Expr) -> None:
        at = (i * self.plan.column_blocks + j) * 4
        operands = (self.rows_of.buffer.data, i * 4, self.columns_of.buffer.data, j * 2)
        call(multiply(self.dtype), self.sums.buffer.data, at, *operands)

    @property
    def slices(self) -> int:
        """Number of slices of the columns; the sums of one are in shared memory at a time."""
        return self.plan.slices

    @property
    def width(self) -> int:
        """Columns of a slice."""
        return self.plan.tile.columns // self.slices

    def column(self, part: int, number: Expr) -> Expr:
        """Return the column of the tile that is column `number` of a slice."""
        run = self.plan.slice_blocks * 8
        warp_column, rest = emit.unravel(number, (0, run))
        return warp_column * (self.plan.column_blocks * 8) + part * run + rest

    def keep(self, part: int, held: Array, strides: tuple[int, int]) -> None:
        """Write the thread's sums of a slice to ``held[row, column]``."""
        run = self.plan.slice_blocks * 8
        warp_column = emit.quotient(self.first_column, self.plan.column_blocks * 8)
        first = opaque_value(warp_column * run + emit.remainder(self.lane, 4) * 2)
        row = opaque_value(self.first_row + emit.quotient(self.lane, 4))
        for block in range(self.plan.row_blocks):
            for number in range(self.plan.slice_blocks):
                at = (block * self.plan.column_blocks + part * self.plan.slice_blocks + number) * 4
                for half in range(2):
                    place = (row + block * 16 + half * 8) * strides[0]
                    place = place + (first + number * 8) * strides[1]
                    self._keep_pair(held, place, strides[1], at + half * 2)

    def _keep_pair(self, held: Array, place: Expr, stride: int, at: int) -> None:
        """Write two neighbouring columns of a row."""
        pair = self.sums[at], self.sums[at + 1]
        if stride == 1:
            call("topi_put2", held.buffer.data, emit.typed(place), *pair)
            return
        for number, value in enumerate(pair):
            store(held, place + number * stride, value)

    @property
    def own_rows(self) -> list[Expr]:
        """Return the rows of the tile of which the thread has sums."""
        first = self.first_row + emit.quotient(self.lane, 4)
        return [first + number * 8 for number in range(self.plan.row_blocks * 2)]

    @property
    def own_columns(self) -> list[Expr]:
        """Return the columns of the tile of which the thread has sums."""
        first = self.first_column + emit.remainder(self.lane, 4) * 2
        blocks = range(self.plan.column_blocks)
        return [first + number * 8 + one for number in blocks for one in range(2)]

    def sum_of(self, i: int, j: int) -> Expr:
        """Return the sum of the thread's row `i` and column `j`."""
        block = i // 2 * self.plan.column_blocks + j // 2
        return self.sums[block * 4 + i % 2 * 2 + j % 2]
