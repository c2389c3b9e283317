# SPDX-License-Identifier: Apache-2.0
"""ONNX: Resize by the factors that a node states, and sizes of which some are free.

TVM resizes by the ratio of the sizes, which is another factor where the result is rounded down.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from topi_ext.adapters import resizing
from topi_ext.compat import constant_value, dtype_name, known_shape, relax, type_of
from topi_ext.spec.geometry import fail

from ..op.resizing import along

R = relax()

_CONVERTER = ("cls", "bb", "inputs", "attr", "params")
NEEDS = {
    "Resize._impl_v18": _CONVERTER,
    "Upsample._impl_v9": _CONVERTER,
    "get_constant": ("var", "params"),
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Return the converters of Resize, and of Upsample, which came before it."""
    stock = vars(module.Resize)["_impl_v18"].__func__

    def convert(cls: type, bb: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        if len(inputs) == 2:
            attr, inputs = {**attr, **resizing.FIRST}, [inputs[0], None, inputs[1]]
        operands = [*inputs, None, None, None][1:4]
        _, scales, sizes = (
            None if x is None else _numbers(module.get_constant(x, params)) for x in operands
        )
        x, before = inputs[0], known_shape(type_of(inputs[0]).shape)
        is_cropped = attr.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
        if before is None or (scales or sizes) is None or is_cropped:
            return stock(cls, bb, inputs, attr, params)
        resize = resizing.of_onnx(before, scales, sizes, attr)
        if not resize.is_by_ratio or len(before) not in (3, 4, 5):
            return _by_elements(bb.emit, x, resize)
        if resize.mode == "half_pixel_symmetric":  # by ratio, it is the other one
            attr = {**attr, "coordinate_transformation_mode": b"half_pixel"}
        if all(isinstance(size, int) for size in resize.after[2:]):
            stated = R.const(np.array([1, 1, *resize.after[2:]], "int64"))
            return stock(cls, bb, [x, None, None, stated], attr, params)
        return _to_free_sizes(bb, x, resize)

    def upsample(cls: type, bb: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        stated = R.const(np.array(attr["scales"], "float32")) if "scales" in attr else inputs[1]
        return convert(cls, bb, [inputs[0], stated], {"mode": attr.get("mode", b"nearest")}, params)

    return {
        "Resize._impl_v18": classmethod(convert),
        "Upsample._impl_v9": classmethod(upsample),
    }


def _numbers(operand: Any) -> list[Any] | None:
    """Return the numbers of an operand; None if there are none, or only run time knows them."""
    if isinstance(operand, R.ShapeExpr):
        return list(known_shape(operand))
    value = constant_value(operand)
    return None if value is None else value.numpy().reshape(-1).tolist() or None


def _by_elements(emit: Callable[[Any], Any], x: Any, resize: resizing.Resize) -> Any:
    """Return sums of elements along each axis."""
    dtype = dtype_name(type_of(x).dtype)
    if resize.method != "nearest" and "float" not in dtype:
        raise fail("Resize", f"mode={resize.method!r} must be 'nearest' of {dtype}")
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    x = emit(R.op.astype(x, wide)) if wide != dtype else x
    for axis in resize.axes:
        x = along(emit, x, axis, resize.taps(axis))
    return emit(R.op.astype(x, dtype)) if wide != dtype else x


def _to_free_sizes(bb: Any, x: Any, resize: resizing.Resize) -> Any:
    """Return a resize to sizes that only run time knows; TVM's converter takes numbers alone."""
    rank = len(resize.after) - 2
    if rank == 1:
        raise fail("Resize", f"sizes={resize.after} must be known of one axis")
    return (R.op.image.resize2d if rank == 2 else R.op.image.resize3d)(
        x,
        R.ShapeExpr(resize.after[2:]),
        layout="NCHW" if rank == 2 else "NCDHW",
        method="nearest_neighbor" if resize.method == "nearest" else resize.method,
        coordinate_transformation_mode=resize.mode,
        rounding_method=resize.rounding,
        cubic_alpha=resize.cubic,
        cubic_exclude=int(resize.inside),
    )
