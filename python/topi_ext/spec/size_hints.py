# SPDX-License-Identifier: Apache-2.0
"""Sizes that plans assume where they are symbolic."""

from __future__ import annotations

from collections.abc import Sequence

from .geometry import Size

NOMINAL = (4, 8, 32, 64)
"""Assumed sizes of symbolic axes: batch, then depth, height and width."""


def nominal(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Return the sizes along the four axes, with an assumed one for each that is symbolic."""
    return tuple(
        max(1, size) if isinstance(size, int) else nominal for size, nominal in zip(sizes, NOMINAL)
    )
