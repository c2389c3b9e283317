# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of docs/developer/maths.md from the tables that the kernels use.

``python scripts/draw_phases.py [--out FOLDER] [--png]``; equal versions of matplotlib write equal
bytes.  Nothing here computes a phase: every number comes from ``topi_ext``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from topi_ext.cpu.plan.window import Window
from topi_ext.spec.axis_access import AxisAccess
from topi_ext.spec.geometry import Geometry

INK, FAINT, FAINTER, GREY, PAPER = "#222222", "#b8b8b8", "#e2e2e2", "#f0f0f0", "#ffffff"
# Okabe and Ito's colours, which colour-blind readers tell apart; then the same, pale, to fill.
DARK = ("#0072b2", "#d55e00", "#00855f", "#8e4b80")
PALE = ("#cfe5f3", "#fbdcc6", "#c9ebdf", "#ecd5e5")

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "tvm-conv-ext",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "savefig.facecolor": PAPER,
}


def write(ax: Any, x: float, y: float, text: object, color: str = INK, **more: Any) -> None:
    """A text around (x, y), or one that begins there: ``ha="left"``."""
    ax.text(
        x, y, str(text), **{"color": color, "ha": "center", "va": "center", "zorder": 3, **more}
    )


def cell(
    ax: Any, x: float, y: float, text: object, fill: str, edge: str, color: str = INK, **more: Any
) -> None:
    """A unit square around (x, y) with a text in it; coloured edges cover faint neighbours."""
    above = 1 if fill == PAPER else 2
    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=fill, ec=edge, lw=1, zorder=above, **more))
    write(ax, x, y, text, color)


def blank(figure: Any, ax: Any, xs: tuple[float, float], ys: tuple[float, float]) -> None:
    """Axes without axes; y grows downwards as in a matrix."""
    ax.set(xlim=xs, ylim=ys[::-1], aspect="equal")
    ax.axis("off")
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.99, wspace=0.03)


# -------------------------------------------------------------------- one axis


def formula(access: AxisAccess, offset: int) -> str:
    """Return the formula of one phase, e.g. ``x[2j+1] = w[0]·y[j+1] + w[2]·y[j]``."""

    def at(step: int, plus: int) -> str:
        return f"{step if step > 1 else ''}j" + (f"{plus:+d}".replace("-", "−") if plus else "")

    taps = access.phases[offset].taps
    terms = [f"w[{tap.index}]·y[{at(1, tap.shift)}]" for tap in taps]
    return f"x[{at(access.out_step, offset)}] = {' + '.join(terms) or '0'}"


def axis_picture(kernel: int, stride: int, padding: int, dilation: int, y_size: int) -> Any:
    """One axis of a transposed convolution: who meets whom, and the matrix sorted by phase."""
    attributes = dict(stride=stride, padding=padding, dilation=dilation)
    g = Geometry.of_conv_transpose("picture", (1, 1, y_size), (1, 1, kernel), **attributes)
    access, x_size = g.accesses(transposed=True)[0], g.x_size[0]
    widths = {"width_ratios": [1.75, 1]}
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.3), gridspec_kw=widths)
    blank(figure, left, *_meetings(left, access, x_size, y_size))
    blank(figure, right, *_matrix(right, access, x_size, y_size))
    return figure


def _meetings(ax: Any, access: AxisAccess, x_size: int, y_size: int) -> Any:
    """Return the lines from y to x, one per product; returns the limits of the drawing."""
    reach, drop = access.dilation * (access.kernel - 1), 4.0
    for p in range(y_size):
        first = access.stride * p - access.pad_before
        top = first + reach / 2
        cell(ax, top, 0, p, GREY, INK)
        for r in range(access.kernel):
            o = first + access.dilation * r
            inside = 0 <= o < x_size
            colour = DARK[o % access.stride] if inside else FAINT
            ends, style = ([top, o], [0.5, drop - 0.5]), "-" if inside else ":"
            ax.plot(*ends, style, color=colour, lw=1.3, zorder=0)
            at = 0.3 + 0.3 * r / max(1, access.kernel - 1)  # clear of the crossings
            box = dict(fc=PAPER, ec="none", pad=0.6)
            write(ax, top + (o - top) * at, 0.5 + (drop - 1) * at, r, colour, size=8, bbox=box)
    low, high = -access.pad_before, access.stride * (y_size - 1) + reach + 1 - access.pad_before
    for o in range(low, high):
        if 0 <= o < x_size:
            cell(ax, o, drop, o, PALE[o % access.stride], DARK[o % access.stride])
        else:
            cell(ax, o, drop, "", PAPER, FAINT, linestyle=(0, (2, 2)))
    write(ax, low - 1.4, 0, "y", size=13, style="italic")
    write(ax, low - 1.4, drop / 2, "tap r", size=9)
    write(ax, low - 1.4, drop, "x", size=13, style="italic")
    for offset in range(access.out_step):
        text = f"phase {offset}:   {formula(access, offset)}"
        write(ax, -0.5, drop + 1.5 + 1.1 * offset, text, DARK[offset], ha="left", size=10.5)
    return (low - 3, high + 0.5), (-0.8, drop + 1.6 + 1.1 * access.out_step)


def _matrix(ax: Any, access: AxisAccess, x_size: int, y_size: int) -> Any:
    """Return the taps by position of x and of y; returns the limits of the drawing."""
    row = 0.0
    for offset, phase in enumerate(access.phases):
        for j, o in enumerate(range(offset, x_size, access.out_step)):
            write(ax, -1, row, o, DARK[offset])
            met = {j + tap.shift: tap.index for tap in phase.taps}
            for p in range(y_size):
                if p in met:
                    cell(ax, p, row, met[p], PALE[offset], DARK[offset], DARK[offset])
                else:
                    cell(ax, p, row, "", PAPER, FAINTER)
            row += 1
        row += 0.5
    for p in range(y_size):
        write(ax, p, -1, p)
    write(ax, -1, -1, "x╲y", size=8)
    write(ax, (y_size - 1) / 2, row + 0.3, "tap that joins x to y, rows of x by phase", size=8.5)
    return (-3, y_size + 1.5), (-1.8, row + 0.9)


# -------------------------------------------------------------------- two axes


def plane_picture() -> Any:
    """Stride 2 x 2, kernel 3 x 3: each tap belongs to one phase, each phase to one colour."""
    g = Geometry.of_conv_transpose("picture", (1, 1, 4, 4), (1, 1, 3, 3), stride=2, padding=1)
    rows, columns = g.accesses(transposed=True)
    widths = {"width_ratios": [1, 1.35]}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.1), gridspec_kw=widths)

    def count(a: int, b: int) -> int:
        return len(rows.phases[a].taps) * len(columns.phases[b].taps)

    for r, s in product(range(3), range(3)):
        number = rows.phase_of(r) * 2 + columns.phase_of(s)
        cell(left, s, r, f"{r},{s}", PALE[number], DARK[number], DARK[number])
    write(left, 1, -1.1, "the 9 taps of w")
    for number, (a, b) in enumerate(product(range(2), range(2))):
        text = f"phase ({a},{b}): {count(a, b)} tap{'s' * (count(a, b) > 1)}"
        write(left, -0.5, 3.1 + 0.62 * number, text, DARK[number], ha="left")
    write(left, -0.5, 5.7, "9 products for 4 outputs", ha="left", weight="bold")
    blank(figure, left, (-1, 3.4), (-1.6, 6.1))
    for i, j in product(*map(range, g.x_size)):
        number = i % 2 * 2 + j % 2
        cell(right, j, i, count(i % 2, j % 2), PALE[number], DARK[number], DARK[number])
    write(right, (g.x_size[1] - 1) / 2, -0.9, "x: how many taps each position meets")
    blank(figure, right, (-1, g.x_size[1]), (-1.5, g.x_size[0] - 0.2))
    return figure


def window_picture() -> Any:
    """Return a block of 3 x 4 positions, its flattened window, and the lanes that are dropped."""
    g = Geometry.of_conv_transpose("picture", (1, 1, 9, 9), (1, 1, 4, 4), stride=2, padding=1)
    accesses = g.accesses(transposed=True)
    window, lanes = Window.of((3, 4), accesses), 8
    (rows, columns), (step, _) = window.extent, window.steps
    # The tap with shift 0 along both axes.
    offset = sum(-access.first_shift * at for access, at in zip(accesses, window.steps))
    figure, ax = plt.subplots(figsize=(9.6, 5.0))

    def colours(lane: int) -> tuple[str, str]:
        if not 0 <= lane < window.length:
            return PAPER, FAINT
        kept = lane % step < window.block[1]
        return (PALE[0], DARK[0]) if kept else (PALE[1], DARK[1])

    for e, f in product(range(rows), range(columns)):
        cell(ax, f, e, e * step + f, *colours(e * step + f - offset))
    write(ax, (columns - 1) / 2, -0.95, f"window, {rows} x {columns}, flattened")
    notes = (
        (INK, f"block of {window.block[0]} x {window.block[1]} positions, halo of 1 all around"),
        (INK, f"this tap is the constant offset {offset}: lane l reads element {offset} + l"),
        (DARK[0], "the positions of the block"),
        (DARK[1], "halo between two rows: computed, then dropped"),
    )
    for line, (colour, note) in enumerate(notes):
        write(ax, columns + 1, 0.6 + 0.9 * line, note, colour, ha="left")
    top = rows + 1.6
    for lane in range(window.length):
        cell(ax, lane, top, lane, *colours(lane))
        if lane % lanes == 0:
            ax.plot([lane - 0.5] * 2, [top - 0.8, top + 0.8], color=INK, lw=2, zorder=3)
    write(ax, -0.5, top - 1.15, "lanes of the accumulators, two vectors of 8", ha="left")
    blank(figure, ax, (-1, window.length), (-1.6, top + 0.9))
    return figure


# -------------------------------------------------------------------- the three operators


def operators_picture() -> Any:
    """Return the triangle: tensors in the corners, operators on the sides, dashed to their
    results.
    """
    figure, ax = plt.subplots(figsize=(6.4, 3.7))
    corners = {"x": (0.0, 3.0), "y": (6.0, 3.0), "w": (3.0, 0.0)}
    sides = {
        "conv": ("x", "w", "y", -0.9, -0.1),
        "conv_transpose": ("y", "w", "x", 1.65, -0.1),
        "conv_weight_grad": ("x", "y", "w", 0, 0.4),
    }
    for color, (name, (a, b, result, right, down)) in zip(DARK, sides.items()):
        ends = list(zip(corners[a], corners[b]))
        ax.plot(*ends, color=color, lw=2, zorder=0)
        middle = sum(ends[0]) / 2, sum(ends[1]) / 2
        x, y = (m + 0.86 * (c - m) for m, c in zip(middle, corners[result]))
        arrow = dict(arrowstyle="-|>", color=color, lw=1.2, linestyle=(0, (3, 2)), shrinkA=0)
        ax.annotate("", (x, y), middle, arrowprops=arrow)
        at = middle[0] + right, middle[1] + down
        write(ax, *at, name, color, size=11, family="DejaVu Sans Mono")
    for name, at in corners.items():
        box = dict(boxstyle="circle,pad=0.35", fc=PAPER, ec=INK, lw=1.4)
        write(ax, *at, name, size=17, style="italic", bbox=box)
    blank(figure, ax, (-1.2, 7.2), (-0.7, 3.8))
    return figure


PICTURES: dict[str, Callable[[], Any]] = {
    "operators": operators_picture,
    "phases-s2-k3": lambda: axis_picture(kernel=3, stride=2, padding=1, dilation=1, y_size=5),
    "phases-s3-d2-k3": lambda: axis_picture(kernel=3, stride=3, padding=1, dilation=2, y_size=4),
    "phases-s3-k2": lambda: axis_picture(kernel=2, stride=3, padding=0, dilation=1, y_size=4),
    "phases-2d": plane_picture,
    "window": window_picture,
}


def main() -> None:
    """Draw every picture."""
    here = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description="Draw the pictures of docs/developer/maths.md.")
    parser.add_argument("--out", type=Path, default=here / "docs" / "pictures")
    parser.add_argument("--png", action="store_true", help="PNG instead of SVG, for a quick look")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    kind = "png" if args.png else "svg"
    with plt.rc_context(STYLE):
        for name, draw in PICTURES.items():
            # Without a date in it, drawing again changes nothing.
            metadata = {} if args.png else {"Date": None}
            draw().savefig(args.out / f"{name}.{kind}", dpi=110, metadata=metadata)


if __name__ == "__main__":
    main()
