# SPDX-License-Identifier: Apache-2.0
"""Phases along depth and height: those of whole rows of the result.

Rows of a phase need a slice of the kernel: some of its taps along depth and height, with all taps
along a row.  Phases of a stride need one each, those that differ by the residue of a dilation the
same.  What the rows of a slice need can be made, used and dropped before those of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from .. import emit
from ..emit import Expr
from ..filtering import Filter

Pair = tuple[Filter, Filter]
"""The filters along depth and height."""


class RowPhases:
    """All phases of rows, ordered by kind and slice.

    Attributes
    ----------
    kinds : list of Pair
        Slices that are computed alike.
    slices : int
        How many there are of all kinds.
    """

    def __init__(self, filters: Sequence[Sequence[Filter]]):
        self.kinds: list[Pair] = list(product(*filters[:2]))
        # Of a slice: its kind and its first taps; of a phase: its numbers in the two filters.
        self._slices: list[tuple[int, tuple[int, int]]] = []
        self._phases: list[tuple[tuple[int, int], ...]] = []
        for number, (depth, height) in enumerate(self.kinds):
            for taps in product(depth.first_taps, height.first_taps):
                alike = ([i for i, phase in enumerate(f.phases) if phase[2] == tap]
                         for f, tap in zip((depth, height), taps))  # fmt: skip
                self._slices.append((number, taps))
                self._phases.append(tuple(product(*alike)))
        self.slices = len(self._slices)

    def phases_of_slices(self) -> list[tuple[Pair, int]]:
        """For each slice its kind, and how many phases need it."""
        numbers = (number for number, _ in self._slices)
        return [(self.kinds[n], len(phases)) for n, phases in zip(numbers, self._phases)]

    def over_phases(self, slice_: Expr, step: Callable[[Expr, Expr], None]) -> None:
        """``step(phase, number in the slice)`` for the phases of a slice."""
        counts = [len(phases) for phases in self._phases]
        first = emit.let(emit.table([sum(counts[:i]) for i in range(len(counts))])(slice_))
        emit.loop(emit.let(emit.table(counts)(slice_)), lambda i: step(first + i, i))

    def of_kind(self, slice_: Expr, step: Callable[[Pair], None]) -> None:
        """``step(kind)`` for that of a slice: code of its own for each."""
        kind = emit.table([number for number, _ in self._slices])(slice_)
        for number, pair in enumerate(self.kinds):
            emit.when(len(self.kinds) == 1 or kind == number, lambda pair=pair: step(pair))

    def numbers(self, phase: Expr) -> list[Expr]:
        """Of a phase, its numbers among those of its filters along depth and height."""
        return _looked_up([pair for phases in self._phases for pair in phases], phase)

    def offsets(self, phase: Expr) -> list[Expr]:
        """Of a phase, which rows are its own, along depth and height."""
        offsets = [
            [f.phases[i][0] for f, i in zip(self.kinds[number], pair)]
            for (number, _), phases in zip(self._slices, self._phases)
            for pair in phases
        ]
        return _looked_up(offsets, phase)

    def first_taps(self, slice_: Expr) -> list[Expr]:
        """Of a slice, the numbers of its first taps among those of its filters."""
        numbers = [
            [f.first_taps.index(tap) for f, tap in zip(self.kinds[number], taps)]
            for number, taps in self._slices
        ]
        return _looked_up(numbers, slice_)


def _looked_up(rows: Sequence[Sequence[int]], number: Expr) -> list[Expr]:
    """The row of this number, when the kernel runs."""
    return [emit.let(emit.table(column)(number)) for column in zip(*rows)]
