# SPDX-License-Identifier: Apache-2.0
"""The picture: per case, how much faster ours is than each baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .output import FAINT, INK, picture

_BASELINES = {
    "stock": ("stock TVM", "#b8c0cc"),
    "torch": ("PyTorch", "#2a6f97"),
    "onnxruntime": ("ONNX Runtime", "#e09f3e"),
    "openvino": ("OpenVINO", "#7b5ea7"),
    "inductor": ("torch.compile", "#5aa469"),
    "float32": ("ours in float32", "#9a8c98"),
}
_BARS = 0.76  # of a row, shared by its baselines
_PER_BAR = 0.17  # inches


def draw(rows: Sequence[dict[str, Any]], header: dict[str, Any], path: Path) -> None:
    """Draw one panel per kind: horizontal bars of baseline / ours on a logarithmic scale."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    baselines = [name for name in _BASELINES if any(row.get(f"ratio_{name}") for row in rows)]
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in kinds}
    sizes = [len(found) + 2 for found in by_kind.values()]
    height = _PER_BAR * max(2, len(baselines)) * sum(sizes) + 1.2
    with picture(path, 8, height) as figure:
        grid = figure.subplots(len(kinds), 1, squeeze=False, sharex=True, height_ratios=sizes)
        panels = grid[:, 0]
        for panel, (kind, found) in zip(panels, by_kind.items()):
            _panel(panel, kind, found, baselines)
        panels[-1].set_xlabel("times as fast: baseline / ours, more is better")
        legend = panels[0].get_legend_handles_labels()
        figure.legend(*legend, loc="outside upper right", ncols=3, frameon=False)
        title = f"{rows[0]['dtype']}, threads {header['threads']}, {header['cpu']}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)


def _panel(panel: Any, kind: str, rows: list[dict[str, Any]], baselines: list[str]) -> None:
    bar = _BARS / max(2, len(baselines))
    for number, baseline in enumerate(baselines):
        label, colour = _BASELINES[baseline]
        at = [place + (number - (len(baselines) - 1) / 2) * bar for place in range(len(rows))]
        values = [row.get(f"ratio_{baseline}") or 1 for row in rows]
        # A bar starts at 1, so that what is slower than the baseline points to the left.
        bars = panel.barh(
            at, [value - 1 for value in values], bar, left=1, color=colour, label=label
        )
        shown = [_times(row.get(f"ratio_{baseline}")) for row in rows]
        panel.bar_label(bars, shown, padding=3, fontsize=7, color="#444444")
    panel.set_xscale("log")
    panel.axvline(1, color=INK, linewidth=0.8)
    panel.set_yticks(range(len(rows)), [row["name"] for row in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.set_title(kind, loc="left", fontweight="bold", fontsize=10)
    panel.margins(x=0.12)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    panel.grid(axis="x", color=FAINT, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0)
    panel.tick_params(axis="x", labelbottom=True)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _times(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}×" if value >= 10 else f"{value:.1f}×" if value >= 1 else f"{value:.2f}×"
