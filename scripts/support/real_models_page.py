# SPDX-License-Identifier: Apache-2.0
"""The table of docs/how-to/real-models.md: written from rows, and read again by the tests."""

from __future__ import annotations

import re
from typing import Any

STAGES = {
    "right": "correct",
    "construct": "not made",
    "export": "not exported",
    "import": "not imported",
    "compile": "not compiled",
    "run": "does not run",
    "values": "incorrect",
}
"""Texts of the table for the stage that a model reaches."""
WAYS = ("stock", "plain")
"""Columns of the table: TVM alone, and ``tvm.compile`` after ``import relax_ext``."""


def convolutions(counted: dict[str, int]) -> str:
    """Return how many of which kind, in the words of torch."""
    return ", ".join(f"{count} {name}" for name, count in counted.items()) or "-"


def table(rows: list[Any]) -> str:
    """Return the rows as Markdown, a table per package."""
    lines: list[str] = []
    for package in dict.fromkeys(row.package for row in rows):
        lines += ["", f"### {package}", ""]
        lines.append("| model | convolutions | stock | ours |")
        lines.append("|---|---|---|---|")
        for row in rows:
            if row.package == package:
                cells = [row.name, convolutions(row.convolutions)]
                cells += [STAGES[row.outcomes[way].stage] for way in WAYS]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def read(text: str) -> dict[str, dict[str, str]]:
    """Return the rows of the page by model: cells by the names of the columns."""
    columns = ("convolutions", *WAYS)
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[2] in STAGES.values():
            found[cells[0]] = dict(zip(columns, cells[1:]))
    return found


def blocked(text: str) -> dict[str, list[str]]:
    """Return the reasons that block a model: code spans of its row, which the error has to
    contain."""
    section = text.partition("## What blocks the rest")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0] not in {"model", "---"}:
            found[cells[0]] = re.findall(r"`([^`]+)`", cells[1])
    return found


def differences(row: Any, text: str) -> list[str]:
    """Return one line for each difference between a row and the page."""
    said = read(text).get(row.name)
    if said is None:
        return [f"{row.name}: no row"]
    is_so = {"convolutions": convolutions(row.convolutions)}
    is_so |= {way: STAGES[row.outcomes[way].stage] for way in WAYS if way in row.outcomes}
    found = [
        f"{row.name}, {column}: {value!r}, and the page says {said[column]!r}"
        for column, value in is_so.items()
        if value != said[column]
    ]
    reason = row.outcomes["plain"].reason if "plain" in row.outcomes else ""
    found += [
        f"{row.name}: `{span}` does not block it: {reason}"
        for span in blocked(text).get(row.name, ())
        if reason and span not in reason
    ]
    return found
