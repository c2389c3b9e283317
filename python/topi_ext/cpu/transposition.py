# SPDX-License-Identifier: Apache-2.0
"""The kernel of transposes whose last axis becomes another one.

::

    parallel over (matrices, blocks of rows of y):
        for each vector of columns of y:
            squares of x, turned in registers                       -> tile
        for each row of the tile: epilogue                          -> out

Without an epilogue squares go to `out` at once.  A block has so few rows that the cache lines that
one vector of columns begins are there when the next one goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..emit.post_ops import RowEpilogue
from ..transposition import Transposition
from . import emit
from .emit import Array, Expr, Operand
from .machine import Machine
from .parts.transpose import Pitched, Runs, transpose

_ROWS = 64
"""Of a block."""

_COLUMNS = 256
"""Of a tile, which stays in the first cache with what is read."""

_PARALLEL_ELEMENTS = 1 << 15


def build(transposition: Transposition, machine: Machine) -> Any:
    """The PrimFunc ``(x, *operands of the epilogue, out)`` of a merged transpose."""
    made, dtype = transposition, transposition.dtype
    behind = [step.order for step in made.epilogue if step.order]
    with emit.kernel(emit.ATTRIBUTES) as found:
        declared = [
            emit.argument(name, order, made.shape(order), dtype)
            for name, order in (
                ("x", made.x),
                *((f"operand{i}", order) for i, order in enumerate(behind)),
                ("out", made.y),
            )
        ]
        with emit.body(*declared) as (x, *others, out):
            _emit(made, machine, (x, others, out))
    return found[0]


def _emit(
    made: Transposition, machine: Machine, operands: tuple[Operand, Sequence[Operand], Operand]
) -> None:
    x, _, out = operands
    row, column = made.x[-1], made.y[-1]
    size, outer = dict(made.sizes), made.outer
    lanes = min(machine.lanes(made.dtype), 1 << (size[column].bit_length() - 1))
    width = size[column] if not made.epilogue else min(size[column], _COLUMNS)
    extents = [*made.shape(outer), -(-size[row] // _ROWS), -(-size[column] // width)]
    parallel = machine.threads > 1 and made.elements >= _PARALLEL_ELEMENTS
    with emit.tasks(prod(extents), parallel) as task:
        *where, block, part = map(emit.let, emit.unravel(task, extents))
        first = emit.let(block * _ROWS)
        count = emit.clamped_extent(first, size[row], _ROWS)
        left = emit.let(part * width)
        columns = emit.clamped_extent(left, size[column], width)
        place = dict(zip(outer, where)) | {row: first, column: left}
        source, target = (emit.opaque_base(a.at("".join(place), *place.values())) for a in (x, out))
        into: tuple[Array, Expr, Expr] = (out, target, out.strides[row])
        if made.epilogue:
            into = emit.scratch(_ROWS * width, made.dtype), 0, width

        def vector(i: Expr) -> None:
            # The last overlaps the one before it.
            k = emit.let(emit.least(i * lanes, columns - lanes))
            apart = x.strides[column]
            longest = min(_ROWS, size[row])
            begin = emit.opaque_base(source + k * apart)
            runs = Runs(x, begin, 1, lanes, count, longest, apart)
            transpose(Pitched(into[0], emit.opaque_base(into[1] + k), into[2]), runs, lanes)

        emit.when(
            columns >= lanes,
            lambda: emit.loop(emit.ceil_div(columns, lanes), vector),
            lambda: _few(x, (source, x.strides[column]), into, (count, columns)),
        )
        if made.epilogue:
            _write(made, operands, into[0], (place, target), (count, columns, width))


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
