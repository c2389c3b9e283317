# SPDX-License-Identifier: Apache-2.0
"""The bar chart of a profile, by rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .profiling import Entry, Profile

ROWS = 20
"""Entries that are shown one by one; the others together."""

BAR = 16
"""Characters of the longest bar."""


def show(found: Profile, console: Console | None = None) -> None:
    """Print the chart, and a line about the weakest link."""
    console = console or Console(highlight=False)
    say = console.print
    say(f"[bold]{escape(found.model)}[/bold] on {escape(found.target)}", soft_wrap=True)
    say(_table(found.entries))
    line = f"{found.ms:.2f} ms, {found.ours:.0%} of it in kernels of {found.package}"
    if found.reference_ms is not None:
        line += f"; PyTorch {found.reference_ms:.2f} ms"
    say(line)
    weakest = found.weakest
    if weakest is None:
        say("no weak link: nothing else takes much of the time")
        return
    name, share = weakest
    say(f"weakest link: {name}, {share:.0%} of the time, code of TVM's own")


def _table(entries: Sequence[Entry]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("operator", overflow="fold", min_width=30)
    table.add_column("kernel", overflow="fold")
    table.add_column("calls", justify="right")
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, width=BAR)
    longest = max((entry.share for entry in entries), default=1.0) or 1.0
    for entry in entries[:ROWS]:
        style = "" if entry.is_ours else "yellow"
        table.add_row(
            f"{entry.operator}\n  [dim]{shapes(entry)}[/dim]",
            entry.kernel,
            str(entry.count),
            f"{entry.ms:.2f}",
            f"{entry.share:.0%}",
            "█" * max(1, round(BAR * entry.share / longest)),
            style=style,
        )
    rest = entries[ROWS:]
    if rest:
        ms, share = sum(entry.ms for entry in rest), sum(entry.share for entry in rest)
        calls = sum(entry.count for entry in rest)
        table.add_row(f"{len(rest)} more", "", str(calls), f"{ms:.2f}", f"{share:.0%}", "")
    return table


def shapes(entry: Entry) -> str:
    """Return the shapes from the first operand to the last result."""
    if not entry.shapes:
        return ""
    first, last = ("x".join(map(str, shape)) or "scalar" for shape in _ends(entry))
    return first if len(entry.shapes) == 1 else f"{first} → {last}"


def _ends(entry: Entry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return entry.shapes[0], entry.shapes[-1]
