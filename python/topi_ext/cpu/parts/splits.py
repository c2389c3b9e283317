# SPDX-License-Identifier: Apache-2.0
"""Splits of the blocks of output channels, which tasks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .. import emit
from ..emit import Expr


class Splits(NamedTuple):
    """How the blocks of output channels of a group are divided among tasks.

    Attributes
    ----------
    blocks : int
        Of all splits.
    number : int or expression
        How many splits.
    per_split : int or expression
        Blocks of each, of which a last split may lack some.
    """

    blocks: int
    number: Expr
    per_split: Expr

    def over_blocks(self, split: Expr, step: Callable[[Expr, Expr], None]) -> None:
        """``step(block, its number in the split)`` for the blocks of one split."""
        is_even = isinstance(self.number, int) and self.blocks % self.number == 0

        def numbered(i: Expr) -> None:
            block = split * self.per_split + i
            emit.when(True if is_even else block < self.blocks, lambda: step(block, i))

        emit.loop(self.per_split, numbered)
