# SPDX-License-Identifier: Apache-2.0
"""Expressions of kernels: integers fold while a kernel is built, all else becomes the IR's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import compat
from ..compat import tir

Expr = Any
"""A Python integer or boolean, or an expression of the IR."""


def wide(value: Expr, index: str = "int64") -> Expr:
    """`value` as an index: of 64 bits unless a target states another dtype, since Relax sizes are
    64 bits wide."""
    return tir.IntImm(index, value) if isinstance(value, int) else value


def constant(value: float, dtype: str) -> Expr:
    """Return a typed constant."""
    return tir.const(value, dtype)


def cast(value: Expr, given: str, wanted: str) -> Expr:
    """`value`, whose dtype is `given`, in another."""
    return value if given == wanted else value.astype(wanted)


def converted(vector: Expr, dtype: str, lanes: int) -> Expr:
    """Return a vector in another dtype."""
    return vector.astype(f"{dtype}x{lanes}")


def bits(value: Expr, dtype: str) -> Expr:
    """Return the bits of `value` read as another dtype of the same width."""
    return compat.reinterpret(value, dtype)


def function(name: str, value: Expr) -> Expr:
    """Return a function of the mathematics library."""
    return getattr(tir, name)(value)


def broadcast(value: Expr, count: int) -> Expr:
    """One value in every lane."""
    return tir.Broadcast(value, count)


def lanes_of(start: Expr, count: int) -> Expr:
    """Return the index of `count` neighbouring elements."""
    return tir.Ramp(wide(start), wide(1), count)


def lane_numbers(count: int) -> Expr:
    """Return the vector of the numbers of its lanes, of int32."""
    return tir.Ramp(tir.IntImm("int32", 0), tir.IntImm("int32", 1), count)


def shuffled(vectors: Sequence[Expr], elements: Sequence[int]) -> Expr:
    """Return a vector of some `elements`, counted through all `vectors`."""
    return tir.Shuffle(list(vectors), [tir.IntImm("int32", i) for i in elements])


def select(condition: Expr, value: Expr, other: Expr) -> Expr:
    """`value` where `condition` holds, else `other`; both are computed."""
    return tir.Select(condition, value, other)


def limited(value: Expr, low: Expr, high: Expr) -> Expr:
    """`value` between two others of its dtype; NaN becomes `low`."""
    return tir.min(tir.max(value, low), high)


def both(*conditions: Expr) -> Expr:
    """Conjunction; Python booleans fold."""
    result: Expr = True
    for condition in conditions:
        if isinstance(condition, bool):
            if not condition:
                return False
        else:
            result = condition if isinstance(result, bool) else tir.And(result, condition)
    return result


def either(first: Expr, *others: Expr) -> Expr:
    """Return the disjunction of conditions of the IR."""
    for other in others:
        first = tir.Or(first, other)
    return first


def choose(condition: Expr, value: Callable[[], Expr], other: Expr) -> Expr:
    """``value()`` where `condition` holds, evaluated only there."""
    if isinstance(condition, bool):
        return value() if condition else other
    return tir.if_then_else(condition, wide(value()), wide(other))


def least(a: Expr, b: Expr, index: str = "int64") -> Expr:
    """Return the smaller of two."""
    known = isinstance(a, int) and isinstance(b, int)
    return min(a, b) if known else tir.min(wide(a, index), wide(b, index))


def most(a: Expr, b: Expr, index: str = "int64") -> Expr:
    """Return the larger of two."""
    known = isinstance(a, int) and isinstance(b, int)
    return max(a, b) if known else tir.max(wide(a, index), wide(b, index))


def quotient(a: Expr, b: Expr) -> Expr:
    """``a // b`` of a >= 0 and b > 0.

    By a size known at run time TVM's floor division would be four operations that ask for signs,
    and nested ones grow exponentially.
    """
    return a // b if isinstance(b, int) else tir.truncdiv(wide(a), b)


def remainder(a: Expr, b: Expr) -> Expr:
    """``a % b`` of a >= 0 and b > 0; see :func:`quotient`."""
    return a % b if isinstance(b, int) else tir.truncmod(wide(a), b)


def ceil_div(a: Expr, b: Expr) -> Expr:
    """``a / b`` rounded up."""
    return quotient(a + (b - 1), b)


def unravel(
    index: Expr,
    extents: Sequence[Expr],
    quotient: Callable[[Expr, Expr], Expr] = quotient,
    remainder: Callable[[Expr, Expr], Expr] = remainder,
) -> tuple[Expr, ...]:
    """Return the digits of `index` in the mixed radix `extents`, most significant first."""
    digits: list[Expr] = []
    for extent in reversed(extents[1:]):
        if isinstance(extent, int) and extent == 1:
            digits.append(0)
            continue
        digits.append(remainder(index, extent))
        index = quotient(index, extent)
    return (index, *reversed(digits))


def let(value: Expr) -> Expr:
    """`value`, computed once: a variable of the generated code unless it is an integer.

    Divisions are best hidden in one: TVM's region analysis fails on some remainders in indices.
    """
    return value if isinstance(value, int) else compat.bind(value)


def opaque_base(value: Expr) -> Expr:
    """`value`, computed once, as the 64-bit start of a row: index a row by ``opaque_base + i``.

    TVM would take such sums apart, narrow them to 32 bits and spread them over the loops; LLVM
    then can't see that neighbours are neighbours, and accesses them one by one.  An integer stays
    one: a zero that is read as another type TVM 0.27 takes for a null pointer.
    """
    return value if isinstance(value, int) else let(compat.opaque(value))
