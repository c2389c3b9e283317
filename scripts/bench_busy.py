# SPDX-License-Identifier: Apache-2.0
"""Times whole models on a machine that does other work too, by the engines of bench_models.

::

    python scripts/bench_busy.py --only SpeechT5HifiGan --json out/bench_busy.json

For each model and engine, one, two and four processes of so many threads each run at once, and one
process runs beside a loop that takes a core.  Calls a second of all processes together, and the
median and 99th percentile of the latency of a call, are compared: in milliseconds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from statistics import median, quantiles

import bench_models
from support import steps
from support.steps import Row
from support.workers import BLOCK, Worker, WorkerError

TURNS, SECONDS = 3, 2.0
LOADS = {"alone": (1, 0), "2 processes": (2, 0), "4 processes": (4, 0), "beside a loop": (1, 1)}
"""Processes of the engine, and loops beside them."""
LOOP = [sys.executable, "-c", "while True: pass"]
ENGINES = ("ours", *bench_models.BASELINES)


def main() -> int:
    """Run the command line."""
    made = steps.parser(__doc__)
    made.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    given = made.parse_args()
    steps.use_threads(given.threads)
    from support.zoo.catalog import quiet

    quiet()
    from support.zoo.published import MODELS

    def measure(name: str) -> dict[str, Row]:
        return measured(name, given.threads, given.engines)

    what = "time of a call, all processes together"
    packages = bench_models.PACKAGES
    return steps.run(given, MODELS, measure, bench_models.BASELINES, what, packages, LOADS)


def measured(name: str, threads: int, engines: list[str]) -> dict[str, Row]:
    """Return a row for each load."""
    failed: dict[str, str] = {}
    workers: dict[str, list[Worker]] = {}
    most = max(count for count, _ in LOADS.values())
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for engine in ("export", *engines):
            command = bench_models.command_of(engine, name, threads, folder)
            count = 1 if engine == "export" else most
            try:
                started = [stack.enter_context(Worker(command)) for _ in range(count)]
            except WorkerError as error:
                failed[engine] = str(error)
                continue
            if engine != "export":
                workers[engine] = started
        return {
            f"{name}, {load}": under_load(workers, count, loops, failed)
            for load, (count, loops) in LOADS.items()
        }


def under_load(
    workers: dict[str, list[Worker]], count: int, loops: int, failed: dict[str, str]
) -> Row:
    """Measure `count` workers of each engine at once, in turns with the other engines.

    ``ms`` is the time of a call, all processes together.
    """
    calls: dict[str, list[list[float]]] = {engine: [] for engine in workers}
    with ExitStack() as stack:
        for _ in range(loops):
            stack.callback(subprocess.Popen(LOOP).kill)
        for _ in range(TURNS):
            for engine, started in workers.items():
                at_once(started[:count], BLOCK)
                calls[engine] += at_once(started[:count], SECONDS)
    row: Row = {"failed": failed, "ms": {}, "p50_ms": {}, "p99_ms": {}}
    for engine, of_each in calls.items():
        times = [ms for of_one in of_each for ms in of_one]
        row["ms"][engine] = TURNS * 1e3 / sum(1e3 * len(one) / sum(one) for one in of_each)
        row["p50_ms"][engine] = median(times)
        row["p99_ms"][engine] = quantiles(times, n=100)[98]
    return row


def at_once(workers: list[Worker], seconds: float) -> list[list[float]]:
    """Let workers call for so long at the same time; return the milliseconds of their calls."""
    for worker in workers:
        worker.start(seconds)
    return [worker.finish() for worker in workers]


if __name__ == "__main__":
    sys.exit(main())
