# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.direct_dot_bf16`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...spec.conv import Convolution
from ..machine import CpuMachine
from .direct import DirectPlan, direct_candidates, plan_direct
from .window import Plan


@dataclass(frozen=True)
class DirectDotBf16Plan(Plan):
    """Plan of the kernel of ``conv`` and ``conv_transpose`` of bfloat16 by products of pairs.

    Attributes
    ----------
    gather : DirectPlan
        The loop nest: its depth counts pairs of input channels.
    """

    gather: DirectPlan

    def with_non_temporal(self, enabled: bool) -> DirectDotBf16Plan:
        """See :class:`~.window.Plan`."""
        return replace(self, gather=self.gather.with_non_temporal(enabled))

    def non_temporal_run(self, problem: Convolution, machine: CpuMachine) -> int:
        """See :class:`~.window.Plan`."""
        return self.gather.non_temporal_run(problem, machine)


def plan_direct_dot_bf16(
    problem: Convolution, machine: CpuMachine
) -> tuple[float, DirectDotBf16Plan] | None:
    """Products of pairs: the plan of kernels/direct_dot_bf16.py, and its cycles.

    None where a processor has none, or multiplies more numbers of float32 in the same time; for
    other dtypes, and for an odd number of input channels, of which pairs can't be made.
    """
    if not _serves(problem, machine):
        return None
    cycles, gather = plan_direct(*_in_pairs(problem, machine))
    return cycles, DirectDotBf16Plan(gather)


def direct_dot_bf16_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, DirectDotBf16Plan]]:
    """Yield the candidates of :func:`plan_direct_dot_bf16` and their cycles."""
    if _serves(problem, machine):
        for cycles, gather in direct_candidates(*_in_pairs(problem, machine)):
            yield cycles, DirectDotBf16Plan(gather)


def _serves(problem: Convolution, machine: CpuMachine) -> bool:
    # Where it is slow, what it saves in memory is less than what making pairs takes.
    return machine.dots > 0 and 2 * machine.dots >= machine.fmas and problem.has_pairs


def _in_pairs(problem: Convolution, machine: CpuMachine) -> tuple[Convolution, CpuMachine]:
    """Return the problem with pairs as float32 numbers, half as many."""
    return problem.in_steps(2), replace(machine, fmas=machine.dots)
