# SPDX-License-Identifier: Apache-2.0
"""The loop over the terms of a sum: chunks of input channels, and for each the taps of a phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr, least, local, opaque_value, quotient, store, unravel
from ..plan.tiles import Tile
from .gather_block import GatherBlock

AXES = 3


@dataclass(frozen=True)
class TapSteps:
    """A counter of the taps and the chunk of channels that the next step multiplies.

    Attributes
    ----------
    count : Expr
        Number of the block's steps.
    limits : tuple of Expr
        Taps along depth, height and width.
    at : Array
        Number of the tap along each axis, then of the chunk.
    """

    count: Expr
    limits: tuple[Expr, ...]
    at: Array

    @classmethod
    def emitted(cls, problem: Convolution, tile: Tile, block: GatherBlock) -> TapSteps:
        """Return the counter of a block, at its first step."""
        limits = tuple(axis.taps for axis in block.axes)
        taps, chunks = prod(limits), -(-problem.in_channels // tile.depth)
        made = local(AXES + 1, "int32")
        if tile.splits == 1:
            for axis in range(AXES + 1):
                store(made, axis, emit.constant(0, "int32"))
            return cls(opaque_value(taps * chunks), limits, made)
        each = opaque_value(quotient(taps * chunks + (tile.splits - 1), tile.splits))
        first = opaque_value(block.split * each)
        count = emit.most(0, least(each, taps * chunks - first))
        digits = unravel(first, (chunks, *(_not_zero(limit) for limit in limits)))
        for axis, digit in enumerate((*digits[1:], digits[0])):
            store(made, axis, emit.typed(digit))
        return cls(opaque_value(count), limits, made)

    @property
    def taps(self) -> list[Expr]:
        """Return the numbers of the current tap along the axes, among those of the phase."""
        return [0 if _is_one(limit) else self.at[axis] for axis, limit in enumerate(self.limits)]

    @property
    def chunk(self) -> Expr:
        """Number of the current chunk."""
        return self.at[AXES]

    def advance(self) -> None:
        """Advance to the next step: width varies fastest, chunks slowest."""
        self._carry([axis for axis in (2, 1, 0) if not _is_one(self.limits[axis])])

    def _carry(self, axes: Sequence[int]) -> None:
        if not axes:
            store(self.at, AXES, self.at[AXES] + 1)
            return
        axis, *rest = axes
        store(self.at, axis, self.at[axis] + 1)
        for _ in emit.only_if(self.at[axis] >= self.limits[axis]):
            store(self.at, axis, emit.constant(0, "int32"))
            self._carry(rest)


def _is_one(limit: Expr) -> bool:
    return isinstance(limit, int) and limit == 1


def _not_zero(limit: Expr) -> Expr:
    return limit if isinstance(limit, int) else emit.most(limit, 1)
