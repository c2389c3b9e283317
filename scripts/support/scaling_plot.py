# SPDX-License-Identifier: Apache-2.0
"""The picture of ``scripts/scaling.py``: time over each axis, one row of panels per kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

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


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw milliseconds on logarithmic axes."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    mpl.rcParams["font.size"] = 8
    figure = Figure(figsize=(2.6 * len(axes), 2.3 * len(kinds) + 0.5), layout="constrained")
    panels = figure.subplots(len(kinds), len(axes), squeeze=False, sharex="col")
    for kind, line in zip(kinds, panels):
        for axis, panel in zip(axes, line):
            points = [row for row in rows if (row["kind"], row["axis"]) == (kind, axis)]
            for key, style in _LINES.items():
                panel.plot(
                    [row["value"] for row in points],
                    [row[key] for row in points],
                    markersize=2.5,
                    linewidth=1,
                    **style,
                )
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.grid(color="#eeeeee", linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
            if kind == kinds[-1]:
                panel.set_xlabel(_LABELS[axis])
        line[0].set_ylabel(f"{kind}\nms")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside upper right",
        ncols=3,
        frameon=False,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
