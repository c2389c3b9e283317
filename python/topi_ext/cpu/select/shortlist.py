# SPDX-License-Identifier: Apache-2.0
"""Choose the plans that are worth a measurement: few of thousands, unlike each other."""

from __future__ import annotations

from collections.abc import Iterator

from ...kernel.database import plain
from ...spec.problem import Problem
from ..machine import CpuMachine
from ..plan.base import Plan
from ..registry import KERNELS
from .choose import by_other_stores, candidates, choose

WITHIN = 4.0
"""Times the least estimate, beyond which the best of a kernel is not measured."""

NEAR = 1.6
"""As above, for further plans of a kernel."""

CONSIDERED = 300
"""Number of plans with the lowest estimates that are considered."""


def shortlist(problem: Problem, machine: CpuMachine, most: int) -> list[Plan]:
    """At most so many plans of a problem of known sizes, none twice.

    The one that is built without a measurement comes first, then the same by other stores, then the
    best of each kernel, then those that differ in most fields from all before, the faster ones by
    estimate first.
    """
    taken = [choose(problem, machine)]
    other = by_other_stores(problem, taken[0], machine)
    taken += [] if other is None else [other]
    rated = sorted(candidates(problem, machine), key=lambda one: one[0])
    least = rated[0][0]
    kernels = {KERNELS.of_plan(taken[0]).name}
    for cycles, plan in rated:
        name = KERNELS.of_plan(plan).name
        if cycles <= WITHIN * least and name not in kernels:
            kernels.add(name)
            taken.append(plan)
    near = [plan for cycles, plan in rated[:CONSIDERED] if cycles <= NEAR * least]
    leaves = {plan: _leaves(plan) for plan in (*taken, *near)}
    for apart in (4, 3, 2, 1):
        for plan in near:
            if len(taken) >= most:
                break
            if all(_distance(leaves[plan], leaves[one]) >= apart for one in taken):
                taken.append(plan)
    return taken[:most]


def _distance(one: dict[str, object], other: dict[str, object]) -> int:
    """Return in how many fields two plans differ; all of them if they are of two kernels."""
    return sum(one.get(name) != other.get(name) for name in one.keys() | other.keys())


def _leaves(plan: Plan) -> dict[str, object]:
    return dict(_flat(KERNELS.of_plan(plan).name, plain(plan)))


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _flat(f"{name}.{key}", one)
    else:
        yield name, value
