# SPDX-License-Identifier: Apache-2.0
"""Plans for sizes that are symbolic: of kernels for small and large ones the kernel takes one.

Plans are rated by what they are estimated to take for many sizes: the best are the fastest in
geometric mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, inf, log, prod, sqrt
from typing import NamedTuple, Union

from ..geometry import conv_transpose_size
from .gather import plan_gather
from .inner import inner_of_any_size
from .phases import phases_of_any_size
from .plans import (
    ChannelsPlan,
    ColumnsPlan,
    EitherPlan,
    GatherPlan,
    InnerPlan,
    PhasesPlan,
    Plan,
    ScatterPlan,
    WeightGradPlan,
    WeightTilesPlan,
    WinogradPlan,
)
from .problem import Machine, Problem
from .scatter import scatter_of_any_size
from .weight_channels import plan_channels
from .weight_columns import columns_of_any_size
from .weight_grad import plan_sums
from .weight_tiles import weight_tiles_of_any_size
from .winograd import from_tiles_on, winograd_of_any_size

Large = Union[
    GatherPlan, WinogradPlan, PhasesPlan, WeightGradPlan, ChannelsPlan, WeightTilesPlan
]  # fmt: skip
"""A plan that serves any size."""

BATCHES = (1, 8)
"""Numbers of images for which plans are rated where other sizes are symbolic as well."""

MOST_POSITIONS = 1 << 14
"""Positions of y up to which plans are rated: those of more images cost the same each."""


def plan_for_any_size(problem: Problem, gather: GatherPlan, machine: Machine) -> Plan:
    """Of symbolic sizes, the plan, or plans that the kernel chooses from when it knows them."""
    known = _known(problem)
    if not known:
        return gather
    direct = [plan_gather(one, machine)[0] for one in known]
    large: Large = gather
    split = Split.none(direct)
    for winograd, cycles in winograd_of_any_size(problem, known, machine):
        tiles = [prod(winograd.tiles(one)) for one in known]
        found = Split.of(tiles, direct, cycles)
        if found.total < split.total:
            split, large = found, from_tiles_on(problem, winograd, found.threshold, machine)
    for phases, cycles in phases_of_any_size(problem, known, machine):
        found = Split.none(cycles)
        if found.total < split.total:
            split, large = found, phases
    if problem.prepacked:
        return large
    of_face = scatter_of_any_size if problem.transposed else inner_of_any_size
    return either(of_face(problem, known, machine), large, split, known)


def plan_weights_of_any_size(problem: Problem, machine: Machine) -> Plan:
    """The same of a weight gradient."""
    known = _known(problem)
    small = list(columns_of_any_size(problem, known, machine))
    few = [min(cycles) for cycles in zip(*(cycles for _, cycles in small))] or [inf] * len(known)

    def rating(one: tuple[Large, Sequence[float]]) -> float:
        """The less the better; where few positions have a faster kernel, that counts."""
        return sum(log(min(pair)) for pair in zip(one[1], few))

    direct = _plan_directly(problem, machine)[1]
    found: list[tuple[Large, Sequence[float]]] = [
        (direct, [_plan_directly(one, machine)[0] for one in known]),
        *weight_tiles_of_any_size(problem, known, machine),
    ]
    large, cycles = min(found, key=rating)
    return either(small, large, Split.none(cycles), known)


def either(
    small: Iterable[tuple[InnerPlan | ScatterPlan | ColumnsPlan, list[float]]],
    large: Large,
    split: Split,
    known: Sequence[Problem],
) -> Plan:
    """`large`, or the best of the plans for few positions for these, and `large` for all others."""
    best: Plan = large
    positions, of_large = [prod(one.y_sizes) for one in known], split.cycles
    for plan, cycles in small:
        found = Split.of(positions, cycles, of_large)
        # The same cycles in another order may have a smaller sum: it has to serve some sizes.
        if found.threshold > 1 and found.total < split.total:
            most = min(plan.most, found.threshold - 1)
            split, best = found, EitherPlan(replace(plan, most=most), large)
    return best


def _plan_directly(
    problem: Problem, machine: Machine
) -> tuple[float, WeightGradPlan | ChannelsPlan]:
    """The plan of the fewest cycles that saves no products."""
    sums, channels = plan_sums(problem, machine), plan_channels(problem, machine)
    return min(sums, channels or sums, key=lambda one: one[0])


class Split(NamedTuple):
    """Which of two plans serves which sizes.

    Attributes
    ----------
    total : float
        Sum of the logarithms of `cycles`: the less the better.
    threshold : int
        The least measure of a size that the second plan serves.
    cycles : sequence
        What each size takes.
    """

    total: float
    threshold: int
    cycles: Sequence[float]

    @classmethod
    def none(cls, cycles: Sequence[float]) -> Split:
        """Of a single plan, which serves all sizes."""
        return cls(sum(map(log, cycles)), 0, cycles)

    @classmethod
    def of(cls, measures: Sequence[int], below: Sequence[float], above: Sequence[float]) -> Split:
        """The best for sizes with these measures, of plans that take so many cycles."""
        order = sorted(range(len(measures)), key=measures.__getitem__)
        logs = [[log(cycles[i]) for i in order] for cycles in (below, above)]
        ends = [0, *(measures[i] for i in order), 0]
        found = []
        for count in range(len(order) + 1):
            before, after = ends[count], ends[count + 1]
            if before != after:
                total = sum(logs[0][:count]) + sum(logs[1][count:])
                # Between two sizes in the middle.
                threshold = before + 1 if count == len(order) else ceil(sqrt(before * after))
                found.append((total, threshold, count))
        total, threshold, count = min(found)
        served = {i: below[i] for i in order[:count]} | {i: above[i] for i in order[count:]}
        return cls(total, threshold, [served[i] for i in range(len(order))])


def _known(problem: Problem) -> list[Problem]:
    """The problem with its symbolic sizes known: squares of y, or larger and larger batches."""
    g = problem.geometry
    axes = sum(not isinstance(length, int) for length in g.y_size)
    # Each twice as many positions as the one before it.
    doublings = range(MOST_POSITIONS.bit_length())
    sizes = sorted({round(2 ** (exponent / max(1, axes))) for exponent in doublings})
    found = []
    for size, n in product(sizes, BATCHES if axes else sizes):
        y = tuple(length if isinstance(length, int) else size for length in g.y_size)
        x = tuple(
            length if isinstance(length, int) else conv_transpose_size(*axis)
            for length, axis in zip(g.x_size, zip(y, *g.window))
        )
        if min(x) >= 1:
            n = max(1, problem.n) if isinstance(problem.n, int) else n
            found.append(replace(problem, geometry=replace(g, x_size=x, y_size=y), n=n))
    smallest = min((prod(one.y_sizes) for one in found), default=0)
    most = max(MOST_POSITIONS, smallest)
    known = {one: prod(one.y_sizes) for one in found if prod(one.y_sizes) <= most}
    return sorted(known, key=known.__getitem__)
