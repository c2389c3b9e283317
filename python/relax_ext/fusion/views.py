# SPDX-License-Identifier: Apache-2.0
"""Calls that view a tensor in another shape, or in another order of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topi_ext.compat import call_attr, relax
from topi_ext.fusion.anchors import Anchor

from ..ir import are_same, shape_of

R = relax()

RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
"""Operators whose result has the elements of their operand, in the same order."""

PERMUTE = "relax.permute_dims"


def is_view(call: Any) -> bool:
    """Return whether a call reshapes, transposes, or broadcasts to the same shape."""
    if call.op.name == "relax.broadcast_to":
        shapes = shapes_of(call.args[0], call)
        return shapes is not None and are_same(*shapes)
    return call.op.name in (*RESHAPES, PERMUTE)


def viewed(anchor: Anchor, call: Any) -> Anchor | None:
    """Return the anchor whose result is what a view makes of it, or None."""
    shape = shape_of(call)
    if shape is None:
        return None
    if call.op.name == PERMUTE:
        return anchor.permuted(order_of(call, len(shape)))
    return anchor.viewed(shape)


def order_of(transpose: Any, rank: int) -> list[int]:
    """Return which axis of the operand each axis of a transpose is."""
    axes = call_attr(transpose, "axes")
    return [int(a) % rank for a in axes] if axes else list(reversed(range(rank)))


def shapes_of(*tensors: Any) -> list[tuple[Any, ...]] | None:
    """Return the shapes of tensors, or None where one is not known."""
    shapes = [shape for shape in map(shape_of, tensors) if shape is not None]
    return shapes if len(shapes) == len(tensors) else None


def reshaped(builder: Any, tensor: Any, shape: Sequence[Any]) -> Any:
    """Emit a reshape, which costs nothing; return the tensor itself where it has that shape."""
    before = shape_of(tensor)
    if before is not None and are_same(before, shape):
        return tensor
    return builder.emit(R.op.reshape(tensor, R.ShapeExpr(shape)))
