# SPDX-License-Identifier: Apache-2.0
"""Activations of ``FusedConv``, an operator of ONNX Runtime, over the operators of any IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Operators(Protocol):
    """Operators of an IR, of which each takes an expression first."""

    relu: Callable[[Any], Any]
    tanh: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    leaky_relu: Callable[[Any, float], Any]
    clip: Callable[[Any, float, float], Any]
    add: Callable[[Any, Any], Any]
    multiply: Callable[[Any, Any], Any]
    number: Callable[[Any, float], Any]
    """A constant of the dtype of an expression."""


class Activation(NamedTuple):
    """One activation.

    Attributes
    ----------
    parameters : int
        How many numbers ``activation_params`` may have.
    apply : callable
        ``apply(operators, x, *parameters)``.
    """

    parameters: int
    apply: Callable[..., Any]


def _hard_sigmoid(ops: Operators, x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    line = ops.add(ops.multiply(x, ops.number(x, alpha)), ops.number(x, beta))
    return ops.clip(line, 0.0, 1.0)


ACTIVATIONS = {
    "Relu": Activation(0, lambda ops, x: ops.relu(x)),
    "Tanh": Activation(0, lambda ops, x: ops.tanh(x)),
    "Sigmoid": Activation(0, lambda ops, x: ops.sigmoid(x)),
    "LeakyRelu": Activation(1, lambda ops, x, alpha=0.01: ops.leaky_relu(x, alpha)),
    "Clip": Activation(2, lambda ops, x, low, high: ops.clip(x, low, high)),
    "HardSigmoid": Activation(2, _hard_sigmoid),
    "HardSwish": Activation(0, lambda ops, x: ops.multiply(x, _hard_sigmoid(ops, x, 1 / 6, 0.5))),
}
"""By the names that ``activation`` may have, in the order in which errors list them."""
