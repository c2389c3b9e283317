# SPDX-License-Identifier: Apache-2.0
"""Plans of the direct kernel: the results of a thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from ...kernel.registry import require
from ...spec.axis_access import AxisAccess
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.size_hints import nominal
from ..machine import GpuMachine
from .estimate import CLOCK, LATENCY, LAUNCH, memory_time
from .tiles import Plan


@dataclass(frozen=True)
class DirectPlan(Plan):
    """A plan in which a thread has neighbouring results of a row, of some channels of a group.

    Attributes
    ----------
    vector : int
        Positions of each of the row's phases.
    channels : int
    threads : int
        Threads of a block.
    """

    vector: int
    channels: int
    threads: int = 128


VECTORS = (1, 2, 4, 8)
CHANNELS = (1, 2, 3, 4, 8)

MOST_VALUES = 64
"""Maximum registers of a thread's sums, and of the inputs that it reads at once."""

MOST_PRODUCTS = 512
"""Maximum number of unrolled products; more take long to compile."""


def reads_of(access: AxisAccess, vector: int) -> tuple[int, ...]:
    """Return the input positions that `vector` neighbouring positions of all phases of a row read,
    counted from the first one of the first position.
    """
    return tuple(
        sorted(
            {
                (position + tap.shift) * access.in_step + tap.residue
                for position in range(vector)
                for phase in access.phases
                for tap in phase.taps
            }
        )
    )


def direct_candidates(
    problem: Convolution, machine: GpuMachine
) -> Iterator[tuple[float, DirectPlan]]:
    """Yield the plans that fit into registers, each with its estimated nanoseconds."""
    row = problem.accesses[3]
    is_small = max(row.out_step, row.kernel) <= MOST_VALUES
    require(is_small, f"phases and taps of a row must be at most {MOST_VALUES}")
    for vector, channels in product(VECTORS, CHANNELS):
        sums, reads = vector * row.out_step * channels, len(reads_of(row, vector))
        if channels > problem.out_channels or max(sums, reads) > MOST_VALUES:
            continue
        if vector * row.kernel * channels > MOST_PRODUCTS:
            continue
        plan = DirectPlan(vector, channels)
        yield _time(problem, plan, machine), plan


def _time(problem: Convolution, plan: DirectPlan, machine: GpuMachine) -> float:
    row = problem.accesses[3]
    outs = nominal(problem.out_sizes)
    blocks = -(-problem.out_channels // plan.channels) * problem.geometry.groups
    per_row = ceil(outs[3] / (row.out_step * plan.vector))
    threads = prod(outs[:3]) * per_row * blocks
    taps = problem.geometry.kernel[0] * problem.geometry.kernel[1]
    steps = (
        problem.in_channels * taps / (problem.accesses[1].out_step * problem.accesses[2].out_step)
    )
    width = 2 if byte_width(problem.acc_dtype) == 8 else 1
    products = plan.channels * row.kernel * (2 + plan.vector * width)
    each = 4 * len(reads_of(row, plan.vector)) + products
    ends = 40 + 8 * plan.vector * row.out_step * plan.channels
    issue = threads * (steps * each + ends) / (128 * machine.sms * CLOCK * 0.7)
    # A launch of few threads waits for the loads of every step.
    registers = 40 + plan.vector * row.out_step * plan.channels + len(reads_of(row, plan.vector))
    held = min(machine.threads, machine.registers // registers) * machine.sms
    waits = ceil(threads / held) * (steps + 2) * LATENCY / 4 / CLOCK
    return LAUNCH + max(issue, waits, memory_time(problem, machine))
