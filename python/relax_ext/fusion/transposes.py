# SPDX-License-Identifier: Apache-2.0
"""Transposes that remain between kernels."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import dtype_name, tensor_type_of
from topi_ext.fusion.transposes import TransposeAnchor

from ..ir import shape_of
from .match import Match
from .views import PERMUTE, order_of


def read(call: Any) -> Match | None:
    """Read a transpose; return None for other calls, and for those that are left to TVM."""
    shape = shape_of(call)
    if call.op.name != PERMUTE or shape is None:
        return None
    found = tensor_type_of(call)
    anchor = TransposeAnchor.of(shape, order_of(call, len(shape)), dtype_name(found.dtype))
    return None if anchor is None else Match(anchor, (call.args[0],), found)
