# SPDX-License-Identifier: Apache-2.0
"""The page of the site that lists what ``torch.compile`` does with each operator of PyTorch.

Its figures are docs/measured/operator_database.json, which ``operator_database.py`` writes.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from .tables import table

MEASURED = Path(__file__).parents[2] / "docs" / "measured" / "operator_database.json"
FAULTS = ("incorrect", "error", "crash", "timeout")
HEAD = """# PyTorch's operators by torch.compile

What [`torch.compile(model, backend="tvm_conv")`](../how-to/torch-compile.md) does with operators of
PyTorch's test database, each with a matrix product beside it. Operators that are not compiled run
in PyTorch, between compiled parts.

    make fuzz
    python scripts/operator_database.py --keep

Of {count} cases of an operator, a dtype and a form, {counts}. The forms are listed in
`scripts/operator_database.py`; this page has those that were run last: {forms}.
"""


def page() -> str:
    """Return the text of the page."""
    kept = json.loads(MEASURED.read_text())
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
    cells = []
    for name in groups["partly"]:
        reasons = kept[name]["in_pytorch"].items()
        left = "; ".join(f"`{one.removeprefix('aten.')}`: {_cell(why)}" for one, why in reasons)
        cells.append((f"`{name}`", left or "all"))
    lines += [table(("operator", "stays in PyTorch"), cells)]
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
