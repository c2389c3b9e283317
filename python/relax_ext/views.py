# SPDX-License-Identifier: Apache-2.0
"""Anchors whose result may be viewed in other shapes before the steps behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from topi_ext.epilogue import PostOp

from .anchor import Anchor
from .axes import Axes, Letters


class ViewedAnchor(Anchor):
    """A call whose axes are letters, which views split and merge.

    Attributes
    ----------
    letters : Letters
        Of all tensors; the result is the last.
    shape : tuple
        Of the result.
    """

    needs_axes = True
    letters: Letters
    shape: Any

    @property
    def axes(self) -> Axes:
        """Of the result."""
        return self.letters.tensors[-1]

    @property
    def sizes(self) -> Any:
        """Of letters."""
        return self.letters.sizes

    def view(self, shape: Sequence[Any]) -> bool:
        """See :class:`~relax_ext.anchor.Anchor`."""
        found = self.letters.reshaped(len(self.letters.tensors) - 1, shape)
        if found is None:
            return False
        self.letters, self.shape = found, tuple(shape)
        return True

    def mark(self) -> Any:
        """See :class:`~relax_ext.anchor.Anchor`."""
        return self.letters, self.shape

    def reset(self, mark: Any) -> None:
        """See :class:`~relax_ext.anchor.Anchor`."""
        self.letters, self.shape = mark


def in_letters(steps: Sequence[PostOp], letters: Letters, before: int = 0) -> tuple[PostOp, ...]:
    """Steps, whose operands vary along the letters that there are by now.

    Parameters
    ----------
    steps : sequence of PostOp
    letters : Letters
    before : int
        How many other steps come first.
    """
    found = []
    for step in steps:
        varies = letters.current(step.varies)
        earlier = None if step.earlier is None else step.earlier + before
        found.append(replace(step, order=varies, varies=varies, earlier=earlier))
    return tuple(found)
