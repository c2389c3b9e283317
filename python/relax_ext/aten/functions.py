# SPDX-License-Identifier: Apache-2.0
"""Functions of one element, activations and their limits.

Functions that kernels of convolutions can absorb (ReLU, SiLU, GELU, sigmoid, tanh, clips) stay one
operator.  Other functions of half precision are computed in float32, as PyTorch computes them.
PyTorch decomposes the backward operators of activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from topi_ext.compat import constant_value, relax

from ..ir import dtype_of
from .arithmetic import as_truth
from .calls import Call, Converter, number, wide

R = relax()

_ABSORBED = {
    "relu": R.op.nn.relu,
    "sigmoid": R.op.sigmoid,
    "tanh": R.op.tanh,
    "silu": R.op.nn.silu,
    "erf": R.op.erf,
}
_FLOAT = {
    name: getattr(R.op, name)
    for name in ("cos", "exp", "log", "rsqrt", "sin", "sqrt", "tan", "atan", "sinh", "cosh")
}
_EXACT = {
    "abs": R.op.abs,
    "ceil": R.op.ceil,
    "floor": R.op.floor,
    "neg": R.op.negative,
    "trunc": R.op.trunc,
}
_TESTS = {"isnan": R.op.isnan, "isinf": R.op.isinf}


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {
        **{f"{name}.default": partial(_absorbed, op) for name, op in _ABSORBED.items()},
        **{f"{name}.default": partial(_float, op) for name, op in _FLOAT.items()},
        **{f"{name}.default": partial(_exact, op) for name, op in _EXACT.items()},
        **{f"{name}.default": partial(_test, op) for name, op in _TESTS.items()},
        "reciprocal.default": partial(_float, lambda x: R.op.divide(R.const(1, dtype_of(x)), x)),
        "log2.default": partial(_float, lambda x: _log(x, 2)),
        "log10.default": partial(_float, lambda x: _log(x, 10)),
        "log1p.default": _log1p,
        "expm1.default": _expm1,
        "round.default": partial(_exact, R.op.round),
        "sign.default": _sign,
        "logical_not.default": _logical_not,
        "bitwise_not.default": _bitwise_not,
        "leaky_relu.default": _leaky_relu,
        "gelu.default": _gelu,
        "elu.default": _elu,
        "hardtanh.default": lambda call: limited(call, call["min_val"], call["max_val"]),
        **dict.fromkeys(("clamp.default", "clamp.Tensor"), _clamp),
        "hardswish.default": _hard_swish,
        "hardsigmoid.default": lambda call: _hard_sigmoid(
            call, call.tensor(call["self"], call.dtype())
        ),
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {
        "celu.default": lambda call: _exponential(call, call["alpha"], 1, 1 / call["alpha"]),
        **{f"clamp_{side}.default": _clamp for side in ("min", "max")},
    }


def _absorbed(op: Callable[[Any], Any], call: Call) -> Any:
    return call.emit(op(call.tensor(call["self"], call.dtype())))


def _float(op: Callable[[Any], Any], call: Call) -> Any:
    dtype = call.dtype()
    x = call.tensor(call["self"], wide(dtype))
    return call.cast(call.emit(op(x)), dtype)


def _log(x: Any, base: int) -> Any:
    return R.op.multiply(R.op.log(x), R.const(1 / math.log(base), dtype_of(x)))


def _log1p(call: Call) -> Any:
    """Return ``log(1 + x)`` that is exact near 0: ``log(u) x / (u - 1)`` of the rounded ``u``.

    Source: W. Kahan, *Branch cuts for complex elementary functions*, 1987, section 7.
    """
    dtype = call.dtype()
    x = call.tensor(call["self"], wide(dtype))
    one, large = (R.const(value, wide(dtype)) for value in (1, 1e8))
    u = call.emit(R.op.add(x, one))
    log = call.emit(R.op.log(u))
    ratio = call.emit(R.op.divide(x, call.emit(R.op.subtract(u, one))))
    is_plain = call.emit(R.op.greater(x, large))
    y = call.emit(R.op.where(is_plain, log, call.emit(R.op.multiply(log, ratio))))
    return call.cast(call.emit(R.op.where(call.emit(R.op.equal(u, one)), x, y)), dtype)


def _expm1(call: Call) -> Any:
    dtype = call.dtype()
    return call.cast(_exp_less_one(call, call.tensor(call["self"], wide(dtype))), dtype)


def _exp_less_one(call: Call, x: Any) -> Any:
    """Return ``exp(x) - 1`` that is exact near 0: ``(u - 1) x / log(u)`` of the rounded ``u``."""
    one, far = (R.const(value, dtype_of(x)) for value in (1, 0.5))
    u = call.emit(R.op.exp(x))
    difference = call.emit(R.op.subtract(u, one))
    ratio = call.emit(R.op.divide(x, call.emit(R.op.log(u))))
    is_plain = call.emit(R.op.greater(call.emit(R.op.abs(x)), far))
    near = call.emit(R.op.multiply(difference, ratio))
    y = call.emit(R.op.where(is_plain, difference, near))
    return call.emit(R.op.where(call.emit(R.op.equal(u, one)), x, y))


def _elu(call: Call) -> Any:
    return _exponential(call, *(float(call[name]) for name in ("alpha", "scale", "input_scale")))


def _exponential(call: Call, alpha: float, scale: float, input_scale: float) -> Any:
    """Return ``scale * x``, of negative numbers ``scale * alpha * (exp(input_scale * x) - 1)``."""
    dtype = call.dtype()
    x = call.tensor(call["self"], wide(dtype))

    def times(factor: float, operand: Any) -> Any:
        if factor == 1:
            return operand
        return call.emit(R.op.multiply(operand, R.const(factor, wide(dtype))))

    below = times(scale * alpha, _exp_less_one(call, times(input_scale, x)))
    is_above = call.emit(R.op.greater(x, R.const(0, wide(dtype))))
    return call.cast(call.emit(R.op.where(is_above, times(scale, x), below)), dtype)


def _exact(op: Callable[[Any], Any], call: Call) -> Any:
    if "int" in call.dtype() and op in (R.op.ceil, R.op.floor, R.op.trunc, R.op.round):
        return call["self"]
    if op is R.op.negative and call.dtype() == "uint8":
        return call.emit(R.op.subtract(R.const(0, "uint8"), call["self"]))  # TVM has no -x of it
    return call.emit(op(call["self"]))


def _test(op: Callable[[Any], Any], call: Call) -> Any:
    dtype = call.dtype("self")
    if "float" not in dtype:
        raise call.refusal(f"a test of {dtype}")
    return call.emit(op(call.tensor(call["self"], wide(dtype))))


def _sign(call: Call) -> Any:
    dtype = call.dtype()
    x, zero = call["self"], R.const(0, dtype)
    above, below = (call.cast(call.emit(op(x, zero)), "int8") for op in (R.op.greater, R.op.less))
    return call.cast(call.emit(R.op.subtract(above, below)), dtype)


def _logical_not(call: Call) -> Any:
    return call.emit(R.op.logical_not(as_truth(call, call["self"], call.dtype("self"))))


def _bitwise_not(call: Call) -> Any:
    op = R.op.logical_not if call.dtype() == "bool" else R.op.bitwise_not
    return call.emit(op(call["self"]))


def _leaky_relu(call: Call) -> Any:
    return call.emit(R.op.nn.leakyrelu(call["self"], float(call["negative_slope"])))


def _gelu(call: Call) -> Any:
    is_exact = call["approximate"] == "none"
    return call.emit((R.op.nn.gelu if is_exact else R.op.nn.gelu_tanh)(call["self"]))


def _clamp(call: Call) -> Any:
    return limited(call, call.get("min"), call.get("max"))


def limited(call: Call, low: Any, high: Any) -> Any:
    """Return the first operand between two bounds: numbers, tensors or None; NaN stays."""
    dtype = call.dtype()
    x = call.tensor(call["self"], dtype)
    are_numbers = all(bound is None or isinstance(bound, (int, float)) for bound in (low, high))
    if are_numbers and "float" in dtype:
        limits = (-math.inf if low is None else low, math.inf if high is None else high)
        if any(math.isnan(limit) for limit in limits):
            raise call.refusal("a bound that is NaN")
        if limits[0] > limits[1]:
            limits = (limits[1], limits[1])  # the upper bound counts
        return call.emit(R.op.clip(x, *limits))
    for bound, limit in ((low, R.op.maximum), (high, R.op.minimum)):
        if bound is not None:
            x = call.emit(limit(x, _bound(call, bound, dtype)))
    return x


def _bound(call: Call, bound: Any, dtype: str) -> Any:
    """Return a bound as a tensor; the end of an integer's range for a number beyond it."""
    if isinstance(bound, (int, float)) and "int" in dtype:
        if constant_value(number(bound, dtype)).numpy() != bound:
            call.leave(f"a bound {bound} beyond {dtype}")
        bound = min(max(bound, np.iinfo(dtype).min), np.iinfo(dtype).max)
    return call.tensor(bound, dtype)


def _hard_sigmoid(call: Call, x: Any) -> Any:
    """Return ``min(max(x + 3, 0), 6) / 6``."""
    dtype = dtype_of(x)
    x = call.cast(x, wide(dtype))
    limited = call.emit(R.op.clip(call.emit(R.op.add(x, R.const(3, wide(dtype)))), 0, 6))
    return call.cast(call.emit(R.op.divide(limited, R.const(6, wide(dtype)))), dtype)


def _hard_swish(call: Call) -> Any:
    """Return ``x * min(max(x + 3, 0), 6) / 6``."""
    dtype = call.dtype()
    x = call.tensor(call["self"], wide(dtype))
    limited = call.emit(R.op.clip(call.emit(R.op.add(x, R.const(3, wide(dtype)))), 0, 6))
    product = call.emit(R.op.multiply(x, limited))
    return call.cast(call.emit(R.op.divide(product, R.const(6, wide(dtype)))), dtype)
