# SPDX-License-Identifier: Apache-2.0
"""Phases along depth and height (whole rows of the result), as a kernel numbers them.

They are ordered by the slice of the kernel that they need, see
:mod:`topi_ext.cpu.plan.winograd_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import emit
from ..emit import Expr
from ..plan.winograd_rows import Pair, Slice


class RowPhases:
    """All phases of rows.

    Attributes
    ----------
    slices : sequence of Slice
        Slices of the kernel.
    """

    def __init__(self, slices: Sequence[Slice]):
        self.slices = slices
        self._pairs = list(dict.fromkeys(one.pair for one in slices))

    def of_slice(self, slice_: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Emit a loop over the phases of a slice: their numbers, of all phases and in the slice."""
        counts = [len(one.phases) for one in self.slices]
        first = emit.let(emit.table([sum(counts[:i]) for i in range(len(counts))])(slice_))
        for i in emit.loop(emit.let(emit.table(counts)(slice_))):
            yield first + i, i

    def pairs(self, slice_: Expr) -> Iterator[Pair]:
        """Emit a branch for each pair of filters; the one of the slice is taken."""
        pair_of = emit.table([self._pairs.index(one.pair) for one in self.slices])(slice_)
        for number, pair in enumerate(self._pairs):
            for _ in emit.only_if(len(self._pairs) == 1 or pair_of == number):
                yield pair

    def numbers(self, phase: Expr) -> list[Expr]:
        """Return the numbers of a phase among those of its filters, along depth and height."""
        return _looked_up([numbers for one in self.slices for numbers in one.phases], phase)

    def offsets(self, phase: Expr) -> list[Expr]:
        """Return which rows belong to a phase, along depth and height."""
        offsets = [
            [f.phases[i][0] for f, i in zip(one.pair, numbers)]
            for one in self.slices
            for numbers in one.phases
        ]
        return _looked_up(offsets, phase)

    def first_taps(self, slice_: Expr) -> list[Expr]:
        """Return the numbers of the first taps of a slice among those of its filters."""
        numbers = [
            [f.first_taps.index(tap) for f, tap in zip(one.pair, one.first_taps)]
            for one in self.slices
        ]
        return _looked_up(numbers, slice_)


def _looked_up(rows: Sequence[Sequence[int]], number: Expr) -> list[Expr]:
    """Look up the row of this number at run time."""
    return [emit.let(emit.table(column)(number)) for column in zip(*rows)]
