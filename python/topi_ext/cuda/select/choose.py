# SPDX-License-Identifier: Apache-2.0
"""Which kernel, by which plan: the one that takes the least time by the planners' estimates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ...kernel.registry import cost_of
from ...kernel.selection import ALL, Selection
from ...spec.problem import Problem
from ..machine import GpuMachine
from ..plan.tiles import Plan
from ..registry import KERNELS


def choose(problem: Problem, machine: GpuMachine, selection: Selection = ALL) -> Plan:
    """The plan that takes the least time, by estimate; of symbolic sizes, of nominal ones."""
    return rated(problem, machine, selection)[1]


@lru_cache(maxsize=1024)
def rated(problem: Problem, machine: GpuMachine, selection: Selection = ALL) -> tuple[float, Plan]:
    """Return the plan of :func:`choose` and its estimated nanoseconds.

    Where no kernel of the `selection` serves the problem, any may be chosen.
    """
    proposals = KERNELS.proposals(problem, machine, selection)
    return min(proposals or KERNELS.proposals(problem, machine), key=cost_of)


def candidates(problem: Problem, machine: GpuMachine) -> Iterator[tuple[float, Plan]]:
    """Every plan that is compared for `problem`, of every kernel that serves it.

    Yields
    ------
    nanoseconds : float
        Estimated.
    plan : Plan
        Any of them makes a kernel that is right, by ``CudaBackend.build(problem, plan)``.
    """
    yield from KERNELS.candidates(problem, machine)
