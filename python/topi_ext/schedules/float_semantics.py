# SPDX-License-Identifier: Apache-2.0
"""Floating-point maximum, minimum and difference as IEEE 754 and PyTorch define them.

TVM's ``max(a, b)`` is ``a > b ? a : b``, which drops a NaN in ``a``, and its ``a != b`` is false
where either is NaN.  Its simplifier replaces
``x - x`` by 0, ``(x + y) - y`` by ``x``, ``x == x`` by true, and ``not a < b`` by ``b <= a``, also
where a number is infinite, NaN or large.  Inlining one operator into another makes such
expressions.

:func:`ieee_floats` replaces maxima, minima and differences by calls of functions in LLVM's
language, which LLVM inlines, and the conditions by selections.  A maximum with a constant stays one
instruction; a maximum of two variables takes three more.
"""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any

from .. import compat
from .llvm_calls import Replacements, with_calls

_LLVM_TYPES = {"float32": "float", "float64": "double"}
_NARROW = ("float16", "bfloat16")
"""Dtypes whose maximum is computed in float32, which is exact."""

_PREFIX = "topi_ext_"
_TESTS = {"Max": "ogt", "Min": "olt"}
_COMPARISONS = ("EQ", "LT", "LE", "GT", "GE")
_REFLEXIVE = ("EQ", "LE", "GE")


def ieee_floats(func: Any) -> Any:
    """Make maxima and minima of `func` propagate NaN, and keep its differences.

    Parameters
    ----------
    func : PrimFunc
        With a root block, for LLVM.

    Returns
    -------
    PrimFunc
        `func` itself where it has none of these operations, or where TVM reads no LLVM text.
    """
    return with_calls(func, _replacements, _text)


def _replacements(used: set[tuple[str, str]]) -> Replacements:
    calls = _Calls(used)
    return {
        **dict.fromkeys((*_TESTS, "Sub"), calls.of),
        "Cast": calls.clamped,
        "Not": _complement,
        **dict.fromkeys(_REFLEXIVE, _with_itself),
        "NE": _unequal,
    }


def infinite_identities(func: Any) -> Any:
    """Begin the maxima and minima of `func` with infinity.

    TVM begins with the largest finite number, which is then the maximum of nothing but minus
    infinity.

    Parameters
    ----------
    func : PrimFunc
        With a root block, its reductions not yet decomposed.
    """
    if not hasattr(func.body, "block"):
        return func
    body = compat.with_initial_values(func.body, infinite)
    return func if body.same_as(func.body) else func.with_body(body)


def infinite(value: Any) -> Any:
    """Return infinity where `value` is the largest or smallest finite number of its dtype, or
    None."""
    if not (compat.is_number(value) and _is_float(value)):
        return None
    dtype = compat.scalar_dtype(value)
    for limit, infinity in ((compat.tir.min_value, -inf), (compat.tir.max_value, inf)):
        if value.value == limit(dtype).value:
            return compat.tir.const(infinity, dtype)
    return None


class _Calls:
    """Replaces nodes by calls, and notes which functions are called."""

    def __init__(self, used: set[tuple[str, str]]) -> None:
        self.used = used

    def of(self, node: Any) -> Any:
        """Return the call that computes a maximum, minimum or difference."""
        kind, dtype = type(node).__name__, compat.scalar_dtype(node)
        if dtype in _LLVM_TYPES:
            # The function expects a constant in second place.
            swapped = kind != "Sub" and compat.is_number(node.a)
            return self.call(kind, dtype, *((node.b, node.a) if swapped else (node.a, node.b)))
        if dtype in _NARROW and kind != "Sub":
            wide = (one.astype("float32") for one in (node.a, node.b))
            return self.call(kind, "float32", *wide).astype(dtype)
        return None

    def call(self, kind: str, dtype: str, a: Any, b: Any) -> Any:
        """Return the call of one function."""
        self.used.add((kind, dtype))
        return compat.extern_value(dtype, _name(kind, dtype), a, b)

    def clamped(self, node: Any) -> Any:
        """Return the conversion of a clamped number to an integer, by which NaN becomes the
        limit.
        """
        wanted, dtype = compat.scalar_dtype(node), compat.scalar_dtype(node.value)
        if not wanted.startswith(("int", "uint")) or dtype not in _LLVM_TYPES:
            return None
        for kind in _TESTS:
            operands = compat.extern_operands(node.value, _name(kind, dtype))
            if operands is not None and compat.is_number(operands[1]):
                call = self.call(f"{kind}OrLimit", dtype, *operands)
                return call.astype(wanted)
        return None


def _complement(node: Any) -> Any:
    """Return the complement of a comparison, which the simplifier replaces by the opposite
    comparison.
    """
    if type(node.a).__name__ not in _COMPARISONS or not _is_float(node.a.a):
        return None
    return _negation(node.a)


def _with_itself(node: Any) -> Any:
    """Return the comparison of a number with itself, which the simplifier replaces by a
    constant.
    """
    if not _is_float(node.a) or not compat.same_expression(node.a, node.b):
        return None
    return _negation(_is_nan(node.a))


def _unequal(node: Any) -> Any:
    """Return the complement of ``a == b``, or the test for NaN of a number and itself."""
    if not _is_float(node.a):
        return None
    if compat.same_expression(node.a, node.b):
        return _is_nan(node.a)
    return _negation(compat.tir.EQ(node.a, node.b))


def _is_nan(number: Any) -> Any:
    return compat.tir.isnan(number.astype("float32") if _is_narrow(number) else number)


def _negation(condition: Any) -> Any:
    """Return the negation of a condition as a selection, which the simplifier leaves alone."""
    no, yes = (compat.tir.const(value, "bool") for value in (False, True))
    return compat.tir.Select(condition, no, yes)


def _is_float(expr: Any) -> bool:
    return compat.scalar_dtype(expr) in (*_LLVM_TYPES, *_NARROW)


def _is_narrow(expr: Any) -> bool:
    return compat.scalar_dtype(expr) in _NARROW


def _name(kind: str, dtype: str) -> str:
    return f"{_PREFIX}{kind.lower()}_{dtype}"


@cache
def _text(functions: tuple[tuple[str, str], ...]) -> str:
    """Return the definitions of these functions in LLVM's language."""
    return "\n".join(_definition(kind, dtype) for kind, dtype in functions)


def _definition(kind: str, dtype: str) -> str:
    """Return the definition of one function.

    A selection of the smaller or larger operand in this order is one instruction of x86, which
    gives the last operand where either is NaN.  Only a NaN in ``b`` needs a second selection,
    which LLVM removes where ``b`` is a constant.  It selects ``b + b``: of two selections of ``b``
    LLVM makes one masked store where ``a`` is in memory, five times as long on Zen 3.
    """
    name, llvm = _name(kind, dtype), _LLVM_TYPES[dtype]
    head = f"define {llvm} @{name}({llvm} %a, {llvm} %b) {{"
    if kind == "Sub":
        lines = [f"  %result = fsub contract {llvm} %a, %b"]
    elif kind.endswith("OrLimit"):
        lines = [
            f"  %limited = fcmp {_TESTS[kind.removesuffix('OrLimit')]} {llvm} %a, %b",
            f"  %result = select i1 %limited, {llvm} %a, {llvm} %b",
        ]
    else:
        lines = [
            f"  %limited = fcmp {_TESTS[kind]} {llvm} %b, %a",
            f"  %number = select i1 %limited, {llvm} %b, {llvm} %a",
            f"  %twice = fadd {llvm} %b, %b",
            f"  %nan = fcmp uno {llvm} %b, %b",
            f"  %result = select i1 %nan, {llvm} %twice, {llvm} %number",
        ]
    return "\n".join([head, *lines, f"  ret {llvm} %result", "}", ""])
