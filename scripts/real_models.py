# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, diffusers and others, imported by TVM and compared with PyTorch.

::

    python scripts/real_models.py --only "SpeechT5HifiGan" "AutoencoderKL" --json out/models.json

Each model, with random weights, is exported, imported, compiled and compared with PyTorch in
float64: by TVM alone, by ``tvm.compile`` after ``import relax_ext``, and, where ``--ways`` says so,
by ``relax_ext.pipeline``. ``make env-models`` installs the packages. No weights are downloaded.

Exit status: 0 when all is as docs/measured/real_models.json and its page say, else 1. The JSON says
why a stage failed. ``--keep`` takes its rows over; ``python scripts/figures.py`` writes the page.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "1")
os.environ.setdefault("TVM_BIND_THREADS", "0")

from support import models_page as page
from support.model_rows import Row, keep, parser, run

PORTABLE = {"kind": "llvm", "num-cores": 1}
WAYS = ("stock", "plain", "pipeline")


def main() -> int:
    """Check the models that were asked for."""
    command = parser(__doc__)
    add = command.add_argument
    add("--ways", nargs="+", choices=WAYS, default=page.WAYS, help="default: stock, plain")
    add("--stock", action="store_const", dest="ways", const=("stock",), help="TVM alone")
    add(
        "--portable",
        action="store_true",
        help="for any processor, fast to compile",
    )
    add("--repeat", type=int, default=0, help="processor time: the median of so many runs")
    add("--keep", type=Path, metavar="JSON", help="only take rows over into docs/measured")
    given = command.parse_args()
    if given.keep:
        return keep(given.keep, page.IMPORTED, page.kept)
    from support.zoo import catalog, stages

    text, changed = page.PAGE.read_text(), list[str]()
    imported = json.loads(page.IMPORTED.read_text())

    def judged(entry: catalog.Entry, _: Any) -> Row:
        import tvm

        import relax_ext

        target = tvm.target.Target(PORTABLE if given.portable else relax_ext.host_target())
        found = stages.check(entry, tuple(given.ways), target, given.repeat)
        differences = page.differences(found, imported, text)
        changed.extend(differences)
        return {**found.as_json(), "target": str(target), "right": not differences}

    status = run(command, None, catalog.entries, judged, line)
    if changed:
        print(f"{page.IMPORTED.name} is to be changed:", *changed, sep="\n")
    return status or int(bool(changed))


def line(row: Row) -> str:
    """Return a row in words."""
    said = [row["package"], page.convolutions(row["convolutions"])]
    for way, out in row["outcomes"].items():
        error = f" {out['error']:.0e}" if out["stage"] == "right" else ""
        seconds = f", {out['seconds']['compile']:.1f} s" if "compile" in out["seconds"] else ""
        ms = "" if out["ms"] is None else f", {out['ms']:.2f} ms"
        said.append(f"{way} {page.STAGES[out['stage']]}{error}{seconds}{ms}")
    return "; ".join(said)


if __name__ == "__main__":
    sys.exit(main())
