# SPDX-License-Identifier: Apache-2.0
"""The whole run: every kind of every case, then table, JSON and plot."""

from __future__ import annotations

import os
from argparse import Namespace as Options
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from . import report
from .baselines import require
from .cases import Case
from .default_malloc import TorchByDefault
from .engines import engine
from .environment import describe, host_features, is_malloc_set
from .measure import Bench, Row, measure
from .output import write_json
from .peaks import measure as measure_peaks
from .summary import summarize
from .timing import ROUNDS


def run(options: Options) -> int:
    """Measure, report, and return the exit status: 1 when a result of ours is incorrect.

    Raises
    ------
    ValueError
        One line: this environment does not have the IR or a baseline that is asked for.
    """
    versions = require(options.baselines, options.dtype)
    out = report.console()
    rows: list[Row] = []
    with opened(options) as bench:
        header = _header(options, bench)
        header["versions"] |= versions
        report.show_header(out, header)
        points = [(kind, case) for kind in options.kinds for case in options.cases]
        for row in measured(bench, points):
            rows.append(row)
            _write(options, header, rows)
    header["load_at_end"] = [round(value, 2) for value in os.getloadavg()]
    _write(options, header, rows)
    for kind in options.kinds:
        report.show_kind(out, kind, [row for row in rows if row["kind"] == kind])
    report.show_summary(out, summarize(rows))
    if options.plot:
        from .plot import draw

        draw(rows, header, options.plot)
    return int(any(row["incorrect"] for row in rows))


@contextmanager
def opened(options: Options) -> Iterator[Bench]:
    """Give what all rows share: an engine that is warm, and the peaks of the machine."""
    tvm = engine(options.ir)
    torch.set_num_threads(options.threads)
    target = tvm.host_target(options.threads)
    tvm.warm_up(target)
    peaks = measure_peaks(tvm, target, options.threads)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        by_default = None
        if "torch" in options.baselines and is_malloc_set():
            by_default = TorchByDefault(options.threads, options.time_budget)
            stack.enter_context(by_default)
        yield Bench(options, tvm, target, peaks, by_default)


def measured(bench: Bench, points: Sequence[tuple[str, Case]]) -> Iterator[Row]:
    """Yield the row of each kind and case, behind a progress bar."""
    with report.progress() as bar:
        task = bar.add_task("", total=len(points))
        for kind, case in points:
            bar.update(task, description=f"{kind} {case.name}")
            yield measure(case, kind, bench)
            bar.advance(task)


def _header(options: Options, bench: Bench) -> dict[str, Any]:
    tvm, target, peaks = bench.tvm, bench.target, bench.peaks
    features, _ = host_features(target)
    return {
        **describe(target, features, options.threads, tvm.VERSIONS),
        "ir": tvm.NAME,
        "peak_gflops": peaks.gflops,
        "copy_gbs": peaks.copy_gbs,
        "cases": options.source,
        "protocol": f"one process, in turns, {ROUNDS} rounds, {options.time_budget:g} s each, "
        "medians; error: max |ours - exact| / max |exact|",
    }


def _write(options: Options, header: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write what there is so far: a long run that is stopped has not run for nothing."""
    found = {"header": header, "rows": rows, "summary": summarize(rows)}
    write_json(options.json, found)
