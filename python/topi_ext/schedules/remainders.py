# SPDX-License-Identifier: Apache-2.0
"""Quotients and remainders of shifted indices, which TVM computes incorrectly in fused loops.

If the loops over i = f // 6 and j = f % 6 are fused, TVM's simplifier turns the index of ``x[i % 9,
(j + 1) % 3]`` into ``(f + 1) % 54 // 6 * 3 + (f + 1) % 3``, which is another element for j = 5.
Circular padding reads so.  The simplifier does not merge divisions that round toward zero, which
are the same for numbers that are not negative::

    (j + 1) // m = truncdiv(j + 1, m)
    (j - 1) // m = truncdiv(j - 1 + m, m) - 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ..compat import as_size, lower_bounds, tir, with_replaced

Bound = Callable[[Any], int]

_LEAST = -(1 << 31)
"""Numbers that may be less than this have no known bound."""


def without_shifted_remainders(func: Any, axes: Iterable[Any]) -> Any:
    """Make divisions of shifted indices round toward zero.

    Parameters
    ----------
    func : PrimFunc
    axes : iterable of IterVar
        The variables of its blocks, whose ranges tell which numbers are not negative.

    Returns
    -------
    PrimFunc
        `func` itself where it has no such division.
    """
    least = lower_bounds(axes)
    kinds = {"FloorDiv": partial(_quotient, least), "FloorMod": partial(_remainder, least)}
    body = with_replaced(func.body, kinds)
    return func if body.same_as(func.body) else func.with_body(body)


def _quotient(least: Bound, node: Any) -> Any:
    divisor, turns = as_size(node.b), _turns(least, node)
    if turns is None:
        return None
    return tir.truncdiv(node.a + turns * divisor, node.b) - turns


def _remainder(least: Bound, node: Any) -> Any:
    divisor, turns = as_size(node.b), _turns(least, node)
    return None if turns is None else tir.truncmod(node.a + turns * divisor, node.b)


def _turns(least: Bound, node: Any) -> int | None:
    """Return how often the divisor is to be added until a shifted number is not negative.

    Return None for a number that is not shifted, or without a known bound.
    """
    divisor = as_size(node.b)
    if not isinstance(divisor, int) or divisor <= 0 or not _is_shifted(node.a):
        return None
    value = least(node.a)
    return None if value < _LEAST else max(0, -(value // divisor))


def _is_shifted(number: Any) -> bool:
    """Return whether a constant is added in an expression, or a division in it was replaced."""
    if isinstance(number, (tir.Div, tir.Mod)):
        return True
    if not isinstance(number, (tir.Add, tir.Sub, tir.Mul)):
        return False
    is_sum = not isinstance(number, tir.Mul)
    sides = number.a, number.b
    return any((is_sum and isinstance(side, tir.IntImm)) or _is_shifted(side) for side in sides)
