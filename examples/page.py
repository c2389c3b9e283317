# SPDX-License-Identifier: Apache-2.0
"""The demo's report: one HTML file that needs nothing else."""

from __future__ import annotations

import string
from collections.abc import Sequence
from html import escape
from operator import attrgetter
from typing import Any

STYLE = """
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
  color: #1f2328; background: #fff; max-width: 46rem; margin: 4rem auto 6rem; padding: 0 1.25rem; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.02em; margin: 0 0 .6rem; }
h2 { font-size: 1.2rem; letter-spacing: -.01em; margin: 3.2rem 0 .2rem; }
p { margin: .3rem 0 1rem; } .lead { font-size: 1.1rem; }
.quiet, footer, summary { color: #6a737d; } footer { margin-top: 4rem; font-size: .85rem; }
b.new { color: #0a7d74; } .bad { color: #b42318; font-weight: 600; }
figure { margin: 1rem 0 0; } svg, img { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums;
  width: 100%; margin: .6rem 0 1rem; }
th { text-align: right; font-weight: 500; color: #6a737d; border-bottom: 1px solid #d4d8dd; }
td { text-align: right; border-bottom: 1px solid #eef0f2; vertical-align: top; }
th, td { padding: .28rem 0 .28rem .9rem; } th:first-child, td:first-child { text-align: left;
  padding-left: 0; } td small { color: #6a737d; display: block; }
summary { cursor: pointer; padding: .15rem 0; }
"""

PAGE = string.Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>relax_ext: decoders and training</title><style>$style</style></head><body>
<h1>$title</h1>
<p class="lead">$lead</p>

<h2>Five decoders, compiled</h2>
<p class="quiet">Time of one inference, log scale; shorter is faster. Same model, same target;
relax_ext by its pipeline for whole models;
$threads threads each.</p>
<figure>$speed</figure>
$notes

<h2>Right, operator by operator</h2>
<p class="quiet">Largest error of any convolution, against float64, relative to the largest
output.</p>
$accuracy
$relay

<h2>Trained by TVM alone</h2>
<p class="quiet">An autoencoder on handwritten digits. TVM computes loss, every gradient and the
update; PyTorch starts from the same weights and sees the same batches.</p>
<figure>$losses</figure>

<h2>What both have learnt</h2>
<figure>$pictures</figure>

<h2>A U-Net with batch norm</h2>
<p class="quiet">It finds handwritten digits under noise, trained by relax_ext.training and by
PyTorch with Adam, running statistics included. $unet</p>
<figure>$unet_losses</figure>
<figure>$unet_pictures</figure>

<h2>Every operator</h2>
$details

<footer>$footer</footer>
</body></html>
""")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table; cells are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _error(side: Any, tolerance: float) -> str:
    if side.error is None:
        return '<span class="bad">fails</span>'
    shown = "0" if side.error == 0 else f"{side.error:.0e}"
    return f'<span class="bad">{shown}</span>' if side.wrong(tolerance) else shown


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def accuracy(reports: Sequence[Any]) -> str:
    """Per model: how many operators, and the worst error of stock and of ours."""
    rows = []
    for r in reports:
        cells = [escape(r.model), str(len(r.operators))]
        for pick in map(attrgetter, ("stock", "ours")):
            bad = [row for row in r.operators if pick(row).wrong(row.tolerance)]
            errors = [pick(row).error for row in r.operators if pick(row).error is not None]
            worst = f"{max(errors):.0e}" if errors else "–"
            cells.append(
                worst if not bad else f'{worst} <span class="bad">{len(bad)} incorrect</span>'
            )
        gradients = r.gradients
        ok = sum(not row.wrong for row in gradients)
        before = sum(not row.stock.wrong(row.tolerance) for row in gradients)
        cells.append(f"{before} of {len(gradients)}" if gradients else "–")
        cells.append(f"<b class=new>{ok} of {len(gradients)}</b>" if gradients else "–")
        rows.append(cells)
    head = ("model", "operators", "stock TVM", "relax_ext", "gradients, stock", "relax_ext")
    return table(head, rows)


def relay(reports: Sequence[Any]) -> str:
    """Return the same models in Relay: times, and the number of incorrect results; nothing if Relay
    was not run.
    """
    if not reports:
        return ""
    rows = []
    for r in reports:
        whole = r.fastest
        bad = sum(row.stock.wrong(row.tolerance) for row in r.rows)
        good = sum(not row.wrong for row in r.rows)
        stock = f'<span class="bad">{bad} incorrect</span>' if bad else "all correct"
        cells = [escape(r.model), stock, f"<b class=new>{good} of {len(r.rows)}</b>"]
        rows.append([*cells, *map(_ms, (whole.stock.ms, whole.ours.ms, whole.reference_ms))])
    head = ("model", "stock Relay", "relay_ext", "ms stock", "ms ours", "ms PyTorch")
    return (
        "<h2>The same in Relay</h2>"
        '<p class="quiet">TVM 0.17. How many of the operators and of the whole models are correct, '
        "and the time of one inference.</p>" + table(head, rows)
    )


def notes(reports: Sequence[Any]) -> str:
    """Return what the command line notes beside the times, such as that the machine was busy."""
    models: dict[str, list[str]] = {}
    for r in reports:
        for note in r.notes:
            models.setdefault(note, []).append(f"{r.model} ({r.package})")
    lines = (f"{', '.join(names)}: {note}" for note, names in models.items())
    return "\n".join(f'<p class="bad">{escape(line)}.</p>' for line in lines)


def details(reports: Sequence[Any]) -> str:
    """Return a folded table of every row of every report."""
    parts = []
    for r in reports:
        rows = []
        for title, found in (("", r.forward), ("gradients of ", r.gradients)):
            rows += [
                (
                    f"{title}{escape(row.what)}<small>{escape(row.configuration)}</small>"
                    + (f"<small>stock: {escape(row.stock.note)}</small>" if row.stock.note else ""),
                    _error(row.stock, row.tolerance),
                    _error(row.ours, row.tolerance),
                    _ms(row.stock.ms),
                    _ms(row.ours.ms),
                    _ms(row.reference_ms),
                )
                for row in found
            ]
        head = ("operator", "error stock", "error ours", "ms stock", "ms ours", "ms PyTorch")
        parts.append(f"<details><summary>{escape(r.model)}</summary>{table(head, rows)}</details>")
    return "\n".join(parts)


def render(**parts: str) -> str:
    """Return the whole page from its parts; see ``PAGE`` for their names."""
    return PAGE.substitute(style=STYLE, **parts)
