# SPDX-License-Identifier: Apache-2.0
"""ONNX: operators of ONNX Runtime (domain ``com.microsoft``) that its own tools write into models.

Its quantizer writes operators of integers around convolutions (``QuantFormat.QOperator``).  They
are imported as dequantize, the operator of ONNX, and quantize; the pipeline fuses these where a
convolution is near.  Its optimizer writes FusedConv for a convolution and the activation behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from topi_ext.adapters.onnx_activations import ACTIVATIONS
from topi_ext.compat import dtype_name, known_shape, relax, type_of
from topi_ext.spec.geometry import fail

R = relax()


class Node(NamedTuple):
    """A node that is converted.

    Attributes
    ----------
    op : str
    bb : relax.BlockBuilder
    inputs : sequence of relax.Expr or None
        None beyond the last one.
    attr : dict
    stock : callable
        ``stock(op, inputs, attr)``: what the importer makes of an operator of ONNX.
    """

    op: str
    bb: Any
    inputs: Any
    attr: dict[str, Any]
    stock: Callable[..., Any]


def converters(module: ModuleType) -> dict[str, type]:
    """Converter classes by operator."""
    base = module.OnnxOpConverter

    def make(op: str, convert: Callable[[Node], Any]) -> type:
        def get_converter(cls: type, opset: int) -> Callable[..., Any]:
            del cls

            def run(bb: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
                def stock(name: str, operands: Any, attributes: dict[str, Any]) -> Any:
                    # Of ONNX Runtime's softmax, the version of the operator that it stands for.
                    version = int(attributes.pop("opset", opset))
                    inner = module._get_convert_map()[name].get_converter(version)
                    return bb.normalize(inner(bb, type(inputs)(operands), attributes, params))

                return convert(Node(op, bb, inputs, attr, stock))

            return run

        return type(op, (base,), {"get_converter": classmethod(get_converter)})

    return {op: make(op, convert) for op, convert in _CONVERTERS.items()}


# ---------------------------------------------------------------- quantized operators


def _real(node: Node, first: int, axis: int = -1) -> Any:
    """Dequantize the operand at input number `first`, behind which its scale and zero point are.

    Several scales are those of the places along `axis`.
    """
    x, scale, zero = (node.inputs[first + i] for i in range(3))
    zero = R.const(0, dtype_name(type_of(x).dtype)) if zero is None else zero
    return node.bb.normalize(R.op.dequantize(x, scale, zero, axis=axis))


def _whole(node: Node, real: Any, first: int) -> Any:
    """Quantize the result by the scale and zero point from input number `first` on."""
    scale, zero = node.inputs[first], node.inputs[first + 1]
    dtype = dtype_name(type_of(node.inputs[0]).dtype if zero is None else type_of(zero).dtype)
    zero = R.const(0, dtype) if zero is None else zero
    return node.bb.normalize(R.op.quantize(real, scale, zero, axis=0, out_dtype=dtype))


def _of_one(name: str, node: Node) -> Any:
    """Convert (x, x_scale, x_zero, y_scale, y_zero)."""
    return _whole(node, node.stock(name, [_real(node, 0)], dict(node.attr)), 3)


def _of_two(name: str, node: Node) -> Any:
    """Convert (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)."""
    return _whole(node, node.stock(name, [_real(node, 0), _real(node, 3)], node.attr), 6)


def _pooling(name: str, node: Node) -> Any:
    """Convert a pooling, whose channels may come last."""
    attr = dict(node.attr)
    is_last = bool(attr.pop("channels_last", 0))
    x = _real(node, 0)
    rank = len(known_shape(type_of(x).shape))
    if is_last:
        x = node.bb.emit(R.op.permute_dims(x, [0, rank - 1, *range(1, rank - 1)]))
    y = node.stock(name, [x], attr)
    if is_last:
        y = node.bb.emit(R.op.permute_dims(y, [0, *range(2, rank), 1]))
    return _whole(node, y, 3)


def _concat(node: Node) -> Any:
    """Convert (y_scale, y_zero, then x, scale, zero of each operand)."""
    parts = [_real(node, first) for first in range(2, len(node.inputs), 3)]
    return _whole(node, node.stock("Concat", parts, node.attr), 0)


def _gemm(node: Node) -> Any:
    """Convert (a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero): c is an int32 whose
    scale is the product of both."""
    axis = 0 if node.attr.get("transB") else -1
    a, b, c = _real(node, 0), _real(node, 3, axis), node.inputs[6]
    operands = [a, b]
    if c is not None:
        factor = node.bb.normalize(R.op.multiply(node.inputs[1], node.inputs[4]))
        wide = node.bb.normalize(R.op.astype(c, "float32"))
        operands.append(node.bb.normalize(R.op.multiply(wide, factor)))
    y = node.stock("Gemm", operands, node.attr)
    return y if node.inputs[7] is None else _whole(node, y, 7)


# ---------------------------------------------------------------- convolution and activation


def _fused_conv(node: Node) -> Any:
    """Convert ``activation(conv(x, w, b) + z)``."""
    attr = dict(node.attr)
    name = attr.pop("activation", b"")
    name = name.decode() if isinstance(name, bytes) else name
    given = attr.pop("activation_params", ())
    y = node.stock("Conv", [node.inputs[i] for i in range(3)], attr)
    if node.inputs[3] is not None:
        y = node.bb.normalize(R.op.add(y, node.inputs[3]))
    if not name:
        return y
    if name not in ACTIVATIONS:
        raise fail("FusedConv", f"activation={name!r} must be one of {', '.join(ACTIVATIONS)}")
    activation = ACTIVATIONS[name]
    if len(given) not in (0, activation.parameters) or (name == "Clip" and not given):
        rule = f"must be {activation.parameters} numbers for {name}"
        raise fail("FusedConv", f"activation_params={list(given)} {rule}")
    return node.bb.normalize(activation.apply(_OPERATORS, y, *given))


_OPERATORS = SimpleNamespace(
    relu=lambda x: R.op.nn.relu(x),
    tanh=lambda x: R.op.tanh(x),
    sigmoid=lambda x: R.op.sigmoid(x),
    leaky_relu=lambda x, alpha: R.op.nn.leakyrelu(x, alpha),
    clip=lambda x, low, high: R.op.clip(x, low, high),
    add=lambda x, y: R.op.add(x, y),
    multiply=lambda x, y: R.op.multiply(x, y),
    number=lambda x, value: R.const(value, dtype_name(type_of(x).dtype)),
)

_CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "QLinearAdd": partial(_of_two, "Add"),
    "QLinearMul": partial(_of_two, "Mul"),
    "QLinearMatMul": partial(_of_two, "MatMul"),
    "QLinearSigmoid": partial(_of_one, "Sigmoid"),
    "QLinearLeakyRelu": partial(_of_one, "LeakyRelu"),
    "QLinearSoftmax": partial(_of_one, "Softmax"),
    "QLinearAveragePool": partial(_pooling, "AveragePool"),
    "QLinearGlobalAveragePool": partial(_pooling, "GlobalAveragePool"),
    "QLinearConcat": _concat,
    "QGemm": _gemm,
    "FusedConv": _fused_conv,
}

_OF_ONE_NAME = ("Attention",)
"""Operators of ONNX Runtime that TVM converts although ONNX has another one of that name."""

_RUNTIME = "com.microsoft"


def check_domain(node: Any, has_standard: Callable[[str], bool]) -> None:
    """Raise for a node that TVM would convert as an operator of another domain.

    Parameters
    ----------
    node : onnx.NodeProto
    has_standard : callable
        Whether ONNX itself has an operator of a name.
    """
    is_standard = node.domain in ("", "ai.onnx")
    if is_standard and node.op_type in _OF_ONE_NAME:
        raise fail(node.op_type, f"of domain {_RUNTIME} is supported, of ONNX itself is not")
    is_meant = node.op_type in (*_OF_ONE_NAME, "QuantizeLinear", "DequantizeLinear", "Gelu")
    is_ours = node.domain == _RUNTIME and (is_meant or node.op_type in _CONVERTERS)
    if not is_standard and has_standard(node.op_type) and not (is_ours or _is_conv(node)):
        raise fail(node.op_type, f"of domain {node.domain} is another operator than ONNX's")


def _is_conv(node: Any) -> bool:
    return node.domain == _RUNTIME and node.op_type == "QLinearConv"
