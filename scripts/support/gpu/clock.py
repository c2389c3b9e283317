# SPDX-License-Identifier: Apache-2.0
"""Interleaved times of calls on a GPU, by CUDA events.

``cold``: a memset before each call flushes the L2 cache, and takes long enough for the CPU to
launch the call in the meantime, so that the time includes no wait for a launch.  ``graph``: many
calls in one CUDA graph, with a warm cache; this is the time of the kernels alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

Run = Callable[[], Any]

ROUNDS = 5
IN_GRAPH = 20

LONGEST = 100.0
"""Milliseconds from which on a single call is the measurement."""


class Clock:
    """Timer for the current device.

    Parameters
    ----------
    flush : int
        Bytes that are written before each call; with 0 the L2 cache is not flushed.
    """

    def __init__(self, flush: int) -> None:
        self._flush = torch.empty(max(1, flush), dtype=torch.uint8, device="cuda")
        self._wipes = flush > 0

    def cold(self, runs: Mapping[str, Run], budget: float) -> dict[str, float]:
        """Return the milliseconds of a call: medians of interleaved rounds, which take at most
        `budget` seconds for each.
        """
        first = {name: self._once(run) for name, run in runs.items()}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                if first[name] > LONGEST:
                    times[name] = [first[name]]
                    continue
                each = (first[name] + 0.1) * 1e-3 * ROUNDS
                times[name].append(self._round(run, min(20, max(1, int(budget / each)))))
        return {name: median(found) for name, found in times.items()}

    def _round(self, run: Run, calls: int) -> float:
        pairs = []
        for _ in range(calls):
            if self._wipes:
                self._flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return median(begin.elapsed_time(end) for begin, end in pairs)

    def _once(self, run: Run) -> float:
        """Time the second call: the first may load code, or search for an algorithm."""
        run()
        return self._round(run, 1)

    def graph(self, run: Run) -> float | None:
        """Return the milliseconds of a call within a graph; None if it cannot be captured."""
        try:
            made = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made):
                for _ in range(IN_GRAPH):
                    run()
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        made.replay()
        found = []
        for _ in range(ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            made.replay()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) / IN_GRAPH)
        return median(found)
