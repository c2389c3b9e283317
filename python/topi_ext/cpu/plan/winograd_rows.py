# SPDX-License-Identifier: Apache-2.0
"""Layout of the rows of transformed filters and transformed inputs.

Rows of the result of one phase along depth and height need a slice of the kernel: some of its taps
along these axes, with all taps along a row.  Phases of a stride need one each, those that differ by
the residue of a dilation the same.  What the rows of a slice need can be made, used and dropped
before those of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, product
from math import prod
from typing import NamedTuple, Protocol

from ...spec.conv import Convolution
from ...spec.minimal_filtering import Filter

COMBINED = 16
"""Input channels whose taps are combined at a time; of several chunks each has a multiple."""

Pair = tuple[Filter, Filter]
"""The filters along depth and height."""


class Slice(NamedTuple):
    """A slice of the kernel.

    Attributes
    ----------
    pair : Pair
        How depth and height are computed.
    first_taps : tuple of int
        Its first taps along depth and height.
    phases : tuple
        The phases of rows that need it: their numbers among those of the two filters.
    """

    pair: Pair
    first_taps: tuple[int, int]
    phases: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def slices_of(filters: Sequence[Sequence[Filter]]) -> tuple[Slice, ...]:
    """Return the slices of a kernel, those that are computed alike beside each other."""
    slices = []
    for depth, height in product(*filters[:2]):
        for taps in product(depth.first_taps, height.first_taps):
            of_depth, of_height = (
                [i for i, phase in enumerate(f.phases) if phase[2] == tap]
                for f, tap in zip((depth, height), taps)
            )
            slices.append(Slice((depth, height), taps, tuple(product(of_depth, of_height))))
    return tuple(slices)


class Layout(Protocol):
    """The fields of a plan that determine the layout of rows."""

    @property
    def by_slice(self) -> bool: ...

    @property
    def inputs_first(self) -> bool: ...

    def filters(self, problem: Convolution) -> tuple[tuple[Filter, ...], ...]: ...

    def depth(self, problem: Convolution) -> int: ...

    def gap(self, problem: Convolution) -> int: ...


class WinogradRows:
    """Rows of one block of output channels, and of one block of tiles, for one chunk of the input
    channels.

    Attributes
    ----------
    filters : tuple
        How each spatial axis is computed, in one way or more.
    taps_by_slice : bool
        Whether the taps of only one slice are held at a time; if they come packed, all are.
    """

    def __init__(self, problem: Convolution, plan: Layout):
        self.filters = plan.filters(problem)
        self.taps_by_slice = plan.by_slice and not problem.prepacked
        self._plan, self._depth, self._gap = plan, plan.depth(problem), plan.gap(problem)

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Return the slices of the kernel."""
        return slices_of(self.filters)

    def starts(self, filters: Sequence[Filter]) -> list[int]:
        """Return the first row of each point of a phase, and the number of rows; some rows after
        each point are empty.
        """
        points = (prod(map(len, at)) for at in product(*(f.points for f in filters)))
        return [0, *accumulate(terms * self._depth + self._gap for terms in points)]

    def of_phase(self, filters: Sequence[Filter]) -> int:
        """Return how many rows a phase has: as many inputs as taps."""
        return self.starts(filters)[-1]

    @property
    def most_of_phase(self) -> int:
        """Return the largest number of rows of a phase."""
        return max(map(self.of_phase, product(*self.filters)))

    def taps_before(self, pair: Pair) -> list[int]:
        """Return the rows of the taps of a slice before those of each filter along the row, and
        all.
        """
        return self._before(pair, lambda last: len(last.first_taps))

    def inputs_before(self, pair: Pair) -> list[int]:
        """Return the rows of the inputs of one phase of rows, likewise."""
        return self._before(pair, lambda last: len(last.phases))

    def _before(self, pair: Pair, count: Callable[[Filter], int]) -> list[int]:
        return [0, *accumulate(self.of_phase((*pair, f)) * count(f) for f in self.filters[2])]

    @property
    def taps_held(self) -> int:
        """Rows of taps that are held at a time."""
        return self._held(self.taps_before, self.taps_by_slice)

    @property
    def inputs_held(self) -> int:
        """Rows of inputs that are held at a time."""
        if not self._plan.inputs_first:
            return self.most_of_phase
        return self._held(self._inputs_of_slice, self._plan.by_slice)

    def _held(self, rows_before: Callable[[Pair], Sequence[int]], by_slice: bool) -> int:
        """Return the rows of all slices, or of the slice with most. There may be a thousand slices
        of very few kinds.
        """
        rows = [
            (rows_before(pair)[-1], _slices_of(pair))
            for pair in product(self.filters[0], self.filters[1])
        ]
        return max(most for most, _ in rows) if by_slice else sum(n * count for n, count in rows)

    @property
    def first_inputs(self) -> list[int]:
        """The first row of the inputs of each slice, if all are combined before parts begin."""
        if self._plan.by_slice:
            return [0] * len(self.slices)
        return [0, *accumulate(self._inputs_of_slice(one.pair)[-1] for one in self.slices[:-1])]

    def _inputs_of_slice(self, pair: Pair) -> list[int]:
        # Each of its slices is that of as many phases.
        phases = prod(len(f.phases) for f in pair) // _slices_of(pair)
        return [phases * rows for rows in self.inputs_before(pair)]


def _slices_of(pair: Pair) -> int:
    return prod(len(f.first_taps) for f in pair)
