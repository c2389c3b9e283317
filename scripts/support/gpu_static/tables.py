# SPDX-License-Identifier: Apache-2.0
"""The cells of the tables of the static report."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from .ceilings import broken
from .static import Row, coalescing, conflicts

COLUMNS = (
    "shape", "kind", "dtype", "kernel", "tile", "threads", "registers (stated)", "shared (stated)",
    "resident", "products of loop", "per 16 bytes", "conflicts loop, ends", "coalesced load, store",
)  # fmt: skip


RULES = ("kernel", "rule", "launches", "worst", "of")


def cells(header: dict[str, Any], rows: Sequence[Row], archs: Sequence[str]) -> dict[str, Any]:
    """Return the cells of a table for each architecture, and of one of broken rules on any."""
    main = [row for row in rows if row["part"] == "main" and row["set"] == "chosen"]
    chosen = {arch: [_cells(row) for row in main if row["arch"] == arch] for arch in archs}
    return {
        **header,
        "launches": len(rows),
        "columns": COLUMNS,
        "chosen": chosen,
        "rules": RULES,
        "broken": _faults(rows),
    }


def short(plan: str) -> str:
    """Return a plan in a few characters."""
    numbers = re.findall(r"(\w+)=(\d+|True|False)", plan)
    found = dict(numbers)
    if "rows" not in found:
        return " ".join(f"{name} {value}" for name, value in numbers)
    text = f"{found['rows']}x{found['columns']}x{found['depth']}"
    if "thread_rows" in found:
        text += f" t{found['thread_rows']}x{found['thread_columns']}"
    if "warp_rows" in found:
        text += f" w{found['warp_rows']}x{found['warp_columns']}"
    text += f" /{found['splits']}" if found["splits"] != "1" else ""
    return text + (" packed" if found.get("packed") == "True" else "")


def _cells(row: Row) -> list[str]:
    shared = row["shared_static"] + row["shared_dynamic"]
    loads, stores = coalescing(row, "load"), coalescing(row, "store")
    dtype = row["dtype"] + (", last" if row["layout"] == "channels last" else "")
    of_registers, of_shared = row["stated_registers"], row["stated_shared"]
    return [
        row["shape"],
        row["kind"].replace("conv_", ""),
        dtype,
        row["kernel"],
        short(row["plan"]),
        str(row["threads"]),
        f"{row['registers']}" + (f" ({of_registers})" if of_registers else ""),
        f"{shared}" + (f" ({of_shared})" if of_shared else ""),
        str(row["resident"]),
        f"{row['share']:.0%}",
        f"{row['per_load']:.1f}" if row["per_load"] else "",
        f"{conflicts(row, looped=True):.0%}, {conflicts(row, looped=False):.0%}",
        f"{loads or 0:.0%}, {stores or 0:.0%}",
    ]


def _faults(rows: Sequence[Row]) -> list[list[str]]:
    """Rules that are broken, with how many launches, and the one that breaks it most plainly."""
    found: dict[tuple[str, str], list[tuple[str, Row]]] = defaultdict(list)
    for row in rows:
        for line in broken(row):
            kind = re.sub(r"[\d.]+%?", "N", line)
            found[row["kernel"] + ("" if row["part"] == "main" else ", around"), kind].append(
                (line, row)
            )
    listed = []
    for (kernel, kind), lines in sorted(found.items()):
        line, row = max(lines, key=lambda one: _numbers(one[0]))
        said = f"{row['shape']}, {row['kind']}, {row['dtype']}, {short(row['plan'])}, {row['arch']}"
        listed.append([kernel, kind.replace("N", "…"), str(len(lines)), line, said])
    return listed


def _numbers(line: str) -> list[float]:
    found = [float(one) for one in re.findall(r"\d+(?:\.\d+)?", line)]
    return [found[0] - found[1]] if len(found) > 1 else found
