# SPDX-License-Identifier: Apache-2.0
"""Plot of a run: speed relative to cuDNN for every row, and the share of the machine's limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..output import INK, picture

_COLOURS = {"conv_transpose": "#2a6f97", "conv": "#c06c2b", "conv_weight_grad": "#5b8c5a"}


def draw(rows: Sequence[dict[str, Any]], header: dict[str, Any], path: Path) -> None:
    """Draw a panel for each dtype and layout, rows from slowest to fastest against cuDNN."""
    formats = list(dict.fromkeys((row["dtype"], row["channels"]) for row in rows))
    with picture(path, 11, 2.6 * max(1, len(formats)) + 0.8) as figure:
        panels = figure.subplots(max(1, len(formats)), 2, squeeze=False)
        for (left, right), (dtype, channels) in zip(panels, formats):
            found = [row for row in rows if (row["dtype"], row["channels"]) == (dtype, channels)]
            _ratios(left, found, f"{dtype}, channels {channels}")
            _shares(right, found)
        panels[0][0].legend(frameon=False, fontsize=8)
        figure.suptitle(f"{header['device']}, {header['date']}, {header['commit']}", fontsize=9)


def _ratios(panel: Any, rows: list[dict[str, Any]], title: str) -> None:
    for kind, colour in _COLOURS.items():
        values = sorted(
            row["ratio_torch"] for row in rows if row["kind"] == kind and row["ratio_torch"]
        )
        if values:
            places = [(number + 0.5) / len(values) for number in range(len(values))]
            panel.plot(places, values, ".-", color=colour, label=kind, linewidth=1, markersize=3)
    panel.axhline(1, color=INK, linewidth=0.8)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    panel.set_title(f"{title}: cuDNN / ours, more is better", loc="left", fontsize=9)
    panel.set_xlabel("share of cases", fontsize=8)


def _shares(panel: Any, rows: list[dict[str, Any]]) -> None:
    for kind, colour in _COLOURS.items():
        found = [row for row in rows if row["kind"] == kind and row["share"] and row["ours_ms"]]
        times = [(row["ours_graph_ms"] or row["ours_ms"]) * 1e3 for row in found]
        panel.plot(times, [row["share"] for row in found], ".", color=colour, markersize=4)
    panel.set_xscale("log")
    panel.set_ylim(0, 1.05)
    panel.set_xlabel("µs", fontsize=8)
    panel.set_title("share of the limit by products or memory", loc="left", fontsize=9)
