# SPDX-License-Identifier: Apache-2.0
"""The picture of ``scripts/evaluate_cost_model.py``: estimate against time, a panel per kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.lines import Line2D

from topi_ext.cpu.registry import KERNELS
from topi_ext.spec.conv import OPERANDS

from .output import INK, picture

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
    with picture(path, 3.6 * len(kinds) + 0.4, 4.2) as figure:
        panels = figure.subplots(1, len(kinds), squeeze=False)[0]
        for panel, kind in zip(panels, kinds):
            of_kind = [row for row in rows if row["kind"] == kind]
            _panel(panel, kind, [one for row in of_kind for one in row["plans"] if one["ms"]])
        panels[0].set_ylabel("measured, ms")
        used = {one["kernel"] for row in rows for one in row["plans"] if one["ms"]}
        dot: dict[str, Any] = {"linestyle": "", "marker": "o"}
        marks = [
            Line2D([], [], color=colour, label=name, **dot)
            for name, colour in _COLOURS.items()
            if name in used
        ]
        ring: dict[str, Any] = {"markerfacecolor": "none", "color": INK, "markersize": 8}
        marks.append(Line2D([], [], label="chosen", **dot, **ring))
        legend: dict[str, Any] = {
            "loc": "outside lower center",
            "ncols": 4,
            "frameon": False,
            "fontsize": 8,
        }
        figure.legend(handles=marks, **legend)
        where = f"threads {header['threads']}, {header['cpu']}, {header['date']}"
        figure.suptitle(f"{rows[0]['dtype']}, {where}", x=0.01, ha="left", fontsize=9)


def _panel(panel: Any, kind: str, plans: Sequence[dict[str, Any]]) -> None:
    for name in dict.fromkeys(one["kernel"] for one in plans):
        found = [one for one in plans if one["kernel"] == name]
        at = [[one[key] for one in found] for key in ("cycles", "ms")]
        panel.scatter(*at, s=9, color=_COLOURS.get(name), linewidths=0, alpha=0.8)
    chosen = [one for one in plans if one["chosen"]]
    at = [[one[key] for one in chosen] for key in ("cycles", "ms")]
    panel.scatter(*at, s=34, facecolors="none", edgecolors=INK, linewidths=0.7)
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
