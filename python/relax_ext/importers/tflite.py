# SPDX-License-Identifier: Apache-2.0
"""TFLite: the output size that a transposed convolution states, and its fused activation.

Biases of int64, which belong to activations of int16, are dequantized by a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from topi_ext.adapters import tflite_node
from topi_ext.adapters.tflite_node import (
    activated,
    border,
    filled,
    output_shape,
    shape_known,
    shape_of,
    with_stated_sizes,
)
from topi_ext.compat import constant_value, dtype_name, known_shape, relax, type_of
from topi_ext.spec.geometry import fail

R = relax()

NEEDS = {
    **tflite_node.NEEDS,
    "OperatorConverter.convert_transpose_conv": ("self", "op"),
    "OperatorConverter.convert_conv3d_transpose": ("self", "op"),
    "OperatorConverter.dequantize": ("self", "expr", "tensor"),
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Converters that call TVM's and restate the padding of the convolution in its result."""
    stock = vars(module.OperatorConverter)
    return {
        "OperatorConverter.get_tensor_shape": with_stated_sizes(stock["get_tensor_shape"], _sizes),
        "OperatorConverter.convert_transpose_conv": _two_dimensional(
            stock["convert_transpose_conv"]
        ),
        "OperatorConverter.convert_conv3d_transpose": _three_dimensional(
            stock["convert_conv3d_transpose"]
        ),
        "OperatorConverter.dequantize": _dequantizing(stock["dequantize"]),
    }


def _dequantizing(stock: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    def dequantize(self: Any, expr: Any, tensor: Any) -> Any:
        expr = self.bb.normalize(expr)
        if dtype_name(type_of(expr).dtype) != "int64":
            return stock(self, expr, tensor)
        # TFLite: the scale of a bias is one number or one for each channel, its zero point is 0.
        return R.op.multiply(R.op.astype(expr, "float32"), tensor.qnn_params["scale"])

    return dequantize


def _two_dimensional(stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def convert(self: Any, op: Any) -> Any:
        from tflite.TransposeConvOptions import TransposeConvOptions

        options = filled(op, TransposeConvOptions())
        result = _resized(self, op, stock, options.Padding(), "TRANSPOSE_CONV")
        return activated(self, op, result, options, lambda one: constant_value(one).numpy().item())

    return convert


def _three_dimensional(stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def convert(self: Any, op: Any) -> Any:
        from tflite.Conv3DOptions import Conv3DOptions

        padding = filled(op, Conv3DOptions()).Padding()
        return _resized(self, op, stock, padding, "CONV_3D_TRANSPOSE")

    return convert


def _resized(self: Any, op: Any, stock: Callable[[Any, Any], Any], padding: int, name: str) -> Any:
    """Convert the node by TVM's converter with the size that the node states."""
    stated, weight, data = self.get_input_tensors(op)[:3]
    wanted = output_shape(self, op, stated, name)
    with shape_known(self, stated, wanted):
        result = stock(self, op)
    shape = shape_of(self, weight)
    kernel = shape[1:3] if len(shape) == 4 else shape[:3]  # OHWI, DHWOI
    sizes = shape_of(self, data)[1:-1]
    return _restated(
        result, name, kernel_size=kernel, size=sizes, padding=padding, output_shape=wanted
    )


def _sizes(converter: Any, expr: Any) -> Sequence[Any]:
    return known_shape(type_of(converter.bb.normalize(expr)).shape) or ()


def _restated(expr: Any, name: str, **stated: Any) -> Any:
    """Return an expression with another border of the convolution in it, which is the first operand
    of what TVM puts around: bias, activation, quantization.
    """
    op = getattr(getattr(expr, "op", None), "name", "")
    if not op.startswith("relax.nn.conv"):
        if not getattr(expr, "args", None):
            raise fail(name, "TVM's importer made no convolution of it")
        first = _restated(expr.args[0], name, **stated)
        return R.Call(expr.op, [first, *expr.args[1:]], expr.attrs)
    attrs = expr.attrs
    stated |= {
        "strides": list(map(int, attrs.strides)),
        "dilations": list(map(int, attrs.dilation)),
    }
    return getattr(R.op.nn, op.rpartition(".")[2])(
        *expr.args,
        **border(**stated),
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_layout=attrs.out_layout,
        out_dtype=dtype_name(attrs.out_dtype) or None,
    )
