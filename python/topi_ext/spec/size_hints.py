# SPDX-License-Identifier: Apache-2.0
"""Sizes that plans assume where they are symbolic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .geometry import Size

NOMINAL = (4, 8, 32, 64)
"""Assumed sizes of symbolic axes: batch, then depth, height and width."""


def _written(form: str) -> Callable[[Unknown, Size], Unknown]:
    return lambda size, other: Unknown(form.format(size, other))


@dataclass(frozen=True)
class Unknown:
    """A symbolic size of plans, which need no more than its name: what is computed of equal ones
    is equal.
    """

    name: str

    def __str__(self) -> str:
        return self.name

    __add__, __radd__ = _written("({} + {})"), _written("({1} + {0})")
    __sub__, __rsub__ = _written("({} - {})"), _written("({1} - {0})")
    __mul__, __rmul__ = _written("({} * {})"), _written("({1} * {0})")
    __floordiv__, __rfloordiv__ = _written("({} // {})"), _written("({1} // {0})")


def nominal(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Return the sizes along the four axes, with an assumed one for each that is symbolic."""
    return tuple(
        max(1, size) if isinstance(size, int) else nominal for size, nominal in zip(sizes, NOMINAL)
    )
