# SPDX-License-Identifier: Apache-2.0
"""Sums, means, variances, norms, extremes and softmax.

Half precision is reduced in float32 and rounded once.  As in PyTorch, an extreme is the first of
equal ones, and NaN counts as the largest and as the smallest number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from topi_ext.compat import relax

from ..ir import dtype_of, sizes_of
from .arithmetic import as_truth
from .calls import Call, Converter, torch_dtype_name, wide

R = relax()


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    softmaxes = {"_softmax": R.op.nn.softmax, "_log_softmax": R.op.nn.log_softmax}
    return {
        "sum.dim_IntList": _sum,
        "prod.default": _product,
        "prod.dim_int": _product,
        "mean.default": _mean,
        "mean.dim": _mean,
        "var.correction": _variance,
        "var_mean.correction": _variance_and_mean,
        "linalg_vector_norm.default": _norm,
        **{f"a{name}.default": partial(_extreme, op) for name, op in _EXTREMES.items()},
        **{f"{name}.default": partial(_extreme, op) for name, op in _EXTREMES.items()},
        **{f"{name}.dim": partial(_extreme_and_place, op) for name, op in _EXTREMES.items()},
        **{f"arg{name}.default": partial(_place, op) for name, op in _EXTREMES.items()},
        **{f"any.{form}": partial(_truths, R.op.max) for form in ("default", "dim", "dims")},
        **{f"{name}.default": partial(_softmax, op) for name, op in softmaxes.items()},
        "cumsum.default": partial(_cumulative, R.op.cumsum),
        "cumprod.default": partial(_cumulative, R.op.cumprod),
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {
        **{f"std.{form}": _deviation for form in ("correction", "default", "dim")},
        **{f"var.{form}": _variance for form in ("default", "dim")},
        **{f"var_mean.{form}": _variance_and_mean for form in ("default", "dim")},
        "isin.Tensor_Tensor": _is_in,
        "softmax.int": partial(_softmax, R.op.nn.softmax),
        "log_softmax.int": partial(_softmax, R.op.nn.log_softmax),
        "sum.default": _sum,
    }


_EXTREMES = {"max": R.op.max, "min": R.op.min}


def operand(call: Call) -> Any:
    """Return the tensor that a call reduces, with one axis if it has none."""
    x = call["self"]
    return x if sizes_of(x) else call.reshape(x, [1])


def axes_of(call: Call, x: Any) -> list[int]:
    """Return the axes that a call reduces; all axes if it states none."""
    rank = len(sizes_of(x))
    dim = call.get("dim", None)
    if dim is None or dim == []:
        return list(range(rank))
    return sorted({axis % rank for axis in ([dim] if isinstance(dim, int) else dim)})


def _keeps(call: Call) -> bool:
    return bool(call["keepdim"]) if "keepdim" in call else False


def count(call: Call, x: Any, axes: Sequence[int], dtype: str) -> Any:
    """Return the number of elements along axes, as a tensor without axes."""
    return call.tensor(prod(sizes_of(x)[axis] for axis in axes), dtype)


def _reduced(call: Call, reduce: Callable[..., Any]) -> Any:
    """Return a tensor reduced along the axes of a call, in float32 at least."""
    dtype = call.dtype()
    x = call.cast(operand(call), wide(dtype))
    result = call.emit(reduce(x, axes_of(call, x), keepdims=_keeps(call)))
    return call.cast(call.reshape(result, call.shape()), dtype)


def _sum(call: Call) -> Any:
    return _reduced(call, R.op.sum)


def _product(call: Call) -> Any:
    _not_empty(call, call["self"])
    return _reduced(call, R.op.prod)


def _mean(call: Call) -> Any:
    return _reduced(call, R.op.mean)


def _moments(call: Call) -> tuple[Any, Any, list[int]]:
    """Return variance and mean with all axes kept, in float32 at least, and the reduced axes."""
    x = operand(call)
    x = call.cast(x, wide(dtype_of(x)))
    dtype, axes = dtype_of(x), axes_of(call, x)
    correction = call["correction"] if "correction" in call else int(call["unbiased"])
    correction = 1 if correction is None else correction
    mean = call.emit(R.op.mean(x, axes, keepdims=True))
    deviation = call.emit(R.op.subtract(x, mean))
    squares = call.emit(
        R.op.sum(call.emit(R.op.multiply(deviation, deviation)), axes, keepdims=True)
    )
    divisor = call.emit(R.op.subtract(count(call, x, axes, dtype), R.const(correction, dtype)))
    divisor = call.emit(R.op.maximum(divisor, R.const(0, dtype)))
    return call.emit(R.op.divide(squares, divisor)), mean, axes


def _variance(call: Call) -> Any:
    variance, _, _ = _moments(call)
    return call.reshape(call.cast(variance, call.dtype()), call.shape())


def _deviation(call: Call) -> Any:
    variance, _, _ = _moments(call)
    return call.reshape(call.cast(call.emit(R.op.sqrt(variance)), call.dtype()), call.shape())


def _variance_and_mean(call: Call) -> Any:
    variance, mean, _ = _moments(call)
    return tuple(
        call.reshape(call.cast(tensor, torch_dtype_name(stated.dtype)), call.sizes(stated.shape))
        for tensor, stated in zip((variance, mean), call.value)
    )


def _is_in(call: Call) -> Any:
    """Return which elements are among others, or which are not."""
    apart = call.emit(R.op.expand_dims(call["elements"], -1))
    others = call.emit(R.op.reshape(call["test_elements"], (-1,)))
    equal = call.cast(call.emit(R.op.equal(apart, others)), "int32")
    compare = R.op.equal if call["invert"] else R.op.greater
    return call.emit(compare(call.emit(R.op.sum(equal, -1)), R.const(0, "int32")))


def _norm(call: Call) -> Any:
    """Return the root of the sum of powers, the extreme or the number of magnitudes."""
    order, dtype = call["ord"], call.dtype()
    x = call.cast(operand(call), wide(dtype))
    axes = axes_of(call, x)
    if order not in (1, 2, np.inf):
        call.leave(f"ord={order}")
    if order == 2:
        squares = call.emit(R.op.sum(call.emit(R.op.multiply(x, x)), axes))
        result = call.emit(R.op.sqrt(squares))
    elif abs(order) == np.inf:
        result = call.emit((R.op.max if order > 0 else R.op.min)(call.emit(R.op.abs(x)), axes))
    elif order == 0:
        result = call.emit(R.op.sum(call.cast(as_truth(call, x, dtype_of(x)), dtype_of(x)), axes))
    else:
        terms = call.emit(R.op.abs(x))
        if order != 1:
            terms = call.emit(R.op.power(terms, R.const(order, dtype_of(x))))
        result = call.emit(R.op.sum(terms, axes))
        if order != 1:
            result = call.emit(R.op.power(result, R.const(1 / order, dtype_of(x))))
    return call.cast(call.reshape(result, call.shape()), dtype)


def _not_empty(call: Call, x: Any) -> None:
    if 0 in sizes_of(x):
        raise call.refusal("no elements")


def _extreme(op: Callable[..., Any], call: Call) -> Any:
    x = operand(call)
    _not_empty(call, x)
    if dtype_of(x) == "bool":
        return _truths(op, call)
    extreme = call.emit(op(x, axes_of(call, x), keepdims=_keeps(call)))
    return call.reshape(extreme, call.shape())


def _extreme_and_place(op: Callable[..., Any], call: Call) -> Any:
    x = operand(call)
    _not_empty(call, x)
    if dtype_of(x) == "bool":
        raise call.refusal("of truth values")
    axes = axes_of(call, x)
    value = call.emit(op(x, axes, keepdims=True))
    place = first_place(call, x, value, axes[0]) if 1 in call.used else None
    shapes = [call.sizes(stated.shape) for stated in call.value]
    return call.reshape(value, shapes[0]), None if place is None else call.reshape(place, shapes[1])


def _place(op: Callable[..., Any], call: Call) -> Any:
    x = operand(call)
    _not_empty(call, x)
    if dtype_of(x) == "bool":
        raise call.refusal("of truth values")
    axis = call["dim"]
    if axis is None:
        (size,) = call.numbers([prod(sizes_of(x))])
        x, axis = call.reshape(x, [size]), 0
    axis %= len(sizes_of(x))
    value = call.emit(op(x, [axis], keepdims=True))
    return call.reshape(first_place(call, x, value, axis), call.shape())


def first_place(call: Call, x: Any, value: Any, axis: int) -> Any:
    """Return the first index along an axis where `x` has a value; NaN equals NaN."""
    (size,) = call.numbers([sizes_of(x)[axis]])
    is_there = call.emit(R.op.equal(x, value))
    if "float" in dtype_of(x):
        is_nan = call.emit(R.op.isnan(call.cast(x, wide(dtype_of(x)))))
        is_there = call.emit(R.op.logical_or(is_there, is_nan))
    shape = [1] * len(sizes_of(x))
    shape[axis] = size
    indices = R.const(np.arange(size, dtype="int64").reshape(shape), "int64")
    places = call.emit(R.op.where(is_there, indices, R.const(size - 1, "int64")))
    return call.emit(R.op.min(places, [axis], keepdims=True))


def _truths(op: Callable[..., Any], call: Call) -> Any:
    x = operand(call)
    _not_empty(call, x)
    truths = call.cast(as_truth(call, x, dtype_of(x)), "int8")
    found = call.emit(op(truths, axes_of(call, x), keepdims=_keeps(call)))
    result = call.reshape(found, call.shape())
    if call.dtype() == "bool":
        return call.emit(R.op.not_equal(result, R.const(0, "int8")))
    return call.cast(result, call.dtype())


def _softmax(op: Callable[..., Any], call: Call) -> Any:
    """Return a softmax or its logarithm; half precision may give a float32 result."""
    dtype, x = call.dtype(), operand(call)
    _not_empty(call, x)
    result = call.emit(op(call.cast(x, wide(dtype)), call["dim"]))
    return call.cast(call.reshape(result, call.shape()), dtype)


def _cumulative(op: Callable[..., Any], call: Call) -> Any:
    dtype, x = call.dtype(), call["self"]
    if not sizes_of(x) or 0 in sizes_of(x):  # TVM's scan of no elements ends the process
        return call.reshape(call.cast(x, dtype), call.shape())
    x = call.cast(x, wide(dtype))
    total = call.emit(op(x, call["dim"] % len(sizes_of(x)), dtype_of(x)))
    return call.cast(total, dtype)
