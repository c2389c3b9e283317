# SPDX-License-Identifier: Apache-2.0
"""Summary of the rows of a GPU, and the rows to look at first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

RATIOS = {
    "ratio_torch": "cuDNN / ours",
    "ratio_torch_tf32": "cuDNN with TF32 / ours",
    "ratio_torch_graph": "cuDNN / ours, kernels alone",
    "ratio_torch_prepacked": "cuDNN / ours with packed weights",
    "ratio_stock": "stock TVM / ours",
}

SHORT = 0.006
"""Milliseconds below which a launch is most of a call."""

WORST = 12


def geomean(values: Iterable[float]) -> float | None:
    """Return the geometric mean; None of no values."""
    found = [math.log(value) for value in values]
    return math.exp(sum(found) / len(found)) if found else None


def summarize(rows: Sequence[Row], checks: Sequence[Row]) -> dict[str, Any]:
    """Return groups by dtype, layout and operator, the slowest rows, and the incorrect ones."""
    groups = sorted({(row["dtype"], row["channels"], row["kind"]) for row in rows})
    return {
        "groups": [_group(key, rows) for key in groups],
        "worst": [row["key"] for row in worst(rows)[:WORST]],
        "incorrect": [row["key"] for row in (*checks, *rows) if not row["ok"]],
        "checked": len(checks),
        "timed": len(rows),
        "first": advice(rows, checks),
    }


def _group(key: tuple[str, str, str], rows: Sequence[Row]) -> Row:
    dtype, channels, kind = key
    found = [row for row in rows if (row["dtype"], row["channels"], row["kind"]) == key]
    group: Row = {"dtype": dtype, "channels": channels, "kind": kind, "cases": len(found)}
    for name in RATIOS:
        values = [row[name] for row in found if row[name]]
        group[name] = geomean(values)
        group[name.replace("ratio", "slower")] = sum(value < 1 for value in values)
    group["best_plan"] = geomean(
        row["ours_graph_ms"] / min(row["ours_graph_ms"], *times)
        for row in found
        if (times := [one["graph_ms"] for one in row["plans"] if one["graph_ms"]])
        and row["ours_graph_ms"]
    )
    group["share"] = geomean(row["share"] for row in found if row["share"])
    group["estimate"] = geomean(
        (row["ours_graph_ms"] or row["ours_ms"]) / row["estimate_ms"]
        for row in found
        if row["estimate_ms"] and row["ours_ms"]
    )
    return group


def worst(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are slower than cuDNN, the largest factor first."""
    found = [row for row in rows if row["ratio_torch"] and row["ratio_torch"] < 1]
    return sorted(found, key=lambda row: row["ratio_torch"])


def advice(rows: Sequence[Row], checks: Sequence[Row]) -> list[str]:
    """Return lines about the rows to look at, the most urgent first."""
    lines = []
    incorrect = [row["key"] for row in (*checks, *rows) if not row["ok"]]
    if incorrect:
        lines.append(
            f"{len(incorrect)} results are incorrect or missing: {', '.join(incorrect[:5])}"
        )
    by_kernel: dict[str, list[Row]] = {}
    for row in worst(rows):
        by_kernel.setdefault(row["plan"].partition("(")[0], []).append(row)
    for kernel, found in sorted(by_kernel.items(), key=lambda one: -len(one[1])):
        row = found[0]
        lines.append(
            f"{kernel}: slower than cuDNN in {len(found)} rows, worst {row['key']} "
            f"({row['ratio_torch']:.2f}, {row['plan']})"
        )
    around = [
        row
        for row in rows
        if row["prepacked_ms"] and row["ours_ms"] and row["ours_ms"] > 1.3 * row["prepacked_ms"]
    ]
    if around:
        lines.append(f"packing weights costs more than 30 % in {len(around)} rows")
    waiting = [
        row
        for row in rows
        if row["share"] and row["share"] < 0.2 and (row["ours_graph_ms"] or 0) > SHORT
    ]
    if waiting:
        waiting.sort(key=lambda row: row["share"])
        lines.append(
            f"{len(waiting)} rows reach less than 20 % of the machine's limit though they are "
            f"longer than a launch: {', '.join(row['key'] for row in waiting[:4])}"
        )
    off = [row for row in rows if row["ours_graph_ms"] and row["estimate_ms"]]
    off.sort(key=lambda row: -abs(math.log(row["ours_graph_ms"] / row["estimate_ms"])))
    if off:
        row = off[0]
        lines.append(
            f"the estimate is furthest off for {row['key']}: {row['ours_graph_ms'] * 1e3:.1f} µs, "
            f"estimated {row['estimate_ms'] * 1e3:.1f}"
        )
    return lines or ["nothing stands out"]


def text(header: Row, found: Row, rows: Sequence[Row]) -> str:
    """Return the summary as Markdown."""
    lines = [
        f"{header['device']}, driver {header['driver']}, torch {header['torch']}, cuDNN "
        f"{header['cudnn']}, commit {header['commit']}, {header['date']}",
        f"checked {found['checked']}, timed {found['timed']}, incorrect {len(found['incorrect'])}",
        "",
        f"| dtype | channels | kind | cases | {' | '.join(RATIOS.values())} | of limit "
        "| time / estimate | ours / best plan |",
        f"|{'---|' * (7 + len(RATIOS))}",
    ]
    for group in found["groups"]:
        cells = [group["dtype"], group["channels"], group["kind"], str(group["cases"])]
        for name in RATIOS:
            slower = group[name.replace("ratio", "slower")]
            cells.append(f"{_number(group[name])}" + (f" ({slower} slower)" if slower else ""))
        cells += [f"{group['share']:.0%}" if group["share"] else "", _number(group["estimate"])]
        cells.append(_number(group["best_plan"]))
        lines.append(f"| {' | '.join(cells)} |")
    by_key = {row["key"]: row for row in rows}
    lines += ["", "Worst against cuDNN:", ""]
    for key in found["worst"]:
        row = by_key[key]
        lines.append(
            f"- {key}: {row['ratio_torch']:.2f}, ours {row['ours_ms'] * 1e3:.1f} µs, cuDNN "
            f"{row['torch_ms'] * 1e3:.1f} µs, {row['plan']}, {row['configuration']}"
        )
    lines += ["", "What to look at first:", "", *(f"- {line}" for line in found["first"])]
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
