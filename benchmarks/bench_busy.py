# SPDX-License-Identifier: Apache-2.0
"""Times whole models on a machine that does other work too, by the engines of bench_models.

::

    python benchmarks/bench_busy.py --only SpeechT5HifiGan --json out/bench_busy.json

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
from benchmark import steps
from benchmark.steps import Row
from benchmark.workers import BLOCK, Worker, WorkerError

SECONDS = 4.0
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
    from zoo.catalog import quiet

    quiet()
    from zoo.published import MODELS

    def measure(name: str) -> dict[str, Row]:
        return measured(name, given.threads, given.engines)

    what = "time of a call, all processes together"
    packages = bench_models.PACKAGES
    return steps.run(given, MODELS, measure, bench_models.BASELINES, what, packages, LOADS)


def measured(name: str, threads: int, engines: list[str]) -> dict[str, Row]:
    """Return a row for each load."""
    rows: dict[str, Row] = {
        f"{name}, {load}": {"failed": {}, "ms": {}, "p50_ms": {}, "p99_ms": {}} for load in LOADS
    }
    most = max(count for count, _ in LOADS.values())
    with tempfile.TemporaryDirectory() as folder:
        for engine in ("export", *engines):
            with ExitStack() as stack:
                try:
                    workers = [
                        stack.enter_context(
                            Worker(bench_models.command_of(engine, name, threads, folder))
                        )
                        for _ in range(1 if engine == "export" else most)
                    ]
                except WorkerError as error:
                    for row in rows.values():
                        row["failed"][engine] = str(error)
                    continue
                if engine != "export":
                    for load, (count, loops) in LOADS.items():
                        under_load(rows[f"{name}, {load}"], engine, workers[:count], loops)
    return rows


def under_load(row: Row, engine: str, workers: list[Worker], loops: int) -> None:
    """Measure an engine under a load.  ``ms`` is the time of a call, all processes together."""
    with ExitStack() as stack:
        for _ in range(loops):
            stack.callback(subprocess.Popen(LOOP).kill)
        for worker in workers:
            worker.start(BLOCK)
        for worker in workers:
            worker.finish()
        for worker in workers:
            worker.start(SECONDS)
        times = [worker.finish() for worker in workers]
    calls = [ms for of_one in times for ms in of_one]
    per_second = sum(1e3 * len(of_one) / sum(of_one) for of_one in times)
    row["ms"][engine] = 1e3 / per_second
    row["p50_ms"][engine] = median(calls)
    row["p99_ms"][engine] = quantiles(calls, n=100)[98]


if __name__ == "__main__":
    sys.exit(main())
