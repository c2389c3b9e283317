# SPDX-License-Identifier: Apache-2.0
"""The table of docs/how-to/real-models.md: written from rows, and read again by the tests."""

from __future__ import annotations

import re
from typing import Any

STAGES = {
    "right": "right",
    "construct": "not made",
    "export": "not exported",
    "import": "not imported",
    "compile": "not compiled",
    "run": "does not run",
    "values": "wrong",
}
"""What the table says of the stage that a model reaches."""
WAYS = ("stock", "plain", "pipeline")


def convolutions(counted: dict[str, int]) -> str:
    """How many of which kind, in the words of torch."""
    return ", ".join(f"{count} {name}" for name, count in counted.items())


def table(rows: list[Any]) -> str:
    """The rows as Markdown, a table per package."""
    lines: list[str] = []
    for package in dict.fromkeys(row.package for row in rows):
        lines += ["", f"### {package}", ""]
        lines.append("| model | convolutions | stock | ours | `relax_ext.pipeline` |")
        lines.append("|---|---|---|---|---|")
        for row in rows:
            if row.package == package:
                cells = [row.name, convolutions(row.convolutions)]
                cells += [STAGES[row.outcomes[way].stage] for way in WAYS]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def read(text: str) -> dict[str, dict[str, str]]:
    """What the page says of each model: cells by the names of the columns."""
    columns = ("convolutions", *WAYS)
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[2] in STAGES.values():
            found[cells[0]] = dict(zip(columns, cells[1:]))
    return found


def blocked(text: str) -> dict[str, list[str]]:
    """What the page says blocks a model: code spans of its row, which the reason has to hold."""
    section = text.partition("## What blocks the rest")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0] not in {"model", "---"}:
            found[cells[0]] = re.findall(r"`([^`]+)`", cells[1])
    return found
