# SPDX-License-Identifier: Apache-2.0
"""Transforms of minimal filtering: linear combinations of inputs, taps, points and outputs."""

from __future__ import annotations

from collections.abc import Sequence

from .. import emit
from ..emit import Expr


def transformed_along(
    values: dict[tuple[int, ...], Expr],
    axis: int,
    combinations: Sequence[Sequence[tuple[int, float]]],
    dtype: str,
    lanes: int,
) -> dict[tuple[int, ...], Expr]:
    """Return the values by their numbers along some axes, those along `axis` combined.

    Number i of the result along that axis is made by ``combinations[i]``.
    """
    combined = {}
    for before, behind in sorted({(at[:axis], at[axis + 1 :]) for at in values}):
        for number, addends in enumerate(combinations):
            terms = [((*before, i, *behind), factor) for i, factor in addends]
            total = linear_combination([(values[at], f) for at, f in terms], dtype, lanes)
            place = (*before, number, *behind)
            combined[place] = emit.let(total)
    return combined


def linear_combination(addends: Sequence[tuple[Expr, float]], dtype: str, lanes: int = 1) -> Expr:
    """Return the sum of `addends`, each with its factor."""
    total: Expr = None
    for value, factor in addends:
        if abs(factor) != 1:
            scale = emit.constant(abs(factor), dtype)
            value = value * (scale if lanes == 1 else emit.broadcast(scale, lanes))
        if total is None:
            zero = emit.constant(0, dtype)
            zero = zero if lanes == 1 else emit.broadcast(zero, lanes)
            total = value if factor > 0 else zero - value
        else:
            total = total + value if factor > 0 else total - value
    return total
