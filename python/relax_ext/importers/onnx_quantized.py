# SPDX-License-Identifier: Apache-2.0
"""ONNX: ConvInteger and QLinearConv, which TVM's importer does not have.

Both are a convolution of ``data - data_zero_point`` by ``weight - weight_zero_point`` in int32, so
that padding is by the zero point.  QLinearConv scales the result and narrows it again.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from topi_ext.compat import constant_value, dtype_name, known_shape, relax, type_of
from topi_ext.padding import read
from topi_ext.spec.geometry import fail

from . import onnx_contrib, onnx_narrow
from .onnx import check_bias

R = relax()

NEEDS = {
    "_get_convert_map": (),
    "OnnxOpConverter.get_converter": ("cls", "opset"),
    **onnx_narrow.NEEDS,
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Return a table of converters with more in it; one of TVM's own would stay."""
    stock = module._get_convert_map

    def get_convert_map() -> dict[str, Any]:
        found = stock()
        more = {**_converters(module.OnnxOpConverter), **onnx_contrib.converters(module)}
        return {**more, **found, **onnx_narrow.converters(found)}

    return {"_get_convert_map": get_convert_map, **onnx_narrow.corrections(module)}


def _converters(base: type) -> dict[str, type]:
    return {
        name: type(name, (base,), {"_impl_v10": classmethod(convert)})
        for name, convert in (("ConvInteger", _conv_integer), ("QLinearConv", _qlinear_conv))
    }


def _conv_integer(cls: type, bb: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
    del cls, params
    return _convolution(bb, "ConvInteger", inputs[0], inputs[2], inputs[1], inputs[3], attr)


def _qlinear_conv(cls: type, bb: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
    del cls, params
    data, data_scale, data_zero, weight, weight_scale, weight_zero, scale, zero, bias = (
        inputs[i] for i in range(9)
    )
    kernel = known_shape(type_of(weight).shape)
    check_bias("QLinearConv", bias, None if kernel is None else kernel[0])
    sums = _convolution(bb, "QLinearConv", data, data_zero, weight, weight_zero, attr)
    rank = len(kernel) - 2
    # Of ONNX Runtime's own operator, which its optimizer writes.
    is_last = bool(attr.get("channels_last", 0))
    per_channel = (1,) * (rank + 1) + (-1,) if is_last else (1, -1) + (1,) * rank
    if bias is not None:
        sums = bb.normalize(R.op.add(sums, R.op.reshape(bias, per_channel)))
    factor = bb.normalize(R.op.multiply(data_scale, weight_scale))
    factor = bb.normalize(R.op.reshape(factor, per_channel))
    real = bb.normalize(R.op.multiply(bb.normalize(R.op.astype(sums, "float32")), factor))
    out_dtype = dtype_name(type_of(zero).dtype)
    return bb.normalize(R.op.quantize(real, scale, zero, axis=1, out_dtype=out_dtype))


def _convolution(
    bb: Any, op: str, data: Any, data_zero: Any, weight: Any, weight_zero: Any, attr: dict[str, Any]
) -> Any:
    """Return the sums, in int32, in the layout of the data."""
    kernel, shape = (known_shape(type_of(operand).shape) for operand in (weight, data))
    if kernel is None or shape is None:
        raise fail(op, "the number of axes of both operands must be known at import")
    rank = len(kernel) - 2
    is_last = bool(attr.get("channels_last", 0))
    sizes = shape[1:-1] if is_last else shape[2:]
    names = ("auto_pad", "pads", "strides", "dilations")
    given = {name: attr[name] for name in names if name in attr}
    is_known = all(isinstance(size, int) for size in sizes)
    is_same = given.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER")
    if is_same and not is_known and max(given.get("strides", [1])) > 1:
        raise fail(op, f"auto_pad=SAME with strides={given['strides']} needs sizes known at import")
    size = sizes if is_known else None
    window = read("onnx", "conv", size=size, kernel_size=kernel[2:], **given).attributes
    data = _less(bb, data, data_zero, (1,) * (rank + 2))
    weight = _less(bb, weight, weight_zero, (-1,) + (1,) * (rank + 1))
    places = "DHW"[3 - rank :]
    layouts = {"data_layout": f"N{places}C", "kernel_layout": f"OI{places}"} if is_last else {}
    convolution = getattr(R.op.nn, f"conv{rank}d")
    groups = attr.get("group", 1)
    return bb.normalize(
        convolution(data, weight, groups=groups, out_dtype="int32", **layouts, **window)
    )


def _less(bb: Any, operand: Any, zero: Any, shape: tuple[int, ...]) -> Any:
    """Return an operand of bytes less its zero point, or itself where that is known to be 0."""
    value = None if zero is None else constant_value(zero)
    if zero is None or (value is not None and not np.any(value.numpy())):
        return operand
    # Differences of bytes need nine bits.
    wide, offset = (bb.normalize(R.op.astype(one, "int16")) for one in (operand, zero))
    return bb.normalize(R.op.subtract(wide, bb.normalize(R.op.reshape(offset, shape))))
