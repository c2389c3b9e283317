# SPDX-License-Identifier: Apache-2.0
"""The register tile of a matrix product on the lanes of a multiprocessor.

Warps are 8 x 4 threads.  A thread has groups of four neighbouring rows and of four neighbouring
columns, so that it reads 16 bytes of shared memory at a time and a warp reads neighbours, as in the
SIMT tiles of CUTLASS::

    for k of the step:
        rows[thread_rows]       = A[k, :]       columns[thread_columns] = B[k, :]
        sums[thread_rows, thread_columns] += rows * columns
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import emit
from ..emit import Array, Expr, local, opaque_value, store, unrolled
from ..plan.tiles import PAD, slice_columns

WARP_ROWS, WARP_COLUMNS = 8, 4


def multiply_add(total: Expr, a: Expr, b: Expr) -> Expr:
    """Return the sum with a product added."""
    return total + a * b


@dataclass(frozen=True)
class SimtTile:
    """Sums of a thread, and their places in the tile.

    Attributes
    ----------
    rows, columns : int
        Size of the tile.
    thread_rows, thread_columns : int
        Size of a thread's part.
    dtype : str
        Dtype of the sums.
    sums : Array
    first_row, first_column : Expr
        First row and column of the thread's first group.
    """

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    dtype: str
    sums: Array
    first_row: Expr
    first_column: Expr

    @classmethod
    def emitted(
        cls, tile: tuple[int, int], thread_tile: tuple[int, int], thread: Expr, dtype: str
    ) -> SimtTile:
        """Allocate the sums and set them to zero."""
        (rows, columns), (thread_rows, thread_columns) = tile, thread_tile
        sums = local(thread_rows * thread_columns, dtype)
        for i in unrolled(thread_rows * thread_columns):
            store(sums, i, emit.constant(0, dtype))
        warp, lane = emit.quotient(thread, 32), emit.remainder(thread, 32)
        warps = rows // (WARP_ROWS * thread_rows)
        warp_column, warp_row = emit.unravel(warp, (0, warps))
        lane_column, lane_row = emit.unravel(lane, (WARP_COLUMNS, WARP_ROWS))
        row = warp_row * (WARP_ROWS * thread_rows) + lane_row * min(4, thread_rows)
        column = warp_column * (WARP_COLUMNS * thread_columns)
        column = column + lane_column * min(4, thread_columns)
        made = opaque_value(row), opaque_value(column)
        return cls(rows, columns, thread_rows, thread_columns, dtype, sums, *made)

    @property
    def row_group(self) -> int:
        """Neighbouring rows of a thread."""
        return min(4, self.thread_rows)

    @property
    def column_group(self) -> int:
        """Neighbouring columns of a thread."""
        return min(4, self.thread_columns)

    @property
    def slice_columns(self) -> int:
        """Columns of a thread whose sums are in shared memory at a time."""
        return slice_columns(self.columns, self.thread_columns)

    @property
    def slices(self) -> int:
        """Number of slices of the columns; the sums of one are in shared memory at a time."""
        return self.thread_columns // self.slice_columns

    @property
    def width(self) -> int:
        """Columns of a slice."""
        return self.columns // self.slices

    def row(self, i: int) -> Expr:
        """Return the row of the tile that is the thread's row `i`."""
        group, rest = divmod(i, self.row_group)
        return self.first_row + group * (WARP_ROWS * self.row_group) + rest

    @property
    def own_rows(self) -> list[Expr]:
        """Return the rows of the tile of which the thread has sums."""
        return [self.row(i) for i in range(self.thread_rows)]

    @property
    def own_columns(self) -> list[Expr]:
        """Return the columns of the tile of which the thread has sums."""
        run, group = WARP_COLUMNS * self.column_group, self.column_group
        numbers = range(self.thread_columns)
        return [self.first_column + j // group * run + j % group for j in numbers]

    def sum_of(self, i: int, j: int) -> Expr:
        """Return the sum of the thread's row `i` and column `j`."""
        return self.sums[i * self.thread_columns + j]

    def column(self, part: int, number: Expr) -> Expr:
        """Return the column of the tile that is column `number` of a slice."""
        warp_column, lane_column, rest = emit.unravel(number, (0, WARP_COLUMNS, self.slice_columns))
        first = warp_column * (WARP_COLUMNS * self.thread_columns) + lane_column * self.column_group
        return first + self._behind(part) + rest

    def _behind(self, part: int) -> int:
        """Return the offset of the columns of a slice from the thread's first column."""
        group, rest = divmod(part * self.slice_columns, self.column_group)
        return group * WARP_COLUMNS * self.column_group + rest

    def add_products(
        self,
        depth: int,
        a: tuple[Array, Expr],
        b: tuple[Array, Expr],
        add: Callable[[Expr, Expr, Expr], Expr] = multiply_add,
    ) -> None:
        """Add the products of a step: ``a[k, row]`` by ``b[k, column]``, k below `depth`."""
        rows, columns = local(self.thread_rows, a[0].dtype), local(self.thread_columns, b[0].dtype)
        spread_rows, spread_columns = WARP_ROWS * self.row_group, WARP_COLUMNS * self.column_group
        for k in unrolled(depth):
            start = a[1] + k * (self.rows + PAD) + self.first_row
            for i in range(0, self.thread_rows, self.row_group):
                at = start + i // self.row_group * spread_rows
                emit.set_vector(rows, i, self.row_group, emit.get_vector(a[0], at, self.row_group))
            start = b[1] + k * (self.columns + PAD) + self.first_column
            for j in range(0, self.thread_columns, self.column_group):
                at = start + j // self.column_group * spread_columns
                emit.set_vector(
                    columns, j, self.column_group, emit.get_vector(b[0], at, self.column_group)
                )
            for i in unrolled(self.thread_rows):
                for j in unrolled(self.thread_columns):
                    number = i * self.thread_columns + j
                    store(self.sums, number, add(self.sums[number], rows[i], columns[j]))

    def keep(self, part: int, held: Array, strides: tuple[int, int]) -> None:
        """Write the thread's sums of a slice to ``held[row, column]``."""
        thread_width = WARP_COLUMNS * self.thread_columns
        warp_column, in_warp = emit.unravel(self.first_column, (0, thread_width))
        lane_column = emit.quotient(in_warp, self.column_group)
        first = opaque_value((warp_column * WARP_COLUMNS + lane_column) * self.slice_columns)
        by_row = strides[0] == 1 and self.row_group == 4
        run = 4 if by_row else self.slice_columns if strides[1] == 1 else 1
        for i in range(0, self.thread_rows, run if by_row else 1):
            for j in range(0, self.slice_columns, 1 if by_row else run):
                place = self.row(i) * strides[0] + (first + j) * strides[1]
                column = part * self.slice_columns + j
                at = [(i + n, column) if by_row else (i, column + n) for n in range(run)]
                values = [self.sum_of(*one) for one in at]
                if run in (2, 4):
                    emit.call(f"topi_put{run}", held.buffer.data, emit.typed(place), *values)
                else:
                    store(held, place, values[0])
