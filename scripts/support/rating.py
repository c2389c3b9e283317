# SPDX-License-Identifier: Apache-2.0
"""Estimates beside times: plans of one problem, built, checked and timed in turns."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any, NamedTuple

import torch

from support import by_relax, by_torch, report
from support.cases import Case
from support.environment import describe, host_features
from support.errors import allowed, finite, relative_error
from support.output import write_json
from support.timing import ROUNDS, Neighbours, interleaved, timed
from topi_ext.cpu.backend import CpuBackend
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.base import Plan
from topi_ext.cpu.registry import KERNELS
from topi_ext.cpu.select.choose import candidates, choose
from topi_ext.notices import one_line
from topi_ext.spec.conv import OPERANDS, RESULT, Convolution
from topi_ext.spec.layout import Layouts

FINALISTS = 2
"""Beside the chosen plan, how many of the fastest are timed once more."""

FINAL_ROUNDS = 3
"""Times as long."""


class Candidate(NamedTuple):
    """A plan, and the cycles that it is estimated to take."""

    cycles: float
    plan: Plan

    @property
    def kernel(self) -> str:
        """Name of the kernel that it is a plan of."""
        return KERNELS.of_plan(self.plan).name


@dataclass(frozen=True)
class Choice:
    """Plan that was chosen for one problem, and the candidates to time beside it.

    Attributes
    ----------
    chosen : Plan
        The one that would be built.
    rated : list of Candidate
        Among them the chosen one.
    counts : dict
        By kernel, how many candidates there are, how many of them within the limit, and rated.
    """

    chosen: Plan
    rated: list[Candidate]
    counts: dict[str, dict[str, int]]

    @classmethod
    def of(cls, problem: Convolution, machine: CpuMachine, within: float, most: int) -> Choice:
        """At most so many of each kernel, and the chosen one."""
        chosen = choose(problem, machine)
        cycles: dict[Plan, float] = {}
        for estimate, plan in candidates(problem, machine):
            cycles[plan] = min(estimate, cycles.get(plan, math.inf))
        limit = within * min(cycles.values())
        by_kernel: dict[str, list[Candidate]] = defaultdict(list)
        for plan, estimate in cycles.items():
            by_kernel[KERNELS.of_plan(plan).name].append(Candidate(estimate, plan))
        rated, counts = [], {}
        for name, found in by_kernel.items():
            near = [one for one in found if one.cycles <= limit]
            taken = spread(near, most)
            of_chosen = [one for one in found if one.plan == chosen and one not in taken]
            rated += taken + of_chosen
            numbers = len(found), len(near), len(taken + of_chosen)
            counts[name] = dict(zip(("candidates", "within", "rated"), numbers))
        return cls(chosen, rated, counts)


def spread(found: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most so many, spread evenly over the logarithm of the estimate, the lowest first."""
    left = sorted(found, key=lambda one: one.cycles)
    if len(left) <= most:
        return left
    low, high = (math.log(one.cycles) for one in (left[0], left[-1]))
    taken = []
    for number in range(most):
        wanted = low + (high - low) * number / max(1, most - 1)
        nearest = min(left, key=lambda one: abs(math.log(one.cycles) - wanted))
        left.remove(nearest)
        taken.append(nearest)
    return sorted(taken, key=lambda one: one.cycles)


def problem_of(case: Case, kind: str, dtype: str) -> Convolution:
    """Return the problem of a case and a kind of operator, as planners see it."""
    g = case.geometry_of(kind)
    return Convolution(kind, g.as_rank3(), Layouts.canonical(g.rank), case.n, (dtype,) * 3)


class Rater:
    """Builds, checks and times plans for one target.

    Parameters
    ----------
    dtype : str
        Of all operands.
    within, most : float, int
        Which plans: see :class:`Choice`.
    budget : float
        Seconds of timed runs for each.
    """

    def __init__(self, target: Any, dtype: str, within: float, most: int, budget: float) -> None:
        self.target, self.dtype, self.budget = target, dtype, budget
        self.within, self.most = within, most
        found = CpuBackend.of(target)
        assert found is not None
        self.backend = found

    def rate(self, case: Case, kind: str) -> dict[str, Any]:
        """Return a row: `regret`, and for every rated plan its estimate and its milliseconds."""
        problem = problem_of(case, kind, self.dtype)
        choice = Choice.of(problem, self.backend.machine, self.within, self.most)
        tensors = by_torch.operands(case, self.dtype)
        want = by_torch.reference(case, kind, tensors)
        out = torch.empty(case.shape(RESULT[kind]), dtype=getattr(torch, self.dtype))
        operands = [by_relax.array(tensors[role]) for role in OPERANDS[kind]]
        arrays = [*operands, by_relax.array(out)]
        runs: dict[int, Callable[[], Any]] = {}
        first: dict[int, float] = {}
        plans: list[dict[str, Any]] = []
        tolerance = allowed(case.terms(kind), self.dtype)
        for number, one in enumerate(choice.rated):
            row = {"kernel": one.kernel, "cycles": one.cycles, "plan": repr(one.plan)}
            row["chosen"] = one.plan == choice.chosen
            plans.append({**row, "incorrect": True, "error": None, "ms": None, "final_ms": None})
            try:
                start = time.perf_counter()
                kernel = by_relax.kernel(self.backend.build(problem, one.plan), self.target)
                plans[-1]["build_s"] = time.perf_counter() - start
                out.fill_(math.nan)  # what a kernel does not write is seen
                first[number] = timed(run := _call(kernel, arrays))[1]
            except Exception as failure:  # a plan that fails is a result
                plans[-1]["note"] = one_line(failure)
                continue
            runs[number], error = run, relative_error(out, want)
            right = error is not None and error <= tolerance
            plans[-1] |= {"error": finite(error), "incorrect": not right}
        with Neighbours() as neighbours:
            for number, times in interleaved(runs, first, self.budget).items():
                plans[number] |= {"ms": times.ms, "best_ms": times.best_ms}
            finalists = self._finalists(plans)
            again = {number: runs[number] for number in finalists}
            for number, times in interleaved(again, first, FINAL_ROUNDS * self.budget).items():
                plans[number]["final_ms"] = times.ms
        return {
            "name": case.name,
            "kind": kind,
            "configuration": str(case),
            "dtype": self.dtype,
            **regret_of(plans),
            "kernels": choice.counts,
            "tolerance": tolerance,
            "incorrect": any(row["incorrect"] for row in plans),
            "others_cores": neighbours.cores,
            "plans": plans,
        }

    @staticmethod
    def _finalists(plans: Sequence[dict[str, Any]]) -> list[int]:
        """Return the chosen plan and the fastest others."""
        order = sorted((row["ms"], number) for number, row in enumerate(plans) if row["ms"])
        chosen = [number for _, number in order if plans[number]["chosen"]]
        others = [number for _, number in order if not plans[number]["chosen"]]
        return chosen + others[:FINALISTS]


def _call(kernel: Callable[..., None], arrays: Sequence[Any]) -> Callable[[], None]:
    return lambda: kernel(*arrays)


def regret_of(plans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratio of the chosen plan's time to the fastest one's, of the plans that were timed
    twice, and the kernels of both.

    ``regret_best`` is the same of the shortest calls of all: what neighbours disturb least.
    """
    final = [row for row in plans if row["final_ms"]]
    fastest = min(final, key=lambda row: row["final_ms"], default=None)
    chosen = next((row for row in final if row["chosen"]), None)
    if fastest is None or chosen is None:
        return dict.fromkeys(("regret", "regret_best", "chosen_kernel", "fastest_kernel"))
    shortest = min(row["best_ms"] for row in plans if row["ms"])
    return {
        "regret_best": chosen["best_ms"] / shortest,
        "regret": chosen["final_ms"] / fastest["final_ms"],
        "chosen_kernel": chosen["kernel"],
        "fastest_kernel": fastest["kernel"],
    }


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per kind: geometric mean and worst of the regret, and where another kernel is faster."""
    found = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        rated = [row for row in rows if row["kind"] == kind and row["regret"] is not None]
        if not rated:
            continue
        worst = max(rated, key=lambda row: row["regret"])
        others = [row for row in rated if row["chosen_kernel"] != row["fastest_kernel"]]
        found[kind] = {
            "shapes": len(rated),
            "geomean": geometric_mean(row["regret"] for row in rated),
            "geomean_best": geometric_mean(row["regret_best"] for row in rated),
            "worst": {"name": worst["name"], "value": worst["regret"]},
            "above_1.1": sum(row["regret"] > 1.1 for row in rated),
            "fastest": dict(Counter(row["fastest_kernel"] for row in rated)),
            "other_kernel": {
                row["name"]: f"{row['fastest_kernel']}, not {row['chosen_kernel']}: "
                f"{row['regret']:.2f}"
                for row in others
            },
        }
    return found


def run(cases: Sequence[Case], given: Any) -> int:
    """Rate all kinds of all cases, as the command line says: report, and the exit status."""
    torch.set_num_threads(given.threads)
    target = by_relax.host_target(given.threads)
    by_relax.warm_up(target)
    rater = Rater(target, given.dtype, given.within, given.most, given.time_budget)
    shapes = [(case, kind) for case in cases for kind in given.kinds]
    head = _header(given, target, rater.backend.machine)
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + (given.seconds or math.inf)
    with torch.inference_mode(), report.progress() as bar:
        task = bar.add_task("", total=len(shapes))
        for case, kind in shapes:
            if rows and time.monotonic() > until:
                break
            bar.update(task, description=f"{kind} {case.name}")
            rows.append(rater.rate(case, kind))
            head["left_out"] = [f"{one.name} {kind}" for one, kind in shapes[len(rows) :]]
            write_json(given.json, {"header": head, "rows": rows, "summary": summarize(rows)})
            bar.advance(task)
    show(head, rows)
    if given.plot and rows:
        from support.rating_plot import draw

        draw(rows, head, given.plot)
    return int(any(row["incorrect"] for row in rows))


def show(head: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Print what the choices cost."""
    out = report.console()
    out.print(f"{head['cpu']}, threads {head['threads']}, commit {head['commit']}, {head['date']}")
    for kind, found in summarize(rows).items():
        worst = found["worst"]
        out.print(
            f"{kind}: {found['shapes']} shapes, regret geomean {found['geomean']:.3f} "
            f"({found['geomean_best']:.3f} of shortest calls), worst {worst['value']:.2f} "
            f"({worst['name']}), above 1.1: {found['above_1.1']}",
            soft_wrap=True,
        )
        fastest = ", ".join(f"{name} {number}" for name, number in found["fastest"].items())
        out.print(f"  fastest kernel: {fastest}")
        for name, text in found["other_kernel"].items():
            out.print(f"  {name}: {text}")
    incorrect = [f"{row['name']} {row['kind']}" for row in rows if row["incorrect"]]
    out.print(
        f"incorrect: {', '.join(incorrect) or 'none'}; left out: {len(head.get('left_out', ()))}"
    )
    noise = [row["others_cores"] for row in rows if row["others_cores"] is not None]
    if noise:
        out.print(f"other processes used {sum(noise) / len(noise):.2f} cores meanwhile")


def _header(given: Any, target: Any, machine: CpuMachine) -> dict[str, Any]:
    features, _ = host_features(target)
    return {
        **describe(target, features, given.threads, by_relax.VERSIONS),
        "features": sorted(features),
        "machine": asdict(machine),
        "cases": [file.name for file in given.cases],
        "within": given.within,
        "most": given.most,
        "protocol": f"one process, in turns, {ROUNDS} rounds, {given.time_budget:g} s each, "
        f"medians; the chosen plan and the {FINALISTS} fastest again, {FINAL_ROUNDS} times as "
        "long: regret is of these; error: max |ours - exact| / max |exact|",
    }
