# SPDX-License-Identifier: Apache-2.0
"""Plans for sizes that are symbolic: of kernels for small and large ones the kernel takes one.

Plans are rated by what they are estimated to take for many sizes: the best are the fastest in
geometric mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from math import ceil, inf, log, prod, sqrt
from statistics import mean
from typing import NamedTuple

from ...geometry import conv_transpose_size
from ...problem import Problem
from ..machine import Machine
from ..registry import kernels_of
from .direct import DirectPlan, plan_direct
from .runtime_dispatch import DispatchPlan
from .valid_taps import MOST_MEAN, ValidTapsPlan, valid_taps_of_any_size
from .wgrad_channels import WgradChannelsPlan, plan_wgrad_channels
from .wgrad_positions import WgradPositionsPlan, plan_wgrad_positions
from .window import Plan
from .winograd import WinogradPlan, from_positions_on, winograd_of_any_size

Rated = tuple[Plan, Sequence[float]]
"""A plan, and the cycles that it takes for each known size."""

LEAST_GAIN = 1.02
"""By how much, in geometric mean, a kernel that leaves out padding has to be faster than those that
are built without it."""

LEAST_OF_TWO = 1.05
"""By how much, in geometric mean, two kernels of weight gradients have to be faster than one, which
builds sooner."""

BATCHES = (1, 8, 64)
"""Numbers of images for which plans are rated where other sizes are symbolic as well."""

MOST_OF_BATCH = 1 << 10
"""Positions of y up to which the last of them counts: large batches of small images."""

MOST_POSITIONS = 1 << 14
"""Positions of y up to which plans are rated: those of more images cost the same each."""


def plan_for_any_size(problem: Problem, gather: DirectPlan, machine: Machine) -> Plan:
    """Of symbolic sizes, the plan, or plans that the kernel chooses from when it knows them."""
    known = _known(problem)
    if not known:
        return gather
    small = _few(problem, known, machine)
    fewest = _fewest(small, known)
    larges = list(_large_ones(problem, gather, known, machine))
    clipped = list(valid_taps_of_any_size(problem, known, machine))
    instead = (one for large in larges for one in _clipped_or(*large, clipped, fewest, known))
    if problem.prepacked:  # weights are packed for one of the two
        instead = (one for one in instead if not isinstance(one[0], DispatchPlan))
    best, other = (
        min(plans, key=lambda one: _total(one[1], fewest), default=None)
        for plans in (larges, instead)
    )
    assert best is not None
    least = _total(best[1], fewest) - len(known) * log(LEAST_GAIN)
    if other is not None and _total(other[1], fewest) < least:
        best = other
    return either(small, *best, known)[0]


def _large_ones(
    problem: Problem, gather: DirectPlan, known: Sequence[Problem], machine: Machine
) -> Iterator[Rated]:
    """The plans for any number of positions: the best of each kernel."""
    direct = [plan_direct(one, machine)[0] for one in known]
    yield gather, direct
    positions = [prod(one.positions) for one in known]
    tiled: list[tuple[Split, WinogradPlan]] = []
    for winograd, cycles in winograd_of_any_size(problem, known, machine):
        split = Split.of(positions, direct, cycles)
        if split.most is not None:
            tiled.append((split, winograd))
    if tiled:
        split, winograd = min(tiled, key=lambda one: one[0].total)
        least = split.most + 1 if split.most else 0
        yield from_positions_on(problem, winograd, least, machine), split.cycles
    yield from _many(problem, known, machine)


def _few(problem: Problem, known: Sequence[Problem], machine: Machine) -> list[Rated]:
    """The plans for few positions of kernels that find weights as `problem` gives them."""
    kernels = [one for one in kernels_of(problem.face) if one.prepacks or not problem.prepacked]
    plans = (one.few(problem, known, machine) for one in kernels if one.few)
    return list(chain.from_iterable(plans))


def _many(problem: Problem, known: Sequence[Problem], machine: Machine) -> Iterator[Rated]:
    """The plans for any number of positions that need no more than their cycles to be rated."""
    for kernel in kernels_of(problem.face):
        if kernel.many:
            yield from kernel.many(problem, known, machine)


def _clipped_or(
    large: Plan,
    cycles: Sequence[float],
    clipped_ones: Iterable[tuple[ValidTapsPlan, Sequence[float]]],
    fewest: Sequence[float],
    known: Sequence[Problem],
) -> Iterator[Rated]:
    """What leaves out padding, in place of `large`: of images of known size, or of all that are no
    larger than some.  A kernel for few positions takes the `fewest` cycles."""
    images = [prod(one.y_sizes[1:]) for one in known]
    for plan, clipped in clipped_ones:
        if not plan.room:
            yield plan, clipped
        else:
            pairs = ([min(pair) for pair in zip(one, fewest)] for one in (clipped, cycles))
            found = Split.of(images, *pairs).most
            most = max(images) if found is None else found  # larger ones have less padding
            if most:
                served = [a if size <= most else b for size, a, b in zip(images, clipped, cycles)]
                yield DispatchPlan(plan, large, most_of_image=most), served


def _fewest(small: Sequence[Rated], known: Sequence[Problem]) -> list[float]:
    """Of the kernels for few positions, the cycles of the fastest for each size; or infinity."""
    return [min(cycles) for cycles in zip(*(cycles for _, cycles in small))] or [inf] * len(known)


def _total(cycles: Sequence[float], fewest: Sequence[float]) -> float:
    """The less the better; where few positions have a faster kernel, that counts."""
    return sum(log(min(pair)) for pair in zip(cycles, fewest))


def plan_weights_of_any_size(problem: Problem, machine: Machine) -> Plan:
    """The same of a weight gradient."""
    known = _known(problem)
    small = _few(problem, known, machine)
    fewest = _fewest(small, known)
    direct = list(_direct_ones(problem, known, machine))
    found: list[Rated] = [*direct, *_many(problem, known, machine)]
    large = min(found, key=lambda one: _total(one[1], fewest))
    channels: list[Rated] = [
        (plan, cycles)
        for plan, cycles in direct
        if isinstance(plan, WgradChannelsPlan) and plan is not large[0]
    ]
    both = either(channels, *large, known)
    if _total(both[1], fewest) < _total(large[1], fewest) - len(known) * log(LEAST_OF_TWO):
        large = both
    return either(small, *large, known)[0]


def either(
    small: Iterable[Rated],
    large: Plan,
    of_large: Sequence[float],
    known: Sequence[Problem],
) -> Rated:
    """`large`, or the best of the plans for few positions for these, and `large` for all others.

    Small images in large batches are another matter than one large image: both are limited.
    """
    best, split = large, Split.none(of_large)
    images = [prod(one.y_sizes[1:]) for one in known]
    positions = [prod(one.y_sizes) for one in known]
    sizes = sorted(set(images))
    limits = [(a, between(a, b)) for a, b in pairwise(sizes)] + [(sizes[-1], None)]
    for (plan, cycles), (size, of_image) in product(small, limits):
        limited = [a if image <= size else b for image, a, b in zip(images, cycles, of_large)]
        found = Split.of(positions, limited, of_large)
        # The same cycles in another order may have a smaller sum: it has to serve some sizes.
        if found.most != 0 and found.total < split.total:
            split, best = found, DispatchPlan(plan, large, found.most, of_image)
    return best, split.cycles


def between(below: int, above: int) -> int:
    """The last size that counts as the one below, of those between two."""
    return ceil(sqrt(below * above)) - 1


def _direct_ones(
    problem: Problem, known: Sequence[Problem], machine: Machine
) -> Iterator[tuple[WgradPositionsPlan | WgradChannelsPlan, list[float]]]:
    """The plans that save no products, and their cycles."""
    yield (
        plan_wgrad_positions(problem, machine)[1],
        [plan_wgrad_positions(one, machine)[0] for one in known],
    )
    channels = plan_wgrad_channels(problem, machine)
    if channels:
        plan = channels[1]
        if not problem.images_are_known:
            plan = replace(plan, clipped=mean(one.valid_fraction for one in known) <= MOST_MEAN)
        found = [plan_wgrad_channels(one, machine) for one in known]
        yield plan, [one[0] if one else inf for one in found]


class Split(NamedTuple):
    """Which of two plans serves which sizes.

    Attributes
    ----------
    total : float
        Sum of the logarithms of `cycles`: the less the better.
    most : int or None
        The largest measure of a size that the first plan serves; None where it serves all.
    cycles : sequence
        What each size takes.
    """

    total: float
    most: int | None
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
        ends = [0, *(measures[i] for i in order), inf]
        counts = (count for count in range(len(order) + 1) if ends[count] != ends[count + 1])
        # Of equals, but for rounding, the one that serves more.
        sums = ((sum(logs[0][:count]) + sum(logs[1][count:]), count) for count in counts)
        totals = [(round(total, 6), -count) for total, count in sums]
        count = -min(totals)[1]
        most = 0 if not count else None
        if 0 < count < len(order):
            most = between(measures[order[count - 1]], measures[order[count]])
        served = {i: below[i] for i in order[:count]} | {i: above[i] for i in order[count:]}
        return cls(sum(map(log, served.values())), most, [served[i] for i in range(len(order))])


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
            if axes and n == BATCHES[-1] and n * prod(y) > MOST_OF_BATCH:
                continue
            found.append(replace(problem, geometry=replace(g, x_size=x, y_size=y), n=n))
    smallest = min((prod(one.y_sizes) for one in found), default=0)
    most = max(MOST_POSITIONS, smallest)
    known = {one: prod(one.y_sizes) for one in found if prod(one.y_sizes) <= most}
    return sorted(known, key=known.__getitem__)
