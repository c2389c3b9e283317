# SPDX-License-Identifier: Apache-2.0
"""The demo's figures: grey for what there was, one colour for what is new, labels on the data."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

ACCENT, DARK, GREY, PALE = "#0a7d74", "#1f2328", "#8b939c", "#d4d8dd"

mpl.rcParams.update(
    {
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": DARK,
        "axes.edgecolor": PALE,
        "axes.labelcolor": GREY,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "xtick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
        "svg.hashsalt": "relax_ext",
    }
)


@dataclass(frozen=True)
class Times:
    """Milliseconds of one model; None where there is no correct result to time."""

    name: str
    stock: float | None
    ours: float | None
    torch: float


def milliseconds(value: float) -> str:
    """Return a time with two digits that matter."""
    if value >= 1000:
        return f"{value / 1000:.2g} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def speed(times: Sequence[Times]) -> Figure:
    """Bars per model on a log scale, longest on top within each model."""
    figure, ax = plt.subplots(figsize=(8.2, 0.95 * len(times) + 0.55), layout="constrained")
    values = [v for t in times for v in (t.stock, t.ours, t.torch) if v]
    low = min(values) / 2.5
    for row, t in enumerate(times):
        bars = ((t.stock, "stock TVM", PALE, GREY), (t.torch, "PyTorch", GREY, GREY))
        for place, (value, who, colour, text) in enumerate((*bars, (t.ours, "", ACCENT, ACCENT))):
            y = row + (place - 1) * 0.26
            mine = place == 2
            label = who or "relax_ext"
            if value is None:
                ax.text(low * 1.06, y, f"{label}: no correct result", va="center", color=text)
                continue
            ax.barh(y, value - low, 0.22, left=low, color=colour)
            shown = milliseconds(value)
            if mine and t.stock:
                shown += f"   {t.stock / value:.0f}× stock"
            weight = "bold" if mine else "normal"
            named = f"{label}  {shown}" if row == 0 else shown
            ax.text(value * 1.08, y, named, va="center", color=text, fontweight=weight, fontsize=9)
    ax.set_yticks(range(len(times)), [t.name for t in times], color=DARK, fontsize=11)
    ax.set_xscale("log")
    ax.set_xlim(low, max(values) * 3.2)
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter(lambda v, _: milliseconds(v))
    ax.grid(axis="x", color=PALE, linewidth=0.6, alpha=0.6)
    ax.set_axisbelow(True)
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_visible(False)
    return figure


def losses(torch_losses: np.ndarray, tvm_losses: np.ndarray, checked: int, limit: float) -> Figure:
    """Return both loss curves, and their relative difference below."""
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(8.2, 4.6), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    steps = np.arange(1, len(torch_losses) + 1)
    above.plot(steps, torch_losses, color=PALE, linewidth=7, solid_capstyle="round")
    above.plot(steps, tvm_losses, color=ACCENT, linewidth=1.6)
    above.set_yscale("log")
    above.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    above.yaxis.set_minor_formatter(lambda v, _: f"{v:g}" if f"{v:e}"[0] in "25" else "")
    above.set_ylabel("loss")
    at = len(steps) // 3
    above.annotate(
        "PyTorch",
        (steps[at], torch_losses[at]),
        (-14, -30),
        textcoords="offset points",
        color=GREY,
        ha="right",
        arrowprops=dict(arrowstyle="-", color=PALE),
    )
    above.annotate(
        "TVM with relax_ext",
        (steps[at], tvm_losses[at]),
        (14, 30),
        textcoords="offset points",
        color=ACCENT,
        fontweight="bold",
        arrowprops=dict(arrowstyle="-", color=ACCENT),
    )
    floor = 1e-8
    difference = np.maximum(relative_difference(torch_losses, tvm_losses), floor)
    below.plot(steps, difference, color=ACCENT, linewidth=1.2)
    below.plot([1, checked], [limit, limit], color=DARK, linewidth=1)
    below.text(checked + 2, limit, f"limit of the check: {checked} steps", va="center", fontsize=9)
    below.set_yscale("log")
    below.set_ylim(floor, limit * 10)
    below.set_ylabel("relative difference")
    below.set_xlabel("step")
    below.set_xlim(0, len(steps) + 1)
    for ax in (above, below):
        ax.grid(axis="y", color=PALE, linewidth=0.6, alpha=0.6)
        ax.spines["left"].set_visible(False)
    return figure


def relative_difference(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    """``|got - expected| / |expected|``, step by step."""
    return np.abs(got - expected) / np.abs(expected)


def pictures(rows: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """Labelled rows of images, each (n, 1, h, w) in [0, 1]."""
    count = len(rows[0][1])
    figure, axes = plt.subplots(
        len(rows), count, figsize=(8.2, 0.78 * len(rows)), layout="constrained"
    )
    for line, (label, images) in zip(axes, rows):
        for ax, image in zip(line, images):
            ax.imshow(image[0], cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            ax.set_axis_off()
        colour = ACCENT if label == "TVM" else GREY
        line[0].text(
            -0.25,
            0.5,
            label,
            transform=line[0].transAxes,
            ha="right",
            va="center",
            color=colour,
            fontweight="bold" if label == "TVM" else "normal",
        )
    return figure


def svg(figure: Figure, name: str) -> str:
    """Return the figure as an inline SVG element; ``name`` keeps its ids apart from another
    figure's.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def png(figure: Figure) -> str:
    """Return the figure as an ``<img>`` element with its data inside."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200)
    plt.close(figure)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="" src="data:image/png;base64,{data}">'
