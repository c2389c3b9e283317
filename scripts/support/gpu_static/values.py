# SPDX-License-Identifier: Apache-2.0
"""Evaluate integer expressions of TIR, for one value of each variable or for many at once.

A value is a Python integer or an array of numpy with one element for each thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuda_emulator.host import BINARY, CALLS, name_of

Value = Any
"""A number, a truth value, an array of them; None of what no index depends on."""


def divided(a: Value, b: Value) -> Value:
    """Quotient, rounded to zero; of a zero divisor, which only a masked thread has, anything."""
    b = np.where(b == 0, 1, b) if isinstance(b, np.ndarray) else b or 1
    sign = np.sign(a) * np.sign(b)
    return sign * (np.abs(a) // np.abs(b))


def remainder(a: Value, b: Value) -> Value:
    """Return the remainder of :func:`divided`."""
    return a - divided(a, b) * b


_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    **BINARY,
    "Div": divided,
    "Mod": remainder,
    "Min": np.minimum,
    "Max": np.maximum,
    "And": np.logical_and,
    "Or": np.logical_or,
}


class Values:
    """Evaluates expressions; a subclass says what loads, calls and choices are worth."""

    def __init__(self) -> None:
        self.variables: dict[Any, Value] = {}

    def load(self, expr: Any) -> Value:
        """Return the values of a buffer."""
        raise NotImplementedError

    def call(self, name: str, expr: Any) -> Value:
        """Return the values of an operator that is not arithmetic."""
        raise NotImplementedError

    def chosen(self, condition: Value, expr: Any, other: Any) -> Value:
        """``expr if condition else other``."""
        raise NotImplementedError

    def of(self, expr: Any) -> Value:
        """Return the value of an expression; None where it depends on what is not known."""
        if isinstance(expr, (int, float)):
            return expr
        kind = type(expr).__name__
        if kind in _BINARY:
            return self._binary(_BINARY[kind], expr.a, expr.b)
        if kind in ("IntImm", "FloatImm"):
            return expr.value
        if kind in ("Var", "SizeVar"):
            return self.variables.get(expr)
        if kind == "Cast":
            return self.of(expr.value)
        if kind in ("TensorLoad", "BufferLoad"):
            return self.load(expr)
        if kind == "Not":
            value = self.of(expr.a)
            return None if value is None else np.logical_not(value)
        if kind == "Select":
            return self.chosen(self.of(expr.condition), expr.true_value, expr.false_value)
        if kind == "Let":
            self.variables[expr.var] = self.of(expr.value)
            return self.of(expr.body)
        if kind == "Call":
            return self._call(expr)
        if kind in ("Ramp", "Broadcast"):
            return self.of(expr.base if kind == "Ramp" else expr.value)
        return None

    def _binary(self, operator: Callable[[Value, Value], Value], a: Any, b: Any) -> Value:
        first, second = self.of(a), self.of(b)
        return None if first is None or second is None else operator(first, second)

    def _call(self, expr: Any) -> Value:
        name = name_of(expr)
        if name in CALLS:
            return self._binary(CALLS[name], *expr.args)
        if name == "if_then_else":
            condition, *both = expr.args
            return self.chosen(self.of(condition), *both)
        if name == "likely":
            return self.of(expr.args[0])
        return self.call(name, expr)
