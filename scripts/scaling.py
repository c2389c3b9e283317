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
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.arguments import count
from support.cases import KINDS, Case, case_of
from support.environment import prepare
from support.output import picture, write_json

BASE = {"n": 4, "channels": 64, "size": 32, "kernel": 4}
"""A transposed convolution with stride 2, as decoders have them."""

AXES = {
    "n": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "channels": (4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256),
    "size": (2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96),
    "kernel": (1, 2, 3, 4, 5, 6, 7, 8, 9),
}
"""Values of one at a time, the others as in `BASE`."""

_LABELS = {
    "n": "batch",
    "channels": "channels in and out",
    "size": "image side",
    "kernel": "kernel side",
}
_LINES = {
    "torch_ms": {"label": "PyTorch", "color": "#b8c0cc", "marker": "o"},
    "ours_ms": {"label": "ours", "color": "#0a7d74", "marker": "o"},
    "floor_ms": {"label": "floor: peak or copy", "color": "#444444", "linestyle": ":"},
}

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
    steps = cliffs(rows)
    write_json(given.json, {"rows": rows, "cliffs": steps})
    draw(rows, given.plot)
    for step in steps:
        how = f"{step['factor']:.2f} times the work"
        print(f"{step['kind']}: {step['from']} to {step['to']}: {how}")
    print(f"{len(rows)} points, {len(steps)} steps above {CLIFF} times the work; {given.plot}")
    return int(any(row["incorrect"] for row in rows))


def measured(threads: int, budget: float) -> list[dict[str, Any]]:
    """Return a row of the benchmark for every point of every kind, with its axis and value."""
    from support import session

    options = argparse.Namespace(
        ir="relax", baselines=("torch",), threads=threads, dtype="float32", time_budget=budget
    )
    points = [(kind, *point) for kind in KINDS for point in cases()]
    rows = []
    with session.opened(options) as bench:
        found = session.measured(bench, [(kind, case) for kind, _, _, case in points])
        for row, (_, axis, value, _) in zip(found, points):
            shares = (row["share_of_peak"], row["share_of_bandwidth"])
            floor = row["ours_ms"] * max(shares)
            rows.append({**row, "axis": axis, "value": value, "floor_ms": floor})
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
            names = {"from": before["name"], "to": after["name"]}
            found.append({"kind": after["kind"], **names, "factor": factor})
    return found


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw milliseconds over each axis on logarithmic axes, one row of panels per kind."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    with picture(path, 2.6 * len(axes), 2.3 * len(kinds) + 0.5, font=8) as figure:
        panels = figure.subplots(len(kinds), len(axes), squeeze=False, sharex="col")
        for kind, line in zip(kinds, panels):
            for axis, panel in zip(axes, line):
                points = [row for row in rows if (row["kind"], row["axis"]) == (kind, axis)]
                values = [row["value"] for row in points]
                for key, style in _LINES.items():
                    times = [row[key] for row in points]
                    panel.plot(values, times, markersize=2.5, linewidth=1, **style)
                panel.set_xscale("log", base=2)
                panel.set_yscale("log")
                for scale in (panel.xaxis, panel.yaxis):
                    scale.set_major_formatter(lambda value, _: f"{value:g}")
                panel.grid(color="#eeeeee", linewidth=0.6)
                panel.spines[["top", "right"]].set_visible(False)
                if kind == kinds[-1]:
                    panel.set_xlabel(_LABELS[axis])
            line[0].set_ylabel(f"{kind}\nms")
        legend = panels[0, 0].get_legend_handles_labels()
        figure.legend(*legend, loc="outside upper right", ncols=3, frameon=False)


if __name__ == "__main__":
    sys.exit(main())
