# SPDX-License-Identifier: Apache-2.0
"""Quantized models of PT2E.

Their convolutions are of float32 between ``quantized_decomposed.dequantize_*`` and
``quantize_*``, which TVM's importer does not have.  They become ``relax.dequantize`` and
``relax.quantize``, of which :mod:`relax_ext.pipeline` makes kernels of bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topi_ext.compat import relax

from ..ir import sizes_of
from .calls import Call, Converter, Refused, torch_dtype_name

R = relax()

_BYTES = ("int8", "uint8", "int16")


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    per_tensor = [f"per_tensor.{form}" for form in ("default", "tensor", "tensor2")]
    forms = [*per_tensor, "per_channel.default"]
    return {
        **{f"quantize_{form}": _quantized for form in forms},
        **{f"dequantize_{form}": _dequantized for form in forms},
    }


def _quantized(call: Call) -> Any:
    dtype = _dtype("quantize", call, _BYTES)
    low, high = _number(call["quant_min"]), _number(call["quant_max"])
    limits = np.iinfo(dtype)
    if low is None or high is None:
        raise Refused("quantize", "quant_min and quant_max must be numbers")
    scale, zero_point = _parameters(call, dtype)
    x = call.cast(call["input"], "float32")
    quantized = call.emit(R.op.quantize(x, scale, zero_point, call.get("axis", -1), dtype))
    if low <= limits.min and high >= limits.max:
        return quantized
    return call.emit(R.op.clip(quantized, max(low, limits.min), min(high, limits.max)))


def _dequantized(call: Call) -> Any:
    """Return fractions; the limits that the call states as well do nothing to them."""
    dtype = _dtype("dequantize", call, (*_BYTES, "int32"))
    scale, zero_point = _parameters(call, dtype)
    x = call.cast(call["input"], dtype)
    fractions = call.emit(R.op.dequantize(x, scale, zero_point, call.get("axis", -1)))
    stated = call.get("out_dtype")
    return fractions if stated is None else call.cast(fractions, torch_dtype_name(stated))


def _dtype(operator: str, call: Call, known: tuple[str, ...]) -> str:
    """Return the dtype of the integers."""
    dtype = torch_dtype_name(call["dtype"])
    if dtype not in known:
        raise Refused(operator, f"dtype={dtype} must be one of {', '.join(known)}")
    return dtype


def _parameters(call: Call, dtype: str) -> tuple[Any, Any]:
    """Return scale and zero point, of all values or of each channel."""
    if "axis" in call:
        zero_points = 0 if call["zero_points"] is None else call["zero_points"]
        return _tensor(call, call["scales"], "float32"), _tensor(call, zero_points, dtype)
    return _scalar(call, call["scale"], "float32"), _scalar(call, call["zero_point"], dtype)


def _scalar(call: Call, value: Any, dtype: str) -> Any:
    tensor = _tensor(call, value, dtype)
    return call.emit(R.op.reshape(tensor, ())) if len(sizes_of(tensor)) else tensor


def _tensor(call: Call, value: Any, dtype: str) -> Any:
    return call.cast(value, dtype) if isinstance(value, R.Expr) else R.const(value, dtype)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
