# SPDX-License-Identifier: Apache-2.0
"""Relay's ``qnn.conv2d_transpose`` with groups, scales per channel, zero points of one element.

Its own type relation takes the input channels of a grouped weight for output channels, and its
legalization adds a zero point of one element to every channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm

from topi_ext.compat import relay
from topi_ext.spec.geometry import fail

from .relation import relate

R = relay()

OP = "qnn.conv2d_transpose"
FLOAT = "nn.conv2d_transpose"
"""The operator of real numbers, which quantized graphs hold between dequantize and quantize."""

_OPERANDS = ("input_zero_point", "kernel_zero_point", "input_scale", "kernel_scale")


def rules() -> dict[tuple[str, str], Any]:
    """Return our attributes, by operator and key."""
    return {
        (OP, "FTVMQnnLegalize"): _legalized,
        (FLOAT, "FTVMFakeQuantizationToInteger"): _rewritten,
    }


def relate_quantized(
    stock: Callable[..., Any], types: Sequence[Any], _: int, attrs: Any, reporter: Any
) -> bool:
    """Type relation: that of the operator of integers, once scales and zero points fit.

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
    """Number of output channels: of each group as many as the weight states."""
    return int(weight[attrs.kernel_layout.index("O")]) * int(attrs.groups)


def _legalized(attrs: Any, inputs: Sequence[Any], types: Sequence[Any]) -> Any:
    """The operator of int16, zero points subtracted before."""
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
    """A scalar of one element, or the numbers of a group's channels for every group."""
    if _elements(vector) == 1:
        return _folded(R.reshape(vector, ()))
    return _folded(R.tile(vector, (groups,)))


def _elements(expr: Any) -> int:
    """Number of elements of a scalar or a vector."""
    return math.prod(map(int, R.frontend.common.infer_shape(expr)))


def _folded(expr: Any) -> Any:
    return R.transform.FoldConstantExpr(expr, tvm.IRModule())
