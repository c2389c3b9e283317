# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference/pytorch-operators.md from the results of scripts/operator_database.py.

``python scripts/operator_database_page.py out/operator_database.jsonl`` also takes the results over
into docs/measured/operator_database.json, from which the page is made.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from operator_database import FAULTS, read

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "pytorch-operators.md"
MEASURED = DOCS / "measured" / "operator_database.json"

HEAD = """# PyTorch's operators by torch.compile

What [`torch.compile(model, backend="tvm_conv")`](../how-to/torch-compile.md) does with operators of
PyTorch's test database, each with a matrix product beside it. Operators that are not compiled run
in PyTorch, between compiled parts.

    make fuzz
    python scripts/operator_database_page.py out/operator_database.jsonl

Of {count} cases of an operator, a dtype and a form, {counts}. The forms are listed in
`scripts/operator_database.py`; this page has those that were run last: {forms}.
"""


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of results: statuses of forms, and reasons, by operator."""
    kept: dict[str, Any] = {}
    for row in rows.values():
        form = row["case"].removeprefix(row["name"]).strip()
        entry = kept.setdefault(row["name"], {"statuses": {}, "in_pytorch": {}})
        entry["statuses"][form] = row["status"]
        entry["in_pytorch"] |= row.get("in_pytorch", {})
    return dict(sorted(kept.items()))


def page(kept: dict[str, Any]) -> str:
    """Return the text of the page."""
    statuses = [status for entry in kept.values() for status in entry["statuses"].values()]
    forms = dict.fromkeys(form for entry in kept.values() for form in entry["statuses"])
    counts = ", ".join(f"{count} are {status}" for status, count in Counter(statuses).most_common())
    lines = [HEAD.format(count=len(statuses), counts=counts, forms=", ".join(forms))]
    groups: dict[str, list[str]] = {"compiled": [], "partly": [], "skipped": [], "faults": []}
    for name, entry in kept.items():
        found = set(entry["statuses"].values())
        if found & set(FAULTS):
            groups["faults"].append(name)
        elif "partly" in found:
            groups["partly"].append(name)
        else:
            groups["compiled" if "compiled" in found else "skipped"].append(name)
    lines += [f"## Compiled ({len(groups['compiled'])})", "", _names(groups["compiled"]), ""]
    lines += [f"## Not compiled, or in part ({len(groups['partly'])})", ""]
    lines += ["| operator | stays in PyTorch |", "|---|---|"]
    for name in groups["partly"]:
        reasons = kept[name]["in_pytorch"].items()
        left = "; ".join(f"`{one.removeprefix('aten.')}`: {_cell(why)}" for one, why in reasons)
        lines.append(f"| `{name}` | {left or 'all'} |")
    lines += ["", f"## Not compared ({len(groups['skipped'])})", ""]
    lines += ["Random, complex, sparse, or without samples of these dtypes."]
    lines += ["", _names(groups["skipped"]), ""]
    if groups["faults"]:
        lines += [f"## Faults ({len(groups['faults'])})", "", _names(groups["faults"]), ""]
    return "\n".join(lines)


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("results", type=Path, nargs="?", help="what operator_database.py wrote")
    given = parser.parse_args().results
    if given is not None:
        MEASURED.write_text(json.dumps(summary(read(given)), indent=0) + "\n")
    PAGE.write_text(page(json.loads(MEASURED.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
