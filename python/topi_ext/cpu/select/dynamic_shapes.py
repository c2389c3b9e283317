# SPDX-License-Identifier: Apache-2.0
"""Plans for symbolic sizes: the built function chooses among kernels for small and large sizes.

Plans are rated by what they are estimated to take for many sizes: the best are the fastest in
geometric mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from math import ceil, inf, log, prod, sqrt
from operator import itemgetter
from typing import Any, NamedTuple, cast

from ...kernel.registry import Kernel, Rated, accepted
from ...spec.conv import Convolution
from ...spec.geometry import conv_transpose_size
from ..machine import CpuMachine
from ..plan.base import Plan
from ..plan.runtime_dispatch import RuntimeDispatchPlan
from ..registry import KERNELS

LEAST_GAIN = 1.02
"""By how much, in geometric mean, a kernel that leaves out padding has to be faster than those that
are built without it."""

LEAST_OF_TWO = 1.1
"""By how much, in geometric mean, two kernels have to be faster than one, which builds in half of
the time."""

LEAST_OF_SOME = 1.5
"""By how much two kernels may be faster for some size before they are built, whatever the mean."""

BATCHES = (1, 8, 64)
"""Numbers of images for which plans are rated where other sizes are symbolic as well."""

MOST_OF_BATCH = 1 << 10
"""Positions of y up to which the last of them counts: large batches of small images."""

MOST_POSITIONS = 1 << 14
"""Positions of y up to which plans are rated: those of more images cost the same each."""

FEWER = 16
"""How many times fewer positions than expected are those for which no plan is rated."""


def plan_of_any_size(problem: Any, machine: CpuMachine) -> Plan:
    """Return the plan, or plans that the built function chooses from when it knows the sizes."""
    known = _known(problem)
    kernels = KERNELS.of_kind(problem.kind)
    many = _plans("many", kernels, problem, known, machine)
    base = next(many)
    if not known:
        return cast("Plan", base[0])
    readers = [kernel for kernel in kernels if kernel.prepacks or not problem.prepacked]
    few = list(_plans("few", readers, problem, known, machine))
    fewest = _fewest(few, known)
    larges = [base, *many]
    alone = _best(larges, fewest)
    several = _from_positions(problem, base[1], known, machine)
    larges += [one for one in several if _is_worth_two(one, alone, fewest)]
    unpadded = list(_plans("unpadded", kernels, problem, known, machine))
    best = _best(larges, fewest)
    without_padding = (
        one for large in larges for one in _unpadded_or(*large, unpadded, fewest, known)
    )
    if problem.prepacked:  # weights are packed for one of the two
        without_padding = (one for one in without_padding if not one[0].subplans)
    best = _if_faster([*without_padding], best, fewest, LEAST_GAIN)
    seconds = [
        one
        for one in larges
        if KERNELS.of_plan(one[0]).dynamic.may_be_one_of_two and one[0] is not best[0]
    ]
    two = either(seconds, *best, known)
    best = two if _is_worth_two(two, best, fewest) else best
    return cast("Plan", either(few, *best, known)[0])


def _plans(
    hook: str,
    kernels: Iterable[Kernel[CpuMachine]],
    problem: Convolution,
    known: Sequence[Convolution],
    machine: CpuMachine,
) -> Iterator[Rated]:
    """Yield the plans that one hook of :class:`DynamicShapes` yields, of every kernel that has
    it.
    """
    for kernel in kernels:
        plans = getattr(kernel.dynamic, hook)
        if plans is not None:
            yield from accepted(plans(problem, known, machine))


def _best(plans: Iterable[Rated], fewest: Sequence[float]) -> Rated:
    """Return the one that takes the least where kernels for few positions take `fewest` cycles."""
    return min(plans, key=lambda one: _total(one[1], fewest))


def _if_faster(plans: Sequence[Rated], best: Rated, fewest: Sequence[float], gain: float) -> Rated:
    """Return the best of `plans` where it is faster than `best` by `gain`, else `best`."""
    least = _total(best[1], fewest) - len(best[1]) * log(gain)
    faster = [one for one in plans if _total(one[1], fewest) < least]
    return _best(faster, fewest) if faster else best


def _is_worth_two(two: Rated, one: Rated, fewest: Sequence[float]) -> bool:
    """Return whether a plan of two kernels is so much faster than one that both are built."""
    gains = [log(min(a, few) / min(b, few)) for a, b, few in zip(one[1], two[1], fewest)]
    return sum(gains) >= len(gains) * log(LEAST_OF_TWO) or max(gains) >= log(LEAST_OF_SOME)


def _from_positions(
    problem: Convolution, base: Sequence[float], known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[Rated]:
    """Yield the best plan that pays from some number of positions on, beside one of `base`
    cycles.
    """
    positions = [prod(one.positions) for one in known]
    kernels = KERNELS.of_kind(problem.kind)
    best: tuple[Split, Any] | None = None
    for plan, cycles in _plans("large", kernels, problem, known, machine):
        if best is None or _total(base, cycles) < best[0].total:
            split = Split.of(positions, base, cycles)
            if split.most is not None and (best is None or split.total < best[0].total):
                best = split, plan
    if best is not None:
        split, plan = best
        least = split.most + 1 if split.most else 0
        yield plan.from_positions(problem, least, machine), split.cycles


def _unpadded_or(
    large: Plan,
    cycles: Sequence[float],
    unpadded: Iterable[Rated],
    fewest: Sequence[float],
    known: Sequence[Convolution],
) -> Iterator[Rated]:
    """Return a kernel that skips padding in place of `large`: for images of known size, or for all
    up to a size. A kernel for few positions takes the `fewest` cycles.
    """
    images = [prod(one.y_sizes[1:]) for one in known]
    for plan, clipped in unpadded:
        if not plan.room:
            yield plan, clipped
        else:
            pairs = ([min(pair) for pair in zip(one, fewest)] for one in (clipped, cycles))
            found = Split.of(images, *pairs).most
            most = max(images) if found is None else found  # larger ones have less padding
            if most:
                served = [a if size <= most else b for size, a, b in zip(images, clipped, cycles)]
                yield RuntimeDispatchPlan(plan, large, most_of_image=most), served


def _fewest(small: Sequence[Rated], known: Sequence[Convolution]) -> list[float]:
    """Return the cycles of the fastest kernel for few positions for each size, or infinity."""
    return [min(cycles) for cycles in zip(*(cycles for _, cycles in small))] or [inf] * len(known)


def _total(cycles: Sequence[float], fewest: Sequence[float]) -> float:
    """Return the less the better; where few positions have a faster kernel, that counts."""
    return sum(log(min(pair)) for pair in zip(cycles, fewest))


def either(
    small: Iterable[Rated],
    large: Plan,
    of_large: Sequence[float],
    known: Sequence[Convolution],
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
        if _total(limited, of_large) >= split.total:
            continue  # no split of the two takes less
        found = Split.of(positions, limited, of_large)
        # The same cycles in another order may have a smaller sum: it has to serve some sizes.
        if found.most != 0 and found.total < split.total:
            split, best = found, RuntimeDispatchPlan(plan, large, found.most, of_image)
    return best, split.cycles


def between(below: int, above: int) -> int:
    """Return the last size that counts as the one below, of those between two."""
    return ceil(sqrt(below * above)) - 1


class Split(NamedTuple):
    """The sizes that each of two plans serves.

    Attributes
    ----------
    total : float
        Sum of the logarithms of `cycles`: the less the better.
    most : int or None
        The largest measure of a size that the first plan serves; None where it serves all.
    cycles : sequence
        Cycles for each size.
    """

    total: float
    most: int | None
    cycles: Sequence[float]

    @classmethod
    def none(cls, cycles: Sequence[float]) -> Split:
        """Return the split of a single plan, which serves all sizes."""
        return cls(sum(map(log, cycles)), 0, cycles)

    @classmethod
    def of(cls, measures: Sequence[int], below: Sequence[float], above: Sequence[float]) -> Split:
        """Return the best for sizes with these measures, of plans that take so many cycles."""
        order = sorted(range(len(measures)), key=measures.__getitem__)
        first = accumulate((log(below[i]) for i in order), initial=0.0)
        last = list(accumulate((log(above[i]) for i in reversed(order)), initial=0.0))
        ends = [0, *(measures[i] for i in order), inf]
        # Of equals, but for rounding, the one that serves more.
        totals = [
            (round(served + left, 6), -count)
            for count, (served, left) in enumerate(zip(first, reversed(last)))
            if ends[count] != ends[count + 1]
        ]
        count = -min(totals)[1]
        most = 0 if not count else None
        if 0 < count < len(order):
            most = between(measures[order[count - 1]], measures[order[count]])
        served = {i: below[i] for i in order[:count]} | {i: above[i] for i in order[count:]}
        return cls(sum(map(log, served.values())), most, [served[i] for i in range(len(order))])


def _known(problem: Convolution) -> list[Convolution]:
    """Return the problem with its symbolic sizes known: squares of y, or larger and larger
    batches.
    """
    g = problem.geometry
    axes = sum(not isinstance(length, int) for length in g.y_size)
    # Each twice as many positions as the one before it.
    doublings = range(MOST_POSITIONS.bit_length())
    sizes = sorted({round(2 ** (exponent / max(1, axes))) for exponent in doublings})
    batches: Sequence[int] = BATCHES if axes else sizes
    if isinstance(problem.n, int):
        batches = (max(1, problem.n),)
    found = []
    for size, n in product(sizes if axes else sizes[:1], batches):
        y = tuple(length if isinstance(length, int) else size for length in g.y_size)
        x = tuple(
            length if isinstance(length, int) else conv_transpose_size(*axis)
            for length, axis in zip(g.x_size, zip(y, *g.window))
        )
        if min(x) >= 1:
            if axes and n == BATCHES[-1] and n * prod(y) > MOST_OF_BATCH:
                continue
            found.append(replace(problem, geometry=replace(g, x_size=x, y_size=y), n=n))
    smallest = min((prod(one.y_sizes) for one in found), default=0)
    most = max(MOST_POSITIONS, smallest)
    counted = [(prod(one.y_sizes), one) for one in found]
    least = min((problem.expected or 0) // FEWER, most)
    ordered = [one for one in sorted(counted, key=itemgetter(0)) if one[0] <= most]
    return [one for count, one in ordered if count >= least] or [one for _, one in ordered[-1:]]
