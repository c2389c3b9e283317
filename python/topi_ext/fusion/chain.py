# SPDX-License-Identifier: Apache-2.0
"""A chain of operators that one kernel computes: an anchor, post-ops, and views behind these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..spec.post_ops import PostOp
from .post_ops import Step, simplified

if TYPE_CHECKING:
    from .anchors import Anchor


class Link(NamedTuple):
    """A value of a chain, and the state of the chain there.

    Attributes
    ----------
    value : expression of an IR
    call : expression of an IR
        The call that computes it.
    anchor : Anchor
    steps, operands, views : int
        How many of them the chain has up to here.
    moves : int
        How many views there are up to here.  Elements of values with equal numbers have the same
        positions.
    """

    value: Any
    call: Any
    anchor: Anchor
    steps: int
    operands: int
    views: int
    moves: int


@dataclass
class Chain:
    """Operators that one kernel computes, and views of its result.

    Attributes
    ----------
    anchor : Anchor
        The first operator, with the views and conversions of the chain so far.
    steps : list of PostOp
    operands : list
        Operands of those steps that have one.
    views : list
        Calls of views that the kernel does not compute: they follow the steps.
    links : list of Link
    """

    anchor: Anchor
    steps: list[PostOp] = field(default_factory=list)
    operands: list[Any] = field(default_factory=list)
    views: list[Any] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def add(self, steps: Sequence[Step]) -> None:
        """Append post-ops."""
        self.steps += [step for step, _ in steps]
        self.operands += [operand for step, operand in steps if step.order]

    def replace_steps(self, change: Callable[[list[Step]], list[Step]]) -> None:
        """Replace the post-ops, which `change` gets with their operands."""
        operands = iter(self.operands)
        steps = [(step, next(operands) if step.order else None) for step in self.steps]
        self.steps, self.operands = [], []
        self.add(change(steps))

    def simplify(self) -> None:
        """Merge the factors of post-ops."""
        self.replace_steps(simplified)

    def link(self, value: Any, call: Any, moves: int = 0) -> None:
        """Append the value that the chain computes now."""
        before = self.links[-1].moves if self.links else 0
        counts = len(self.steps), len(self.operands), len(self.views)
        self.links.append(Link(value, call, self.anchor, *counts, before + moves))

    def is_closed(self, count: int, readers: Callable[[Any], Iterable[Any]]) -> bool:
        """Return whether only calls of the first `count` links read the values between them.

        Parameters
        ----------
        count : int
        readers : callable
            Return the calls that read a value.
        """
        calls = [link.call for link in self.links[:count]]
        return all(
            any(call.same_as(one) for one in calls)
            for link in self.links[: count - 1]
            for call in readers(link.value)
        )

    def cut(self, count: int) -> None:
        """Keep the first `count` links."""
        del self.links[count:]
        last = self.links[-1]
        del self.steps[last.steps :], self.operands[last.operands :], self.views[last.views :]
        self.anchor = last.anchor
