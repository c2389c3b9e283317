# SPDX-License-Identifier: Apache-2.0
"""Write the tables of measured figures into the documents.

::

    python scripts/figures.py            # write
    python scripts/figures.py --check    # fail where a table is not what its file says

A table stands between two comments.  The first names files of docs/measured and a view::

    <!-- figures: rows bench_training.json -->
    ...
    <!-- end of figures -->

Views of whole models:

======= ============================================================================
rows    milliseconds of each model by engine
compile seconds of the first compile of each model by engine
busy    median and 99th percentile of latencies of each model and load by engine
summary a line for each file: geometric mean and minimum of the best baseline / ours
======= ============================================================================

Views of single layers, which ``scripts/bench.py`` measures, are those of tables.py: ``kinds``,
``packed`` and ``symbolic`` with a line for each file.  ``static`` is the table of
``scripts/cuda_report.py --figures``, ``models`` that of models_page.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from support import models_page, tables
from support.tables import MISSING, digits, ratio, table

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "measured"
DEVELOPER = ROOT / "docs" / "developer"
DOCUMENTS = (
    ROOT / "README.md",
    *(DEVELOPER / f"{name}.md" for name in ("performance", "upstream", "cuda")),
    models_page.PAGE,
)
BLOCK = re.compile(r"(<!-- figures: (\w+) ([^>]+?) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
Found = dict[str, Any]
"""A file that a benchmark wrote."""
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
    "bench_topi.json": "layers, legalized without kernels",
}
"""Titles of the measurements of each file, for the summary."""
MODES = ("inference", "training")
PRODUCTS = 4
"""Matrix products that are listed of a model."""


def provenance(found: Found) -> str:
    """Return where, when and with what a file was measured."""
    head = found.get("header", found)
    versions = ", ".join(f"{name} {number}" for name, number in head["versions"].items())
    limits = f" ({tables.peaks(head)})" if "mcpu" in head else ""
    rows = found["rows"]
    dtype = rows[0]["dtype"] if head is not found else "float32"
    if head is found and all("snr_db" in row for row in rows.values()):
        dtype = "int8"
    measured = [head] if head is not found else [{**head, **row} for row in rows.values()]
    when = dict.fromkeys(f"{one['date']}, commit {one['commit']}" for one in measured)
    return (
        f"*{head['cpu']}{limits}, {head['threads']} threads, {dtype}; {versions}; "
        f"{'; '.join(when)}.*"
    )


def rows_of(found: Found) -> str:
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
    if all("snr_db" in row for row in rows.values()):
        heads += ["float32 / ours", "ours, dB", "ONNX Runtime, dB"]
        for line, row in zip(lines, rows.values()):
            line += [ratio(row["over_float32"])]
            line += [digits(row["snr_db"].get(engine)) for engine in ("ours", "onnxruntime")]
    if all("products" in row for row in rows.values()):
        heads.append("products, baseline / ours")
        for line, row in zip(lines, rows.values()):
            line.append(digits(row["products"]["main"] / row["products"]["ours"]))
    return table(heads, lines)


def compile_of(found: Found) -> str:
    """Return a table with a line for each model: seconds until the first result, by engine."""
    rows = found["rows"]
    engines = [name for name in LABELS if any(name in row["first_s"] for row in rows.values())]
    heads = ["model", *(f"{LABELS[name]}, s" for name in engines)]
    lines = [[n, *(digits(row["first_s"].get(e)) for e in engines)] for n, row in rows.items()]
    return table(heads, lines)


def gemm_of(found: Found) -> str:
    """Return a table with a line for each model that spends a half of the time in matrix products:
    the share of the longest ones, and their fraction of the peak of multiply-adds.
    """
    heads = ["model", "rows x terms x columns: share of the time, fraction of the peak"]
    lines = []
    for name, row in found["rows"].items():
        products = row.get("gemm", {}).items()
        if sum(share for _, (share, _) in products) >= 0.5:
            shown = (f"{size}: {share:.0%}, {of_peak:.2f}" for size, (share, of_peak) in products)
            lines.append([name, "; ".join(list(shown)[:PRODUCTS])])
    return table(heads, lines)


def first_of(found: Found) -> str:
    """Return a table with a line for each mode and kind of sizes: geometric means over models.

    Seconds of the first call by engine, with empty caches and in a second process; later calls of
    ours beside those with known sizes, and of eager beside ours.
    """
    kinds: dict[tuple[str, str], dict[str, Any]] = {}
    for name, row in found["rows"].items():
        model, mode, sizes = name.rsplit(", ", 2)
        kinds.setdefault((mode, sizes), {})[model] = row

    def seconds(rows: Mapping[str, Any], engine: str) -> str:
        each = [
            [row[key][engine] / 1e3 for row in rows.values() if engine in row[key]]
            for key in ("ms", "warm_ms")
        ]
        return ", ".join(digits(geometric_mean(one)) if one else MISSING for one in each)

    engines = [e for e in LABELS if any(e in row["ms"] for row in found["rows"].values())]
    lines = []
    for (mode, sizes), rows in kinds.items():
        known = kinds.get((mode, "static"), {})
        slower = [
            row["later_ms"]["ours"] / known[model]["later_ms"]["ours"]
            for model, row in rows.items()
            if model in known
        ]
        faster = [row["later_ms"]["eager"] / row["later_ms"]["ours"] for row in rows.values()]
        ratios = [
            digits(geometric_mean(slower)) if slower else MISSING,
            digits(max(slower)) if slower else MISSING,
            digits(geometric_mean(faster)),
            ratio(min(faster)),
        ]
        lines.append([f"{mode}, {sizes}", *(seconds(rows, e) for e in engines), *ratios])
    heads = ["", *(f"{LABELS[name]}, s" for name in engines)]
    heads += ["later calls / known sizes", "maximum", "eager / ours", "minimum"]
    return table(heads, lines)


def busy_of(found: Found) -> str:
    """Return a table with a line for each model and load: latencies by engine, calls a second."""
    rows = found["rows"]
    engines = [name for name in LABELS if any(name in row["p50_ms"] for row in rows.values())]
    heads = ["model, load", *(f"{LABELS[name]}, ms" for name in engines)]
    lines = [
        [
            name,
            *(f"{digits(row['p50_ms'].get(e))}, {digits(row['p99_ms'].get(e))}" for e in engines),
            ratio(row["ratios"].get("best")),
        ]
        for name, row in rows.items()
    ]
    return table([*heads, "calls a second, ours / best baseline"], lines)


def summary_of(files: Mapping[str, Found]) -> str:
    """Return a table with a line for each file, and for each mode where a file has two."""
    lines = []
    for name, found in files.items():
        rows = found["rows"]
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


def static_of(found: Found) -> str:
    """Return the table of a static report: the rules that some kernels break."""
    head = (
        f"*nvcc {found['nvcc']}, {', '.join(found['archs'])}, flags of TVM: `{found['flags']}`; "
        f"{found['date']}, commit {found['commit']}. {found['launches']} launches.*"
    )
    broken = table(found["rules"], found["broken"]) if found["broken"] else "None."
    return f"{head}\n\n{broken}"


VIEWS: dict[str, Callable[[Mapping[str, Found]], str]] = {
    "rows": lambda files: rows_of(*files.values()),
    "compile": lambda files: compile_of(*files.values()),
    "gemm": lambda files: gemm_of(*files.values()),
    "first": lambda files: first_of(*files.values()),
    "busy": lambda files: busy_of(*files.values()),
    "summary": summary_of,
    "kinds": lambda files: tables.kinds(files.values()),
    "packed": lambda files: tables.packed(files.values()),
    "symbolic": lambda files: tables.symbolic(files.values()),
    "static": lambda files: static_of(*files.values()),
    "models": lambda files: models_page.models(*files.values()),
}
"""Tables of files by name, by the word in the comment."""


def rendered(view: str, names: list[str]) -> str:
    """Return the Markdown of a view of files, with where they were measured."""
    files = {name: json.loads((MEASURED / name).read_text()) for name in names}
    bare = view in {"static", "models"}
    heads = {} if bare else dict.fromkeys(map(provenance, files.values()))
    return "\n" + "".join(f"{head}\n" for head in heads) + f"\n{VIEWS[view](files)}\n\n"


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
            print(f"{document.relative_to(ROOT)}: run scripts/figures.py", file=sys.stderr)
            differs = True
        elif new != text:
            document.write_text(new)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
