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
from ...transposition import Transposition
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.transpose import Pitched, Runs, transpose
from ..plan.transposition import TranspositionPlan


def emit_body(made: Transposition, plan: TranspositionPlan, operands: Sequence[Operand]) -> None:
    """What the PrimFunc does, with its arguments as `operands`."""
    x, *others, out = operands
    row, column = made.x[-1], made.y[-1]
    size, outer = dict(made.sizes), made.outer
    lanes, width = plan.lanes, plan.columns
    extents = [*made.shape(outer), -(-size[row] // plan.rows), -(-size[column] // width)]
    with emit.tasks(prod(extents), plan.parallel) as task:
        *where, block, part = map(emit.let, emit.unravel(task, extents))
        first = emit.let(block * plan.rows)
        count = emit.clamped_extent(first, size[row], plan.rows)
        left = emit.let(part * width)
        columns = emit.clamped_extent(left, size[column], width)
        place = dict(zip(outer, where)) | {row: first, column: left}
        source, target = (emit.opaque_base(a.at("".join(place), *place.values())) for a in (x, out))
        into: tuple[Array, Expr, Expr] = (out, target, out.strides[row])
        if made.epilogue:
            into = emit.scratch(plan.rows * width, made.dtype), 0, width

        def vector(i: Expr) -> None:
            # The last overlaps the one before it.
            k = emit.let(emit.least(i * lanes, columns - lanes))
            apart = x.strides[column]
            longest = min(plan.rows, size[row])
            begin = emit.opaque_base(source + k * apart)
            runs = Runs(x, begin, 1, lanes, count, longest, apart)
            transpose(Pitched(into[0], emit.opaque_base(into[1] + k), into[2]), runs, lanes)

        emit.when(
            columns >= lanes,
            lambda: emit.loop(emit.ceil_div(columns, lanes), vector),
            lambda: _few(x, (source, x.strides[column]), into, (count, columns)),
        )
        if made.epilogue:
            _write(made, (x, others, out), into[0], (place, target), (count, columns, width))


def _few(
    x: Operand,
    source: tuple[Expr, Expr],
    into: tuple[Array, Expr, Expr],
    extents: tuple[Expr, Expr],
) -> None:
    """Fewer columns than a vector has lanes."""
    (start, apart), (array, at, pitch) = source, into

    def element(p: Expr, k: Expr) -> None:
        emit.store(array, at + p * pitch + k, x[start + k * apart + p])

    emit.nest(extents, element)


def _write(
    made: Transposition,
    operands: tuple[Operand, Sequence[Operand], Operand],
    tile: Array,
    target: tuple[dict[str, Expr], Expr],
    extents: tuple[Expr, Expr, int],
) -> None:
    """The rows of a tile."""
    (_, others, out), (place, start), (count, columns, width) = operands, target, extents
    row, column = made.x[-1], made.y[-1]

    def one(p: Expr) -> None:
        where = {**place, row: place[row] + p}
        epilogue = RowEpilogue.along(made.epilogue, made.dtype, others, where, column)
        source = emit.opaque_base(p * width)
        into = emit.opaque_base(start + p * out.strides[row])

        def element(k: Expr) -> None:
            emit.store(out, into + k, epilogue(tile[source + k], k))

        emit.loop(columns, element)

    emit.loop(count, one)
