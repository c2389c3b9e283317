# SPDX-License-Identifier: Apache-2.0
"""Summary of the rows of whole models: the fastest time of each side, and what is incorrect."""

from __future__ import annotations

from typing import Any

from .summary import geomean

Row = dict[str, Any]


def is_ours(row: Row) -> bool:
    """Return whether this package computed a row."""
    return row["engine"].startswith("ours")


def fastest(rows: list[Row]) -> Row | None:
    """Return the row of the least time, None if no engine has a correct result."""
    timed = [row for row in rows if row["ms"] and row["ok"]]
    return min(timed, key=lambda row: row["ms"], default=None)


def text(found: dict[str, Any]) -> str:
    """Return the summary as Markdown."""
    header, rows = found["header"], found["rows"]
    lines = [
        f"{header['device']}, driver {header['driver']}, torch {header['torch']}, cuDNN "
        f"{header['cudnn']}, commit {header['commit']}, {header['date']}",
        "",
        "| model | batch | dtype | ours, ms | PyTorch, ms | PyTorch / ours | error, of PyTorch |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for key in dict.fromkeys((row["model"], row["batch"], row["dtype"]) for row in rows):
        group = [row for row in rows if (row["model"], row["batch"], row["dtype"]) == key]
        sides = [[row for row in group if is_ours(row) is side] for side in (True, False)]
        ours, theirs = map(fastest, sides)
        if ours and theirs:
            ratios.append(theirs["ms"] / ours["ms"])
        ratio = f"{ratios[-1]:.2f}" if ours and theirs else ""
        times = [f"{one['ms']:.3f} ({one['engine']})" if one else "" for one in (ours, theirs)]
        errors = ", ".join(f"{one['error']:.1e}" if one else "" for one in (ours, theirs))
        lines.append(f"| {' | '.join([*map(str, key), *times, ratio, errors])} |")
    if ratios:
        lines += ["", f"geometric mean: {geomean(ratios):.2f}"]
    failures = [row for row in rows if not row["ok"]]
    lines += ["", *(f"- {row['key']}: {row['note'] or row['error']}" for row in failures)]
    return "\n".join(lines) + "\n"
