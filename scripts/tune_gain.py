# SPDX-License-Identifier: Apache-2.0
"""Compare measured plans with estimated plans, and with plans for a machine stated incorrectly.

::

    python scripts/tune_gain.py --cases scripts/cases/bench.json \\
        --json out/tune_gain.json --plot out/tune_gain.png

Of each convolution, with a constant weight, the plans that ``relax_ext.tune`` measures run in
turns.  Beside them run those that it would measure if this machine had half its caches and twice
its multiply-adds a cycle: the estimate is incorrect then, and a measurement has to correct it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import relax_ext
from relax_ext.tune import MOST
from support.arguments import cases_of, of_several_files
from support.cases import Case
from support.environment import prepare, processor_name
from support.output import INK, picture, write_json
from topi_ext.backend import Work
from topi_ext.cpu.backend import CpuBackend
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.base import Plan
from topi_ext.cpu.registry import KERNELS
from topi_ext.cpu.select.shortlist import shortlist
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts
from topi_ext.tuning.interleaved import race
from topi_ext.tuning.runner import PlanRuns, built, here

LAYOUTS = {1: "NCW OIW", 2: "NCHW OIHW", 3: "NCDHW OIDHW"}


def main() -> int:
    """Measure the cases that were asked for."""
    made = of_several_files(__doc__)
    options = made.parse_args()
    prepare(options.threads)
    cases = cases_of(made, options)
    target = relax_ext.host_target(num_cores=options.threads)
    rows = []
    for number, case in enumerate(cases, 1):
        rows.append(measured(case, target))
        print(f"{number}/{len(cases)} {line(rows[-1])}", flush=True)
    means = {
        key: geometric_mean([row[key] for row in rows]) for key in ("gain", "misstated", "healed")
    }
    print(
        f"measured: {means['gain']:.3f} times as fast as by the estimate; "
        f"machine stated incorrectly: {means['misstated']:.3f}, and measured {means['healed']:.3f}"
    )
    report = {"cpu": processor_name(), "threads": options.threads, **means, "rows": rows}
    write_json(options.json, report)
    if options.plot:
        draw(report, options.plot)
    return 0


def misstated(machine: CpuMachine) -> CpuMachine:
    """Return the same with half its caches and twice its multiply-adds."""
    return replace(machine, l1=machine.l1 // 2, l2=machine.l2 // 2, fmas=2 * machine.fmas)


def measured(case: Case, target: Any) -> dict[str, Any]:
    """One case: how many times as fast as by the estimate a plan is."""
    found = CpuBackend.of(target)
    assert found is not None
    g = case.geometry_of(case.op)
    data, weight = LAYOUTS[g.rank].split()
    layouts = Layouts(data, weight, data)
    problem = Convolution(case.op, g.as_rank3(), layouts, case.n, ("float32",) * 3, prepacked=True)
    stated = shortlist(problem, found.machine, MOST)
    by_misstated = shortlist(problem, misstated(found.machine), MOST)
    plans: list[Plan] = list(dict.fromkeys([*stated, *by_misstated]))
    work = Work(problem, found)
    with here(built(work, plans, target)) as opened:
        runs = PlanRuns(work, plans, opened)
        best, seconds = race({number: runs.ready(number)[0] for number in range(len(plans))})
    time_of = dict(zip(plans, (seconds[number] for number in range(len(plans)))))
    estimate = time_of[stated[0]]
    fastest = min(time_of[plan] for plan in stated) if best else estimate
    return {
        "name": case.name,
        "kind": case.op,
        "ms": 1e3 * estimate,
        "kernel": KERNELS.of_plan(plans[best]).name,
        "gain": max(1.0, estimate / fastest),
        "misstated": estimate / time_of[by_misstated[0]],
        "healed": estimate / min(time_of[plan] for plan in by_misstated),
    }


def line(row: dict[str, Any]) -> str:
    """One case for the terminal."""
    return (
        f"{row['name']:<24} {row['ms']:9.3f} ms  measured {row['gain']:.2f}, "
        f"misstated {row['misstated']:.2f}, healed {row['healed']:.2f}  ({row['kernel']})"
    )


def draw(report: dict[str, Any], path: Path) -> None:
    """A dot for each case and kind, in the order of gains."""
    rows = sorted(report["rows"], key=lambda row: row["misstated"])
    with picture(path, 8, 4) as figure:
        panel = figure.subplots()
        for key, colour in (("misstated", "#e09f3e"), ("healed", "#5aa469"), ("gain", "#2a6f97")):
            panel.plot([row[key] for row in rows], "o", markersize=3, color=colour, label=key)
        panel.axhline(1, color=INK, linewidth=0.8)
        panel.set_ylabel("times as fast as by the estimate")
        panel.set_xlabel("cases")
        panel.legend(frameon=False)
        panel.set_title(f"{report['cpu']}, threads {report['threads']}", loc="left", fontsize=9)


if __name__ == "__main__":
    sys.exit(main())
