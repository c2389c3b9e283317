# SPDX-License-Identifier: Apache-2.0
"""Times of several implementations in one process, taken in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

ROUNDS = 10
_SETTLE = 0.003  # after a turn, the idle threads of the other implementation spin for about 1 ms
_LONG = 0.05  # seconds beyond which a call needs no settling


@dataclass
class Times:
    """Calls of one implementation.

    Attributes
    ----------
    first : float
        Seconds of the very first call.
    rounds : list of list of float
        Seconds of the timed calls of each round.
    """

    first: float
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def spent(self) -> float:
        """Seconds of timed calls."""
        return sum(map(sum, self.rounds))

    @property
    def ms(self) -> float:
        """Median over the rounds of each round's median, in milliseconds."""
        return median(map(median, self.rounds or [[self.first]])) * 1e3

    @property
    def best_ms(self) -> float:
        """The shortest call, in milliseconds."""
        return min(map(min, self.rounds or [[self.first]])) * 1e3


def interleaved(runs: Mapping[str, Callable[[], object]], budget: float) -> dict[str, Times]:
    """Time `runs` in turns, so that what else happens on the machine meets all alike.

    Parameters
    ----------
    budget : float
        Seconds of timed calls for each.  A first call that takes longer is its own measurement.
    """
    times = {name: Times(_seconds(run)) for name, run in runs.items()}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            found = times[name]
            if found.first > budget or found.spent >= budget:
                continue
            _settle(run, found.first)
            found.rounds.append(_calls(run, budget / ROUNDS))
    return times


def _calls(run: Callable[[], object], slot: float) -> list[float]:
    calls = [_seconds(run)]
    while sum(calls) + calls[-1] <= slot and len(calls) < 1000:
        calls.append(_seconds(run))
    return calls


def _settle(run: Callable[[], object], expected: float) -> None:
    until = time.perf_counter() + _SETTLE
    while expected < _LONG:
        run()
        if time.perf_counter() > until:
            return


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
