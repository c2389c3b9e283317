# SPDX-License-Identifier: Apache-2.0
"""Resizes of images: from a call to what it states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from topi_ext import backend
from topi_ext.compat import call_attr, dtype_name, known_shape, relax, tensor_type_of
from topi_ext.epilogue import PostOp
from topi_ext.resize import ASYMMETRIC, CORNERS, HALF_PIXEL, NEAREST, Resize

from .anchor import Anchor, kernel_name
from .matmul import reshaped
from .target import target_of

R = relax()

_LINEAR = {"half_pixel": HALF_PIXEL, "align_corners": CORNERS, "asymmetric": ASYMMETRIC}
"""Modes of coordinates."""

_NEAREST = {("half_pixel", "round"), ("half_pixel", ""), ("asymmetric", "floor")}
"""Modes and roundings in which an element of a whole multiple comes so often."""


class ResizeAnchor(Anchor):
    """A resize."""

    name, dtype, axes, needs_axes = "resize2d", "float32", tuple("NCHW"), True

    def __init__(self, call: Any, resize: Resize) -> None:
        self.call, self.resize, self.sizes = call, resize, resize.sizes

    def lowered(self, fuser: Any, steps: Sequence[PostOp], operands: Sequence[Any]) -> Any:
        """See :class:`~relax_ext.anchor.Anchor`."""
        behind = tuple(replace(step, order=step.varies) for step in steps)
        resize, found = replace(self.resize, epilogue=behind), tensor_type_of(self.call)
        kernel = backend.build(resize, target_of(found))
        orders = [step.order for step in behind if step.order]
        others = [
            reshaped(fuser.builder_.emit, one, [self.sizes[a] for a in order])
            for one, order in zip(operands, orders)
        ]
        name = fuser.builder_.add_func(kernel, kernel_name(self.name, steps))
        return R.call_tir(name, [fuser.visit_expr(self.call.args[0]), *others], found)


def read(call: Any) -> ResizeAnchor | None:
    """Read a resize; None of other calls, layouts, methods and dtypes, and of symbolic sizes."""
    found = tensor_type_of(call)
    if call.op.name != "relax.image.resize2d" or found is None:
        return None
    before, after = (known_shape(tensor_type_of(one).shape) for one in (call.args[0], call))
    sizes = [*(before or ()), *(after or ())]
    if len(sizes) != 8 or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    dtypes = {dtype_name(tensor_type_of(one).dtype) for one in (call.args[0], call)}
    if dtypes != {"float32"} or str(call_attr(call, "layout")) != "NCHW":
        return None
    method = _method(call, before[2:], after[2:])
    if method is None or not backend.supports("resize", target_of(found)):
        return None
    return ResizeAnchor(call, Resize(method, before[:2], before[2:], after[2:]))


def _method(call: Any, before: Sequence[int], after: Sequence[int]) -> str | None:
    """How it is computed, where that is known here."""
    method, mode, rounding = (
        str(call_attr(call, name))
        for name in ("method", "coordinate_transformation_mode", "rounding_method")
    )
    if method == "linear":
        return _LINEAR.get(mode)
    is_multiple = all(b % a == 0 for a, b in zip(before, after))
    known = method == "nearest_neighbor" and (mode, rounding) in _NEAREST
    return NEAREST if known and is_multiple else None
