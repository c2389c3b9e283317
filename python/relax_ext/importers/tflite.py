# SPDX-License-Identifier: Apache-2.0
"""TFLite: the output size that a transposed convolution states, and its fused activation."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from topi_ext.compat import dtype_name, relax
from topi_ext.geometry import fail
from topi_ext.padding import Border, Call, Window

R = relax()

NEEDS = {
    "OperatorConverter.convert_transpose_conv": ("self", "op"),
    "OperatorConverter.convert_conv3d_transpose": ("self", "op"),
    "OperatorConverter.get_input_tensors": ("self", "op"),
    "OperatorConverter.get_output_tensors": ("self", "op"),
    "OperatorConverter.get_tensor_shape": ("self", "tensor_wrapper"),
    "OperatorConverter.get_tensor_value": ("self", "tensor_wrapper", "is_sparse"),
    "OperatorConverter.has_expr": ("self", "input_tensor_idx"),
    "OperatorConverter.convert_fused_activation_function": (
        *("self", "in_expr", "fused_activation_fn"),
    ),
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Converters that call TVM's and restate the padding of the convolution in its result."""
    stock = vars(module.OperatorConverter)
    return {
        "OperatorConverter.convert_transpose_conv": _two_dimensional(
            stock["convert_transpose_conv"]
        ),
        "OperatorConverter.convert_conv3d_transpose": _three_dimensional(
            stock["convert_conv3d_transpose"]
        ),
    }


def _two_dimensional(stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def convert(self: Any, op: Any) -> Any:
        from tflite.TransposeConvOptions import TransposeConvOptions

        options = _options(op, TransposeConvOptions())
        result = _resized(self, op, stock, options.Padding())
        if self.get_output_tensors(op)[0].qnn_params:
            return result  # the range of its numbers is that of the activation
        if not hasattr(options, "FusedActivationFunction"):
            raise fail("TRANSPOSE_CONV", "needs the package tflite 2.18, which reads activations")
        return self.convert_fused_activation_function(result, options.FusedActivationFunction())

    return convert


def _three_dimensional(stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def convert(self: Any, op: Any) -> Any:
        from tflite.Conv3DOptions import Conv3DOptions

        return _resized(self, op, stock, _options(op, Conv3DOptions()).Padding())

    return convert


def _options(op: Any, options: Any) -> Any:
    table = op.BuiltinOptions()
    options.Init(table.Bytes, table.Pos)
    return options


def _resized(self: Any, op: Any, stock: Callable[[Any, Any], Any], padding: int) -> Any:
    """What TVM makes of the node, of the size that the node states."""
    from tflite.Padding import Padding

    stated, weight, data = self.get_input_tensors(op)[:3]
    wanted = _output_shape(self, op, stated)
    rank = len(wanted) - 2
    sizes, shape = _ints(self, data)[1:-1], _ints(self, weight)
    kernel = shape[1:3] if rank == 2 else shape[:3]  # OHWI, DHWOI
    values = self.get_tensor_value

    def get_tensor_value(tensor: Any, is_sparse: bool = False) -> Any:
        is_shape = tensor.tensor_idx == stated.tensor_idx
        return np.array(wanted, "int32") if is_shape else values(tensor, is_sparse)

    # The graph may compute the shape, as Keras does for a free batch: TVM asks for its value.
    self.get_tensor_value = get_tensor_value
    try:
        result = stock(self, op)
    finally:
        del self.get_tensor_value
    return _restated(result, sizes, kernel, wanted[1:-1], padding == Padding.SAME)


def _output_shape(self: Any, op: Any, stated: Any) -> list[int]:
    if not self.has_expr(stated.tensor_idx) and stated.buffer.DataLength():
        return [int(size) for size in self.get_tensor_value(stated)]
    result = self.get_output_tensors(op)[0]
    wanted = _ints(self, result)
    signature = result.tensor.ShapeSignatureAsNumpy()
    free = [] if isinstance(signature, int) else list(signature)[1:]
    if any(int(size) < 0 for size in free):
        name = "TRANSPOSE_CONV" if len(wanted) == 4 else "CONV_3D_TRANSPOSE"
        raise fail(name, f"output shape {tuple(free)} must be known at import, but for the batch")
    return wanted


def _ints(self: Any, tensor: Any) -> list[int]:
    return [int(size) for size in self.get_tensor_shape(tensor)]


def _restated(
    expr: Any, sizes: list[int], kernel: list[int], wanted: list[int], is_same: bool
) -> Any:
    """An expression with other padding of the convolution in it, which is the first operand of
    what TVM puts around: bias, activation, quantization."""
    name = getattr(getattr(expr, "op", None), "name", "")
    if not name.startswith("relax.nn.conv"):
        if not getattr(expr, "args", None):
            raise fail("TRANSPOSE_CONV", "TVM's importer made no convolution of it")
        first = _restated(expr.args[0], sizes, kernel, wanted, is_same)
        return R.Call(expr.op, [first, *expr.args[1:]], expr.attrs)
    attrs = expr.attrs
    steps = (tuple(map(int, values)) for values in (attrs.strides, attrs.dilation))
    window = Window(tuple(kernel), *steps, transposed=True, op="TRANSPOSE_CONV")
    rule = "same_upper" if is_same else "valid"
    ends = Border(rule, output_size=tuple(wanted)).ends(window, sizes)
    return getattr(R.op.nn, name.rpartition(".")[2])(
        *expr.args,
        **Call(window, ends).attributes,
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_layout=attrs.out_layout,
        out_dtype=dtype_name(attrs.out_dtype) or None,
    )
