# SPDX-License-Identifier: Apache-2.0
"""Time the operators as batch, channels, image and kernel grow, beside PyTorch and the machine's
peaks.

::

    python scripts/scaling.py --json out/growth.json --plot out/growth.png

Every point is checked as in ``bench.py``. Exit status 1 when one is incorrect.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.arguments import Options, count
from support.cases import KINDS, Case, case_of
from support.environment import prepare

BASE = {"n": 4, "channels": 64, "size": 32, "kernel": 4}
"""A transposed convolution with stride 2, as decoders have them."""

AXES = {
    "n": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "channels": (4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256),
    "size": (2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96),
    "kernel": (1, 2, 3, 4, 5, 6, 7, 8, 9),
}
"""Values of one at a time, the others as in `BASE`."""

CLIFF = 1.5
"""A step is a cliff where time grows by this factor more than the work does."""


def cases() -> Iterator[tuple[str, int, Case]]:
    """Axis, value, and the case."""
    for axis, values in AXES.items():
        for value in values:
            sizes = {**BASE, axis: value}
            kernel = sizes["kernel"]
            entry = {
                "name": f"{axis} {value}",
                "x": [sizes["n"], sizes["channels"], sizes["size"], sizes["size"]],
                "cout": sizes["channels"],
                "kernel": kernel,
                "stride": 2,
                # Twice the size of the image, whatever the kernel.
                "padding": max(0, (kernel - 1) // 2),
                "output_padding": kernel % 2,
            }
            yield axis, value, case_of(entry, 0)


def main() -> int:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=count, default=2, metavar="N", help="default: 2")
    parser.add_argument("--time-budget", type=float, default=0.3, metavar="S", help="per point")
    parser.add_argument("--json", type=Path, default=Path("out/growth.json"), metavar="OUT")
    parser.add_argument("--plot", type=Path, default=Path("out/growth.png"), metavar="OUT.png")
    given = parser.parse_args()
    prepare(given.threads)
    rows = measured(given.threads, given.time_budget)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    steps = cliffs(rows)
    given.json.write_text(json.dumps({"rows": rows, "cliffs": steps}, indent=1) + "\n")
    from support.scaling_plot import draw

    draw(rows, given.plot)
    for step in steps:
        print(
            f"{step['kind']}: {step['from']} to {step['to']}: {step['factor']:.2f} times the work"
        )
    print(f"{len(rows)} points, {len(steps)} steps above {CLIFF} times the work; {given.plot}")
    return int(any(row["incorrect"] for row in rows))


def measured(threads: int, budget: float) -> list[dict[str, Any]]:
    """Return a row of the benchmark for every point of every kind, with its axis and value."""
    import torch

    from support import by_relax, peaks, report
    from support.measure import Bench, measure

    torch.set_num_threads(threads)
    target = by_relax.host_target(threads)
    by_relax.warm_up(target)
    options = Options(
        cases=[], source="", ir="relax", kinds=KINDS, baselines=("torch",), threads=threads,
        dtype="float32", time_budget=budget, json=None, plot=None,
    )  # fmt: skip
    bench = Bench(options, by_relax, target, peaks.measure(by_relax, target, threads))
    points = [(kind, *point) for kind in KINDS for point in cases()]
    rows = []
    with torch.inference_mode(), report.progress() as bar:
        task = bar.add_task("", total=len(points))
        for kind, axis, value, case in points:
            bar.update(task, description=f"{kind} {case.name}")
            row = measure(case, kind, bench)
            floors = [
                row["ours_ms"] * row[share] for share in ("share_of_peak", "share_of_bandwidth")
            ]
            rows.append({**row, "axis": axis, "value": value, "floor_ms": max(floors)})
            bar.advance(task)
    return rows


def cliffs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps between neighbours where time grows faster than the floor of the work does."""
    found = []
    for before, after in itertools.pairwise(rows):
        if (before["kind"], before["axis"]) != (after["kind"], after["axis"]):
            continue
        work = after["floor_ms"] / before["floor_ms"]
        factor = after["ours_ms"] / before["ours_ms"] / max(work, 1.0)
        if factor > CLIFF:
            found.append(
                {
                    "kind": after["kind"],
                    "from": before["name"],
                    "to": after["name"],
                    "factor": factor,
                }
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
