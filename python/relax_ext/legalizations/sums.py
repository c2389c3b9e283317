# SPDX-License-Identifier: Apache-2.0
"""Sums of many elements on processors: rows first, then the sums of rows; long rows in blocks.

TVM adds one element after the other, so that the rounding error grows with their number.  A sum in
stages rounds as often as its longest stage.  Means, variances and the sums that undo a broadcast
are made of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt, nan, prod
from typing import Any

from topi_ext.compat import (
    call_attr,
    dtype_name,
    is_cpu,
    known_shape,
    op_attr,
    relax,
    same_size,
    tensor_type_of,
    tir,
)

from ..target import target_of

R = relax()

_FLOATS = ("float32", "float64")
_SHORT_ROW = 16
"""Rows of fewer elements are added together with the next axis."""

_LONG_ROW = 256
"""Rows of more elements are added in blocks."""


def sum_in_stages(bb: Any, call: Any, stock: Any) -> Any:
    """Lower a sum by stages, each of which is a sum again."""
    found, result = _operand(call), tensor_type_of(call)
    if found is None:
        return stock(bb, call)
    if 0 in found:
        return R.op.zeros(result.shape, result.dtype)
    x, axes, keeps = call.args[0], _axes(call, len(found)), bool(call_attr(call, "keepdims"))
    first = _innermost(found, axes)
    rest = [axis for axis in axes if axis not in first]
    if rest:
        rows = bb.emit(R.op.sum(x, first, keepdims=True))
        return R.op.sum(rows, axes, keepdims=keeps)
    if len(first) == 1 and isinstance(found[first[0]], int) and found[first[0]] > _LONG_ROW:
        blocks = bb.emit(bb.call_te(_blocks, x, first[0], primfunc_name_hint="sum_of_blocks"))
        return R.op.sum(blocks, axes, keepdims=keeps)
    return stock(bb, call)


def whole(bb: Any, call: Any) -> Any:
    """Lower a sum over axes of known sizes to one function, which a schedule divides into stages.

    A sum that is fused with its operand reads it once, and stores no rows.  Sums over symbolic
    sizes keep their stages here: TVM 0.26 fuses some of them into functions that it cannot
    schedule.
    """
    sizes = _operand(call)
    axes = [] if sizes is None else _axes(call, len(sizes))
    if not axes or 0 in sizes or not all(isinstance(sizes[axis], int) for axis in axes):
        return op_attr(call.op.name, "FLegalize")(bb, call)
    keeps = bool(call_attr(call, "keepdims"))
    return bb.call_te(_summed, call.args[0], axes, keeps, primfunc_name_hint="sum")


def _summed(x: Any, axes: list[int], keeps: bool) -> Any:
    from tvm import topi

    return topi.sum(x, axes, keeps)


def _mean(bb: Any, x: Any, axes: list[int], keeps: bool) -> Any:
    """Return a mean is a sum and a division."""
    sizes = known_shape(tensor_type_of(x).shape)
    total = bb.emit(R.op.sum(x, axes, keeps))

    def divided(values: Any, counts: Any) -> Any:
        from tvm import topi

        return topi.divide(values, prod(counts).astype(values.dtype))

    counts = [
        tir.IntImm("int64", sizes[a]) if isinstance(sizes[a], int) else sizes[a] for a in axes
    ]
    return bb.call_te(divided, total, counts, primfunc_name_hint="mean")


def _variance(bb: Any, x: Any, axes: list[int], keeps: bool) -> Any:
    """Return a variance is the mean of squared deviations."""
    deviation = bb.emit(R.op.subtract(x, bb.emit(R.op.mean(x, axes, keepdims=True))))
    return R.op.mean(bb.emit(R.op.multiply(deviation, deviation)), axes, keeps)


def _deviation(bb: Any, x: Any, axes: list[int], keeps: bool) -> Any:
    """Return a standard deviation is the root of a variance."""
    return R.op.sqrt(bb.emit(R.op.variance(x, axes, keeps)))


def _reduction(lower: Callable[..., Any], bb: Any, call: Any, stock: Any) -> Any:
    """Lower a mean or variance by ``lower(bb, x, axes, keeps)``; that of no elements is NaN."""
    sizes, result = _operand(call), tensor_type_of(call)
    if sizes is None:
        return stock(bb, call)
    if 0 in sizes:
        return R.op.broadcast_to(R.const(nan, dtype_name(result.dtype)), result.shape)
    return lower(bb, call.args[0], _axes(call, len(sizes)), bool(call_attr(call, "keepdims")))


def global_average(bb: Any, call: Any, stock: Any) -> Any:
    """Lower a pooling of all positions to one as a mean."""
    found, layout = _operand(call), str(call_attr(call, "layout"))
    wanted = known_shape(tensor_type_of(call).shape)
    if found is None or len(layout) != len(found) or wanted is None:
        return stock(bb, call)
    axes = [axis for axis, letter in enumerate(layout) if letter in "DHW"]
    if any(wanted[axis] != 1 for axis in axes):
        return stock(bb, call)
    return R.op.mean(call.args[0], axes, keepdims=True)


def collapse(bb: Any, call: Any, stock: Any) -> Any:
    """Lower the gradient of a broadcast as a sum over the axes that were broadcast."""
    sizes = _operand(call)
    wanted = known_shape(tensor_type_of(call).shape)
    if sizes is None or wanted is None or len(wanted) > len(sizes):
        return stock(bb, call)
    lead = len(sizes) - len(wanted)
    axes = list(range(lead))
    for axis, size in enumerate(wanted, lead):
        if same_size(size, sizes[axis]):
            continue
        if not same_size(size, 1):
            return stock(bb, call)
        axes.append(axis)
    total = bb.emit(R.op.sum(call.args[0], axes)) if axes else call.args[0]
    return R.op.reshape(total, R.ShapeExpr(wanted))


def _operand(call: Any) -> Any:
    """Return the sizes of a floating-point operand on a processor; None for other calls."""
    found = tensor_type_of(call.args[0])
    target = target_of(tensor_type_of(call))
    if found is None or target is None or not is_cpu(target):
        return None
    return known_shape(found.shape) if dtype_name(found.dtype) in _FLOATS else None


def _axes(call: Any, rank: int) -> list[int]:
    axes = call_attr(call, "axis")
    return list(range(rank)) if axes is None else sorted(int(axis) % rank for axis in axes)


def _innermost(sizes: Any, axes: list[int]) -> list[int]:
    """Return the last axis, and those in front of it as long as rows are short.

    Where sizes are symbolic, so that rows may be short, they are neighbours; axes of one element do
    not count.
    """
    rows: list[int] = []
    for axis in reversed(axes):
        is_known = all(isinstance(sizes[a], int) for a in (axis, *rows))
        has_elements = any(not same_size(sizes[a], 1) for a in rows)
        if has_elements and not is_known and axis != rows[0] - 1:
            break
        rows.insert(0, axis)
        if is_known and prod(sizes[a] for a in rows) >= _SHORT_ROW:
            break
    return rows


def _blocks(x: Any, axis: int) -> Any:
    """Sums of neighbours along an axis; the last block may be shorter."""
    from tvm import te

    size = int(x.shape[axis])
    length = isqrt(size - 1) + 1
    shape = list(x.shape)
    shape[axis] = -(-size // length)
    term = te.reduce_axis((0, length), name="term")

    def block(*index: Any) -> Any:
        place = index[axis] * length + term
        position = (*index[:axis], place, *index[axis + 1 :])
        value = x[position]
        if size % length:
            value = tir.if_then_else(place < size, value, tir.const(0, x.dtype))
        return te.sum(value, axis=term)

    return te.compute(shape, block, name="blocks")


RULES = {
    "relax.sum": sum_in_stages,
    "relax.mean": partial(_reduction, _mean),
    "relax.variance": partial(_reduction, _variance),
    "relax.std": partial(_reduction, _deviation),
    **{f"relax.nn.adaptive_avg_pool{rank}d": global_average for rank in (1, 2, 3)},
    "relax.collapse_sum_to": collapse,
    "relax.collapse_sum_like": collapse,
}
