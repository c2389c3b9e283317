# SPDX-License-Identifier: Apache-2.0
"""Plans of a database: which one was the fastest where it was measured."""

from __future__ import annotations

from functools import lru_cache

from ...kernel.database import Database, Entry, machine_name, plain
from ...kernel.selection import Selection
from ...notices import warn_once
from ...spec.problem import Problem
from ..machine import CpuMachine
from ..plan.base import Plan
from ..registry import KERNELS
from .choose import by_other_stores, candidates


def entry(plan: Plan, ms: float, estimate_ms: float) -> Entry:
    """Return a plan and its times as a database has them."""
    times = {"ms": round(ms, 5), "estimate_ms": round(estimate_ms, 5)}
    return {"kernel": KERNELS.of_plan(plan).name, "plan": plain(plan), **times}


@lru_cache(maxsize=1024)
def measured(
    problem: Problem, machine: CpuMachine, processor: str, database: Database | None
) -> Plan | None:
    """Return the plan that a database has for a problem; None without one.

    An entry that is none of the candidates of its kernel is ignored, which is said once for a file.
    """
    if database is None or not problem.is_static:
        return None
    found = database.find(machine_name(processor, machine), problem.signature)
    if found is None:
        return None
    for _, plan in candidates(problem, machine, Selection(frozenset([str(found.get("kernel"))]))):
        for one in (plan, by_other_stores(problem, plan, machine)):
            if one is not None and plain(one) == found.get("plan"):
                return one
    warn_once(f"{database.path}: plans that this version has not are ignored, tune again")
    return None
