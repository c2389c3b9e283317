# SPDX-License-Identifier: Apache-2.0
"""Sizes that plans assume where they are symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from .conv import Convolution
from .geometry import Size

NOMINAL = (4, 8, 32, 64)
"""Assumed sizes of symbolic axes: batch, then depth, height and width."""


def nominal(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Return the sizes along the four axes, with an assumed one for each that is symbolic."""
    return tuple(
        max(1, size) if isinstance(size, int) else nominal for size, nominal in zip(sizes, NOMINAL)
    )


@lru_cache(maxsize=64)
def data_elements(problem: Convolution) -> int:
    """Return the elements of x and of y."""
    x, y = prod(nominal(problem.x_sizes)), prod(nominal(problem.y_sizes))
    return problem.geometry.c * x + problem.geometry.k * y


def elements(problem: Convolution) -> int:
    """Return the number of elements of data, result and weights."""
    return data_elements(problem) + problem.weights
