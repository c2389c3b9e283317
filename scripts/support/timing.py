# SPDX-License-Identifier: Apache-2.0
"""Times of several implementations in one process, taken in turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeVar

Name = TypeVar("Name", str, int)
ROUNDS = 10
# glibc gives memory that it has mapped once to a new aligned allocation after about eight calls.
_WARM_CALLS = 10
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
        Seconds of the timed calls of each round; none if the first call took too long.
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


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its seconds."""
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def interleaved(
    runs: Mapping[Name, Callable[[], Any]], first: Mapping[Name, float], budget: float
) -> dict[Name, Times]:
    """Time `runs` in turns, so that what else happens on the machine meets all alike.

    Parameters
    ----------
    first : mapping
        Seconds of a call of each that has been made.  One that takes longer than the budget is its
        own measurement.
    budget : float
        Seconds of timed calls for each, and at most as many again to warm up.
    """
    times = {name: Times(first[name]) for name in runs}
    short = {name: run for name, run in runs.items() if first[name] <= budget}
    for run in short.values():
        _warm_up(run, budget)
    for _ in range(ROUNDS):
        for name, run in short.items():
            if times[name].spent < budget:
                _settle(run, first[name])
                times[name].rounds.append(_turn(run, budget / ROUNDS))
    return times


def _turn(run: Callable[[], Any], slot: float) -> list[float]:
    calls = [timed(run)[1]]
    until = time.perf_counter() + slot - calls[0]
    while time.perf_counter() + calls[-1] <= until:
        calls.append(timed(run)[1])
    return calls


def _warm_up(run: Callable[[], Any], budget: float) -> None:
    until = time.perf_counter() + budget
    for _ in range(_WARM_CALLS):
        if time.perf_counter() < until:
            run()


def _settle(run: Callable[[], Any], expected: float) -> None:
    until = time.perf_counter() + _SETTLE
    while expected < _LONG and time.perf_counter() < until:
        run()


def block(run: Callable[[], Any], seconds: float) -> list[float]:
    """Return the milliseconds of the calls of a block, at least two.

    A first call is not counted: it wakes threads and fills caches.
    """
    run()
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < 2 or time.perf_counter() < until:
        taken.append(1e3 * timed(run)[1])
    return taken


def in_turns(
    blocks: Mapping[str, Callable[[], list[float]]], count: int, pause: float
) -> dict[str, float]:
    """Return the median of the calls of each in milliseconds, by so many blocks in turns.

    In the pause before a block, threads that spin after a call fall asleep.
    """
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(count):
        for name, calls in blocks.items():
            time.sleep(pause)
            times[name] += calls()
    return {name: median(taken) for name, taken in times.items()}


class Neighbours:
    """Measure the share of the machine that other processes use while a ``with`` block runs.

    Attributes
    ----------
    cores : float or None
        Cores' worth of time, on average; None where the system does not tell (not Linux).
    """

    def __enter__(self) -> Neighbours:
        self.cores: float | None = None
        self._before = time.perf_counter(), _busy_of_others()
        return self

    def __exit__(self, *_: object) -> None:
        start, before = self._before
        after = _busy_of_others()
        if before is not None and after is not None:
            seconds = max(time.perf_counter() - start, 1e-3)
            self.cores = max(0.0, after - before) / seconds


def _busy_of_others() -> float | None:
    """Return the seconds of processor time of all other processes since the machine started."""
    try:
        with open("/proc/stat") as lines:
            user, nice, system, _, _, *interrupts = map(int, lines.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    own = os.times()
    busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return busy - own.user - own.system
