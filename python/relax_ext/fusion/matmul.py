# SPDX-License-Identifier: Apache-2.0
"""Matrix products of whole models.

Operands that are transposed, reshaped or broadcast first are read as they are stored, where
:class:`~topi_ext.fusion.axes.Letters` can express it.
"""

from __future__ import annotations

from typing import Any

from topi_ext.compat import dtype_name, tensor_type_of
from topi_ext.fusion.products import ProductAnchor, W, X

from .match import Match
from .patterns import Lookup, is_operator, named, number_in
from .views import PERMUTE, RESHAPES, order_of, shape_of

MATMUL = "relax.matmul"


def read(call: Any, lookup: Lookup) -> Match | None:
    """Read a call of ``relax.matmul``.

    Returns
    -------
    Match or None
        None for integers, operands of unknown shape or of one axis, batch sizes that are not known
        to be equal, and tensors without elements.
    """
    tensors = (*call.args, call)
    shapes = [shape_of(one) for one in tensors]
    if None in shapes:
        return None
    anchor = ProductAnchor.of(
        shapes, tuple(dtype_name(tensor_type_of(one).dtype) for one in tensors)
    )
    if anchor is None:
        return None
    x, anchor = _stored(call.args[X], X, anchor, lookup)
    w, anchor = _stored(call.args[W], W, anchor, lookup)
    return Match(anchor, (x, w), tensor_type_of(call))


def _stored(
    operand: Any, number: int, anchor: ProductAnchor, lookup: Lookup
) -> tuple[Any, ProductAnchor]:
    """Return the tensor that an operand is a view of, and the anchor that reads that tensor.

    The tensor is the one furthest back that letters reach and a kernel can read.
    """
    best = operand, anchor
    while True:
        call = lookup(operand)
        before = _before(call, number, anchor) if is_operator(call) else None
        if before is None:
            return best
        operand, anchor = call.args[0], before
        # A view alone costs nothing.
        moves = call.op.name not in RESHAPES
        if moves and anchor.problem(()).is_matrix_product:
            best = operand, anchor


def _before(call: Any, number: int, anchor: ProductAnchor) -> ProductAnchor | None:
    """Return the anchor whose operand is what `call` views or scales; None for other calls."""
    shape = shape_of(call.args[0]) if call.args else None
    factor = _factor(call)
    if factor is not None:
        return anchor.scaled(factor)
    if shape is None:
        return None
    if call.op.name == PERMUTE:
        return anchor.transposed_from(number, order_of(call, len(shape)))
    if call.op.name == "relax.broadcast_to":
        return anchor.broadcast_from(number, shape)
    return anchor.reshaped_from(number, shape) if call.op.name in RESHAPES else None


def _factor(call: Any) -> float | None:
    """Return the number that a call multiplies a tensor by; the sums can be multiplied instead."""
    scaled = named(call, "relax.multiply")
    if scaled is None or shape_of(scaled.args[0]) != shape_of(scaled):
        return None
    return number_in(scaled.args[1]) or None
