# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.kernels.dot_gather`."""

from __future__ import annotations

from dataclasses import replace

from .gather import plan_gather
from .plans import DotPlan
from .problem import Machine, Problem


def plan_dot(problem: Problem, machine: Machine) -> tuple[float, DotPlan] | None:
    """Products of pairs: the plan of :mod:`topi_ext.kernels.dot_gather`, and its cycles.

    None where a processor has none, or multiplies more numbers of float32 in the same time; for
    other dtypes, and for an odd number of input channels, of which pairs can't be made.
    """
    # Where it is slow, what it saves in memory is less than what making pairs takes.
    if not machine.dots or 2 * machine.dots < machine.fmas:
        return None
    if problem.dtypes[:2] != ("bfloat16",) * 2 or problem.in_channels % 2:
        return None
    # As numbers of float32, half as many.
    cycles, gather = plan_gather(problem.in_pairs, replace(machine, fmas=machine.dots))
    return cycles, DotPlan(gather)
