# SPDX-License-Identifier: Apache-2.0
"""ONNX's nodes by domain and by attributes that TVM's converters do not read.

TVM's importer reads the name of a node and ignores its domain.  ONNX Runtime writes nodes of the
domain ``com.microsoft`` into optimized models.  One that means something else than its name alone
is given a converter of its own, under the name ``com.microsoft.NAME``; a node of a domain that TVM
does not know is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from topi_ext.adapters.onnx_activations import ACTIVATIONS
from topi_ext.compat import relay
from topi_ext.spec.geometry import fail

from .normalization import dtype_of
from .resizing import onnx_converter

R = relay()

NEEDS = {
    "_get_convert_map": ("opset",),
    "GraphProto._construct_nodes": ("self", "graph"),
    "GraphProto._check_for_unsupported_ops": ("self", "graph"),
}

Convert = Callable[[Any, dict[str, Any], Any], Any]

_DOMAIN = "com.microsoft"
_STANDARD = ("", "ai.onnx")


def corrections(module: ModuleType) -> dict[str, Any]:
    """Return a table of converters with those of ``com.microsoft``, and a function that selects by
    domain.
    """
    table = module._get_convert_map
    construct = module.GraphProto._construct_nodes
    check = module.GraphProto._check_for_unsupported_ops

    def _get_convert_map(opset: int) -> dict[str, Any]:
        stock = table(opset)
        made = {name: make(module, stock) for name, make in _STANDARD_CONVERTERS.items()}
        made.update((f"{_DOMAIN}.{n}", make(module, stock)) for n, make in _CONVERTERS.items())
        return {**stock, **made}

    def _construct_nodes(self: Any, graph: Any) -> None:
        construct(self, _with_domains(graph, table(self.opset)))

    def _check_for_unsupported_ops(self: Any, graph: Any) -> None:
        check(self, _with_domains(graph, table(self.opset)))

    return {
        "_get_convert_map": _get_convert_map,
        "GraphProto._construct_nodes": _construct_nodes,
        "GraphProto._check_for_unsupported_ops": _check_for_unsupported_ops,
    }


def _with_domains(graph: Any, known: dict[str, Any]) -> Any:
    """Return the nodes of a graph, named by their domain where it has a converter for the name."""
    return SimpleNamespace(node=[_with_domain(node, known) for node in graph.node])


def _with_domain(node: Any, known: dict[str, Any]) -> Any:
    if node.domain in _STANDARD:
        return node
    if node.domain != _DOMAIN:
        if node.op_type in known:
            raise fail(node.op_type, f"domain={node.domain!r} must be '' or {_DOMAIN!r}")
        return node
    if node.op_type not in _CONVERTERS:
        return node
    named = type(node)()
    named.CopyFrom(node)
    named.op_type = f"{_DOMAIN}.{node.op_type}"
    return named


# ------------------------------------------------------------- a convolution and its activation


def _fused_conv(module: ModuleType, _: dict[str, Any]) -> Convert:
    """``activation(conv(x, w) + b + z)``."""

    def convert(inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        name = attr.pop("activation", b"").decode()
        numbers = attr.pop("activation_params", ())
        if name not in ACTIVATIONS:
            raise fail("FusedConv", f"activation={name!r} must be one of {', '.join(ACTIVATIONS)}")
        count, apply = ACTIVATIONS[name]
        if len(numbers) != count:
            raise fail("FusedConv", f"activation_params={list(numbers)} must be {count} of {name}")
        operands, added = list(inputs[:3]), inputs[3] if len(inputs) > 3 else None
        result = module.Conv._impl_v1(operands, attr, params)
        return apply(_OPERATORS, result if added is None else R.add(result, added), *numbers)

    return convert


_OPERATORS = SimpleNamespace(
    relu=R.nn.relu,
    tanh=R.tanh,
    sigmoid=R.sigmoid,
    leaky_relu=R.nn.leaky_relu,
    clip=R.clip,
    add=R.add,
    multiply=R.multiply,
    number=lambda x, value: R.const(value, dtype_of(x)),
)


# ------------------------------------------------------------------------- quantized operators


def _channels_last(name: str) -> Callable[[ModuleType, dict[str, Any]], Convert]:
    """Return a pooling that knows ``channels_last``, which TVM's ignores or refuses by a stack
    trace.
    """

    def make(_: ModuleType, stock: dict[str, Any]) -> Convert:
        def convert(inputs: Any, attr: dict[str, Any], params: Any) -> Any:
            inputs, attr = type(inputs)(inputs), dict(attr)
            if not attr.pop("channels_last", 0):
                return stock[name](inputs, attr, params)
            rank = len(R.frontend.common.infer_shape(inputs[0]))
            inputs[0] = R.transpose(inputs[0], (0, rank - 1, *range(1, rank - 1)))
            return R.transpose(stock[name](inputs, attr, params), (0, *range(2, rank), 1))

        return convert

    return make


def _with_defaults(name: str, **defaults: Any) -> Callable[[ModuleType, dict[str, Any]], Convert]:
    """Return a converter of TVM's with the attributes that ONNX Runtime assumes."""

    def make(_: ModuleType, stock: dict[str, Any]) -> Convert:
        return lambda inputs, attr, params: stock[name](inputs, {**defaults, **attr}, params)

    return make


def _qlinear_softmax(_: ModuleType, stock: dict[str, Any]) -> Convert:
    """Up to version 13 of Softmax, over all axes from `axis` on."""

    def convert(inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        inputs = type(inputs)(inputs)
        data, rank = inputs[0], len(R.frontend.common.infer_shape(inputs[0]))
        axis = attr.get("axis", -1) % rank
        flat = attr.get("opset", 13) < 13 and axis < rank - 1
        if flat:
            inputs[0] = R.reshape(data, (*(0,) * axis, -1))
        result = stock["QLinearSoftmax"](inputs, {**attr, "axis": axis}, params)
        return R.reshape_like(result, data) if flat else result

    return convert


# ----------------------------------------------------- attention, and what has no counterpart


def _attention(name: str) -> Callable[[ModuleType, dict[str, Any]], Convert]:
    """TVM's converters of attention ignore the factor of the scores, and what masks them."""

    def make(_: ModuleType, stock: dict[str, Any]) -> Convert:
        def convert(inputs: Any, attr: dict[str, Any], params: Any) -> Any:
            columns = int(R.frontend.common.infer_shape(inputs[1])[1])
            usual = (columns / 3 / attr["num_heads"]) ** -0.5
            for stated, default in (
                *(("scale", usual), ("mask_filter_value", -10000.0)),
                *(("do_rotary", 0), ("past_present_share_buffer", 0)),
            ):
                value = attr.get(stated, default)
                # A scale of 0 is the usual one.
                if not np.isclose(value, default) and (stated, value) != ("scale", 0):
                    raise fail(name, f"{stated}={value:g} must be {default:g}")
            return stock[name](inputs, {"unidirectional": 0, **attr}, params)

        return convert

    return make


def _refused(name: str) -> Callable[[ModuleType, dict[str, Any]], Convert]:
    def make(_: ModuleType, __: dict[str, Any]) -> Convert:
        def convert(*_: Any) -> Any:
            raise fail(name, f"domain={_DOMAIN!r} must be ''")

        return convert

    return make


_CONVERTERS: dict[str, Callable[[ModuleType, dict[str, Any]], Convert]] = {
    "FusedConv": _fused_conv,
    "QLinearAveragePool": _channels_last("QLinearAveragePool"),
    "QLinearGlobalAveragePool": _channels_last("QLinearGlobalAveragePool"),
    "QLinearLeakyRelu": _with_defaults("QLinearLeakyRelu", alpha=0.01),
    "QLinearSoftmax": _qlinear_softmax,
    "Attention": _attention("Attention"),
    "QAttention": _attention("QAttention"),
    "Unique": _refused("Unique"),  # in the order of the first occurrences
}
"""By the name of an operator in ``com.microsoft``."""


# ------------------------------------------------------------------------- standard operators


def _gelu(_: ModuleType, stock: dict[str, Any]) -> Convert:
    """ONNX's Gelu has a formula by tanh; TVM's converter is that of ``com.microsoft``."""

    def convert(inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        name = "FastGelu" if attr.get("approximate") == b"tanh" else "Gelu"
        kept = {key: value for key, value in attr.items() if key != "approximate"}
        return stock[name]([*inputs, None] if name == "FastGelu" else inputs, kept, params)

    return convert


def _dropout(_: ModuleType, stock: dict[str, Any]) -> Convert:
    """Return a dropout in training has random results; its ratio is an input since version 12."""

    def convert(inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
        ratio, training = (*inputs, None, None)[1:3]
        is_training = training is not None and not _is_zero(training)
        if is_training and (ratio is None or not _is_zero(ratio)):
            raise fail("Dropout", "training_mode must be false: the result is random")
        return stock["Dropout"]([inputs[0]], attr, params)

    return convert


def _quantization(name: str) -> Callable[[ModuleType, dict[str, Any]], Convert]:
    """Return a scale and zero point of one element are of the whole tensor, and the latter may be
    none.
    """

    def make(_: ModuleType, stock: dict[str, Any]) -> Convert:
        def convert(inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
            data, scale, zero = (*inputs, None)[:3]
            if zero is None:
                dtype = dtype_of(data) if name == "DequantizeLinear" else "uint8"
                zero = R.cast(R.zeros_like(scale), dtype)
            return stock[name]([data, _scalar(scale), _scalar(zero)], attr, params)

        return convert

    return make


def _scalar(vector: Any) -> Any:
    return R.reshape(vector, ()) if R.frontend.common.infer_shape(vector) == (1,) else vector


def _is_zero(expr: Any) -> bool:
    return isinstance(expr, R.Constant) and not expr.data.numpy().any()


_STANDARD_CONVERTERS: dict[str, Callable[[ModuleType, dict[str, Any]], Convert]] = {
    "Gelu": _gelu,
    "Dropout": _dropout,
    "Resize": onnx_converter("Resize"),
    "Upsample": onnx_converter("Upsample"),
    "QuantizeLinear": _quantization("QuantizeLinear"),
    "DequantizeLinear": _quantization("DequantizeLinear"),
}
