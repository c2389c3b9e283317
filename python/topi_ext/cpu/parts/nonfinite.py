# SPDX-License-Identifier: Apache-2.0
"""Whether something that a task computed was infinite or NaN."""

from __future__ import annotations

from .. import emit
from ..emit import Array, Expr


class NonFiniteCheck:
    """Sums up what it is shown, times a zero that LLVM does not know: zero if all was finite."""

    def __init__(self, dtype: str, lanes: int):
        self.dtype, self.lanes = dtype, lanes
        self.input_stride = emit.lanes_of(0, lanes)
        self.factor = emit.scratch(lanes, dtype)
        self.sign = emit.scratch(lanes, dtype)
        for array in (self.factor, self.sign):
            emit.store(array, self.input_stride, emit.broadcast(emit.constant(0, dtype), lanes))

    def show(self, vector: Expr) -> None:
        """Look at one vector."""
        total = self.sign[self.input_stride] + vector * self.factor[self.input_stride]
        emit.store(self.sign, self.input_stride, total)

    def report(self, flag: Array) -> None:
        """Set `flag` to one if something was not finite; tasks that set it set it alike."""
        total: Expr = self.sign[0]
        for lane in range(1, self.lanes):
            total = total + self.sign[lane]
        is_finite = emit.let(total) == emit.constant(0, self.dtype)
        # Not `total != 0`, which TVM takes for ordered: false of NaN.
        other = emit.opaque_value(emit.choose(is_finite, lambda: 0, 1)) > 0
        emit.when(other, lambda: emit.store(flag, 0, emit.wide(1)))
