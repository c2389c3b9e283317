# SPDX-License-Identifier: Apache-2.0
"""Find the fastest of several functions: timed in turns, clear losers excluded early."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

Timed = Callable[[int], float]
"""Calls a function so many times: the seconds of one call, on average."""

SLOT = 0.004
"""Seconds of one turn."""

LOSES = ((1, 2.0), (3, 1.3), (5, 1.1))
"""After so many turns, a function is left out whose shortest is so many times the fastest one's."""

TURNS, FINAL_TURNS = 7, 15
"""Turns of each function, and of the first and the fastest one."""

GAIN = 0.98
"""Fraction of the first function's time below which another one counts as faster."""


def race(entrants: Mapping[int, Timed]) -> tuple[int, dict[int, float]]:
    """Return the fastest, and the median seconds of each.

    The first one wins unless another is faster by more than noise, in turns with it alone: in the
    median and in the shortest turn, which what else runs on the machine disturbs least.
    """
    times: dict[int, list[float]] = {number: [] for number in entrants}
    calls = {number: _calls(timed) for number, timed in entrants.items()}
    running = list(entrants)
    first = running[0]
    for turn in range(1, TURNS + 1):
        _turn(entrants, calls, running, times)
        shortest = {number: min(times[number]) for number in running}
        limit = next((factor for turns, factor in reversed(LOSES) if turn >= turns), math.inf)
        most = limit * min(shortest.values())
        running = [number for number in running if number == first or shortest[number] <= most]
    best = min(running, key=lambda number: (median(times[number]), number != first))
    if best != first:
        again: dict[int, list[float]] = {first: [], best: []}
        for _ in range(FINAL_TURNS):
            _turn(entrants, calls, [first, best], again)
        times.update(again)
        if any(of(again[best]) > GAIN * of(again[first]) for of in (median, min)):
            best = first
    return best, {number: median(found) for number, found in times.items()}


def _calls(timed: Timed) -> int:
    """Return how many calls fill a slot; they warm up too."""
    seconds = timed(1)
    return max(1, min(1000, int(SLOT / max(seconds, 1e-9))))


def _turn(
    entrants: Mapping[int, Timed],
    calls: Mapping[int, int],
    running: Sequence[int],
    times: Mapping[int, list[float]],
) -> None:
    for number in running:
        times[number].append(entrants[number](calls[number]))
