# SPDX-License-Identifier: Apache-2.0
"""PyTorch: quantized models of PT2E from torch.export.

Their convolutions are of float32 between ``quantized_decomposed.dequantize_*`` and
``quantize_*``, which TVM's importer does not have.  They become ``relax.dequantize`` and
``relax.quantize``, of which :mod:`relax_ext.pipeline` makes kernels of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from topi_ext.compat import known_shape, relax, type_of
from topi_ext.spec.geometry import fail

from .torch_arguments import torch_dtype_name
from .torch_arithmetic import Emit, as_dtype

R = relax()

_BYTES = ("int8", "uint8", "int16")


def converters() -> dict[str, Callable[[Emit, Any], Any]]:
    """Return ``convert(emit, arguments)`` by the name of an operator."""
    per_tensor = [f"per_tensor.{form}" for form in ("default", "tensor", "tensor2")]
    forms = [*per_tensor, "per_channel.default"]
    return {
        **{f"quantize_{form}": _quantized for form in forms},
        **{f"dequantize_{form}": _dequantized for form in forms},
    }


def _quantized(emit: Emit, a: Any) -> Any:
    dtype = _dtype("quantize", a, _BYTES)
    low, high = _number(a.quant_min), _number(a.quant_max)
    limits = np.iinfo(dtype)
    if low is None or high is None:
        raise fail("quantize", "quant_min and quant_max must be numbers")
    scale, zero_point = _parameters(emit, a, dtype)
    x = as_dtype(emit, a.input, "float32")
    quantized = emit(R.op.quantize(x, scale, zero_point, getattr(a, "axis", -1), dtype))
    if low <= limits.min and high >= limits.max:
        return quantized
    return emit(R.op.clip(quantized, max(low, limits.min), min(high, limits.max)))


def _dequantized(emit: Emit, a: Any) -> Any:
    """Return fractions; the limits that the call states as well do nothing to them."""
    dtype = _dtype("dequantize", a, (*_BYTES, "int32"))
    scale, zero_point = _parameters(emit, a, dtype)
    x = as_dtype(emit, a.input, dtype)
    fractions = emit(R.op.dequantize(x, scale, zero_point, getattr(a, "axis", -1)))
    stated = getattr(a, "out_dtype", None)
    return fractions if stated is None else as_dtype(emit, fractions, torch_dtype_name(stated))


def _dtype(operator: str, a: Any, known: tuple[str, ...]) -> str:
    """Return the dtype of the integers."""
    if torch_dtype_name(a.dtype) not in known:
        raise fail(operator, f"dtype={torch_dtype_name(a.dtype)} must be one of {', '.join(known)}")
    return torch_dtype_name(a.dtype)


def _parameters(emit: Emit, a: Any, dtype: str) -> tuple[Any, Any]:
    """Return scale and zero point, of all values or of each channel."""
    if hasattr(a, "axis"):
        zero_points = 0 if a.zero_points is None else a.zero_points
        return _tensor(emit, a.scales, "float32"), _tensor(emit, zero_points, dtype)
    return _scalar(emit, a.scale, "float32"), _scalar(emit, a.zero_point, dtype)


def _scalar(emit: Emit, value: Any, dtype: str) -> Any:
    tensor = _tensor(emit, value, dtype)
    return emit(R.op.reshape(tensor, ())) if len(known_shape(type_of(tensor).shape)) else tensor


def _tensor(emit: Emit, value: Any, dtype: str) -> Any:
    return as_dtype(emit, value, dtype) if isinstance(value, R.Expr) else R.const(value, dtype)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
