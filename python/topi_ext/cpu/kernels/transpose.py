# SPDX-License-Identifier: Apache-2.0
"""The kernel of transposes whose last axis becomes another one.

::

    parallel over (matrices, blocks of rows of y):
        for each vector of columns of y:
            squares of x, turned in registers                       -> tile
        for each row of the tile: epilogue                          -> out

Without an epilogue squares go to `out` at once.  A block has so few rows that the cache lines that
one vector of columns begins are there when the next one goes on.  It has no matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...emit.post_ops import RowEpilogue
from ...spec.transpose import Transpose
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.transpose import Pitched, Runs, transpose
from ..plan.transpose import TransposePlan


def emit_body(transposition: Transpose, plan: TransposePlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    x, *others, out = operands
    row, column = transposition.x[-1], transposition.y[-1]
    size, outer = dict(transposition.sizes), transposition.outer
    lanes, width = plan.lanes, size[column] if plan.columns is None else plan.columns
    blocks = 1 if plan.columns is None else emit.ceil_div(size[column], width)
    extents = [*transposition.shape(outer), emit.ceil_div(size[row], plan.rows), blocks]
    with emit.tasks(prod(extents), plan.parallel) as task:
        *where, block, column_block = map(emit.let, emit.unravel(task, extents))
        first = emit.let(block * plan.rows)
        count = emit.clamped_extent(first, size[row], plan.rows)
        left = emit.let(column_block * width)
        columns = width if plan.columns is None else emit.clamped_extent(left, size[column], width)
        corner = dict(zip(outer, where)) | {row: first, column: left}
        source, target = (
            emit.opaque_base(a.at("".join(corner), *corner.values())) for a in (x, out)
        )
        tile: Array = out
        start, pitch = target, out.strides[row]
        if transposition.epilogue:
            tile, start, pitch = emit.scratch(plan.rows * width, transposition.dtype), 0, width
        apart, longest = x.strides[column], emit.least(plan.rows, size[row])
        for has_vectors in emit.sides(columns >= lanes):
            if has_vectors:
                for i in emit.loop(emit.ceil_div(columns, lanes)):
                    # The last overlaps the one before it.
                    k = emit.let(emit.least(i * lanes, columns - lanes))
                    begin = emit.opaque_base(source + k * apart)
                    runs = Runs(x, begin, 1, lanes, count, longest, apart)
                    transpose(Pitched(tile, emit.opaque_base(start + k), pitch), runs, lanes)
            else:
                for p, k in emit.grid(count, columns):
                    emit.store(tile, start + p * pitch + k, x[source + k * apart + p])
        if transposition.epilogue:
            extents_of_tile = count, columns, width
            _write(transposition, (others, out), tile, (corner, target), extents_of_tile)


def _write(
    transposition: Transpose,
    operands: tuple[Sequence[Operand], Operand],
    tile: Array,
    target: tuple[dict[str, Expr], Expr],
    extents: tuple[Expr, Expr, Expr],
) -> None:
    """Write the rows of a tile, with the epilogue; `target` is the index of its first element by
    letter, and in the result."""
    (others, out), (corner, start), (count, columns, width) = operands, target, extents
    row, column = transposition.x[-1], transposition.y[-1]
    for p in emit.loop(count):
        where = {**corner, row: corner[row] + p}
        steps, dtype = transposition.epilogue, transposition.dtype
        epilogue = RowEpilogue.along(steps, dtype, others, where, column)
        source = emit.opaque_base(p * width)
        into = emit.opaque_base(start + p * out.strides[row])
        for k in emit.loop(columns):
            emit.store(out, into + k, epilogue(tile[source + k], k))
