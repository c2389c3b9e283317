# SPDX-License-Identifier: Apache-2.0
"""Gradients of activations."""

from __future__ import annotations

import math
from typing import Any

from topi_ext.compat import relax

from .parts import (
    Rule,
    const,
    float_attr,
    in_float32,
    positive_axis,
    reshaped,
    shape_of,
    total,
)

R = relax()
op = R.op

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""As Klambauer et al., 2017, and TVM's lowering have them."""


def relu(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate by the result, which backward passes keep; the gradient at 0 is 0."""
    zero = const(0.0, y)
    return [op.where(op.greater(y, zero), dy, zero)]


def leakyrelu(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``x`` above 0, ``alpha x`` elsewhere."""
    x = call.args[0]
    below = op.multiply(dy, const(float_attr(call, "alpha"), x))
    return [op.where(op.greater(x, const(0.0, x)), dy, below)]


def prelu(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a leaky relu whose slope is learned: one of each channel, or one of all."""
    x, alpha = call.args
    rank = len(shape_of(x))
    axis = positive_axis(call, "axis", rank)
    is_single = shape_of(alpha) == (1,)
    sizes = [1] * rank
    if not is_single:
        sizes[axis] = shape_of(alpha)[0]
    zero = const(0.0, x)
    is_positive = bb.emit(op.greater(x, zero))
    dx = op.where(is_positive, dy, op.multiply(dy, bb.emit(reshaped(alpha, sizes))))
    below = op.where(is_positive, zero, op.multiply(dy, x))
    axes = [a for a in range(rank) if is_single or a != axis]
    return [dx, reshaped(total(below, axes, bb), shape_of(alpha))]


def gelu(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``x Phi(x)``: ``Phi(x) + x phi(x)`` with the normal distribution's Phi."""
    x = call.args[0]
    erf = op.erf(op.multiply(x, const(math.sqrt(0.5), x)))
    distribution = op.multiply(op.add(erf, const(1.0, x)), const(0.5, x))
    bell = op.exp(op.multiply(op.multiply(x, x), const(-0.5, x)))
    density = op.multiply(bell, const(1 / math.sqrt(2 * math.pi), x))
    return [op.multiply(dy, op.add(distribution, op.multiply(x, density)))]


def gelu_tanh(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``x/2 (1 + tanh(k (x + c x^3)))``, k = sqrt(2 / pi), c = 0.044715."""
    x = call.args[0]
    k, c = math.sqrt(2 / math.pi), 0.044715
    square, one, half = op.multiply(x, x), const(1.0, x), const(0.5, x)
    inner = op.multiply(x, op.add(const(k, x), op.multiply(square, const(k * c, x))))
    slope = op.add(const(k, x), op.multiply(square, const(3 * k * c, x)))
    tanh = bb.emit(op.tanh(inner))
    left = op.multiply(op.add(tanh, one), half)
    right = op.multiply(op.subtract(one, op.multiply(tanh, tanh)), op.multiply(x, slope))
    return [op.multiply(dy, op.add(left, op.multiply(right, half)))]


def softplus(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``log(1 + exp(beta x)) / beta``, and x where beta x is above the threshold."""
    x = call.args[0]
    scaled = op.multiply(x, const(float_attr(call, "beta"), x))
    is_linear = op.greater(scaled, const(float_attr(call, "threshold"), x))
    return [op.where(is_linear, dy, op.multiply(dy, op.sigmoid(scaled)))]


def selu(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``scale x`` above 0, ``scale alpha (exp(x) - 1)`` elsewhere."""
    x = call.args[0]
    zero = const(0.0, x)
    # The exponential of large numbers, which `where` leaves out, would make second orders NaN.
    below = op.exp(op.minimum(x, zero))
    slope = op.where(
        op.greater(x, zero),
        const(_SELU_SCALE, x),
        op.multiply(below, const(_SELU_SCALE * _SELU_ALPHA, x)),
    )
    return [op.multiply(dy, slope)]


RULES: dict[str, Rule] = {
    "relax.nn.relu": relu,
    "relax.nn.leakyrelu": in_float32(leakyrelu),
    "relax.nn.prelu": in_float32(prelu),
    "relax.nn.gelu": in_float32(gelu),
    "relax.nn.gelu_tanh": in_float32(gelu_tanh),
    "relax.nn.softplus": in_float32(softplus),
    "relax.nn.selu": in_float32(selu),
}
