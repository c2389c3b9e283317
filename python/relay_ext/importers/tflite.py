# SPDX-License-Identifier: Apache-2.0
"""TFLite: the output size and the activation that TRANSPOSE_CONV states; and CONV_3D and
CONV_3D_TRANSPOSE, which TVM 0.17 does not offer."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import tvm

from topi_ext.compat import relay
from topi_ext.geometry import fail
from topi_ext.padding import read

R = relay()

_OPERATOR = ("self", "op")
NEEDS = {
    "OperatorConverter.__init__": ("self", "model", "subgraph", "exp_tab"),
    "OperatorConverter.convert_transpose_conv": _OPERATOR,
    "OperatorConverter.get_input_tensors": _OPERATOR,
    "OperatorConverter.get_output_tensors": _OPERATOR,
    "OperatorConverter.get_tensor_shape": ("self", "tensor_wrapper"),
    "OperatorConverter.get_tensor_value": ("self", "tensor_wrapper", "is_sparse"),
    "OperatorConverter.get_tensor_expr": ("self", "tensor", "is_sparse"),
    "OperatorConverter.has_expr": ("self", "input_tensor_idx"),
    "OperatorConverter.convert_fused_activation_function": (
        *("self", "in_expr", "fused_activation_fn"),
    ),
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """TRANSPOSE_CONV by TVM's converter, its padding restated in the result; and two more rows in
    the table of converters."""
    stock = vars(module.OperatorConverter)
    return {
        "OperatorConverter.__init__": _with_three_axes(stock["__init__"]),
        "OperatorConverter.convert_transpose_conv": _transpose_conv(
            stock["convert_transpose_conv"]
        ),
    }


def _transpose_conv(stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def convert(self: Any, op: Any) -> Any:
        from tflite.TransposeConvOptions import TransposeConvOptions

        options = _options(op, TransposeConvOptions())
        stated, weight, data = self.get_input_tensors(op)[:3]
        wanted = _output_shape(self, op, stated, "TRANSPOSE_CONV")
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
        border = _border(
            kernel_size=_ints(self, weight)[1:3],  # OHWI
            size=_ints(self, data)[1:-1],
            strides=(options.StrideH(), options.StrideW()),
            padding=options.Padding(),
            output_shape=wanted,
        )
        result = _restated(result, border)
        if self.get_output_tensors(op)[0].qnn_params:
            return result  # the range of its numbers is that of the activation
        if not hasattr(options, "FusedActivationFunction"):
            raise fail("TRANSPOSE_CONV", "needs the package tflite 2.18, which reads activations")
        return self.convert_fused_activation_function(result, options.FusedActivationFunction())

    return convert


def _with_three_axes(stock: Callable[..., None]) -> Callable[..., None]:
    def initialize(self: Any, model: Any, subgraph: Any, exp_tab: Any) -> None:
        stock(self, model, subgraph, exp_tab)
        self.convert_map.setdefault("CONV_3D", lambda op: _conv_3d(self, op))
        self.convert_map.setdefault(
            "CONV_3D_TRANSPOSE", lambda op: _conv_3d(self, op, is_transposed=True)
        )

    return initialize


def _conv_3d(self: Any, op: Any, is_transposed: bool = False) -> Any:
    """Convolution of NDHWC by DHWIO, or transposed by DHWOI, of real numbers, as LiteRT has it."""
    from tflite.Conv3DOptions import Conv3DOptions

    name = "CONV_3D_TRANSPOSE" if is_transposed else "CONV_3D"
    options = _options(op, Conv3DOptions())
    tensors = self.get_input_tensors(op)
    if any(tensor.qnn_params for tensor in tensors):
        raise fail(name, "quantized operands must be dequantized: LiteRT has it of floats only")
    data, weight = (tensors[2], tensors[1]) if is_transposed else (tensors[0], tensors[1])
    bias = tensors[3 if is_transposed else 2 :]
    shape = _ints(self, weight)
    channels, inner = (shape[3], shape[4]) if is_transposed else (shape[4], shape[3])
    stated = {"output_shape": _output_shape(self, op, tensors[0], name)} if is_transposed else {}
    sizes = _ints(self, data)
    border = _border(
        kernel_size=shape[:3],
        size=sizes[1:-1],
        strides=(options.StrideD(), options.StrideH(), options.StrideW()),
        dilations=(
            options.DilationDFactor(),
            options.DilationHFactor(),
            options.DilationWFactor(),
        ),
        padding=options.Padding(),
        **stated,
    )
    operator = R.nn.conv3d_transpose if is_transposed else R.nn.conv3d
    result = operator(
        self.get_tensor_expr(data),
        self.get_tensor_expr(weight),
        groups=sizes[-1] // inner,
        channels=channels,
        kernel_size=shape[:3],
        data_layout="NDHWC",
        kernel_layout="DHWOI" if is_transposed else "DHWIO",
        **border,
    )
    if bias and bias[0].tensor_idx >= 0:
        result = R.nn.bias_add(result, self.get_tensor_expr(bias[0]), axis=4)
    return self.convert_fused_activation_function(result, options.FusedActivationFunction())


def _options(op: Any, options: Any) -> Any:
    table = op.BuiltinOptions()
    options.Init(table.Bytes, table.Pos)
    return options


def _output_shape(self: Any, op: Any, stated: Any, name: str) -> list[int]:
    """The whole shape of the result; what the file says of it, where the graph computes it."""
    if not self.has_expr(stated.tensor_idx) and stated.buffer.DataLength():
        return [int(size) for size in self.get_tensor_value(stated)]
    result = self.get_output_tensors(op)[0]
    signature = result.tensor.ShapeSignatureAsNumpy()
    free = [] if isinstance(signature, int) else list(signature)[1:]
    if any(int(size) < 0 for size in free):
        shown = tuple(int(size) for size in free)
        raise fail(name, f"output shape {shown} must be known at import, but for the batch")
    return _ints(self, result)


def _ints(self: Any, tensor: Any) -> list[int]:
    return [int(size) for size in self.get_tensor_shape(tensor)]


def _border(padding: int, **stated: Any) -> dict[str, tuple[int, ...]]:
    """Strides, padding and dilation as Relay's operators take them; TFLite's padding is a number
    for TensorFlow's word."""
    from tflite.Padding import Padding

    op = "conv_transpose" if "output_shape" in stated else "conv"
    word = "SAME" if padding == Padding.SAME else "VALID"
    return read("tensorflow", op, padding=word, **stated).attributes


def _restated(expr: Any, border: dict[str, tuple[int, ...]]) -> Any:
    """An expression with another border of the convolution in it, which is the first operand of
    what TVM puts around: bias, quantization."""
    if expr.op.name not in ("nn.conv2d_transpose", "qnn.conv2d_transpose"):
        first = _restated(expr.args[0], border)
        return R.Call(expr.op, [first, *expr.args[1:]], expr.attrs, expr.type_args)
    names = [str(field.name) for field in expr.attrs.list_field_info()]
    attrs = {name: expr.attrs[name] for name in names} | border
    made = tvm.ir.make_node("relay.attrs.Conv2DTransposeAttrs", **attrs)
    return R.Call(expr.op, list(expr.args), made, expr.type_args)
