# SPDX-License-Identifier: Apache-2.0
"""Resizes of images."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import call_attr, tensor_type_of
from topi_ext.fusion.resizes import ResizeAnchor

from ..ir import dtype_of, shape_of
from .match import Match

_METHOD = "method", "coordinate_transformation_mode", "rounding_method"


def read(call: Any) -> Match | None:
    """Read a resize; return None for other calls, and for resizes without a kernel."""
    if call.op.name != "relax.image.resize2d" or tensor_type_of(call) is None:
        return None
    tensors = call.args[0], call
    before, after = (shape_of(one) for one in tensors)
    method, mode, rounding = (str(call_attr(call, name)) for name in _METHOD)
    anchor = ResizeAnchor.of(
        before or (),
        after or (),
        [dtype_of(one) for one in tensors],
        str(call_attr(call, "layout")),
        (method, mode, rounding),
    )
    return None if anchor is None else Match(anchor, (call.args[0],), tensor_type_of(call))
