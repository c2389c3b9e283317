# SPDX-License-Identifier: Apache-2.0
"""Which kernel, by which plan: the one that takes the least time by the planners' estimates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ...problem import Problem
from ..machine import GpuMachine
from ..registry import kernels_of
from .base import Plan


@lru_cache(maxsize=1024)
def choose(problem: Problem, machine: GpuMachine) -> Plan:
    """The plan that takes the least time, by estimate; of symbolic sizes, of nominal ones."""
    return min(candidates(problem, machine), key=lambda one: one[0])[1]


def candidates(problem: Problem, machine: GpuMachine) -> Iterator[tuple[float, Plan]]:
    """Every plan that is compared for `problem`, of every kernel that serves it.

    Yields
    ------
    nanoseconds : float
        Estimated.
    plan : Plan
        Any of them makes a kernel that is right, by ``CudaBackend.build(problem, plan)``.
    """
    for kernel in kernels_of(problem.face):
        yield from kernel.candidates(problem, machine)
