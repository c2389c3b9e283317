# SPDX-License-Identifier: Apache-2.0
"""A check whether an element of a task's result is infinite or NaN."""

from __future__ import annotations

from typing import NamedTuple

from .. import emit
from ..emit import Array, Expr


class NonFiniteCheck(NamedTuple):
    """The sum of all vectors that it is shown, times a zero that LLVM does not know: zero if all of
    them were finite.

    Attributes
    ----------
    lanes : int
        Elements of each vector.
    zero, total : Array
        One vector each: that zero, and the sum.
    """

    lanes: int
    zero: Array
    total: Array

    @classmethod
    def emitted(cls, dtype: str, lanes: int) -> NonFiniteCheck:
        """Return a check that has seen no vector yet."""
        check = cls(lanes, emit.scratch(lanes, dtype), emit.scratch(lanes, dtype))
        for array in (check.zero, check.total):
            emit.store(array, check._vector, emit.broadcast(emit.constant(0, dtype), lanes))
        return check

    @property
    def _vector(self) -> Expr:
        return emit.lanes_of(0, self.lanes)

    def show(self, vector: Expr) -> None:
        """Add one vector to the sum."""
        total = self.total[self._vector] + vector * self.zero[self._vector]
        emit.store(self.total, self._vector, total)

    def report(self, flag: Array) -> None:
        """Set `flag` to one if an element was not finite; all tasks that set it write the same."""
        total: Expr = self.total[0]
        for lane in range(1, self.lanes):
            total = total + self.total[lane]
        is_finite = emit.let(total) == emit.constant(0, self.total.dtype)
        # Not `total != 0`, which TVM takes for ordered: false of NaN.
        for _ in emit.only_if(emit.opaque_value(emit.choose(is_finite, lambda: 0, 1)) > 0):
            emit.store(flag, 0, emit.wide(1))
