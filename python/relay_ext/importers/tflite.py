# SPDX-License-Identifier: Apache-2.0
"""TFLite: the output size and the activation that TRANSPOSE_CONV states; and CONV_3D and
CONV_3D_TRANSPOSE, which TVM 0.17 does not offer."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import tvm

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
from topi_ext.compat import relay
from topi_ext.spec.geometry import fail

R = relay()

NEEDS = {
    **tflite_node.NEEDS,
    "OperatorConverter.__init__": ("self", "model", "subgraph", "exp_tab"),
    "OperatorConverter.convert_transpose_conv": ("self", "op"),
    "OperatorConverter.get_tensor_expr": ("self", "tensor", "is_sparse"),
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """TRANSPOSE_CONV by TVM's converter, its padding restated in the result; and two more rows in
    the table of converters."""
    stock = vars(module.OperatorConverter)
    return {
        "OperatorConverter.__init__": _with_three_axes(stock["__init__"]),
        "OperatorConverter.get_tensor_shape": with_stated_sizes(stock["get_tensor_shape"], _sizes),
        "OperatorConverter.convert_transpose_conv": _transpose_conv(
            stock["convert_transpose_conv"]
        ),
    }


def _transpose_conv(stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def convert(self: Any, op: Any) -> Any:
        from tflite.TransposeConvOptions import TransposeConvOptions

        options = filled(op, TransposeConvOptions())
        stated, weight, data = self.get_input_tensors(op)[:3]
        wanted = output_shape(self, op, stated, "TRANSPOSE_CONV")
        with shape_known(self, stated, wanted):
            result = stock(self, op)
        attributes = border(
            kernel_size=shape_of(self, weight)[1:3],  # OHWI
            size=shape_of(self, data)[1:-1],
            strides=(options.StrideH(), options.StrideW()),
            padding=options.Padding(),
            output_shape=wanted,
        )
        return activated(
            self, op, _restated(result, attributes), options, lambda one: one.data.numpy().item()
        )

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
    options = filled(op, Conv3DOptions())
    tensors = self.get_input_tensors(op)
    if any(tensor.qnn_params for tensor in tensors):
        raise fail(name, "quantized operands must be dequantized: LiteRT has it of floats only")
    data, weight = (tensors[2], tensors[1]) if is_transposed else (tensors[0], tensors[1])
    bias = tensors[3 if is_transposed else 2 :]
    shape = shape_of(self, weight)
    channels, inner = (shape[3], shape[4]) if is_transposed else (shape[4], shape[3])
    stated = {"output_shape": output_shape(self, op, tensors[0], name)} if is_transposed else {}
    sizes = shape_of(self, data)
    attributes = border(
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
        **attributes,
    )
    if bias and bias[0].tensor_idx >= 0:
        result = R.nn.bias_add(result, self.get_tensor_expr(bias[0]), axis=4)
    return self.convert_fused_activation_function(result, options.FusedActivationFunction())


def _sizes(converter: Any, expr: Any) -> list[Any]:
    del converter
    return [getattr(size, "value", size) for size in R.frontend.common.infer_shape(expr)]


def _restated(expr: Any, stated: dict[str, tuple[int, ...]]) -> Any:
    """Return an expression with another border of the convolution in it, which is the first operand
    of what TVM puts around: bias, quantization.
    """
    if expr.op.name not in ("nn.conv2d_transpose", "qnn.conv2d_transpose"):
        first = _restated(expr.args[0], stated)
        return R.Call(expr.op, [first, *expr.args[1:]], expr.attrs, expr.type_args)
    names = [str(field.name) for field in expr.attrs.list_field_info()]
    attrs = {name: expr.attrs[name] for name in names} | stated
    made = tvm.ir.make_node("relay.attrs.Conv2DTransposeAttrs", **attrs)
    return R.Call(expr.op, list(expr.args), made, expr.type_args)
