# SPDX-License-Identifier: Apache-2.0
"""exp, log, erf, tanh and the logistic function of float32, of which LLVM makes vectors.

Outside our kernels TVM calls the C library for each element, or takes an approximation of tanh that
loses the digits of small results.  Here such calls of a PrimFunc become calls of functions in
LLVM's language, which are inlined: arithmetic and selections alone.

========  =====================  ==================================================
function  error, units in the    by
          last place
========  =====================  ==================================================
exp       1                      Cephes' ``expf``, see :mod:`topi_ext.emit.post_ops`
log       1                      Cephes' ``logf``
tanh      5                      Eigen's ``ptanh``
erf       5                      x P(x^2) / Q(x^2) on [-3.83, 3.83], Eigen's ``erf``
sigmoid   3                      1 / (1 + exp(-x))
========  =====================  ==================================================
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import inf, nan
from typing import Any

from .. import compat
from ..emit.post_ops import (
    ERF,
    ERF_LIMIT,
    EXP,
    EXP_LIMITS,
    LOG2_E,
    LOG_2,
    SHIFT,
    SHIFT_BITS,
    TANH,
    TANH_LIMIT,
)
from .llvm_calls import with_calls

_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
"""Coefficients of (log(1 + z) - z + z^2 / 2) / z^3."""

_LEAST_NORMAL = 2.0**-126

_PREFIX = "topi_ext_"


def vectorized_math(func: Any) -> Any:
    """`func`, whose exp, log, erf, tanh and sigmoid of float32 are inlined arithmetic.

    Parameters
    ----------
    func : PrimFunc
        With a root block, for LLVM.

    Returns
    -------
    PrimFunc
        `func` itself where it has none of these, or where TVM reads no LLVM text.
    """
    return with_calls(func, lambda used: {"Call": partial(_called, used)}, _text)


def _called(used: set[str], call: Any) -> Any:
    """Return the call of a function of ours; None of calls that are left alone."""
    name = compat.intrinsic_name(call)
    if name in _FUNCTIONS and compat.scalar_dtype(call) == "float32":
        used.add(name)
        return compat.extern_value("float32", _PREFIX + name, *call.args)
    return None


class _Value:
    """A float or an integer of 32 bits in LLVM's language, and the lines that compute it."""

    def __init__(self, lines: list[str], name: str, kind: str = "float"):
        self.lines, self.name, self.kind = lines, name, kind

    def apply(self, text: str, kind: str = "float") -> _Value:
        """Return the result of an instruction."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return _Value(self.lines, name, kind)

    def _arithmetic(self, name: str, other: _Operand) -> _Value:
        operation = f"f{name} contract" if self.kind == "float" else name
        return self.apply(f"{operation} {self.kind} {self.name}, {self.of(other)}", self.kind)

    def of(self, other: _Operand) -> str:
        """Return an operand as it is written."""
        if isinstance(other, _Value):
            return other.name
        return _constant(other) if self.kind == "float" else str(int(other))

    def __add__(self, other: _Operand) -> _Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: _Operand) -> _Value:
        return self._arithmetic("sub", other)

    def __mul__(self, other: _Operand) -> _Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: _Operand) -> _Value:
        return self._arithmetic("div", other)

    def choose(self, test: str, limit: float, then: _Operand, otherwise: _Operand) -> _Value:
        """One of two floats, by a comparison of LLVM's with a number."""
        holds = self.apply(f"fcmp {test} float {self.name}, {_constant(limit)}", "i1")
        return self.apply(
            f"select i1 {holds.name}, float {self.of(then)}, float {self.of(otherwise)}"
        )

    def limited(self, low: float, high: float) -> _Value:
        """Between two numbers; NaN stays NaN."""
        value = self.choose("olt", low, low, self)
        return value.choose("ogt", high, high, value)

    def bits(self, kind: str) -> _Value:
        """Its bits as a float or as an integer."""
        return self.apply(f"bitcast {self.kind} {self.name} to {kind}", kind)


_Operand = _Value | float


def _constant(value: float) -> str:
    """Return a float32 as LLVM writes it: the bits of a double that is the same number."""
    (single,) = struct.unpack("f", struct.pack("f", value))
    return f"0x{struct.pack('>d', single).hex().upper()}"


def _polynomial(x: _Value, coefficients: Sequence[float]) -> _Value:
    """Evaluate a polynomial by Horner's rule, the highest power first."""
    result = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result = result * x + coefficient
    return result


def _exp(x: _Value) -> _Value:
    """See :func:`topi_ext.emit.post_ops.exp`."""
    x = x.limited(*EXP_LIMITS)
    shifted = x * LOG2_E + SHIFT
    # By way of the bits, for NaN too: what is subtracted is exact.
    whole = shifted - SHIFT
    n = shifted.bits("i32") - SHIFT_BITS
    rest = x - whole * LOG_2[0] - whole * LOG_2[1]
    series = _polynomial(rest, EXP) * rest * rest + rest + 1.0
    half = n.apply(f"ashr i32 {n.name}, 1", "i32")
    return series * _power_of_two(half) * _power_of_two(n - half)


def _power_of_two(n: _Value) -> _Value:
    exponent = n + 127
    return exponent.apply(f"shl i32 {exponent.name}, 23", "i32").bits("float")


def _log(x: _Value) -> _Value:
    """``log(1 + z) + e log(2)`` of ``x = (1 + z) 2**e``, where 1 + z is near 1, half or twice."""
    scaled = x.choose("olt", _LEAST_NORMAL, x * 2.0**23, x)
    shift = x.choose("olt", _LEAST_NORMAL, -23.0, 0.0)
    # From sqrt(1/2) on, so that z is small: its bits are subtracted from those of x.
    above = scaled.bits("i32") - _SQRT_HALF_BITS
    exponent = above.apply(f"ashr i32 {above.name}, 23", "i32")
    power = exponent.apply(f"shl i32 {exponent.name}, 23", "i32")
    z = (scaled.bits("i32") - power).bits("float") - 1.0
    whole = exponent.apply(f"sitofp i32 {exponent.name} to float") + shift
    square = z * z
    small = square * z * _polynomial(z, _LOG) + whole * LOG_2[1] - square * 0.5
    value = z + small + whole * LOG_2[0]
    return _at_the_ends(x, value)


_SQRT_HALF_BITS = 0x3F3504F3


def _at_the_ends(x: _Value, value: _Value) -> _Value:
    """Return the logarithm `value` of x, but of what is no positive finite number."""
    for test, limit, end in (
        ("oeq", 0.0, -inf), ("olt", 0.0, nan), ("uno", 0.0, nan), ("oeq", inf, inf),
    ):  # fmt: skip
        value = x.choose(test, limit, end, value)
    return value


def _to_one(x: _Value, parts: tuple[Sequence[float], Sequence[float]], limit: float) -> _Value:
    """See :func:`topi_ext.emit.post_ops.tanh`."""
    square = x * x
    above, below = (_polynomial(square, part) for part in parts)
    value = x * (above / below)
    for test, end in (("oge", 1.0), ("ole", -1.0)):
        value = x.choose(test, end * limit, end, value)
    return value


def _sigmoid(x: _Value) -> _Value:
    one = _Value(x.lines, _constant(1.0))
    return one / (_exp(_Value(x.lines, _constant(-0.0)) - x) + one)


_FUNCTIONS: dict[str, Callable[[_Value], _Value]] = {
    "exp": _exp,
    "log": _log,
    "erf": lambda x: _to_one(x, ERF, ERF_LIMIT),
    "tanh": lambda x: _to_one(x, TANH, TANH_LIMIT),
    "sigmoid": _sigmoid,
}


@cache
def _text(names: tuple[str, ...]) -> str:
    """These functions in LLVM's language."""
    return "\n".join(map(_function, names))


def _function(name: str) -> str:
    lines: list[str] = []
    result = _FUNCTIONS[name](_Value(lines, "%x"))
    head = f"define float @{_PREFIX}{name}(float %x) {{"
    return "\n".join([head, *lines, f"  ret float {result.name}", "}", ""])
