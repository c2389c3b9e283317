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

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...emit.post_ops import RowEpilogue
from ...spec.post_ops import finished
from ...spec.resize import CORNERS, HALF_PIXEL, NEAREST, Resize
from .. import emit
from ..emit import Array, Expr, Operand
from ..plan.resize import ResizePlan

_DTYPE, _WIDE = "float32", "float64"

_UNROLLED = 8
"""Elements of a row that are computed at a time."""


def emit_body(resize: Resize, plan: ResizePlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    x, *others, out = operands
    columns = _Columns.emitted(resize) if resize.method != NEAREST else None
    _emit(resize, plan, (x, others, out), columns)


class _Columns(NamedTuple):
    """For each column, the element of a row before it, and the weight of the next element."""

    element: Array
    weight: Array

    @classmethod
    def emitted(cls, resize: Resize) -> _Columns:
        """Compute those of a row of the result."""
        count = resize.after[1]
        columns = cls(emit.scratch(count, "int32"), emit.scratch(count, _DTYPE))
        for o in emit.loop(count):
            index, weight = _between(resize, 1, o)
            emit.store(columns.element, o, index)
            emit.store(columns.weight, o, weight)
        return columns


def _between(resize: Resize, axis: int, number: Expr) -> tuple[Expr, Expr]:
    """Return the element before a coordinate, as int32, and the weight of the next element."""
    scale, offset = _coordinate(resize, axis)
    coordinate = emit.let(emit.wide(number).astype(_WIDE) * scale + offset)
    zero = emit.constant(0, _WIDE)
    coordinate = emit.let(emit.select(coordinate < zero, zero, coordinate))
    index = emit.let(coordinate.astype("int32"))
    return index, emit.let((coordinate - index.astype(_WIDE)).astype(_DTYPE))


def _coordinate(resize: Resize, axis: int) -> tuple[Expr, Expr]:
    """Return scale and offset: element o is at ``o * scale + offset``.

    They go through memory, because TVM's analysis of ranges fails on quotients of floats.
    """
    before, after = resize.before[axis], resize.after[axis]
    zero = emit.constant(0, _WIDE)
    if resize.method == CORNERS:
        steps = emit.most(after - 1, 1)  # a single element is at 0
        return emit.via_memory(_float(before - 1) / _float(steps), _WIDE), zero
    scale, half = emit.via_memory(_float(before) / _float(after), _WIDE), emit.constant(0.5, _WIDE)
    is_half = resize.method == HALF_PIXEL
    return scale, emit.via_memory(scale * half - half, _WIDE) if is_half else zero


def _float(size: Expr) -> Expr:
    return emit.constant(size, _WIDE) if isinstance(size, int) else size.astype(_WIDE)


def _emit(
    resize: Resize,
    plan: ResizePlan,
    operands: tuple[Operand, Sequence[Operand], Operand],
    columns: _Columns | None,
) -> None:
    x, others, out = operands
    (n, c), (h, w), (height, width) = resize.planes, resize.before, resize.after
    rows = plan.rows
    blocks = emit.ceil_div(height, rows)
    with emit.tasks(n * c * blocks, plan.parallel) as task:
        image, channel, block = map(emit.let, emit.unravel(task, (n, c, blocks)))
        plane = emit.opaque_base((image * c + channel) * (h * w))
        first = emit.let(block * rows)
        count = emit.clamped_extent(first, height, rows)
        mixed = emit.scratch(w + 1, _DTYPE)
        # Rows that are narrowed, in a loop of which LLVM makes vectors.
        is_narrowed = out.dtype != _DTYPE
        fractions = emit.scratch(width if is_narrowed else 1, _DTYPE)
        for i in emit.loop(count):
            where = {"N": image, "C": channel, "H": emit.let(first + i), "W": 0}
            into = emit.opaque_base(out.at("NCHW", *where.values()))
            epilogue = RowEpilogue.along(resize.epilogue, _DTYPE, others, where, "W")
            if columns is None:
                elements = _nearest(resize, x, plane, where["H"])
            else:
                _mix(resize, (x, plane), where["H"], mixed)
                elements = _linear(width, mixed, columns)
            for column, value in elements:
                if is_narrowed:
                    emit.store(fractions, column, value)
                else:
                    emit.store(out, into + column, epilogue(value, column))
            for column in emit.loop(width) if is_narrowed else ():
                value = epilogue(fractions[column], column)
                value = emit.cast(value, finished(resize.epilogue, _DTYPE), out.dtype)
                emit.store(out, into + column, value)


def _nearest(resize: Resize, x: Operand, plane: Expr, row: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Emit ``for column, value in ...``: a loop over a row, each element of which comes several
    times."""
    times_h, times_w = map(resize.repetitions, range(2))
    start = emit.opaque_base(plane + emit.quotient(row, times_h) * resize.before[1])
    for i in emit.loop(resize.before[1]):
        for copy in range(times_w):
            yield i * times_w + copy, x[start + i]


def _mix(resize: Resize, source: tuple[Operand, Expr], row: Expr, mixed: Array) -> None:
    """Write the weighted sum of both rows beside a coordinate; the last element comes twice."""
    (x, plane), (h, w) = source, resize.before
    above, weight = _between(resize, 0, row)
    above = emit.let(emit.least(above.astype("int64"), h - 1))
    starts = [
        emit.opaque_base(plane + number * w) for number in (above, emit.least(above + 1, h - 1))
    ]
    for k, lanes in emit.tiles_then_ones(w, _UNROLLED):
        upper, lower = (x[_lanes(start + k, lanes)] for start in starts)
        same = weight if lanes == 1 else emit.broadcast(weight, lanes)
        emit.store(mixed, _lanes(k, lanes), _weighted(upper, lower, same, lanes))
    emit.store(mixed, w, mixed[w - 1])


def _lanes(start: Expr, lanes: int) -> Expr:
    return start if lanes == 1 else emit.lanes_of(start, lanes)


def _weighted(value: Expr, next_: Expr, weight: Expr, lanes: int = 1) -> Expr:
    """Return the weighted sum of two elements, or of two vectors.

    It is not computed by their difference, which may be infinite, or NaN where an element is
    infinite.
    """
    one = emit.constant(1, _DTYPE)
    return value * ((one if lanes == 1 else emit.broadcast(one, lanes)) - weight) + next_ * weight


def _linear(width: Expr, mixed: Array, columns: _Columns) -> Iterator[tuple[Expr, Expr]]:
    """Emit ``for column, value in ...``: a loop over a row, whose elements are sums of two.

    Several are read before the first is written: LLVM does not see that the row is apart from what
    they are read from.
    """
    for first, count in emit.tiles_then_ones(width, _UNROLLED):
        values = []
        for o in (first + number for number in range(count)):
            left = emit.let(columns.element[o].astype("int64"))
            pair = mixed[left], mixed[left + 1]
            values.append(emit.let(_weighted(*pair, emit.let(columns.weight[o]))))
        for number, value in enumerate(values):
            yield first + number, value
