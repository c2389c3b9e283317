# SPDX-License-Identifier: Apache-2.0
"""ONNX: weights of int4, uint4 and float8, scales of blocks, and nodes that TVM would misread.

Constants of four bits become int8 and uint8, and float8 becomes float32: both are exact.  Where a
constant is dequantized by scales of blocks, or is of float8, the importer computes the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from topi_ext.compat import constant_value, dtype_name, relax, type_of
from topi_ext.spec.geometry import fail

from .onnx_contrib import check_domain

R = relax()

NEEDS = {
    "ONNXGraphImporter.from_onnx": ("self", "graph", "opset"),
    "ONNXGraphImporter._parse_array": ("self", "tensor_proto"),
    "get_numpy": ("tensor_proto",),
}

_WIDE = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Return an importer that checks a graph first and widens its constants."""
    importer = vars(module.ONNXGraphImporter)
    from_onnx, parse_array = importer["from_onnx"], importer["_parse_array"]

    def checked(self: Any, graph: Any, opset: int) -> Any:
        _check(graph)
        return from_onnx(self, graph, opset)

    def widened(self: Any, tensor_proto: Any) -> Any:
        if not _is_narrow(tensor_proto.data_type):
            return parse_array(self, tensor_proto)
        from tvm import runtime

        values = np.asarray(module.get_numpy(tensor_proto))
        wide = values.astype(_WIDE.get(str(values.dtype), "float32"))
        return runtime.tensor(np.ascontiguousarray(wide.reshape(tuple(tensor_proto.dims))))

    return {
        "ONNXGraphImporter.from_onnx": checked,
        "ONNXGraphImporter._parse_array": widened,
    }


def converters(stock: Mapping[str, type]) -> dict[str, type]:
    """Converters that handle what TVM's do not, then call TVM's."""
    made = {}
    for op, convert in (
        ("DequantizeLinear", _dequantize),
        ("BatchNormalization", _batch_normalization),
    ):
        if op in stock:
            made[op] = _before(stock[op], convert)
    return made


def _before(stock: type, convert: Callable[..., Any]) -> type:
    """Return a converter class that calls ``convert(run, bb, inputs, attr, params)``."""

    def get_converter(cls: type, opset: int) -> Callable[..., Any]:
        del cls
        run = stock.get_converter(opset)  # type: ignore[attr-defined]
        return lambda *args: convert(run, *args)

    return type(stock.__name__, (stock,), {"get_converter": classmethod(get_converter)})


def _batch_normalization(
    run: Callable[..., Any], bb: Any, inputs: Any, attr: dict[str, Any], params: Any
) -> Any:
    """ONNX's momentum is the share of the running statistics, TVM's that of the batch."""
    attr = {**attr, "momentum": 1.0 - attr.get("momentum", 0.9)}
    return run(bb, inputs, attr, params)


def _dequantize(
    run: Callable[..., Any], bb: Any, inputs: Any, attr: dict[str, Any], params: Any
) -> Any:
    """Compute constants of float8, or with scales of blocks, at import."""
    x, scale, zero = (inputs[i] for i in range(3))
    block = int(attr.get("block_size", 0))
    is_float = dtype_name(type_of(x).dtype).startswith("float")
    if not block and not is_float:
        return run(bb, inputs, attr, params)
    data, factor, origin = (
        None if one is None else constant_value(one) for one in (x, scale, zero)
    )
    if data is None or factor is None or (zero is not None and origin is None):
        kind = f"block_size={block}" if block else "float8"
        raise fail("DequantizeLinear", f"{kind} needs constant operands")
    subtracted = None if origin is None else origin.numpy()
    axis = int(attr.get("axis", 1))
    return R.const(_real(data.numpy(), factor.numpy(), subtracted, axis, block))


def _real(
    x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, axis: int, block: int
) -> np.ndarray:
    """``(x - zero) * scale``, of one scale, one per place of an axis, or one per block of it."""

    def spread(values: np.ndarray) -> np.ndarray:
        if values.size == 1:
            return values.reshape(())
        if block:
            return np.repeat(values, block, axis=axis)
        return values.reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])

    spread_scale = spread(scale)
    if block and spread_scale.ndim:
        index = tuple(slice(size) for size in x.shape)  # the last block may be shorter
        spread_scale = spread_scale[index]
        zero = None if zero is None else np.repeat(zero, block, axis=axis)[index]
    elif zero is not None:
        zero = spread(zero)
    wide = x.astype("float32") - (0 if zero is None else zero.astype("float32"))
    return (wide * spread_scale.astype("float32")).astype(scale.dtype)


# ---------------------------------------------------------------- checks of a graph

_IGNORED: dict[str, dict[str, Any]] = {
    "IsInf": {"detect_negative": 1, "detect_positive": 1},
    "SpaceToDepth": {"mode": b"DCR"},
    "MaxPool": {"storage_order": 0},
}
"""Attributes that TVM's converters do not read, and the value that they assume."""


def _check(graph: Any) -> None:
    """Raise for nodes that would be converted as another operator."""
    from onnx import defs

    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        check_domain(node, defs.has)
        given = {attr.name: attr for attr in node.attribute}
        for name, assumed in _IGNORED.get(node.op_type, {}).items():
            if name in given and _value(given[name]) != assumed:
                value = _value(given[name])
                raise fail(node.op_type, f"{name}={value!r} is not supported by TVM's importer")
        if node.op_type == "QuantizeLinear":
            zero = node.input[2] if len(node.input) > 2 else ""
            stated = _value(given["output_dtype"]) if "output_dtype" in given else 0
            if _is_narrow(types.get(zero, 0)) or _is_narrow(stated):
                raise fail("QuantizeLinear", "the result must have 8 bits or more, and be integers")
        for attr in node.attribute:
            for inner in (attr.g, *attr.graphs):
                _check(inner)


def _is_narrow(data_type: int) -> bool:
    """Return whether elements are integers of less than 8 bits, or floats of 8 bits or less."""
    from onnx import TensorProto

    if not data_type:
        return False
    name = TensorProto.DataType.Name(data_type)
    return name in ("INT4", "UINT4", "INT2", "UINT2") or name.startswith(("FLOAT8", "FLOAT4"))


def _value(attribute: Any) -> Any:
    """Return the value of an attribute, of an integer, a string or integers."""
    return {2: attribute.i, 3: attribute.s}.get(attribute.type, tuple(attribute.ints))
