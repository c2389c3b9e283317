# SPDX-License-Identifier: Apache-2.0
"""Gradients of operators that read at indices."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import call_attr, relax
from topi_ext.spec.geometry import fail

from .parts import (
    Rule,
    const,
    dtype_of,
    fields_of,
    op_name,
    positive_axis,
    same_shape,
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
    if same_shape(shape_of(indices), single) and isinstance(sizes[axis], int):
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
    "relax.gather_elements": gather_elements,
    "relax.gather_nd": gather_nd,
    "relax.index_tensor": index_tensor,
    "relax.scatter_elements": scatter_elements,
}
