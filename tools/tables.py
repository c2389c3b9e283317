# SPDX-License-Identifier: Apache-2.0
"""Print results of benchmarks as the tables of docs/developer/performance.md.

::

    python tools/tables.py out/bench-conv-relax.json out/bench-conv_transpose-relax.json

Files are those that ``benchmarks/bench.py --json`` writes.  One line says on which processor, when
and by which commit; then a summary of all files, and a table of rows for each file and kind.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

MISSING = "–"


def digits(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return MISSING
    places = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.995 else 3
    return f"{value:.{places}f}"


def ratio(value: float | None) -> str:
    """Bold where PyTorch is faster."""
    return f"**{digits(value)}**" if value is not None and value < 0.995 else digits(value)


def share(value: float | None) -> str:
    """In per cent."""
    return MISSING if value is None else f"{value:.0%}".replace("%", " %")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def provenance(header: dict[str, Any]) -> str:
    """Return machine, versions, date and commit of a measurement."""
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    peaks = f"{digits(header['peak_gflops'])} GF/s, {digits(header['copy_gbs'])} GB/s"
    return (
        f"*{header['cpu']} (`{header['mcpu']}`), {header['threads']} threads, {peaks}; {versions}; "
        f"{header.get('date', 'no date')}, {header.get('commit') or 'no commit'}.*"
    )


def summary(found: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return one line per file and kind."""
    heads = ("kind", "cases", "", "PyTorch/ours", "minimum", "rows below 1", "packed",
             "default malloc", "stock/ours", "build: median, maximum")  # fmt: skip
    lines = []
    for cases, result in found:
        for kind, one in result["summary"].items():
            torch = one["torch"] or {}
            worst = torch.get("worst")
            means = [
                digits((one[key] or {}).get("geomean"))
                for key in ("torch", "torch_prepacked", "torch_default", "stock")
            ]
            lines.append(
                (
                    f"`{kind}`",
                    cases,
                    str(one["cases"]),
                    means[0],
                    f"{ratio(worst['value'])} ({worst['name']})" if worst else MISSING,
                    str(len(torch["slower"])) if torch else MISSING,
                    *means[1:],
                    f"{digits(one['build_s_median'])}, {digits(one['build_s_max'])} s",
                )
            )
    return table(heads, lines)


def rows_of(rows: Sequence[dict[str, Any]]) -> str:
    """One line per case."""
    heads = ("", "configuration", "PyTorch ms", "ours ms", "PyTorch/ours", "packed", "of peak",
             "of copy", "workspace")  # fmt: skip
    lines = []
    for row in rows:
        held, operands = row["workspace_bytes"], row["operand_bytes"]
        lines.append(
            (
                row["name"],
                row["configuration"],
                digits(row["torch_ms"]),
                digits(row["ours_ms"]),
                ratio(row["ratio_torch"]),
                ratio(row["ratio_torch_prepacked"]),
                share(row["share_of_peak"]),
                share(row["share_of_bandwidth"]),
                MISSING if held is None else f"{held / operands:.2f}",
            )
        )
    return table(heads, lines)


def main() -> None:
    """Print the tables of the files that the command line names."""
    parser = argparse.ArgumentParser(description="Print benchmark results as Markdown tables.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    found = []
    for path in parser.parse_args().files:
        try:
            result = json.loads(path.read_text())
            found.append((Path(result["header"]["cases"]).name, result))
        except (OSError, ValueError) as error:
            parser.error(f"{path}: {error}")
        except (KeyError, TypeError):
            parser.error(f"{path}: not what benchmarks/bench.py --json writes")
    print("\n".join(dict.fromkeys(provenance(result["header"]) for _, result in found)))
    print(f"\n{summary(found)}")
    for cases, result in found:
        for kind in result["summary"]:
            print(f"\n### {kind}: {cases}\n")
            print(rows_of([row for row in result["rows"] if row["kind"] == kind]))


if __name__ == "__main__":
    main()
