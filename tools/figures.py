# SPDX-License-Identifier: Apache-2.0
"""Write the tables of measured figures into the documents.

::

    python tools/figures.py            # write
    python tools/figures.py --check    # fail where a table is not what its file says

A table stands between two comments.  The first names files of docs/measured and a view::

    <!-- figures: rows bench_training.json -->
    ...
    <!-- end of figures -->

``rows`` is a line for each model or case, ``compile`` the same for seconds of the first compile,
``summary`` a line for each file: geometric mean and minimum of the best baseline over ours;
``static`` the tables of ``tools/cuda_report.py --figures``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from tables import MISSING, digits, ratio, table

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "measured"
DEVELOPER = ROOT / "docs" / "developer"
DOCUMENTS = (
    ROOT / "README.md",
    *(DEVELOPER / f"{name}.md" for name in ("performance", "upstream", "cuda")),
)
BLOCK = re.compile(r"(<!-- figures: (\w+) ([^>]+?) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
LABELS = {
    "ours": "ours",
    "frozen": "frozen",
    "eager": "PyTorch eager",
    "compile": "`torch.compile`",
    "inductor": "inductor",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "stock": "stock Relay",
    "relax": "`relax_ext.pipeline`",
    "main": "TVM's definition",
}
WHAT = {
    "bench_models.json": "whole models, `relax_ext.pipeline`",
    "bench_training.json": "training steps, `relax_ext.training`",
    "bench_torch_compile.json": '`torch.compile(model, backend="tvm_conv")`',
    "bench_relay.json": "whole models, `relay.build`",
}
"""Titles of the measurements of each file, for the summary."""
MODES = ("inference", "training")


def provenance(found: dict[str, Any]) -> str:
    """Return where, when and with what a file was measured."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return (
        f"*{found['cpu']}, {found['threads']} threads, float32; {versions}; "
        f"{found['date']}, commit {found['commit']}.*"
    )


def rows_of(found: dict[str, Any]) -> str:
    """Return a table with a line for each model: milliseconds, and the best baseline over ours.

    Where products are counted, another column is the ratio of those of the baseline and ours.
    """
    rows = found["rows"]
    engines = [name for name in LABELS if any(name in row["ms"] for row in rows.values())]
    heads = ["model", *(f"{LABELS[name]}, ms" for name in engines), "best baseline / ours"]
    lines = [
        [
            name,
            *(digits(row["ms"].get(engine)) for engine in engines),
            ratio(row["ratios"].get("best")),
        ]
        for name, row in rows.items()
    ]
    if all("products" in row for row in rows.values()):
        heads.append("products, baseline / ours")
        for line, row in zip(lines, rows.values()):
            line.append(digits(row["products"]["main"] / row["products"]["ours"]))
    return table(heads, lines)


def compile_of(found: dict[str, Any]) -> str:
    """Return a table with a line for each model: seconds until the first result, by engine."""
    rows = found["rows"]
    engines = [name for name in LABELS if any(name in row["first_s"] for row in rows.values())]
    heads = ["model", *(f"{LABELS[name]}, s" for name in engines)]
    lines = [[n, *(digits(row["first_s"].get(e)) for e in engines)] for n, row in rows.items()]
    return table(heads, lines)


def summary_of(names: Iterable[str]) -> str:
    """Return a table with a line for each file, and for each mode where a file has two."""
    lines = []
    for name in names:
        rows = read(name)["rows"]
        modes = {row_name.rpartition(", ")[2] for row_name in rows} & set(MODES)
        for mode in sorted(modes) or [""]:
            some = [row["ratios"] for row_name, row in rows.items() if row_name.endswith(mode)]
            baselines = [engine for engine in LABELS if all(engine in one for one in some)]
            best = [one["best"] for one in some]
            beside = ", ".join(LABELS[engine] for engine in baselines) or MISSING
            what = ", ".join(filter(None, (WHAT[name], mode)))
            numbers = (digits(geometric_mean(best)), ratio(min(best)))
            lines.append((what, str(len(some)), beside, *numbers))
    return table(("", "models", "baselines", "best baseline / ours", "minimum"), lines)


def static_of(found: dict[str, Any]) -> str:
    """Return the tables of a static report: chosen kernels, and the rules that some break."""
    head = (
        f"*nvcc {found['nvcc']}, {', '.join(found['archs'])}, flags of TVM: `{found['flags']}`; "
        f"{found['date']}, commit {found['commit']}. {found['launches']} launches; a line is a "
        "kernel that multiplies or normalizes, as the backend chooses it.*"
    )
    chosen = [
        f"### {arch}\n\n{table(found['columns'], rows)}" for arch, rows in found["chosen"].items()
    ]
    broken = table(found["rules"], found["broken"]) if found["broken"] else "None."
    return "\n\n".join([head, *chosen, "### What breaks a rule", broken])


def read(name: str) -> dict[str, Any]:
    """Return what a benchmark wrote."""
    return json.loads((MEASURED / name).read_text())


def rendered(view: str, names: list[str]) -> str:
    """Return the Markdown of a view of files, with where they were measured."""
    if view == "static":
        return f"\n{static_of(read(*names))}\n\n"
    heads = "\n".join(dict.fromkeys(provenance(read(name)) for name in names))
    if view == "summary":
        body = summary_of(names)
    else:
        body = {"rows": rows_of, "compile": compile_of}[view](read(*names))
    return f"\n{heads}\n\n{body}\n\n"


def renewed(text: str) -> str:
    """Return a document with its tables made again."""
    return BLOCK.sub(lambda found: found[1] + rendered(found[2], found[3].split()) + found[5], text)


def main() -> int:
    """Write or check the documents; return 1 where one differs from the files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    differs = False
    for document in DOCUMENTS:
        text = document.read_text()
        new = renewed(text)
        if new != text and check:
            print(f"{document.relative_to(ROOT)}: run tools/figures.py", file=sys.stderr)
            differs = True
        elif new != text:
            document.write_text(new)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
