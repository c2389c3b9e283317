# SPDX-License-Identifier: Apache-2.0
"""Matrix products of whole models.

Operands that are transposed, reshaped or broadcast first are read as they are stored, where
:class:`~topi_ext.fusion.axes.Letters` can express it.
"""

from __future__ import annotations

from typing import Any

from topi_ext.compat import tensor_type_of
from topi_ext.fusion.products import ProductAnchor, W, X

from ..ir import dtype_of
from .constants import call_of
from .match import Match
from .operands import stored
from .patterns import Lookup
from .views import RESHAPES, shapes_of

MATMUL = "relax.matmul"


def read(call: Any, lookup: Lookup) -> Match | None:
    """Read a call of ``relax.matmul``.

    Returns
    -------
    Match or None
        None for integers other than bytes, operands of unknown shape or of one axis, batch sizes
        that are not known to be equal, and tensors without elements.
    """
    shapes = shapes_of(*call.args, call)
    if shapes is None:
        return None
    x, w, y = (dtype_of(one) for one in (*call.args, call))
    anchor = ProductAnchor.of(shapes, (x, w, y))
    if anchor is None:
        return None
    x, anchor = _operand(call.args[X], X, anchor, lookup)
    w, anchor = _operand(call.args[W], W, anchor, lookup)
    return Match(anchor, (x, w), tensor_type_of(call)) if anchor.is_served else None


def _operand(
    operand: Any, number: int, anchor: ProductAnchor, lookup: Lookup
) -> tuple[Any, ProductAnchor]:
    """Return an operand as it is stored, before views, and before a cast that a kernel makes."""
    operand, anchor = stored(operand, number, anchor, lookup, is_readable)
    call = call_of(operand, lookup)
    if call is not None and call.op.name == "relax.astype":
        widened = anchor.widened_from(number, dtype_of(call.args[0]))
        if widened is not None:
            return stored(call.args[0], number, widened, lookup, is_readable)
    return operand, anchor


def is_readable(call: Any, anchor: ProductAnchor) -> bool:
    """Return whether the kernel should read the operand of a call; reshapes cost nothing."""
    return call.op.name not in RESHAPES and anchor.problem(()).is_matrix_product
