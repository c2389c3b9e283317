# SPDX-License-Identifier: Apache-2.0
"""Operands of matrix products and of attention, read before views and scalings of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from topi_ext.fusion.anchors import MatrixAnchor
from topi_ext.spec.dtypes import FLOATS

from ..ir import are_same, dtype_of, shape_of
from .patterns import Lookup, is_operator, named, number_in
from .views import PERMUTE, RESHAPES, order_of

AnchorT = TypeVar("AnchorT", bound=MatrixAnchor)


def stored(
    operand: Any,
    number: int,
    anchor: AnchorT,
    lookup: Lookup,
    is_readable: Callable[[Any, AnchorT], bool],
) -> tuple[Any, AnchorT]:
    """Return the tensor that an operand is a view of, and the anchor that reads that tensor.

    Parameters
    ----------
    operand : relax.Expr
    number : int
        Number of the operand among the tensors of `anchor`.
    anchor : MatrixAnchor
    lookup : Lookup
    is_readable : callable
        Whether a kernel reads the operand of a call, by an anchor that does.  The earliest such
        tensor is returned.
    """
    best = operand, anchor
    while True:
        call = lookup(operand)
        earlier = before(call, number, anchor) if is_operator(call) else None
        if earlier is None:
            return best
        operand, anchor = call.args[0], earlier
        if is_readable(call, anchor):
            best = operand, anchor


def before(call: Any, number: int, anchor: AnchorT) -> AnchorT | None:
    """Return the anchor that reads the operand of a view or a scaling; None for other calls."""
    shape = shape_of(call.args[0]) if call.args else None
    if shape is None:
        return None
    if call.op.name == PERMUTE:
        return anchor.transposed_from(number, order_of(call, len(shape)))
    if call.op.name == "relax.broadcast_to":
        return anchor.broadcast_from(number, shape)
    if call.op.name in RESHAPES:
        return anchor.reshaped_from(number, shape)
    factor = factor_of(call)
    return None if factor is None else anchor.scaled_from(number, factor)


def factor_of(call: Any) -> float | None:
    """Return the number that a call multiplies a tensor by; the sums can be multiplied instead."""
    scaled = named(call, "relax.multiply", "relax.divide")
    if scaled is None or not are_same(shape_of(scaled.args[0]) or (), shape_of(scaled) or ()):
        return None
    number = number_in(scaled.args[1])
    if not number or dtype_of(scaled) not in FLOATS:
        return None
    return 1 / number if scaled.op.name == "relax.divide" else number
