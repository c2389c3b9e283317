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
        None for integers, operands of unknown shape or of one axis, batch sizes that are not known
        to be equal, and tensors without elements.
    """
    shapes = shapes_of(*call.args, call)
    if shapes is None:
        return None
    x, w, y = (dtype_of(one) for one in (*call.args, call))
    anchor = ProductAnchor.of(shapes, (x, w, y))
    if anchor is None:
        return None
    x, anchor = stored(call.args[X], X, anchor, lookup, _is_readable)
    w, anchor = stored(call.args[W], W, anchor, lookup, _is_readable)
    return Match(anchor, (x, w), tensor_type_of(call))


def _is_readable(call: Any, anchor: ProductAnchor) -> bool:
    """Return whether the kernel should read the operand of a call; reshapes cost nothing."""
    return call.op.name not in RESHAPES and anchor.problem(()).is_matrix_product
