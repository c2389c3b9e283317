# SPDX-License-Identifier: Apache-2.0
"""Gradients of element-wise arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from topi_ext.compat import constant_value, relax
from topi_ext.spec.geometry import fail

from ..ir import dtype_of
from .parts import Rule, const, fitted, in_float32, number, op_name

R = relax()
op = R.op

_PRODUCTS = (2.0, 3.0, 4.0)
"""Exponents whose slope is written as products, which are vector code and exact."""


def power(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``x ** p``: ``p x^(p - 1)``, and ``y log(x)`` where p is no constant.

    As in PyTorch, the gradient of x is 0 where p is 0, that of p is 0 where x is 0 and p is not
    negative.
    """
    x, exponent = call.args
    p = number(exponent)
    if p is not None:
        return [fitted(_power_of_constant(y, x, p, dy), x, bb), None]
    zero = const(0.0, x)
    slope = op.multiply(exponent, op.power(x, op.subtract(exponent, const(1.0, x))))
    slope = op.where(op.equal(exponent, zero), zero, slope)
    dx = fitted(op.multiply(dy, slope), x, bb)
    if constant_value(exponent) is not None:
        return [dx, None]
    is_flat = op.logical_and(op.equal(x, zero), op.greater_equal(exponent, zero))
    # The logarithm of 1 where the result is left out: that of 0 would make second orders NaN.
    base = op.where(is_flat, const(1.0, x), x)
    slope = op.where(is_flat, zero, op.multiply(y, op.log(base)))
    return [dx, fitted(op.multiply(dy, slope), exponent, bb)]


def _power_of_constant(y: Any, x: Any, p: float, dy: Any) -> Any:
    if p == 0:
        return op.multiply(dy, const(0.0, x))
    if p == 1:
        return dy
    if p in _PRODUCTS:
        slope = op.multiply(x, const(p, x))
        for _ in range(int(p) - 2):
            slope = op.multiply(slope, x)
    elif p == 0.5:
        slope = op.divide(const(0.5, x), y)
    else:
        slope = op.multiply(op.power(x, const(p - 1, x)), const(p, x))
    return op.multiply(dy, slope)


def clip(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate by where x is between the limits, the limits included, as PyTorch does."""
    x = call.args[0]
    low, high = map(number, call.args[1:])
    if low is None or high is None:
        raise fail(op_name(call), "the limits must be numbers to have a gradient")
    zero = const(0.0, x)
    if low > -math.inf:
        dy = op.where(op.greater_equal(x, const(low, x)), dy, zero)
    if high < math.inf:
        dy = op.where(op.less_equal(x, const(high, x)), dy, zero)
    return [dy, None, None]


def extremum(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate maximum or minimum of two: the gradient is halved where they are equal."""
    first, second = call.args
    compare = op.greater if op_name(call) == "maximum" else op.less
    zero, half = const(0.0, first), op.multiply(dy, const(0.5, dy))

    def part(own: Any, other: Any) -> Any:
        otherwise = op.where(op.equal(own, other), half, zero)
        return fitted(op.where(compare(own, other), dy, otherwise), own, bb)

    return [part(first, second), part(second, first)]


def remainder(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``x - y round(x / y)`` with the operator's rounding: floor, or towards 0."""
    x, divisor = call.args
    rounded = op.floor if op_name(call) == "floor_mod" else op.trunc
    quotient = rounded(op.divide(x, divisor))
    return [
        fitted(dy, x, bb),
        fitted(op.negative(op.multiply(dy, quotient)), divisor, bb),
    ]


def atan2(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate the angle of ``(x, y)`` by ``x / (x^2 + y^2)`` and ``-y / (x^2 + y^2)``."""
    ordinate, abscissa = call.args
    square = op.add(op.multiply(ordinate, ordinate), op.multiply(abscissa, abscissa))
    scaled = bb.emit(op.divide(dy, square))
    return [
        fitted(op.multiply(scaled, abscissa), ordinate, bb),
        fitted(op.negative(op.multiply(scaled, ordinate)), abscissa, bb),
    ]


def log_add_exp(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``log(exp(x) + exp(y))`` by the logistic function of the difference."""
    first, second = call.args
    return [
        fitted(op.multiply(dy, op.sigmoid(op.subtract(own, other))), own, bb)
        for own, other in ((first, second), (second, first))
    ]


def where(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a choice; operands may be broadcast, which TVM's own rule does not sum."""
    condition, chosen, other = call.args
    zero = const(0.0, dy)
    return [
        None,
        fitted(op.where(condition, dy, zero), chosen, bb),
        fitted(op.where(condition, zero, dy), other, bb),
    ]


def astype(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a conversion between floats; TVM's own rule makes gradients of integers."""
    return [op.astype(dy, dtype_of(call.args[0]))]


def _slope(slope: Callable[[Any, Any], Any]) -> Rule:
    """Return the rule of a function of one variable by its slope, a function of x and y."""

    def rule(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
        return [op.multiply(dy, slope(call.args[0], y))]

    return in_float32(rule)


def _one_plus(x: Any, sign: float = 1.0) -> Any:
    """Return ``1 + sign x^2``."""
    return op.add(op.multiply(op.multiply(x, x), const(sign, x)), const(1.0, x))


def _reciprocal(expr: Any, like: Any) -> Any:
    return op.divide(const(1.0, like), expr)


def _erf(x: Any, _: Any) -> Any:
    bell = op.exp(op.negative(op.multiply(x, x)))
    return op.multiply(bell, const(2 / math.sqrt(math.pi), x))


_SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "abs": lambda x, _: op.sign(x),
    "acos": lambda x, _: op.negative(_reciprocal(op.sqrt(_one_plus(x, -1.0)), x)),
    "acosh": lambda x, _: _reciprocal(op.sqrt(op.subtract(op.multiply(x, x), const(1.0, x))), x),
    "asin": lambda x, _: _reciprocal(op.sqrt(_one_plus(x, -1.0)), x),
    "asinh": lambda x, _: _reciprocal(op.sqrt(_one_plus(x)), x),
    "atan": lambda x, _: _reciprocal(_one_plus(x), x),
    "atanh": lambda x, _: _reciprocal(_one_plus(x, -1.0), x),
    "cosh": lambda x, _: op.sinh(x),
    "erf": _erf,
    "rsqrt": lambda x, y: op.multiply(op.multiply(y, op.multiply(y, y)), const(-0.5, x)),
    "sinh": lambda x, _: op.cosh(x),
    "square": lambda x, _: op.multiply(x, const(2.0, x)),
    "tan": lambda _, y: _one_plus(y),
}

RULES: dict[str, Rule] = {
    **{f"relax.{name}": _slope(slope) for name, slope in _SLOPES.items()},
    "relax.astype": astype,
    "relax.atan2": in_float32(atan2),
    "relax.clip": clip,
    "relax.floor_mod": in_float32(remainder),
    "relax.log_add_exp": in_float32(log_add_exp),
    "relax.maximum": extremum,
    "relax.minimum": extremum,
    "relax.mod": in_float32(remainder),
    "relax.power": in_float32(power),
    "relax.where": where,
}
