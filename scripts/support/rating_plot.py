# SPDX-License-Identifier: Apache-2.0
"""The picture of ``scripts/evaluate_cost_model.py``: estimate against time, a panel per kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from topi_ext.cpu.registry import KERNELS
from topi_ext.spec.conv import OPERANDS

_HUES = (
    "#0a7d74", "#e07a1f", "#2a6f97", "#b23a48", "#6a4c93", "#7a9e2e",
    "#c9a227", "#5b8fb9", "#8d5524", "#d77fa1", "#444444", "#9aa5b1",
)  # fmt: skip
_COLOURS = dict(
    zip((kernel.name for kernel in KERNELS.of_kind(*OPERANDS) if kernel.candidates), _HUES)
)


def draw(rows: Sequence[dict[str, Any]], header: dict[str, Any], path: Path) -> None:
    """Draw every timed plan, the chosen ones ringed, on logarithmic axes.

    The line is where all would lie if cycles were exact: at the median clock of the points.
    """
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    mpl.rcParams["font.size"] = 9
    figure = Figure(figsize=(3.6 * len(kinds) + 0.4, 4.2), layout="constrained")
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    for panel, kind in zip(panels, kinds):
        plans = [one for row in rows if row["kind"] == kind for one in row["plans"] if one["ms"]]
        _panel(panel, kind, plans)
    panels[0].set_ylabel("measured, ms")
    used = {one["kernel"] for row in rows for one in row["plans"] if one["ms"]}
    marks = [
        mpl.lines.Line2D([], [], linestyle="", marker="o", color=colour, label=name)
        for name, colour in _COLOURS.items()
        if name in used
    ]
    ring = {"markerfacecolor": "none", "color": "#222222", "markersize": 8}
    marks.append(mpl.lines.Line2D([], [], linestyle="", marker="o", label="chosen", **ring))
    figure.legend(handles=marks, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    title = f"{rows[0]['dtype']}, threads {header['threads']}, {header['cpu']}, {header['date']}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _panel(panel: Any, kind: str, plans: Sequence[dict[str, Any]]) -> None:
    for name in dict.fromkeys(one["kernel"] for one in plans):
        found = [one for one in plans if one["kernel"] == name]
        at = [[one[key] for one in found] for key in ("cycles", "ms")]
        panel.scatter(*at, s=9, color=_COLOURS.get(name), linewidths=0, alpha=0.8)
    chosen = [one for one in plans if one["chosen"]]
    at = [[one[key] for one in chosen] for key in ("cycles", "ms")]
    panel.scatter(*at, s=34, facecolors="none", edgecolors="#222222", linewidths=0.7)
    if plans:
        per_cycle = median(one["ms"] / one["cycles"] for one in plans)
        ends = [pick(one["cycles"] for one in plans) for pick in (min, max)]
        panel.plot(ends, [per_cycle * end for end in ends], color="#b8c0cc", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("estimated, cycles")
    panel.set_title(kind, loc="left", fontweight="bold", fontsize=10)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.grid(color="#eeeeee", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
