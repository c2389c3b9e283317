# SPDX-License-Identifier: Apache-2.0
"""Plans for sizes that are symbolic: of kernels for small and large ones the kernel takes one.

Plans are rated by what they are estimated to take for many sizes: the best are the fastest in
geometric mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, inf, log, prod, sqrt
from statistics import mean
from typing import NamedTuple, Union

from ..geometry import conv_transpose_size
from .clipped import MOST_MEAN, clipped_of_any_size
from .gather import plan_gather
from .inner import inner_of_any_size
from .phases import phases_of_any_size
from .plans import (
    ChannelsPlan,
    ColumnsPlan,
    EitherPlan,
    GatherPlan,
    InnerPlan,
    Plan,
    ScatterPlan,
    WeightGradPlan,
)
from .problem import Machine, Problem
from .scatter import scatter_of_any_size
from .weight_channels import plan_channels
from .weight_columns import columns_of_any_size
from .weight_grad import plan_sums
from .weight_tiles import weight_tiles_of_any_size
from .winograd import from_tiles_on, winograd_of_any_size

Rated = tuple[Plan, Sequence[float]]
"""A plan, and the cycles that it takes for each known size."""

Few = tuple[Union[InnerPlan, ScatterPlan, ColumnsPlan], Sequence[float]]
"""The same of a plan for few positions."""

LEAST_GAIN = 1.02
"""By how much, in geometric mean, a kernel that leaves out padding has to be faster than those that
are built without it."""

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
    large: Plan = gather
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
    small: list[Few] = []
    if not problem.prepacked:  # these find no packed weights
        if problem.transposed:
            small += scatter_of_any_size(problem, known, machine)
        else:
            small += inner_of_any_size(problem, known, machine)
    fewest = _fewest(small, known)
    best: Rated = large, split.cycles
    least = _total(split.cycles, fewest) - len(known) * log(LEAST_GAIN)
    for instead in _clipped_or(large, split.cycles, fewest, problem, known, machine):
        total = _total(instead[1], fewest)
        if total < least:
            least, best = total, instead
    return either(small, *best, known)


def _clipped_or(
    large: Plan,
    cycles: Sequence[float],
    fewest: Sequence[float],
    problem: Problem,
    known: Sequence[Problem],
    machine: Machine,
) -> Iterator[Rated]:
    """What leaves out padding, in place of `large`: of images of known size, or of all that are no
    larger than some.  A kernel for few positions takes the `fewest` cycles."""
    images = [prod(one.y_sizes[1:]) for one in known]
    for plan, clipped in clipped_of_any_size(problem, known, machine):
        if not plan.room:
            yield plan, clipped
        elif not problem.prepacked:  # weights are packed for one of the two
            pairs = ([min(pair) for pair in zip(one, fewest)] for one in (clipped, cycles))
            end = Split.of(images, *pairs).threshold
            if end > 1:
                served = [a if size < end else b for size, a, b in zip(images, clipped, cycles)]
                yield EitherPlan(replace(plan, most=end - 1), large), served


def _fewest(small: Sequence[Few], known: Sequence[Problem]) -> list[float]:
    """Of the kernels for few positions, the cycles of the fastest for each size; or infinity."""
    return [min(cycles) for cycles in zip(*(cycles for _, cycles in small))] or [inf] * len(known)


def _total(cycles: Sequence[float], fewest: Sequence[float]) -> float:
    """The less the better; where few positions have a faster kernel, that counts."""
    return sum(log(min(pair)) for pair in zip(cycles, fewest))


def plan_weights_of_any_size(problem: Problem, machine: Machine) -> Plan:
    """The same of a weight gradient."""
    known = _known(problem)
    small = list(columns_of_any_size(problem, known, machine))
    fewest = _fewest(small, known)
    direct = _plan_directly(problem, machine)[1]
    if isinstance(direct, ChannelsPlan) and not problem.images_are_known:
        direct = replace(direct, clipped=mean(one.met_share for one in known) <= MOST_MEAN)
    found: list[Rated] = [
        (direct, [_plan_directly(one, machine)[0] for one in known]),
        *weight_tiles_of_any_size(problem, known, machine),
    ]
    large, cycles = min(found, key=lambda one: _total(one[1], fewest))
    return either(small, large, cycles, known)


def either(
    small: Iterable[Few],
    large: Plan,
    of_large: Sequence[float],
    known: Sequence[Problem],
) -> Plan:
    """`large`, or the best of the plans for few positions for these, and `large` for all others."""
    best, split = large, Split.none(of_large)
    positions = [prod(one.y_sizes) for one in known]
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
