# SPDX-License-Identifier: Apache-2.0
"""Minimal filtering: two or four neighbouring outputs of a correlation from fewer products.

``F(2, r)`` computes two outputs of `r` taps with ``r + 1`` products instead of ``2 r``
(S. Winograd, *Arithmetic Complexity of Computations*, 1980)::

    F(2, 2)     y0 = (a0 - a1) g0 + a1 (g0 + g1)
                y1 =                a1 (g0 + g1) + (a2 - a1) g1

    F(2, 3)     y0 = (a0 - a2) g0 + (a1 + a2) (g0 + g1 + g2)/2 + (a2 - a1) (g0 - g1 + g2)/2
                y1 = (a1 + a2) (g0 + g1 + g2)/2 - (a2 - a1) (g0 - g1 + g2)/2 + (a3 - a1) g2

Both compute each output from its own window alone, with factors of 1 and 1/2: what is large,
infinite or NaN elsewhere does not reach it, and rounding stays that of a direct sum.  Longer
correlations are sums of these: the points of a tile are added up before outputs are made of them.

Four outputs are two pairs, and taps that are taken in pairs correlate pairs of inputs: nested, each
product of ``F(2, r)`` becomes an ``F(2, 2)``.  ``F(4, 4)`` so takes 9 products instead of 16 and
``F(4, 6)`` 12 instead of 24, with the same factors.  The outer formulas keep each pair of outputs
to the window of that pair, the inner ones each output to its own.

This module uses the standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd, prod
from typing import Any

from .axis_access import AxisAccess

Combination = tuple[tuple[int, float], ...]
"""Numbers with their factors."""

Sizes = tuple[int, ...]
"""Number of taps of a formula; if nested, the number of blocks of taps of the outer formula comes
first."""


@dataclass(frozen=True)
class Term:
    """One product: a combination of inputs times a combination of taps.

    Inputs are counted from the input that the first tap reads for the tile's first output, taps
    from the phase's first.
    """

    inputs: Combination
    taps: Combination


@dataclass(frozen=True)
class Filter:
    """Phases along one axis that are computed alike, `tile` outputs of a phase at a time.

    Output ``out_step * (tile * q + e) + offset`` of a phase is
    ``sum(factor * point[p] for p, factor in outputs[e])``, and ``point[p]`` the sum of its terms,
    whose input number i is ``in_step * tile * q + base + i`` and whose tap number t is
    ``first_tap + t``.

    Attributes
    ----------
    out_step, in_step, tile : int
    phases : tuple of (offset, base, first_tap)
    points : tuple of tuple of Term
    outputs : tuple of Combination
    lacks : tuple of int
        How many of the first terms each phase does not have, see
        :func:`joined_filters_of`; if empty, none.
    """

    out_step: int
    in_step: int
    tile: int
    phases: tuple[tuple[int, int, int], ...]
    points: tuple[tuple[Term, ...], ...]
    outputs: tuple[Combination, ...]
    lacks: tuple[int, ...] = ()

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Return the terms of all points, in order."""
        return tuple(term for point in self.points for term in point)

    @cached_property
    def first_taps(self) -> tuple[int, ...]:
        """Return the first taps of the phases without duplicates: phases with the same one share
        transformed filters.
        """
        return tuple(sorted({first for _, _, first in self.phases}))

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the number of missing terms of each phase."""
        return self.lacks or (0,) * len(self.phases)

    @cached_property
    def mean_terms(self) -> float:
        """Return how many terms its phases have on average."""
        return len(self.terms) - sum(self.missing) / len(self.phases)

    @property
    def missing_taps(self) -> tuple[int, ...]:
        """Return how many terms those phases lack that have each of the first taps."""
        of_tap = {first: lack for (_, _, first), lack in zip(self.phases, self.missing)}
        return tuple(of_tap[first] for first in self.first_taps)

    @cached_property
    def taps(self) -> tuple[int, ...]:
        """Return the taps of the terms, counted from the first."""
        return tuple(sorted({tap for term in self.terms for tap, _ in term.taps}))

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Inputs that the terms read."""
        return tuple(sorted({i for term in self.terms for i, _ in term.inputs}))

    @cached_property
    def residues(self) -> tuple[int, ...]:
        """Return the residues of these inputs modulo `in_step`."""
        return tuple(sorted({i % self.in_step for i in self.inputs}))

    @cached_property
    def input_stride(self) -> int:
        """Return how far apart the inputs are, if terms read those of one residue alone; else 1."""
        return self.in_step if len(self.residues) == 1 else 1

    @cached_property
    def packed(self) -> Filter:
        """Return the filter for inputs of which only those are stored, adjacently."""
        every = self.input_stride
        if every == 1:
            return self

        def numbered(term: Term) -> Term:
            return replace(term, inputs=tuple((i // every, factor) for i, factor in term.inputs))

        points = tuple(tuple(map(numbered, terms)) for terms in self.points)
        return replace(self, in_step=self.in_step // every, points=points)

    @property
    def is_direct(self) -> bool:
        """Return whether tiles have one output: then terms are taps, one like the other, and a
        loop.
        """
        return self.tile == 1

    @property
    def loops(self) -> int:
        """Return how often code for the terms runs: once for each of them, or for all of them
        once.
        """
        return len(self.terms) if self.is_direct else 1

    def span(self, tiles: Any) -> Any:
        """Return the distance from the first to the last input of so many neighbouring tiles."""
        return self.in_step * self.tile * (tiles - 1) + self.inputs[-1] + 1

    @cached_property
    def halo(self) -> int:
        """Return how many more inputs of a residue neighbouring tiles read than they have
        outputs.
        """
        return self.inputs[-1] // self.in_step + 1 - self.tile


def steps_of(access: AxisAccess) -> tuple[int, int]:
    """Distances of a phase's neighbouring outputs, so how many phases there are, and of what they
    read."""
    dilation = access.dilation // gcd(access.stride, access.dilation)
    steps = access.stride * dilation, dilation
    return steps if access.transposed else steps[::-1]


@lru_cache(maxsize=1024)
def filters_of(access: AxisAccess, tile: int) -> tuple[Filter, ...]:
    """Return how `access` is computed in tiles of one output (directly), of two or of four.

    Phases of ``conv`` are positions of y that read x at the same residue of the dilation.
    """
    out_step, in_step = steps_of(access)
    alike: dict[tuple[tuple[tuple[int, int], ...], ...], list[tuple[int, int, int]]] = {}
    for offset in range(out_step):
        reads = _reads(access, offset)
        if not reads:
            continue
        base, first = reads[0][0], min(tap for _, tap in reads)
        runs: dict[int, list[tuple[int, int]]] = {}
        for position, tap in reads:
            run = runs.setdefault((position - base) % in_step, [])
            run.append((position - base, tap - first))
        key = tuple(tuple(run) for run in runs.values())
        alike.setdefault(key, []).append((offset, base, first))
    return tuple(
        Filter(out_step, in_step, tile, tuple(phases), *_points(runs, in_step, tile))
        for runs, phases in alike.items()
    )


@lru_cache(maxsize=1024)
def joined_filters_of(access: AxisAccess, tile: int) -> tuple[Filter, ...]:
    """Return the filters of `access`; with tiles of one output, filters whose terms are the last
    terms of the longest are joined.

    So do the phases of a transposed convolution: some read one input less than others, in front.
    """
    filters = filters_of(access, tile)
    longest = max(filters, key=lambda f: len(f.terms))
    phases: dict[tuple[int, int, int], int] = {}
    for f in filters:
        lack = len(longest.terms) - len(f.terms)
        rest = longest.terms[lack:]
        reads, others = ([(t.inputs[0][0], t.taps) for t in terms] for terms in (f.terms, rest))
        ahead = others[0][0]
        if not f.is_direct or reads != [(read - ahead, taps) for read, taps in others]:
            return filters
        phases |= {(offset, base - ahead, first): lack for offset, base, first in f.phases}
    order = sorted(phases)
    return (replace(longest, phases=tuple(order), lacks=tuple(phases[one] for one in order)),)


def _reads(access: AxisAccess, offset: int) -> list[tuple[int, int]]:
    """Position and tap of what a phase reads for its first output, by position."""
    if not access.transposed:
        return [(access.reads_at(tap, offset), tap) for tap in range(access.kernel)]
    taps = range(access.first_tap_of(offset), access.kernel, access.tap_step)
    return [(access.shift_of(offset, tap), tap) for tap in reversed(taps)]


def _points(
    runs: Sequence[Sequence[tuple[int, int]]], step: int, tile: int
) -> tuple[tuple[tuple[Term, ...], ...], tuple[Combination, ...]]:
    """Return the terms of each point, and the outputs, of runs of neighbouring taps."""
    if tile == 1:
        direct = tuple(Term(((i, 1),), ((tap, 1),)) for run in runs for i, tap in run)
        return (direct,), (((0, 1),),)
    _, sizes, parts = min(
        (sum(len(_algorithm(sizes, len(part))) for part in parts), sizes, parts)
        for sizes, parts in ((sizes, _parts(runs, sizes)) for sizes in _SIZES[tile])
    )
    points: list[list[Term]] = [[] for _ in range(prod(size + 1 for size in sizes))]
    for part in parts:
        first, taps = part[0][0], [tap for _, tap in part]
        for point, (inputs, factors) in _algorithm(sizes, len(part)).items():
            points[point].append(
                Term(
                    tuple((first + i * step, factor) for i, factor in inputs),
                    tuple((taps[t], factor) for t, factor in factors),
                )
            )
    used = [point for point, terms in enumerate(points) if terms]
    outputs = tuple(
        tuple((used.index(point), factor) for point, factor in output if point in used)
        for output in _outputs(sizes)
    )
    return tuple(tuple(points[point]) for point in used), outputs


def _parts(
    runs: Sequence[Sequence[tuple[int, int]]], sizes: Sizes
) -> list[Sequence[tuple[int, int]]]:
    """Return the runs in parts of as many taps as the sizes allow, what is left over first.

    A part that reads further than its taps stays in the window where enough taps follow.
    """
    parts: list[Sequence[tuple[int, int]]] = []
    for run in runs:
        cuts = [len(run)]
        while cuts[0] > 0:
            most, follow = min(cuts[0], prod(sizes)), len(run) - cuts[0]
            taps = next(n for n in range(most, 0, -1) if _ahead(sizes, n) <= follow)
            cuts.insert(0, cuts[0] - taps)
        parts += [run[a:b] for a, b in itertools.pairwise(cuts)]
    return parts


@lru_cache(maxsize=64)
def _algorithm(sizes: Sizes, taps: int) -> dict[int, tuple[Combination, Combination]]:
    """Return the inputs and the taps of each point.

    A nested one takes pairs of taps, so that these move by as much as the pairs of outputs.
    """
    outer, *inner = sizes
    if not inner:
        return _ALGORITHMS[outer, taps]
    (size,) = inner
    made = {}
    for block, (inputs, factors) in _ALGORITHMS[outer, -(-taps // size)].items():
        # The last block may have fewer taps.
        count = max(min(size, taps - size * b) for b, _ in factors)
        for point, (near, some) in _ALGORITHMS[size, count].items():
            read = tuple((size * b + i, c * d) for b, c in inputs for i, d in near)
            taken = [(size * b + t, c * d) for b, c in factors for t, d in some]
            present = tuple((tap, factor) for tap, factor in taken if tap < taps)
            made[block * (size + 1) + point] = read, present
    return made


@lru_cache(maxsize=16)
def _outputs(sizes: Sizes) -> tuple[Combination, ...]:
    """Return the outputs of a tile from the points."""
    outer, *inner = sizes
    if not inner:
        return _OUTPUTS[outer]
    (size,) = inner
    return tuple(
        tuple((block * (size + 1) + point, c * d) for block, c in blocks for point, d in points)
        for blocks in _OUTPUTS[outer]
        for points in _OUTPUTS[size]
    )


@lru_cache(maxsize=64)
def _ahead(sizes: Sizes, taps: int) -> int:
    """Return how many inputs behind its window an output reads, at most."""
    points = _algorithm(sizes, taps)
    last = (
        max(i for point, _ in output if point in points for i, _ in points[point][0]) - e
        for e, output in enumerate(_outputs(sizes))
    )
    return max(last) - (taps - 1)


_SIZES: dict[int, tuple[Sizes, ...]] = {2: ((2,), (3,)), 4: ((2, 2), (3, 2))}
"""By the outputs of a tile."""

_ALGORITHMS: dict[tuple[int, int], dict[int, tuple[Combination, Combination]]] = {
    # F(2, 2), of two taps and of one.
    (2, 2): {
        0: (((0, 1), (1, -1)), ((0, 1),)),
        1: (((1, 1),), ((0, 1), (1, 1))),
        2: (((2, 1), (1, -1)), ((1, 1),)),
    },
    (2, 1): {0: (((0, 1),), ((0, 1),)), 2: (((1, 1),), ((0, 1),))},
    # F(2, 3), of three taps, of two and of one.
    (3, 3): {
        0: (((0, 1), (2, -1)), ((0, 1),)),
        1: (((1, 1), (2, 1)), ((0, 0.5), (1, 0.5), (2, 0.5))),
        2: (((2, 1), (1, -1)), ((0, 0.5), (1, -0.5), (2, 0.5))),
        3: (((3, 1), (1, -1)), ((2, 1),)),
    },
    (3, 2): {
        0: (((0, 1), (2, -1)), ((0, 1),)),
        1: (((1, 1), (2, 1)), ((0, 0.5), (1, 0.5))),
        2: (((2, 1), (1, -1)), ((0, 0.5), (1, -0.5))),
    },
    (3, 1): {0: (((0, 1),), ((0, 1),)), 3: (((1, 1),), ((0, 1),))},
}
"""By the size of the domain and the number of taps: of each point, the inputs and the taps."""

_OUTPUTS: dict[int, tuple[Combination, ...]] = {
    2: (((0, 1), (1, 1)), ((1, 1), (2, 1))),
    3: (((0, 1), (1, 1), (2, 1)), ((1, 1), (2, -1), (3, 1))),
}
"""The two outputs from the points."""
