# SPDX-License-Identifier: Apache-2.0
"""Selection of the kernel and plan with the lowest estimated time."""

from __future__ import annotations

from functools import lru_cache

from ...kernel.registry import cost_of
from ...kernel.selection import ALL, Selection
from ...spec.problem import Problem
from ..machine import GpuMachine
from ..plan.tiles import Plan
from ..registry import KERNELS


def choose(problem: Problem, machine: GpuMachine, selection: Selection = ALL) -> Plan:
    """Return the plan with the lowest estimate; symbolic sizes count as their nominal values."""
    return rated(problem, machine, selection)[1]


@lru_cache(maxsize=1024)
def rated(problem: Problem, machine: GpuMachine, selection: Selection = ALL) -> tuple[float, Plan]:
    """Return the plan of :func:`choose` and its estimated nanoseconds.

    If no kernel of the `selection` supports the problem, any kernel may be chosen.
    """
    proposals = KERNELS.proposals(problem, machine, selection)
    return min(proposals or KERNELS.proposals(problem, machine), key=cost_of)
