# SPDX-License-Identifier: Apache-2.0
"""Quantized models of PT2E.

Their convolutions are of float32 between ``quantized_decomposed.dequantize_*`` and
``quantize_*``, which TVM's importer does not have.  They become ``relax.dequantize`` and
``relax.quantize``, of which :mod:`relax_ext.pipeline` makes kernels of bytes.  So do torchao's
``quantize_affine`` and ``dequantize_affine`` of all of a tensor, or of each place of one axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from topi_ext.compat import constant_value, relax

from ..ir import sizes_of
from .calls import Call, Converter, Refused, torch_dtype_name

R = relax()

_BYTES = ("int8", "uint8", "int16")

ALL = -1
"""In the place of an axis: one scale serves all of a tensor."""


def converters() -> dict[str, Converter]:
    """Return the converters of this module."""
    per_tensor = [f"per_tensor.{form}" for form in ("default", "tensor", "tensor2")]
    forms = [*per_tensor, "per_channel.default"]
    return {
        **{f"quantize_{form}": _quantized for form in forms},
        **{f"dequantize_{form}": _dequantized for form in forms},
        "choose_qparams.tensor": partial(_chosen, is_symmetric=False),
        "choose_qparams_symmetric.tensor": partial(_chosen, is_symmetric=True),
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone; graphs have these operators decomposed."""
    return {
        "quantize_affine.default": _affine_quantized,
        "dequantize_affine.default": _affine_dequantized,
    }


def axis_of(sizes: Sequence[Any], block: Sequence[Any]) -> int | None:
    """Return the axis of which each place has a scale; `ALL` where one serves all of a tensor.

    Parameters
    ----------
    sizes : sequence
        Shape of the tensor.
    block : sequence
        Shape of what has one scale.

    Returns
    -------
    int or None
        None for other blocks.
    """
    pairs = enumerate(zip(sizes, block))
    others = [axis for axis, (size, part) in pairs if isinstance(size, int) and size != part]
    if len(others) > 1 or any(block[axis] != 1 for axis in others):
        return None
    return others[0] if others else ALL


def _quantized(call: Call) -> Any:
    return _to_integers(call, call["dtype"], _axis(call))


def _dequantized(call: Call) -> Any:
    """Return fractions; the limits that the call states as well do nothing to them."""
    return _to_fractions(call, call["dtype"], _axis(call), call.get("out_dtype"))


def _affine_quantized(call: Call) -> Any:
    return _to_integers(call, call["output_dtype"], _axis_of_block(call))


def _affine_dequantized(call: Call) -> Any:
    result = call["output_dtype"]
    if isinstance(result, int):  # the schema's number of its default, float32
        result = None
    return _to_fractions(call, call["input_dtype"], _axis_of_block(call), result)


def _axis(call: Call) -> int:
    return call["axis"] % len(call.shape("input")) if "axis" in call else ALL


def _axis_of_block(call: Call) -> int:
    block = call["block_size"]
    axis = axis_of(call.fake("input").shape, block)
    if axis is None:
        raise Refused(
            "quantize", f"block_size={list(block)} must be a tensor or a place of an axis"
        )
    return axis


def _to_integers(call: Call, stated: Any, axis: int) -> Any:
    dtype = _dtype("quantize", stated, _BYTES)
    limits = np.iinfo(dtype)
    low, high = (
        default if call[name] is None else _limit(call[name])
        for name, default in (("quant_min", limits.min), ("quant_max", limits.max))
    )
    scale, zero_point = _parameters(call, dtype, axis)
    x = call.cast(call["input"], "float32")
    quantized = call.emit(R.op.quantize(x, scale, zero_point, axis, dtype))
    if not isinstance(low, int) or not isinstance(high, int):
        least, most = (_tensor(call, one, dtype, ALL) for one in (low, high))
        return R.op.minimum(call.emit(R.op.maximum(quantized, least)), most)
    if low <= limits.min and high >= limits.max:
        return quantized
    return call.emit(R.op.clip(quantized, max(low, limits.min), min(high, limits.max)))


def _to_fractions(call: Call, stated: Any, axis: int, result: Any) -> Any:
    dtype = _dtype("dequantize", stated, (*_BYTES, "int32"))
    scale, zero_point = _parameters(call, dtype, axis)
    x = call.cast(call["input"], dtype)
    fractions = call.emit(R.op.dequantize(x, scale, zero_point, axis))
    return fractions if result is None else call.cast(fractions, torch_dtype_name(result))


def _chosen(call: Call, is_symmetric: bool) -> tuple[Any, Any]:
    """Return the scale and the zero point for the range of a tensor."""
    low, high = call["quant_min"], call["quant_max"]
    x, none = call.cast(call["input"], "float32"), R.const(0.0, "float32")
    if 0 in sizes_of(x):
        raise Refused("choose_qparams", "a tensor without elements has no range")
    least = call.emit(R.op.minimum(call.emit(R.op.min(x)), none))
    most = call.emit(R.op.maximum(call.emit(R.op.max(x)), none))
    if is_symmetric:
        span, steps = R.op.maximum(call.emit(R.op.negative(least)), most), (high - low) / 2
    else:
        span, steps = R.op.subtract(most, least), high - low
    scale = call.emit(R.op.divide(call.emit(span), R.const(steps, "float32")))
    scale = call.emit(R.op.maximum(scale, R.const(call["eps"], "float32")))
    if is_symmetric:
        is_unsigned = torch_dtype_name(call["dtype"]) == "uint8"
        zero_point = R.const(128 if is_unsigned else 0, "int64")
    else:
        shift = call.emit(R.op.round(call.emit(R.op.divide(least, scale))))
        shift = call.emit(R.op.subtract(R.const(low, "int64"), call.cast(shift, "int64")))
        zero_point = call.emit(R.op.clip(shift, low, high))
    return call.reshape(call.cast(scale, "float64"), [1]), call.reshape(zero_point, [1])


def _dtype(operator: str, stated: Any, known: tuple[str, ...]) -> str:
    """Return the dtype of the integers."""
    dtype = torch_dtype_name(stated)
    if dtype not in known:
        raise Refused(operator, f"dtype={dtype} must be one of {', '.join(known)}")
    return dtype


def _parameters(call: Call, dtype: str, axis: int) -> tuple[Any, Any]:
    """Return scale and zero point, of all values or of each place of an axis."""
    names = ("scales", "zero_points") if "scales" in call else ("scale", "zero_point")
    scale, zero_point = (call[name] for name in names)
    if zero_point is None:
        zero_point = 0
    return _tensor(call, scale, "float32", axis), _tensor(call, zero_point, dtype, axis)


def _tensor(call: Call, value: Any, dtype: str, axis: int) -> Any:
    """Return a parameter in a dtype, a tensor of one axis or of none."""
    if not isinstance(value, R.Expr):
        return R.const(value, dtype)
    shape = [] if axis == ALL else [prod(sizes_of(value), start=1)]
    known = constant_value(value)
    if known is not None:
        return R.const(known.numpy().astype(dtype).reshape(shape))
    return call.reshape(call.cast(value, dtype), shape)


def _limit(value: Any) -> Any:
    """Return a limit as a number, if it is known."""
    known = constant_value(value) if isinstance(value, R.Expr) else None
    return value if known is None else int(known.numpy().reshape(()))
