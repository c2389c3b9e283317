# SPDX-License-Identifier: Apache-2.0
"""Convolutions of integers of 8 bits in whole models, as ONNX, PyTorch and TFLite are imported.

Where both operands of a convolution of float32 are dequantized, the sums of ``scale_x * (x - x0) *
scale_w * (w - w0)`` are ``scale_x * scale_w`` times sums of integers, which are exact.  Where both
are differences of bytes and zero points in int16, those sums are the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from topi_ext import backend
from topi_ext.compat import call_attr, dtype_name, relax, tensor_type_of
from topi_ext.fusion.anchors import ConvAnchor
from topi_ext.fusion.post_ops import Step, is_normal, multiplied
from topi_ext.spec.conv import BYTE_RANGES
from topi_ext.spec.post_ops import PostOp

from ..ir import dtype_of
from ..op.attrs import Conv
from ..target import target_of
from .constants import DEQUANTIZE, along, call_of, value_of, viewed
from .match import Match
from .patterns import Lookup
from .views import PERMUTE, RESHAPES

R = relax()


class Bytes(NamedTuple):
    """An operand of a convolution: ``scale * (tensor - zero_point)``.

    Attributes
    ----------
    tensor : relax.Expr
        A tensor of int8 or uint8.
    dtype : str
    zero_point : int
    scale : numpy.ndarray or None
        Broadcasts against the tensor; None if the operand itself is an integer tensor.
    """

    tensor: Any
    dtype: str
    zero_point: int
    scale: np.ndarray | None


def of_bytes(match: Match, conv: Conv, lookup: Lookup) -> Match | None:
    """Read a convolution as one of bytes.

    Parameters
    ----------
    match : Match
        The convolution of whatever dtypes it has.
    conv : Conv
    lookup : Lookup

    Returns
    -------
    Match or None
        Its steps compute the call's result from the sums.  None for operands of other dtypes, for
        scales or zero points that are not constants, for several zero points or several scales of
        the data, for scales that differ within an output channel, and for zero points for which the
        target has no kernels.
    """
    data, weight = (operand_of(one, lookup) for one in match.inputs)
    if data is None or weight is None or (data.scale is None) != (weight.scale is None):
        return None
    zero_points = data.zero_point, weight.zero_point
    if data.scale is None and not any(zero_points):
        return None  # of bytes anyway
    if not backend.supports("conv", target_of(match.type), zero_points):
        return None
    steps: list[Step] = []
    dtype = conv.dtypes[conv.result]
    if data.scale is not None and weight.scale is not None:
        factor = _factor(conv, data.scale, weight.scale)
        if factor is None or dtype != "float32":
            return None
        steps = [(PostOp("cast"), None), multiplied(factor)]
    elif dtype != "int32":
        return None
    dtypes = data.dtype, weight.dtype, dtype
    base = replace(conv.problem, dtypes=dtypes, zero_points=zero_points)
    return Match(ConvAnchor(conv.op, base), (data.tensor, weight.tensor), match.type, steps)


def operand_of(expr: Any, lookup: Lookup) -> Bytes | None:
    """Return the value that an operand represents, looking through views of constants."""
    views = []
    call = call_of(expr, lookup)
    while call is not None and call.op.name in (*RESHAPES, PERMUTE):
        views.append(call)
        call = call_of(call.args[0], lookup)
    if call is not None and call.op.name == DEQUANTIZE:
        return _dequantized(call, views[::-1], lookup)
    if views:
        return _plain(expr)
    if call is not None and call.op.name == "relax.subtract":
        return _difference(call, lookup)
    return _plain(expr)


def _plain(expr: Any) -> Bytes | None:
    dtype = dtype_of(expr)
    return Bytes(expr, dtype, 0, None) if dtype in BYTE_RANGES else None


def _dequantized(call: Any, views: list[Any], lookup: Lookup) -> Bytes | None:
    tensor, *others = call.args
    found = tensor_type_of(tensor)
    scale, zero_point = (value_of(one, lookup) for one in others)
    if scale is None or zero_point is None or dtype_name(found.dtype) not in BYTE_RANGES:
        return None
    zero = _one_of(zero_point, dtype_name(found.dtype))
    if zero is None or found.ndim < 1 or dtype_of(call) != "float32":
        return None
    scale = along(scale, int(call_attr(call, "axis")), found.ndim).astype("float32")
    if not views:
        return Bytes(tensor, dtype_name(found.dtype), zero, scale)
    array = value_of(tensor, lookup)
    if array is None:
        return None
    scale = np.broadcast_to(scale, array.shape)
    for view in views:
        shaped, scales = viewed(array, view), viewed(scale, view)
        if shaped is None or scales is None:
            return None
        array, scale = shaped, scales
    return Bytes(R.const(np.ascontiguousarray(array)), str(array.dtype), zero, scale)


def _difference(call: Any, lookup: Lookup) -> Bytes | None:
    """Return an operand that is cast to int16 and has its zero point subtracted."""
    cast, zero_point = call_of(call.args[0], lookup), value_of(call.args[1], lookup)
    is_cast = cast is not None and cast.op.name == "relax.astype"
    if not is_cast or zero_point is None or dtype_of(call) != "int16":
        return None
    operand = _plain(cast.args[0])
    if operand is None:
        return None
    zero = _one_of(zero_point, operand.dtype)
    return None if zero is None else operand._replace(zero_point=zero)


def _one_of(values: np.ndarray, dtype: str) -> int | None:
    """Return the one zero point of a tensor of this dtype; None where there are several, or it is
    none.
    """
    if values.dtype.kind not in "iu" or values.size == 0 or np.any(values != values.flat[0]):
        return None
    zero, (low, high) = int(values.flat[0]), BYTE_RANGES[dtype]
    return zero if low <= zero <= high else None


def _factor(conv: Conv, data: np.ndarray, weight: np.ndarray) -> np.ndarray | None:
    """Return the factor of the sums: one number, or one for each channel of the result."""
    is_transposed = conv.kind == "conv_transpose"
    kept = conv.layouts["w"].order.index("I" if is_transposed else "O")
    return factor_of(data, weight, kept, conv.known_geometry.groups if is_transposed else 1)


def factor_of(data: np.ndarray, weight: np.ndarray, kept: int, times: int = 1) -> np.ndarray | None:
    """Return the factor of sums that vary along axis `kept` of the weight, repeated `times`."""
    if data.size != 1:
        return None
    if weight.size > 1:
        weight = np.moveaxis(weight, kept, 0)
        weight = weight.reshape(weight.shape[0], -1)
        if np.any(weight != weight[:, :1]):
            return None
        weight = np.tile(weight[:, 0], times)
    factor = data.astype("float64").reshape(-1) * weight.astype("float64").reshape(-1)
    return factor if is_normal(factor) else None


def stands_for(expr: Any, lookup: Lookup) -> tuple[Bytes, float] | None:
    """Return the bytes that the operand of a step is dequantized from, and their one scale; None
    for other operands.
    """
    call = call_of(expr, lookup)
    if call is None or call.op.name != DEQUANTIZE:
        return None
    found = _dequantized(call, [], lookup)
    if found is None or found.scale is None or found.scale.size != 1:
        return None
    return found, float(found.scale.reshape(()))
