# SPDX-License-Identifier: Apache-2.0
"""Plans of the weight gradient of few channels in a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from ...kernel.registry import require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.size_hints import nominal
from ..machine import GpuMachine
from .estimate import CLOCK, LATENCY, LAUNCH, memory_time, split_time
from .tiles import Plan, Tile


@dataclass(frozen=True)
class WgradDirectPlan(Plan):
    """A plan in which a block sums all positions, or a share of them, for some weights.

    Attributes
    ----------
    taps : int
        Taps of a thread.
    pairs : int
        Neighbouring pairs of channels of a block, which its threads divide among them.
    splits : int
        Number of shares of the positions; different blocks sum them.
    threads : int
        Threads of a block.
    """

    taps: int
    pairs: int
    splits: int
    threads: int = 128

    @property
    def tile(self) -> Tile:
        """Tile for the kernel that adds the shares."""
        return Tile(self.pairs, self.taps, self.threads // self.pairs, self.splits)


TAPS = (1, 3, 4, 5, 7, 9, 16)
PAIRS = (1, 32)
SPLITS = (1, 2, 4, 8, 16, 32, 64)

MOST_CHANNELS = 4
"""Maximum channels of x in a group; for more, a matrix product reads each of them less often."""


def wgrad_direct_candidates(
    problem: Convolution, machine: GpuMachine
) -> Iterator[tuple[float, WgradDirectPlan]]:
    """Yield plans for few channels in a group, each with its estimated nanoseconds."""
    g = problem.geometry
    rule = f"channels of x in a group must be at most {MOST_CHANNELS}"
    require(g.c_per_group <= MOST_CHANNELS, rule)
    for taps, pairs, splits in product(TAPS, PAIRS, SPLITS):
        if taps > g.taps or pairs > g.k * g.c_per_group:
            continue
        plan = WgradDirectPlan(taps, pairs, splits)
        if splits > 1 and prod(nominal(problem.y_sizes)) < 4 * splits * plan.tile.depth:
            continue
        yield _time(problem, plan, machine), plan


def _time(problem: Convolution, plan: WgradDirectPlan, machine: GpuMachine) -> float:
    g, positions = problem.geometry, prod(nominal(problem.y_sizes))
    pairs = -(-g.k * g.c_per_group // plan.pairs)
    blocks = pairs * -(-g.taps // plan.taps) * plan.splits
    steps = -(-positions // (plan.tile.depth * plan.splits))
    is_channels_last = problem.layouts.y.endswith("C")
    # Consecutive threads read neighbours, or a cache line each.
    reads = 1 if (plan.pairs > 1) == is_channels_last else 8
    each = 30 + plan.taps * (10 + byte_width(problem.acc_dtype) // 4) + 4 * reads * plan.taps
    issue = blocks * plan.threads * steps * each / (128 * machine.sms * CLOCK * 0.7)
    held = machine.threads // plan.threads * machine.sms
    waits = ceil(blocks / held) * (steps + 4) * LATENCY / 2 / CLOCK
    time = LAUNCH + max(issue, waits, memory_time(problem, machine))
    return time + split_time(problem, plan.tile, machine)
