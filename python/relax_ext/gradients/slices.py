# SPDX-License-Identifier: Apache-2.0
"""Slices with a step along one axis, transposed: zeros between and around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from topi_ext.compat import relax

from .parts import reshaped, shape_of

R = relax()
op = R.op


@dataclass(frozen=True)
class Slice:
    """Elements ``begin + step * i``, i below `count`, of an axis; the step is positive."""

    axis: int
    begin: int
    step: int
    count: int

    def placed(self, part: Any, size: int, bb: Any) -> Any:
        """Return zeros of `size` along the axis, with `part` at the elements of the slice."""
        sizes = list(shape_of(part))
        axis, rank = self.axis, len(sizes)
        before, after = sizes[:axis], sizes[axis + 1 :]
        length = (self.count - 1) * self.step + 1
        if self.step > 1:
            # Zeros between elements are a padded axis; those after the last element are removed.
            apart = reshaped(part, [*before, self.count, 1, *after])
            widths = _widths(rank + 1, axis + 1, 0, self.step - 1)
            apart = bb.emit(op.nn.pad(apart, widths, pad_value=0.0))
            part = bb.emit(reshaped(apart, [*before, self.count * self.step, *after]))
            part = op.strided_slice(part, [axis], [0], [length])
        behind = size - self.begin - length
        if not (self.begin or behind):
            return part
        return op.nn.pad(part, _widths(rank, axis, self.begin, behind), pad_value=0.0)


def _widths(rank: int, axis: int, before: int, after: int) -> Sequence[int]:
    widths = [0] * (2 * rank)
    widths[2 * axis : 2 * axis + 2] = before, after
    return widths
