# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, diffusers and others, imported by TVM and compared with PyTorch.

::

    python scripts/real_models.py --only "SpeechT5HifiGan" "AutoencoderKL" --json out/models.json

Each model, with random weights, is exported, imported, compiled and compared with PyTorch in
float64: by TVM alone, by ``tvm.compile`` after ``import relax_ext``, and, where ``--ways`` says so,
by ``relax_ext.pipeline``. ``make env-models`` installs the packages. No weights are downloaded.

Exit status: 0 when all is as docs/how-to/real-models.md says, else 1. The JSON says why a stage
failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "1")
os.environ.setdefault("TVM_BIND_THREADS", "0")

from rich import box
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

from support import real_models_page as page
from support.output import write_json
from support.zoo import catalog, stages

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "real-models.md"
PORTABLE = {"kind": "llvm", "num-cores": 1}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("--only", nargs="+", metavar="NAME", help="only these models, in this order")
    made.add_argument(
        "--ways",
        nargs="+",
        choices=stages.WAYS,
        default=page.WAYS,
        help="how to compile; default: those of the page, stock and plain",
    )
    made.add_argument(
        "--stock", action="store_const", dest="ways", const=("stock",), help="TVM alone"
    )
    made.add_argument(
        "--portable",
        action="store_true",
        help="without the instructions of this processor: faster to compile, slower to run",
    )
    made.add_argument("--list", action="store_true", help="print the names")
    made.add_argument(
        "--repeat", type=int, default=0, help="processor time: the median of so many runs"
    )
    made.add_argument("--json", type=Path, help="write everything there")
    made.add_argument("--markdown", type=Path, help="write the table of the page there")
    return made


def main() -> int:
    """Check the models that were asked for."""
    options = parser().parse_args()
    found = catalog.entries()
    if options.list:
        print("\n".join(found))
        return 0
    unknown = set(options.only or ()) - set(found)
    if unknown:
        parser().error(f"no model is called {', '.join(sorted(unknown))}: see --list")
    if options.markdown and not set(page.WAYS) <= set(options.ways):
        parser().error(f"--markdown needs --ways {' '.join(page.WAYS)}")
    import tvm

    import relax_ext

    target = PORTABLE if options.portable else relax_ext.host_target()
    chosen = [found[name] for name in options.only or found]
    rows = _check_all(chosen, options, tvm.target.Target(target))
    Console().print(_table(rows, tuple(options.ways)))
    if options.markdown:
        options.markdown.write_text(page.table(rows) + "\n")
    text = PAGE.read_text()
    changed = [line for row in rows for line in page.differences(row, text)]
    if changed:
        print(f"{PAGE.name} is to be changed:", *changed, sep="\n")
    return int(bool(changed))


def _check_all(entries: list[catalog.Entry], options: Any, target: Any) -> list[stages.Row]:
    """Return every row, behind a progress bar; where there is no terminal, a line for each."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[what]}"))
    rows = []
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("models", total=len(entries), what="")
        for entry in entries:

            def step(what: str, name: str = entry.name) -> None:
                bar.update(task, what=f"{name}: {what}")

            rows.append(stages.check(entry, tuple(options.ways), target, options.repeat, step))
            said = ", ".join(f"{way} {out.stage}" for way, out in rows[-1].outcomes.items())
            console.print(f"[dim]{entry.name}: {said}[/dim]", highlight=False)
            bar.advance(task)
            if options.json:
                _write(options.json, rows, str(target))
    return rows


def _write(path: Path, rows: list[stages.Row], target: str) -> None:
    """Write the rows so far, because a run of all models takes long."""
    made = [row.as_json() for row in rows]
    write_json(path, {"versions": catalog.versions(), "target": target, "rows": made})


def _table(rows: list[stages.Row], ways: tuple[str, ...]) -> Table:
    made = Table(box=box.SIMPLE)
    for title in ("model", "package", "convolutions"):
        made.add_column(title)
    for way in ways:
        made.add_column(way)
    made.add_column("seconds to compile", justify="right")
    made.add_column("ms", justify="right")
    for row in rows:
        outs = [row.outcomes[way] for way in ways]
        made.add_row(
            row.name,
            row.package,
            page.convolutions(row.convolutions),
            *(_cell(out) for out in outs),
            " ".join(f"{out.seconds.get('compile', float('nan')):.1f}" for out in outs),
            " ".join("-" if out.ms is None else f"{out.ms:.2f}" for out in outs),
        )
    return made


def _cell(outcome: stages.Outcome) -> str:
    if outcome.stage == "right":
        return f"[green]right[/green] {outcome.error:.0e}"
    return f"[red]{page.STAGES[outcome.stage]}[/red]"


if __name__ == "__main__":
    sys.exit(main())
