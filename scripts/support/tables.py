# SPDX-License-Identifier: Apache-2.0
"""Tables of Markdown, and those of single layers that ``scripts/bench.py --json`` measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

MISSING = "–"
PACKED = {
    "float32": "ours in float32",
    "torch_prepacked": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "inductor": "inductor",
    "best": "best baseline of each row",
}
"""Ratios to baselines that know the weights when they are built, and their titles."""
Found = dict[str, Any]
"""A file that ``scripts/bench.py --json`` wrote."""


def digits(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return MISSING
    places = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.995 else 3
    return f"{value:.{places}f}"


def ratio(value: float | None) -> str:
    """Bold where the baseline is faster."""
    return f"**{digits(value)}**" if value is not None and value < 0.995 else digits(value)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(line)} |") for line in lines)


def peaks(header: dict[str, Any]) -> str:
    """Return the processor's LLVM name, and its measured peak and copy bandwidth."""
    gflops, gbs = digits(header["peak_gflops"]), digits(header["copy_gbs"])
    return f"`{header['mcpu']}`, {gflops} GF/s, {gbs} GB/s"


def kinds(found: Iterable[Found]) -> str:
    """Return a line for each file and kind: ratios to PyTorch and stock TVM, seconds of builds."""
    heads = ("kind", "cases", "", "PyTorch / ours", "minimum", "rows below 1", "packed",
             "default malloc", "stock / ours", "build: median, maximum")  # fmt: skip
    lines = []
    for result in found:
        for kind, one in result["summary"].items():
            torch = one["torch"]
            mean, *others = (
                digits((one[key] or {}).get("geomean"))
                for key in ("torch", "torch_prepacked", "torch_default", "stock")
            )
            least = f"{ratio(torch['worst']['value'])} ({torch['worst']['name']})"
            builds = f"{digits(one['build_s_median'])}, {digits(one['build_s_max'])} s"
            first = (f"`{kind}`", result["header"]["cases"], str(one["cases"]))
            lines.append((*first, mean, least, str(len(torch["slower"])), *others, builds))
    return table(heads, lines)


def packed(found: Iterable[Found]) -> str:
    """Return a line for each file and kind: geometric mean and minimum of each packed baseline."""
    summaries = [
        (kind, result["header"]["cases"], one)
        for result in found
        for kind, one in result["summary"].items()
    ]
    titles = {
        name: title for name, title in PACKED.items() if any(one.get(name) for *_, one in summaries)
    }
    lines = []
    for kind, cases, one in summaries:
        cells = [_mean_and_least(one.get(name)) for name in titles]
        lines.append((f"`{kind}`", cases, str(one["cases"]), *cells))
    return table(("kind", "cases", "", *titles.values()), lines)


def _mean_and_least(found: dict[str, Any] | None) -> str:
    if found is None:
        return MISSING
    least = f"{ratio(found['worst']['value'])} ({found['worst']['name']})"
    return f"{digits(found['geomean'])}, {least}"


def symbolic(found: Iterable[Found]) -> str:
    """Return a line for each file and kind: the time of kernels of any size / those of one size."""
    lines = []
    for result in found:
        for kind, one in result["summary"].items():
            ratios = one["symbolic"]
            largest = f"{digits(ratios['best']['value'])} ({ratios['best']['name']})"
            first = (f"`{kind}`", result["header"]["cases"], str(ratios["cases"]))
            lines.append((*first, digits(ratios["geomean"]), largest))
    return table(("kind", "cases", "", "any size / known size", "maximum"), lines)
