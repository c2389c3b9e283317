# SPDX-License-Identifier: Apache-2.0
"""The table on standard output and the progress bar on standard error, by rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .arguments import PACKED_BASELINES
from .tables import digits

RATIOS = {
    "torch / ours": "torch",
    "torch / ours with packed weights": "torch_prepacked",
    "torch by default malloc / ours": "torch_default",
    "stock / ours": "stock",
    "sizes known when it runs / known when it is built": "symbolic",
    **{f"{name} / ours, both with packed weights": name for name in PACKED_BASELINES},
    "the best baseline of each case / ours, both with packed weights": "best",
}
"""Labels of the summary, and their keys."""

_WIDTH = 132  # of what is not a terminal
_PACKED_WIDTH = 16  # more for a baseline with packed weights
_NOISE = 0.1  # cores
_COLUMNS = (  # and of each baseline with packed weights
    "torch\nms",
    "stock\nms",
    "ours\nms",
    "torch\n/ours",
    "torch/\npacked",
    "stock\n/ours",
    "error",
    "of\npeak",
    "of\ncopy",
    "build\ns",
)


def console() -> Console:
    """Standard output, wide enough for the table where it is a file."""
    shown = Console(highlight=False)
    return shown if shown.is_terminal else Console(highlight=False, width=_WIDTH)


def progress() -> Progress:
    """Return a bar that is gone when the work is done."""
    return Progress(
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    )


def show_header(out: Console, header: dict[str, Any]) -> None:
    """Machine, threads, versions and protocol."""
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    load = " ".join(map(str, header["load"]))
    lines = (
        f"{header['ir']}, {header['cpu']}, {' '.join(header['isa'])}, mcpu {header['mcpu']}",
        f"threads {header['threads']} for each, cores {header['cores']}, load {load}",
        versions,
        f"malloc {header['malloc']}; PyTorch also as glibc's malloc comes, in a process of its own",
        f"peaks: {digits(header['peak_gflops'])} GF/s from registers, "
        f"{digits(header['copy_gbs'])} GB/s read and written by a copy",
        header["protocol"],
    )
    for line in lines:
        out.print(Text(line, style="dim"), soft_wrap=True)


def show_kind(out: Console, kind: str, rows: Sequence[dict[str, Any]]) -> None:
    """The table of one kind, and the reasons for what is missing in it."""
    table = Table(title=kind, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("case", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    packed = [name for name in PACKED_BASELINES if any(row[f"{name}_ms"] for row in rows)]
    for name in (*_COLUMNS, *(f"{name}\n/packed" for name in packed)):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        error = row["max_rel_error"]
        table.add_row(
            row["name"],
            row["configuration"],
            *(digits(row[key]) for key in ("torch_ms", "stock_ms", "ours_ms")),
            *(_ratio(row[key]) for key in ("ratio_torch", "ratio_torch_prepacked", "ratio_stock")),
            Text(
                "–" if error is None else f"{error:.0e}",
                style="bold red" if row["incorrect"] else "",
            ),
            *(_share(row[key]) for key in ("share_of_peak", "share_of_bandwidth")),
            digits(row["build_s"]),
            *(_ratio(row[f"ratio_{name}"]) for name in packed),
        )
    out.print(table, width=None if out.is_terminal else _WIDTH + _PACKED_WIDTH * len(packed))
    for row in rows:
        if row["notes"]:
            note = f"  {row['name']}: {'; '.join(row['notes'])}"
            out.print(Text(note, style="dim"), soft_wrap=True)


def show_summary(out: Console, summary: dict[str, dict[str, Any]]) -> None:
    """Geometric means, worst cases and verdicts, per kind."""
    for kind, found in summary.items():
        out.print(Text(f"{kind}: {found['cases']} cases", style="bold"))
        for baseline, key in RATIOS.items():
            ratios = found[key]
            if ratios:
                worst, best, slower = ratios["worst"], ratios["best"], ratios["slower"]
                out.print(
                    f"  {baseline}: geomean {digits(ratios['geomean'])} "
                    f"of {ratios['cases']}, worst {digits(worst['value'])} ({worst['name']}), "
                    f"best {digits(best['value'])} ({best['name']}), "
                    f"below 1: {', '.join(slower) or 'none'}",
                    soft_wrap=True,
                )
        out.print(
            f"  build: median {digits(found['build_s_median'])} s, "
            f"worst {digits(found['build_s_max'])} s"
        )
        if found["workspace_share_max"]:
            worst = found["workspace_share_max"]
            out.print(
                f"  workspace: at most {digits(worst['value'])} of input, output and weights "
                f"({worst['name']})"
            )
        others = found["others_cores"]
        if others is not None and others > _NOISE:
            out.print(
                f"  noisy: other processes used {digits(others)} cores while this was timed",
                style="yellow",
            )
        incorrect = found["incorrect"]
        style = "bold red" if incorrect else "green"
        out.print(
            Text(f"  incorrect: {', '.join(incorrect) or 'none'}", style=style), soft_wrap=True
        )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _ratio(value: float | None) -> Text:
    return Text(digits(value), style="yellow" if value is not None and value < 1 else "")
