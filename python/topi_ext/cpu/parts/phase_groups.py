# SPDX-License-Identifier: Apache-2.0
"""Phases of an output position, grouped by their number of taps; a group shares its code.

A phase is a residue of the output position modulo the step of the access: along each axis it has
taps of its own.  Phases with equally many taps run the same code; of some axes, phases of both
numbers do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from ...spec.axis_access import TapGroup
from ...spec.conv import Convolution
from .. import emit
from ..emit import Expr
from ..plan.direct import DirectPlan

SPATIAL = (1, 2, 3)
"""The axes that have taps, among the four."""


@dataclass(frozen=True)
class EitherGroup(TapGroup):
    """One of the phases of two groups, which run the same code: its taps are counted at run time.

    Attributes
    ----------
    groups : tuple of TapGroup
        The two groups.
    """

    groups: tuple[TapGroup, ...] = ()


class PhaseIndex(NamedTuple):
    """A phase: along each spatial axis the group that it is one of, and its number in it."""

    groups: Sequence[TapGroup]
    numbers: Sequence[Expr]

    @property
    def taps(self) -> list[Expr]:
        """Number of taps along each axis."""
        return [group.taps for group in self.groups]


class PhaseGroups:
    """All phases of an access.

    Attributes
    ----------
    tap_steps : list of int
        Along the spatial axes, from one tap of a phase to its next.
    combinations : list
        A group for each axis, in the order in which packed weights are stored.
    shared, kinds : list
        Groups of the outer axes, which share code, and combinations of the others, of which each
        has code of its own: phases with different numbers of taps that share it build sooner.
    """

    def __init__(self, problem: Convolution, plan: DirectPlan):
        groups = [problem.accesses[axis].groups for axis in SPATIAL]
        self.tap_steps = [problem.accesses[axis].tap_step for axis in SPATIAL]
        if plan.all_phases:
            # One piece of code for all phases along a row, which know their taps.
            groups[-1] = (TapGroup(0, 1, problem.accesses[-1].kernel),)
            self.tap_steps[-1] = 1
        self.combinations = list(product(*groups))
        self.shared, self.kinds = groups[: plan.shared], list(product(*groups[plan.shared :]))
        # Every kind is code of its own.
        self._unrolled = plan.unrolled // len(self.kinds)

    def phases(self) -> Iterator[PhaseIndex]:
        """Emit ``for phase in groups.phases()``: loops over all phases, one loop nest for each
        kind."""
        for kind in self.kinds:
            counts = [sum(group.phases for group in groups) for groups in self.shared]
            for numbers in emit.grid(*counts, *(group.phases for group in kind)):
                shared = map(_group_of, self.shared, numbers)
                yield PhaseIndex((*shared, *kind), numbers)

    def taps(self, count: Expr, phase: PhaseIndex) -> Iterator[tuple[Expr, Sequence[Expr]]]:
        """Emit ``for step, taps in groups.taps(count, phase)``: loops over `count` steps of input
        channels and all taps of a phase; the innermost loops over taps are written out."""
        counts = phase.taps
        unrolled = len(counts)
        # Taps that are counted at run time are not written out.
        least = max((a + 1 for a, groups in enumerate(self.shared) if len(groups) > 1), default=0)
        while unrolled > least and prod(counts[unrolled - 1 :]) <= self._unrolled:
            unrolled -= 1
        for step, *outer in emit.grid(count, *counts[:unrolled]):
            for inner in product(*(range(count) for count in counts[unrolled:])):
                yield step, (*outer, *inner)

    def tap_numbers(self, phase: PhaseIndex, taps: Sequence[Expr]) -> list[Expr]:
        """Along the three axes of the kernel, the taps of a phase."""
        return [
            group.first_tap + number + tap * step
            for group, number, tap, step in zip(*phase, taps, self.tap_steps)
        ]


def _group_of(groups: Sequence[TapGroup], phase: Expr) -> TapGroup:
    """Return the group of a phase along an axis that has one group or two."""
    if len(groups) == 1:
        return groups[0]
    one, other = groups
    taps = emit.choose(phase < one.phases, lambda: one.taps, other.taps)
    return EitherGroup(0, one.phases + other.phases, emit.let(taps), (one, other))
