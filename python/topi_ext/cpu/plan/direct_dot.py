# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.direct_dot`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...kernel.registry import cost_of, require
from ...spec.conv import Convolution
from ...spec.matmul import MatMul
from ..machine import CpuMachine
from ..products import DOTS
from .base import Plan
from .direct import DirectPlan, direct_candidates, plan_direct


@dataclass(frozen=True)
class DirectDotPlan(Plan):
    """Plan of the kernel of ``conv`` and ``conv_transpose`` by products within lanes.

    Attributes
    ----------
    nest : DirectPlan
        The loop nest: its depth counts lanes of input channels.
    dot : str
        The instruction, of :data:`~topi_ext.cpu.products.DOTS`.
    """

    nest: DirectPlan
    dot: str

    def with_non_temporal(self, enabled: bool) -> DirectDotPlan:
        """See :class:`~.base.Plan`."""
        return replace(self, nest=self.nest.with_non_temporal(enabled))

    def non_temporal_run(self, problem: Convolution, machine: CpuMachine) -> int:
        """See :class:`~.base.Plan`."""
        return self.nest.non_temporal_run(problem, machine)


APART = 1.35
"""Times, of results whose rows are apart in memory; Zen 4, 29 November 2026."""

NARROW_RULE = "data and weights must be bytes, or bfloat16 of an even number of input channels"


def plan_direct_dot(problem: Convolution, machine: CpuMachine) -> tuple[float, DirectDotPlan]:
    """Products within lanes: the plan of kernels/direct_dot.py, and its cycles."""
    found = (
        (times * cycles, DirectDotPlan(nest, dot))
        for dot, asked, times in _asked(problem, machine)
        for cycles, nest in [plan_direct(*asked)]
    )
    return min(found, key=cost_of)


def direct_dot_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, DirectDotPlan]]:
    """Yield the candidates of :func:`plan_direct_dot` and their cycles."""
    for dot, asked, times in _asked(problem, machine):
        for cycles, nest in direct_candidates(*asked):
            yield times * cycles, DirectDotPlan(nest, dot)


def _asked(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[str, tuple[Convolution, CpuMachine], float]]:
    """Yield the instructions that serve the problem, the arguments for the direct kernel's planner,
    and the factor of its cycles.
    """
    times = 1.0 if problem.rows_are_runs else APART
    for name, as_floats in instructions(problem, machine):
        yield name, (problem.in_steps(DOTS[name].size), as_floats), times


def instructions(
    problem: Convolution | MatMul, machine: CpuMachine
) -> Iterator[tuple[str, CpuMachine]]:
    """Yield the instructions that serve the problem, at least one, and a machine that multiplies
    numbers of float32 as fast as these multiply lanes.
    """
    require(any(dot.fits(problem) for dot in DOTS.values()), NARROW_RULE)
    # Where that of pairs is slow, what it saves in memory is less than what making them takes.
    has_pairs = machine.dots > 0 and 2 * machine.dots >= machine.fmas
    of_pairs = [("dpbf16ps", machine.dots)] if has_pairs else []
    rates = [one for one in (*of_pairs, *machine.int_dots) if DOTS[one[0]].fits(problem)]
    require(bool(rates), "the processor has no faster instruction for these dtypes")
    for name, rate in rates:
        # One holds products before they are added; without another, LLVM may spill sums.
        registers = machine.registers - 2 if name == "pmaddwd" else machine.registers
        yield name, replace(machine, fmas=rate, registers=registers)
