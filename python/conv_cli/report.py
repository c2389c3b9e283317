# SPDX-License-Identifier: Apache-2.0
"""The progress bar and the table, by rich."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from .check import Progress, Report, Row
from .measure import Side


class Bar(Progress):
    """A progress bar on standard error, removed when the work is done."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = RichProgress(
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: Any = None

    def __enter__(self) -> Bar:
        self._bar.start()
        self._task = self._bar.add_task("loading", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def start(self, total: int) -> None:
        self._bar.update(self._task, total=total, completed=-1)

    def step(self, what: str) -> None:
        self._bar.update(self._task, advance=1, description=what)


def show(report: Report, console: Console | None = None) -> None:
    """Print the tables and the verdict."""
    console = console or Console(highlight=False)
    say = console.print
    where = f"{report.board}, {report.target}" if report.board else report.target
    say(f"[bold]{escape(report.model)}[/bold] on {escape(where)}", soft_wrap=True)
    n = report.threads
    said = f"{n} threads each"
    if report.board:
        said = f"stock and ours ran on the board, ref on this machine with {n} threads"
    say(f"[dim]{said}[/dim]")
    for note in report.notes:
        say(f"[dim]note: {escape(note)}[/dim]")
    say(_table(report.forward, "forward"))
    if report.gradients:
        say(_table(report.gradients, "forward and gradients"))
    say(f"[dim]{_legend(report)}[/dim]")
    wrong = [row for row in report.rows if row.wrong]
    if not wrong:
        say(f"[green]{report.package}: all {len(report.rows)} correct[/green]")
        return
    say(f"[bold red]{report.package}: {len(wrong)} of {len(report.rows)} incorrect[/bold red]")
    for row in wrong:
        say(Text(f"  {row.what} {row.configuration}: {_reason(row)}", style="red"))


def _legend(report: Report) -> str:
    limits = " or ".join(f"{limit:.0e}" for limit in sorted({row.tolerance for row in report.rows}))
    other = report.whole is not None and report.framework != "torch"
    whole = f", for the whole model {report.framework}" if other else ""
    return (
        f"ms: best run. ref: torch, the better of {report.threads} threads and 1{whole}. "
        "speed-up: stock / ours.\n"
        f"err: max |result - exact| / max |exact|, exact in float64 if torch supports it; "
        f"correct up to {limits}.\n"
    )


def _reason(row: Row) -> str:
    if row.ours.note:
        return row.ours.note
    return f"error {row.ours.error:.1e} above {row.tolerance:.0e}"


def _table(rows: list[Row], title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("operator", overflow="fold", min_width=34)
    for name in ("err\nstock", "err\nours", "ms\nstock", "ms\nours", "ms\nref", "speed-\nup"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            _name(row),
            _error(row.stock, row.tolerance, "yellow"),
            _error(row.ours, row.tolerance, "bold red"),
            _ms(row.stock.ms),
            _ms(row.ours.ms),
            _ms(row.reference_ms),
            "–"
            if row.speedup is None
            else f"{row.speedup:{'.0f' if row.speedup >= 10 else '.2g'}}x",
        )
    return table


def _name(row: Row) -> Text:
    name = Text(row.what, style="bold")
    if row.count > 1:
        name.append(f" ×{row.count}")
    name.append("\n  " + row.configuration, style="not bold")
    for who, side in (("stock", row.stock), ("ours", row.ours)):
        if side.note:
            name.append(f"\n  {who}: {_few_words(side.note)}", style="not bold yellow")
    return name


def _error(side: Side, tolerance: float, style: str) -> Text:
    if side.note:
        return Text("fails", style=style)
    shown = "0" if side.error == 0 else f"{side.error:.0e}"
    return Text(shown, style=style if side.wrong(tolerance) else "")


def _few_words(note: str, width: int = 110) -> str:
    return note if len(note) <= width else note[: width - 1] + "…"


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
