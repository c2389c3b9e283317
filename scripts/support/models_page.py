# SPDX-License-Identifier: Apache-2.0
"""The table of docs/how-to/real-models.md: models of packages, imported, compiled and trained.

Its rows are docs/measured/real_models.json, which ``real_models.py`` compares with what it finds,
and docs/measured/compiled_models.json.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .model_rows import Row
from .tables import table

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "how-to" / "real-models.md"
IMPORTED = DOCS / "measured" / "real_models.json"
COMPILED = DOCS / "measured" / "compiled_models.json"
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
TRAINED = ", trained"
"""The end of the name of a row of compiled models that trains its model."""


def convolutions(counted: dict[str, int]) -> str:
    """Return how many of which kind, in the words of torch."""
    return ", ".join(f"{count} {name}" for name, count in counted.items()) or "-"


def kept(row: Row) -> Row:
    """Return what docs/measured keeps of a row of ``real_models.py``."""
    stages = {way: row["outcomes"][way]["stage"] for way in WAYS}
    return {"package": row["package"], "convolutions": row["convolutions"], **stages}


def models(imported: dict[str, Row], compiled: dict[str, Row]) -> str:
    """Return the table: counts, and a line for the models of a package with the same outcomes."""
    trained = {n.removesuffix(TRAINED): r for n, r in compiled.items() if n.endswith(TRAINED)}
    found: dict[tuple[str, ...], list[str]] = {}
    for name, row in imported.items():
        stages = [STAGES[row[way]] for way in WAYS]
        cells = (row["package"], *stages, _compiled(compiled.get(name)), "")
        found.setdefault(cells, []).append(name)
    for name, row in trained.items():
        package, _, model = name.partition(" ")
        cells = (package if model else "of torch alone", "", "", "", _compiled(row))
        found.setdefault(cells, []).append(model or name)
    counts = [_count([row[way] == "right" for row in imported.values()]) for way in WAYS]
    evaluated = [row["right"] for name, row in compiled.items() if not name.endswith(TRAINED)]
    counts += [_count(evaluated), _count([row["right"] for row in trained.values()])]
    heads = ("models", "TVM alone", "import", "compile", "train")
    lines = [["correct", *counts]]
    lines += [[f"{cells[0]}: {'; '.join(names)}", *cells[1:]] for cells, names in found.items()]
    return table(heads, lines)


def _count(found: list[bool]) -> str:
    return f"{sum(found)} of {len(found)}"


def _compiled(row: Row | None) -> str:
    """Return the cell of a compiled model: operators that PyTorch computes in brackets."""
    if row is None:
        return ""
    if "failed" in row:
        return "fails"
    names = dict.fromkeys(name.split(".")[1] for name in row["in_pytorch"])
    left = f" ({', '.join(f'`{name}`' for name in names)})" if names else ""
    return ("correct" if row["right"] else "**incorrect**") + left


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


def differences(row: Any, imported: dict[str, Row], text: str) -> list[str]:
    """Return one line for each difference between a row, the measured rows and the page."""
    said = imported.get(row.name)
    if said is None:
        return [f"{row.name}: no row"]
    is_so = {"convolutions": row.convolutions}
    is_so |= {way: row.outcomes[way].stage for way in WAYS if way in row.outcomes}
    found = [
        f"{row.name}, {column}: {value!r} instead of {said[column]!r}"
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
