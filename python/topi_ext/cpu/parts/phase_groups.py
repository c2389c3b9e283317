# SPDX-License-Identifier: Apache-2.0
"""Phases of an output position, grouped by how many taps they have: what shares code.

A phase is a residue of the output position modulo the step of the gather: along each axis it has
taps of its own.  Phases with equally many taps run the same code; of some axes, phases of both
numbers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from ...gather import TapGroup
from ...problem import Problem
from .. import emit
from ..emit import Expr
from ..plan.direct import DirectPlan

SPATIAL = (1, 2, 3)
"""Of the four axes, those that have taps."""


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
        """How many taps it has along each axis."""
        return [group.taps for group in self.groups]


class PhaseGroups:
    """All phases of a gather.

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

    def __init__(self, problem: Problem, plan: DirectPlan):
        groups = [problem.gathers[axis].groups for axis in SPATIAL]
        self.tap_steps = [problem.gathers[axis].tap_step for axis in SPATIAL]
        if plan.all_phases:
            # One piece of code for all phases along a row, which know their taps.
            groups[-1] = (TapGroup(0, 1, problem.gathers[-1].kernel),)
            self.tap_steps[-1] = 1
        self.combinations = list(product(*groups))
        self.shared, self.kinds = groups[: plan.shared], list(product(*groups[plan.shared :]))
        # Every kind is code of its own.
        self._unrolled = plan.unrolled // len(self.kinds)

    def over_phases(self, kind: Sequence[TapGroup], step: Callable[[PhaseIndex], None]) -> None:
        """``step(phase)`` for all phases of the axes that share code, and of these groups along the
        others."""

        def group_of(groups: Sequence[TapGroup], phase: Expr) -> TapGroup:
            if len(groups) == 1:
                return groups[0]
            one, other = groups
            taps = emit.choose(phase < one.phases, lambda: one.taps, other.taps)
            return EitherGroup(0, one.phases + other.phases, emit.let(taps), (one, other))

        def of_phases(*phases: Expr) -> None:
            step(PhaseIndex((*map(group_of, self.shared, phases), *kind), phases))

        counts = [sum(group.phases for group in groups) for groups in self.shared]
        emit.nest((*counts, *(group.phases for group in kind)), of_phases)

    def over_taps(
        self, count: Expr, phase: PhaseIndex, step: Callable[[Expr, Sequence[Expr]], None]
    ) -> None:
        """``step(i, taps)`` for `count` steps and all taps of a phase; the innermost loops over
        taps are written out."""
        counts = phase.taps
        unrolled = len(counts)
        # Taps that are counted at run time are not written out.
        least = max((a + 1 for a, groups in enumerate(self.shared) if len(groups) > 1), default=0)
        while unrolled > least and prod(counts[unrolled - 1 :]) <= self._unrolled:
            unrolled -= 1

        def of_outer(i: Expr, *outer: Expr) -> None:
            for inner in product(*(range(count) for count in counts[unrolled:])):
                step(i, (*outer, *inner))

        emit.nest((count, *counts[:unrolled]), of_outer)

    def tap_numbers(self, phase: PhaseIndex, taps: Sequence[Expr]) -> list[Expr]:
        """Along the three axes of the kernel, the taps of a phase."""
        return [
            group.first_tap + number + tap * step
            for group, number, tap, step in zip(*phase, taps, self.tap_steps)
        ]
