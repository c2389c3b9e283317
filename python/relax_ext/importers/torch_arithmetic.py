# SPDX-License-Identifier: Apache-2.0
"""PyTorch: element-wise operators, products and statistics with all of their arguments.

For exported programs.  Each converter takes the place of one of TVM's that drops an argument
(``alpha`` of a sum, ``scale`` of ELU, a bound of ``clamp_max``), computes products of float64 in
float32, or fails where an argument is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from topi_ext.compat import dtype_name, known_shape, relax, type_of
from topi_ext.spec.geometry import fail

R = relax()

Emit = Callable[[Any], Any]

_SPREADS = ("correction", "default", "dim")
"""Overloads of variance and standard deviation."""


def converters() -> dict[str, Callable[[Emit, Any], Any]]:
    """Return ``convert(emit, arguments)`` by the name of an operator."""
    return {
        "elu.default": _elu,
        "celu.default": _celu,
        **{f"clamp{name}": _clamp for name in (".default", ".Tensor")},
        "clamp_min.default": lambda emit, a: _bounded(emit, a.self, a.min, None),
        "clamp_max.default": lambda emit, a: _bounded(emit, a.self, None, a.max),
        "mm.default": lambda emit, a: _product(emit, a.self, a.mat2),
        "bmm.default": lambda emit, a: _product(emit, a.self, a.mat2),
        "matmul.default": lambda emit, a: _product(emit, a.self, a.other),
        "addmm.default": lambda emit, a: _added_product(emit, a, a.mat1, a.mat2),
        "baddbmm.default": lambda emit, a: _added_product(emit, a, a.batch1, a.batch2),
        "linear.default": _linear,
        **{f"var.{form}": _variance for form in _SPREADS},
        **{f"std.{form}": _deviation for form in _SPREADS},
        **{f"var_mean.{form}": _variance_and_mean for form in _SPREADS},
        "isin.Tensor_Tensor": _is_in,
        **{f"any.{axes}": _any for axes in ("dim", "dims")},
    }


def dtype_of(x: Any) -> str:
    """Return the dtype of a tensor."""
    return dtype_name(type_of(x).dtype)


def as_dtype(emit: Emit, x: Any, dtype: str) -> Any:
    """Return a tensor in another dtype."""
    return x if dtype_of(x) == dtype else emit(R.op.astype(x, dtype))


def _elu(emit: Emit, a: Any) -> Any:
    return _exponential_unit(emit, a.self, a.alpha, a.scale, a.input_scale)


def _celu(emit: Emit, a: Any) -> Any:
    return _exponential_unit(emit, a.self, a.alpha, 1, 1 / a.alpha)


def _exponential_unit(emit: Emit, x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    """Return ``scale * x`` above zero, ``scale * alpha * (exp(input_scale * x) - 1)`` below."""
    number = partial(R.const, dtype=dtype_of(x))
    above = emit(R.op.nn.relu(x))
    below = emit(R.op.minimum(x, number(0)))
    if input_scale != 1:
        below = emit(R.op.multiply(below, number(input_scale)))
    below = emit(R.op.subtract(emit(R.op.exp(below)), number(1)))
    if scale != 1:
        above = emit(R.op.multiply(above, number(scale)))
    if scale * alpha != 1:
        below = emit(R.op.multiply(below, number(scale * alpha)))
    return emit(R.op.add(above, below))


def _clamp(emit: Emit, a: Any) -> Any:
    return _bounded(emit, a.self, a.min, a.max)


def _bounded(emit: Emit, x: Any, low: Any, high: Any) -> Any:
    """Return the values between two bounds: numbers, tensors, or None."""
    dtype = dtype_of(x)
    are_numbers = not any(isinstance(bound, R.Expr) for bound in (low, high))
    if are_numbers and "float" in dtype:
        high = math.inf if high is None else high
        low = -math.inf if low is None else min(low, high)  # the upper bound counts, TVM's lower
        return emit(R.op.clip(x, low, high))  # which kernels take in
    for bound, limit in ((low, R.op.maximum), (high, R.op.minimum)):
        if bound is not None:
            x = emit(limit(x, _bound(emit, bound, dtype)))
    return x


def _bound(emit: Emit, bound: Any, dtype: str) -> Any:
    """Return a bound as a tensor; the end of an integer's range for a number outside of it."""
    if isinstance(bound, R.Expr):
        return as_dtype(emit, bound, dtype)
    if "int" in dtype:
        bound = min(max(bound, np.iinfo(dtype).min), np.iinfo(dtype).max)
    return R.const(bound, dtype)


def _product(emit: Emit, x: Any, y: Any) -> Any:
    # Half precision is summed in float32 where it is lowered.
    return emit(R.op.matmul(x, y))


def _added_product(emit: Emit, a: Any, x: Any, y: Any) -> Any:
    """Return ``beta * self + alpha * x @ y``."""
    product = _product(emit, x, y)
    dtype = dtype_of(product)
    if a.alpha != 1:
        product = emit(R.op.multiply(product, R.const(a.alpha, dtype)))
    if a.beta == 0:
        return product  # even where self is NaN
    summand = as_dtype(emit, a.self, dtype)
    if a.beta != 1:
        summand = emit(R.op.multiply(summand, R.const(a.beta, dtype)))
    return emit(R.op.add(summand, product))


def _linear(emit: Emit, a: Any) -> Any:
    return emit(R.op.linear(a.input, a.weight, a.bias))


def _axes(dim: Any) -> list[int] | None:
    """Return axes as a list, None for all of them."""
    return [dim] if isinstance(dim, int) else dim or None


def _spread(a: Any) -> tuple[list[int] | None, bool, float]:
    """Return axes, whether they are kept, and what the number of elements is reduced by."""
    if not hasattr(a, "correction"):
        return _axes(getattr(a, "dim", None)), getattr(a, "keepdim", False), int(a.unbiased)
    return _axes(a.dim), a.keepdim, 1 if a.correction is None else a.correction


def _variance(emit: Emit, a: Any) -> Any:
    """Return the variance, divided by the number of elements less the correction."""
    axes, keeps, correction = _spread(a)
    variance = emit(R.op.variance(a.self, axes, keepdims=keeps))
    if not correction:
        return variance
    shape = known_shape(type_of(a.self).shape) or ()
    sizes = [shape[axis] for axis in (axes or range(len(shape)))]
    if not all(isinstance(size, int) for size in sizes):
        raise fail("var", f"correction={correction} needs sizes that are known at import")
    count, rest = math.prod(sizes), math.prod(sizes) - correction
    factor = count / rest if rest > 0 else math.inf
    return emit(R.op.multiply(variance, R.const(factor, dtype_of(variance))))


def _deviation(emit: Emit, a: Any) -> Any:
    return emit(R.op.sqrt(_variance(emit, a)))


def _variance_and_mean(emit: Emit, a: Any) -> Any:
    axes, keeps, _ = _spread(a)
    return emit(R.Tuple([_variance(emit, a), emit(R.op.mean(a.self, axes, keepdims=keeps))]))


def _is_in(emit: Emit, a: Any) -> Any:
    """Return which elements are among others, or which are not."""
    apart = emit(R.op.expand_dims(a.elements, -1))
    equal = emit(R.op.equal(apart, emit(R.op.reshape(a.test_elements, (-1,)))))
    count = emit(R.op.sum(emit(R.op.astype(equal, "int32")), -1))
    compare = R.op.equal if a.invert else R.op.greater
    return emit(compare(count, R.const(0, "int32")))


def _any(emit: Emit, a: Any) -> Any:
    """Return whether elements along axes are not all zero."""
    is_set = a.self
    if dtype_of(is_set) != "bool":
        is_set = emit(R.op.not_equal(is_set, R.const(0, dtype_of(is_set))))
    found = emit(R.op.max(emit(R.op.astype(is_set, "int8")), _axes(a.dim), keepdims=a.keepdim))
    return emit(R.op.astype(found, "bool"))
