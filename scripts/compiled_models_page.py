# SPDX-License-Identifier: Apache-2.0
"""Write docs/how-to/compiled-models.md from the results of ``make compiled-models``.

``python scripts/compiled_models_page.py out/compiled.json`` also takes its rows over into
docs/measured/compiled_models.json, from which the page is made; rows of other models stay there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE, MEASURED = DOCS / "how-to" / "compiled-models.md", DOCS / "measured" / "compiled_models.json"
TRAINED = ", trained"
"""The end of the name of a row that trains its model."""

HEAD = """# Models by torch.compile

Published models, run by [`torch.compile`](torch-compile.md) without changes. {right} of {count}
give correct results: the results of `eval()`, or the loss and all gradients of `train()`, differ
from PyTorch's by at most 1e-6 of the largest number. The models are float64, but parts of some
compute in float32 in any dtype. A gradient below 1e-7 of the model's largest gradient counts as 0,
because that of a bias in front of a batch norm is rounding noise.

    make compiled-models
    python scripts/compiled_models_page.py out/compiled.json

*Parts* is the number of functions that TVM compiled for all graphs together. PyTorch computes the
operators of the last column between them.
"""


def table(rows: dict[str, Any]) -> list[str]:
    """Return the rows of a table."""
    lines = ["| model | | difference | parts | stays in PyTorch |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"| {name} | fails | | | `{row['failed'][:120]}` |")
            continue
        left = ", ".join(f"`{each}`" for each in row["in_pytorch"])
        verdict = "correct" if row["right"] else "**incorrect**"
        cells = [name, verdict, f"{row['distance']:.0e}", str(row["parts"]), left or "nothing"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(rows: dict[str, Any]) -> str:
    """Return the text of the page."""
    trained = {n.removesuffix(TRAINED): row for n, row in rows.items() if n.endswith(TRAINED)}
    evaluated = {n: row for n, row in rows.items() if not n.endswith(TRAINED)}
    lines = [HEAD.format(count=len(rows), right=sum(row["right"] for row in rows.values()))]
    lines += ["## Trained", "", *table(trained), "", "## Evaluated", "", *table(evaluated), ""]
    return "\n".join(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("json", type=Path, nargs="?", help="what make compiled-models wrote")
    given = parser.parse_args().json
    rows = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    if given is not None:
        rows |= json.loads(given.read_text())
        MEASURED.write_text(json.dumps(rows, indent=1) + "\n")
    PAGE.write_text(page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
