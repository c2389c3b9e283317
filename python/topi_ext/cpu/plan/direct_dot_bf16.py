# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.kernels.dot_gather`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...problem import Problem
from ..machine import Machine
from .direct import DirectPlan, plan_direct
from .window import Plan


@dataclass(frozen=True)
class DirectDotPlan(Plan):
    """Plan of the kernel of ``conv`` and ``conv_transpose`` of bfloat16 by products of pairs.

    Attributes
    ----------
    gather : DirectPlan
        The loop nest: its depth counts pairs of input channels.
    """

    gather: DirectPlan


def plan_direct_dot(problem: Problem, machine: Machine) -> tuple[float, DirectDotPlan] | None:
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
    cycles, gather = plan_direct(problem.in_pairs, replace(machine, fmas=machine.dots))
    return cycles, DirectDotPlan(gather)
