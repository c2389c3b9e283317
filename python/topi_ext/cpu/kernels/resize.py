# SPDX-License-Identifier: Apache-2.0
"""The kernel of resizes.

::

    where each column comes from, and its weight                    -> tables
    parallel over (planes, blocks of rows of the result):
        for each row: the two rows it is between, weighted          -> mixed
            for each column: two elements of mixed, weighted; epilogue  -> out

It has no matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...emit.post_ops import RowEpilogue
from ...resize import NEAREST, Resize
from .. import emit
from ..emit import Array, Expr, Operand
from ..plan.resize import ResizePlan

_DTYPE, _WIDE = "float32", "float64"


def emit_body(resize: Resize, plan: ResizePlan, operands: Sequence[Operand]) -> None:
    """What the PrimFunc does, with its arguments as `operands`."""
    x, *others, out = operands
    columns = _Columns.emitted(resize) if resize.method != NEAREST else None
    _emit(resize, plan, (x, others, out), columns)


class _Columns(NamedTuple):
    """Which element of a row comes before each column, and how near that is to the next."""

    index: Array
    weight: Array

    @classmethod
    def emitted(cls, resize: Resize) -> _Columns:
        """Those of a row of the result."""
        count = resize.after[1]
        made = cls(emit.scratch(count, "int32"), emit.scratch(count, _DTYPE))

        def column(o: Expr) -> None:
            index, weight = _between(resize, 1, o)
            emit.store(made.index, o, index)
            emit.store(made.weight, o, weight)

        emit.loop(count, column)
        return made


def _between(resize: Resize, axis: int, number: Expr) -> tuple[Expr, Expr]:
    """The element before a coordinate, of 32 bits, and the weight of the next."""
    scale, offset = (emit.constant(a, _WIDE) for a in resize.coordinate(axis))
    place = emit.let(emit.wide(number).astype(_WIDE) * scale + offset)
    zero = emit.constant(0, _WIDE)
    place = emit.let(emit.select(place < zero, zero, place))
    index = emit.let(place.astype("int32"))
    return index, emit.let((place - index.astype(_WIDE)).astype(_DTYPE))


def _emit(
    resize: Resize,
    plan: ResizePlan,
    operands: tuple[Operand, Sequence[Operand], Operand],
    columns: _Columns | None,
) -> None:
    x, others, out = operands
    (n, c), (h, w), (height, width) = resize.planes, resize.before, resize.after
    rows = plan.rows
    blocks = -(-height // rows)
    with emit.tasks(n * c * blocks, plan.parallel) as task:
        image, channel, block = map(emit.let, emit.unravel(task, (n, c, blocks)))
        plane = emit.opaque_base((image * c + channel) * (h * w))
        first = emit.let(block * rows)
        count = emit.clamped_extent(first, height, rows)
        mixed = emit.scratch(w + 1, _DTYPE)

        def row(i: Expr) -> None:
            where = {"N": image, "C": channel, "H": emit.let(first + i), "W": 0}
            into = emit.opaque_base(out.at("NCHW", *where.values()))
            epilogue = RowEpilogue.along(resize.epilogue, _DTYPE, others, where, "W")

            def put(place: Expr, value: Expr) -> None:
                emit.store(out, into + place, epilogue(value, place))

            if columns is None:
                _nearest(resize, x, plane, where["H"], put)
            else:
                _mix(resize, (x, plane), where["H"], mixed)
                _linear(width, mixed, columns, put)

        emit.loop(count, row)


def _nearest(
    resize: Resize, x: Operand, plane: Expr, row: Expr, put: Callable[[Expr, Expr], None]
) -> None:
    """A row, of which each element comes several times."""
    times_h, times_w = (b // a for a, b in zip(resize.before, resize.after))
    start = emit.opaque_base(plane + emit.quotient(row, times_h) * resize.before[1])

    def element(i: Expr) -> None:
        for copy in range(times_w):
            put(i * times_w + copy, x[start + i])

    emit.loop(resize.before[1], element)


def _mix(resize: Resize, source: tuple[Operand, Expr], row: Expr, mixed: Array) -> None:
    """Both rows beside a coordinate, weighted; the last element comes twice."""
    (x, plane), (h, w) = source, resize.before
    above, weight = _between(resize, 0, row)
    above = emit.let(emit.least(above.astype("int64"), h - 1))
    starts = [
        emit.opaque_base(plane + number * w) for number in (above, emit.least(above + 1, h - 1))
    ]

    def element(k: Expr) -> None:
        upper, lower = (x[start + k] for start in starts)
        emit.store(mixed, k, _weighted(upper, lower, weight))

    emit.loop(w, element)
    emit.store(mixed, w, mixed[w - 1])


def _weighted(one: Expr, next_: Expr, weight: Expr) -> Expr:
    """Of two elements; not by their difference, which may be infinite, or NaN where one is."""
    return one * (emit.constant(1, _DTYPE) - weight) + next_ * weight


def _linear(width: int, mixed: Array, columns: _Columns, put: Callable[[Expr, Expr], None]) -> None:
    """Two neighbours for each column."""

    def element(o: Expr) -> None:
        left = emit.let(columns.index[o].astype("int64"))
        weight = emit.let(columns.weight[o])
        put(o, _weighted(mixed[left], mixed[left + 1], weight))

    emit.loop(width, element)
