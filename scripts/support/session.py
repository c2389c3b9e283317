# SPDX-License-Identifier: Apache-2.0
"""The whole run: every kind of every case, then table, JSON and plot."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import torch

from . import report
from .arguments import Options
from .baselines import require
from .default_malloc import TorchByDefault
from .engines import engine
from .environment import describe, host_features, is_malloc_set
from .measure import Bench, measure
from .output import write_json
from .peaks import Peaks
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
    tvm = engine(options.ir)
    torch.set_num_threads(options.threads)
    target = tvm.host_target(options.threads)
    tvm.warm_up(target)
    peaks = measure_peaks(tvm, target, options.threads)
    header = _header(options, tvm, target, peaks)
    header["versions"] |= versions
    out = report.console()
    report.show_header(out, header)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        bar = stack.enter_context(report.progress())
        by_default = None
        if "torch" in options.baselines and is_malloc_set():
            by_default = TorchByDefault(options.threads, options.time_budget)
            stack.enter_context(by_default)
        bench = Bench(options, tvm, target, peaks, by_default)
        task = bar.add_task("", total=len(options.kinds) * len(options.cases))
        for kind in options.kinds:
            for case in options.cases:
                bar.update(task, description=f"{kind} {case.name}")
                rows.append(measure(case, kind, bench))
                _write(options, header, rows)
                bar.advance(task)
    header["load_at_end"] = [round(value, 2) for value in os.getloadavg()]
    _write(options, header, rows)
    for kind in options.kinds:
        report.show_kind(out, kind, [row for row in rows if row["kind"] == kind])
    report.show_summary(out, summarize(rows))
    if options.plot:
        from .plot import draw

        draw(rows, header, options.plot)
    return int(any(row["incorrect"] for row in rows))


def _header(options: Options, tvm: Any, target: Any, peaks: Peaks) -> dict[str, Any]:
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
