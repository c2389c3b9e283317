# SPDX-License-Identifier: Apache-2.0
"""The window of data that a block of positions reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ...spec.axis_access import AxisAccess
from .vectors import odd_vectors


@dataclass(frozen=True)
class Window:
    """The part of the packed operand that one block of positions reads, flattened.

    Position ``(b0, b1, b2, b3)`` of the block is flat position ``((b0*E1 + b1)*E2 + b2)*E3 + b3``
    where ``E`` is the extent of the window; a tap is one constant offset in it.  Between rows lie
    the columns of the halo: lanes computed there are dropped.
    """

    block: tuple[int, ...]
    extent: tuple[int, ...]

    @classmethod
    def of(cls, block: Sequence[int], accesses: Sequence[AxisAccess]) -> Window:
        """Return the window that `block` reads through `accesses`."""
        extent = tuple(b + g.last_shift - g.first_shift for b, g in zip(block, accesses))
        return cls(tuple(block), extent)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Distance in flat positions of neighbours along each axis."""
        return tuple(prod(self.extent[axis + 1 :]) for axis in range(len(self.extent)))

    @cached_property
    def length(self) -> int:
        """Flat positions from the first to the last of the block."""
        return sum((b - 1) * step for b, step in zip(self.block, self.steps)) + 1

    @cached_property
    def elements(self) -> int:
        """Elements of the whole window."""
        return prod(self.extent)

    def pitch(self, lanes: int) -> int:
        """Return the distance of two planes: whole vectors, and never a power of two of cache
        lines.
        """
        vectors = -(-self.elements // lanes)
        return odd_vectors(vectors) * lanes

    def most_pitch(self, lanes: int) -> int:
        """Return the elements to allocate for a plane."""
        return self.pitch(lanes)
