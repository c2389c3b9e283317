# SPDX-License-Identifier: Apache-2.0
"""Gradients of operators that read at indices."""

from __future__ import annotations

from math import prod
from typing import Any

from topi_ext.compat import call_attr, relax
from topi_ext.spec.geometry import fail

from ..ir import are_same, dtype_of
from .parts import (
    Rule,
    const,
    fields_of,
    in_float32,
    known_size,
    op_name,
    positive_axis,
    reshaped,
    shape_of,
    spread,
    zeros_like,
)

R = relax()
op = R.op


def gather_elements(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate elements at indices along an axis.

    With one index along the axis, as in the loss of a classifier, each element asks whether it is
    the one that was read, which is vector code.  Other indices scatter their gradients.
    """
    x, indices = call.args
    sizes = shape_of(x)
    axis = positive_axis(call, "axis", len(sizes))
    single = [1 if a == axis else size for a, size in enumerate(sizes)]
    if are_same(shape_of(indices), single) and isinstance(sizes[axis], int):
        positions = bb.emit(op.arange(0, sizes[axis], 1, dtype_of(indices)))
        is_read = op.equal(bb.emit(spread(positions, len(sizes), axis)), indices)
        return [op.where(is_read, dy, const(0.0, x)), None]
    return [op.scatter_elements(bb.emit(zeros_like(x)), indices, dy, axis, "add"), None]


def index_tensor(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``x[i, j, ...]``: gradients are added where the indices read."""
    x, indices = call.args
    parts = fields_of(indices, bb)
    rank = len(shape_of(y)) - (len(shape_of(x)) - len(parts))
    sizes = R.ShapeExpr([*shape_of(y)[:rank]])
    wide = [bb.emit(op.broadcast_to(part, sizes)) for part in parts]
    positions = bb.emit(op.stack(wide, -1))
    return [op.scatter_nd(bb.emit(zeros_like(x)), positions, dy, "add"), None]


def gather_nd(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate elements or rows at coordinates: gradients are added at the coordinates."""
    x, indices = call.args
    zeros = bb.emit(zeros_like(x))
    if int(call_attr(call, "batch_dims")):
        raise fail(op_name(call), "batch_dims must be 0 to have a gradient")
    return [op.scatter_nd(zeros, indices, dy, "add"), None]


def take(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate slices at indices of any rank along an axis: gradients are added there.

    The rule of TVM takes indices of rank 1 only, and writes outside the tensor where the mode lets
    them be negative.
    """
    x, indices = call.args
    sizes = shape_of(x)
    axis = 0 if call_attr(call, "axis") is None else positive_axis(call, "axis", len(sizes))
    before, after = sizes[:axis], sizes[axis + 1 :]
    count = prod(shape_of(indices))
    flat = bb.emit(reshaped(indices, [count]))
    slices = bb.emit(reshaped(dy, [*before, count, *after]))
    mode = str(call_attr(call, "mode"))
    if mode != "fast":
        size = known_size(call, sizes[axis], axis)
        limit, zero = (R.const(n, dtype_of(flat)) for n in (size, 0))
        if mode == "nan":
            is_inside = op.logical_and(op.greater_equal(flat, zero), op.less(flat, limit))
            is_read = bb.emit(spread(bb.emit(is_inside), len(sizes), axis))
            slices = bb.emit(op.where(is_read, slices, const(0.0, x)))
        wrapped = op.floor_mod(flat, limit)
        flat = bb.emit(wrapped if mode == "wrap" else op.clip(flat, 0, size - 1))
    zeros = bb.emit(zeros_like(x))
    if axis == 0:
        return [op.scatter_nd(zeros, bb.emit(reshaped(flat, [count, 1])), slices, "add"), None]
    column = bb.emit(spread(flat, len(sizes), axis))
    positions = bb.emit(op.broadcast_to(column, R.ShapeExpr([*before, count, *after])))
    return [op.scatter_elements(zeros, positions, slices, axis, "add"), None]


def scatter_elements(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a scatter that adds or replaces: what is scattered reads at its indices.

    Raises
    ------
    ValueError
        One line, for other reductions.
    """
    _, indices, updates = call.args
    axis, reduction = int(call_attr(call, "axis")), str(call_attr(call, "reduction"))
    dupdates = op.gather_elements(dy, indices, axis)
    if reduction == "add":
        return [dy, None, dupdates]
    if reduction != "update":
        raise fail(op_name(call), f"reduction={reduction} must be add or update for a gradient")
    zeros = bb.emit(zeros_like(updates))
    return [op.scatter_elements(dy, indices, zeros, axis, "update"), None, dupdates]


RULES: dict[str, Rule] = {
    "relax.gather_elements": in_float32(gather_elements),
    "relax.gather_nd": in_float32(gather_nd),
    "relax.index_tensor": in_float32(index_tensor),
    "relax.scatter_elements": scatter_elements,
    "relax.take": in_float32(take),
}
