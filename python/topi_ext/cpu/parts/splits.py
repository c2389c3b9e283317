# SPDX-License-Identifier: Apache-2.0
"""Splits of the blocks of output channels, which tasks share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .. import emit
from ..emit import Expr


class Splits(NamedTuple):
    """The division of the blocks of output channels of a group among tasks.

    Attributes
    ----------
    blocks : int
        Blocks of all splits.
    number : int or expression
        Number of splits.
    per_split : int or expression
        Blocks of each split; the last split may have fewer.
    """

    blocks: int
    number: Expr
    per_split: Expr

    def blocks_of(self, split: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Emit ``for block, i in splits.blocks_of(split)``: a loop over the blocks of one split,
        where `i` is the number of the block in the split."""
        is_even = isinstance(self.number, int) and self.blocks % self.number == 0
        for i in emit.loop(self.per_split):
            block = split * self.per_split + i
            for _ in emit.only_if(True if is_even else block < self.blocks):
                yield block, i
