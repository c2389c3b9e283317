# SPDX-License-Identifier: Apache-2.0
"""Relay's quantized convolutions.

``qnn.conv2d`` and ``qnn.conv2d_transpose`` of a constant weight and constant zero points become a
convolution whose kernel subtracts the zero points.  Bias, requantize and activation behind it are
post-ops of that kernel, as TVM lowers them for x86: in float32, rounded down after adding a half.

``qnn.conv2d_transpose`` also takes groups, scales per channel and zero points of one element.  Its
own type relation takes the input channels of a grouped weight for output channels, and its
legalization adds a zero point of one element to every channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm

from topi_ext import backend
from topi_ext.compat import relay
from topi_ext.spec.conv import BYTE_RANGES
from topi_ext.spec.geometry import fail

from .attrs import KIND, read
from .packing import packed_call
from .relation import Operand, relate
from .strategy import is_left_to_stock

R = relay()

CONV = "qnn.conv2d"
OP = "qnn.conv2d_transpose"
FLOAT = "nn.conv2d_transpose"
"""The operator of real numbers, which quantized graphs hold between dequantize and quantize."""

_OPERANDS = ("input_zero_point", "kernel_zero_point", "input_scale", "kernel_scale")


LEGALIZE = "FTVMQnnLegalize"


def rules(stock: Callable[..., Any]) -> dict[tuple[str, str], Any]:
    """Return our attributes, by operator and key.

    Parameters
    ----------
    stock : callable
        TVM's legalization of `CONV`.
    """
    return {
        (CONV, LEGALIZE): lambda *call: _of_bytes("nn.conv2d", *call) or stock(*call),
        (OP, LEGALIZE): lambda *call: _of_bytes(FLOAT, *call) or _legalized(*call),
        (FLOAT, "FTVMFakeQuantizationToInteger"): _rewritten,
    }


def _of_bytes(op: str, attrs: Any, inputs: Sequence[Any], types: Sequence[Any]) -> Any:
    """Return a call whose kernel subtracts the zero points; None where the target has no such
    kernel, or what it needs is not constant."""
    target = tvm.target.Target.current(allow_none=True)
    zeros = [_only_number(expr) for expr in inputs[2:4]]
    for zero, operand in zip(zeros, types):
        low, high = BYTE_RANGES.get(operand.dtype, (0, 0))
        if zero is None or operand.dtype not in ("int8", "uint8") or not low <= zero <= high:
            return None
    zero_points = int(zeros[0] or 0), int(zeros[1] or 0)
    if attrs.out_dtype != "int32" or not backend.supports(KIND[op], target, zero_points):
        return None
    conv = read(op, attrs, [Operand.of(one) for one in types[:2]])
    if conv is None:
        return None
    # With several taps ours was 1.5 to 4 times as fast on images of 7 x 7 to 28 x 28.
    is_dense = conv.geometry.taps > 1 and conv.geometry.groups == 1
    if not is_dense and is_left_to_stock(conv, attrs, target):
        return None
    return packed_call(op, attrs, inputs, types, zero_points)


def _only_number(expr: Any) -> int | None:
    """Return the number of which all elements of a constant are, or None."""
    values = expr.data.numpy() if isinstance(expr, R.Constant) else np.empty(0)
    is_one = values.size > 0 and bool(np.all(values == values.flat[0]))
    return int(values.flat[0]) if is_one else None


def relate_quantized(
    stock: Callable[..., Any], types: Sequence[Any], _: int, attrs: Any, reporter: Any
) -> bool:
    """Return the type relation: that of the operator of integers, once scales and zero points fit.

    Parameters
    ----------
    stock : callable
        TVM's relation of `FLOAT`.
    """
    data, weight, *quantization, result = types
    if any(isinstance(found, R.ty.IncompleteType) for found in (data, weight, *quantization[:3])):
        return False
    channels = _channels(attrs, weight.shape)
    if isinstance(quantization[3], R.ty.IncompleteType):
        vector = R.TensorType([channels], "float32")
        tvm.get_global_func("tvm.relay.type_relation.Identity")(
            [vector, quantization[3]], 1, None, reporter
        )
        quantization[3] = vector
    for name, found in zip(_OPERANDS, quantization):
        allowed = (1, channels) if name.startswith("kernel") else (1,)
        shape = [int(size) for size in found.shape]
        if len(shape) > 1 or (shape or [1])[0] not in allowed:
            rule = " or ".join(map(str, allowed))
            raise fail(OP, f"{name} of shape {shape} must have {rule} elements")
    return relate(FLOAT, stock, (data, weight, result), 2, attrs, reporter)


def _channels(attrs: Any, weight: Sequence[Any]) -> int:
    """Return the number of output channels: of each group as many as the weight states."""
    return int(weight[attrs.kernel_layout.index("O")]) * int(attrs.groups)


def _legalized(attrs: Any, inputs: Sequence[Any], types: Sequence[Any]) -> Any:
    """Return the operator of int16, zero points subtracted before."""
    data, weight, data_zero, weight_zero = inputs[:4]
    shape = [int(size) for size in types[1].shape]

    def wide(expr: Any) -> Any:
        return R.cast(expr, "int16")

    shifted = R.subtract(wide(data), R.reshape(wide(data_zero), ()))
    zero = R.reshape(wide(weight_zero), ())
    if len(types[3].shape) and int(types[3].shape[0]) > 1:
        zero = _per_channel(wide(weight_zero), attrs, shape)
    return R.nn.conv2d_transpose(shifted, R.subtract(wide(weight), zero), **attrs)


def _per_channel(vector: Any, attrs: Any, weight: Sequence[int]) -> Any:
    """One number per output channel of all groups, in the shape of the weight."""
    layout, groups = attrs.kernel_layout, int(attrs.groups)
    inputs, outputs = weight[layout.index("I")], weight[layout.index("O")]
    table = R.repeat(R.reshape(vector, (groups, outputs)), inputs // groups, axis=0)
    if layout.index("O") < layout.index("I"):
        table = R.transpose(table, (1, 0))
    sizes = [size if letter in "IO" else 1 for letter, size in zip(layout, weight)]
    return R.reshape(table, sizes)


# --------------------------------------------------- between dequantize and quantize, of any graph


def _rewritten(expr: Any, type_map: Any) -> Any:
    """`FLOAT` as `OP`: a weight has one scale per output channel of a group, the result of all."""
    data, weight = expr.args
    attrs = {**expr.attrs}
    attrs.pop("out_dtype")
    x, w = type_map[data], type_map[weight]
    groups, axis = int(attrs["groups"]), attrs["kernel_layout"].index("O")
    scale, zero = _one_or_all(w.scale, groups), _one_or_all(w.zero_point, groups)
    data_scale, data_zero = _one_or_all(x.scale, 1), _one_or_all(x.zero_point, 1)
    if _elements(scale) > 1 and w.axis % 4 != axis:
        raise fail(FLOAT, f"the weight's scales of axis {w.axis} must be of its axis {axis}")
    out = R.qnn.op.conv2d_transpose(data, weight, data_zero, zero, data_scale, scale, **attrs)
    made = _folded(R.multiply(data_scale, scale))
    zeros = _folded(R.cast(R.zeros_like(made), "int32"))
    layout = attrs["out_layout"] or attrs["data_layout"]
    affine = tvm.ir.TensorAffineType(made, zeros, out.attrs.out_dtype, layout.index("C"))
    return [out, affine]


def _one_or_all(vector: Any, groups: int) -> Any:
    """Return a scalar of one element, or the numbers of a group's channels for every group."""
    if _elements(vector) == 1:
        return _folded(R.reshape(vector, ()))
    return _folded(R.tile(vector, (groups,)))


def _elements(expr: Any) -> int:
    """Return the number of elements of a scalar or a vector."""
    return math.prod(map(int, R.frontend.common.infer_shape(expr)))


def _folded(expr: Any) -> Any:
    return R.transform.FoldConstantExpr(expr, tvm.IRModule())
