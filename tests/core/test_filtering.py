# SPDX-License-Identifier: Apache-2.0
"""Minimal filtering against the sum that it stands for, in exact arithmetic."""

from __future__ import annotations

import itertools
import random
import time
from fractions import Fraction

import pytest

from helpers.profile import thinned
from topi_ext.spec.axis_access import AxisAccess
from topi_ext.spec.minimal_filtering import Filter, filters_of

OUTPUTS, INPUTS = 11, 13


def directly(gather: AxisAccess, x: list[Fraction], w: list[Fraction]) -> list[Fraction]:
    """Every output by its definition."""
    y = [Fraction(0)] * OUTPUTS
    for j, t in itertools.product(range(OUTPUTS), range(gather.kernel)):
        if gather.transposed:
            position, rest = divmod(j + gather.pad_before - gather.dilation * t, gather.stride)
        else:
            position = gather.stride * j + gather.dilation * t - gather.pad_before
            rest = 0
        if not rest and 0 <= position < INPUTS:
            y[j] += w[t] * x[position]
    return y


def filtered(filters: tuple[Filter, ...], x: list[Fraction], w: list[Fraction]) -> list[Fraction]:
    """Return the convolution of x and w, computed by tiles."""
    y = [Fraction(0)] * OUTPUTS

    def product(term, start: int, first: int) -> Fraction:
        inputs = ((start + i, Fraction(factor)) for i, factor in term.inputs)
        a = sum(factor * x[i] for i, factor in inputs if 0 <= i < INPUTS)
        return a * sum(Fraction(factor) * w[first + t] for t, factor in term.taps)

    for f in filters:
        for (offset, base, first), q in itertools.product(f.phases, range(OUTPUTS)):
            start = f.in_step * f.tile * q + base
            points = [sum(product(term, start, first) for term in point) for point in f.points]
            for e, output in enumerate(f.outputs):
                j = f.out_step * (f.tile * q + e) + offset
                if j < OUTPUTS:
                    y[j] = sum((Fraction(c) * points[p] for p, c in output), Fraction(0))
    return y


@pytest.mark.parametrize("tile", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_tiles_are_direct_sums(transposed: bool, tile: int) -> None:
    some = random.Random(0)
    x, w = ([Fraction(some.randint(-9, 9)) for _ in range(size)] for size in (INPUTS, 14))
    every = itertools.product(range(1, 14), (1, 2, 3), (1, 2, 3), (-1, 0, 2))
    # Another quarter for each direction and size of tiles; all in a long run.
    for kernel, stride, dilation, pad in thinned(every, 4, tile % 3 + transposed):
        gather = AxisAccess(transposed, kernel, stride, dilation, pad)
        assert filtered(filters_of(gather, tile), x, w) == directly(gather, x, w), gather


@pytest.mark.parametrize(
    ("gather", "products"),
    [
        (AxisAccess(False, 3, 1, 1, 1), [4]),  # F(2, 3)
        (AxisAccess(False, 3, 1, 2, 2), [4]),  # the same, at every other position
        (AxisAccess(False, 4, 2, 1, 1), [6]),  # two residues of two taps
        (AxisAccess(False, 3, 2, 1, 1), [5]),  # two taps and one
        (AxisAccess(False, 7, 2, 1, 3), [10]),  # 3 + 1 taps and 3
        (AxisAccess(False, 5, 1, 1, 2), [7]),  # 2 + 3 taps
        (AxisAccess(True, 4, 2, 1, 1), [3]),  # two phases of two taps
        (AxisAccess(True, 3, 2, 1, 1), [2, 3]),  # a phase of one tap, a phase of two
    ],
)
def test_products_of_two_outputs(gather: AxisAccess, products: list[int]) -> None:
    assert sorted(len(f.terms) for f in filters_of(gather, 2)) == products


@pytest.mark.parametrize(
    ("gather", "products"),
    [
        (AxisAccess(False, 3, 1, 1, 1), [10]),  # 1 + 2 taps: two tiles of two outputs take 8
        (AxisAccess(False, 4, 1, 1, 1), [9]),
        (AxisAccess(False, 5, 1, 1, 2), [13]),  # 1 + 4
        (AxisAccess(False, 6, 1, 3, 2), [12]),
        (AxisAccess(False, 7, 1, 1, 3), [16]),  # 1 + 6
        (AxisAccess(False, 11, 1, 5, 5), [23]),  # 5 + 6
        (AxisAccess(False, 8, 2, 1, 3), [18]),  # two residues of four taps
        (AxisAccess(True, 25, 4, 1, 11), [12, 16]),  # three phases of six taps, one of seven
    ],
)
def test_products_of_four_outputs(gather: AxisAccess, products: list[int]) -> None:
    assert sorted(len(f.terms) for f in filters_of(gather, 4)) == products


def test_long_kernels_and_strides_take_no_longer_than_their_taps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An inverse Fourier transform: once for each phase and for each tap, not for each pair."""
    asked = [0]

    def counted(self: AxisAccess, phase: int, tap: int, shift=AxisAccess.shift_of) -> int:
        asked[0] += 1
        return shift(self, phase, tap)

    monkeypatch.setattr(AxisAccess, "shift_of", counted)
    begun = time.process_time()
    (found,) = filters_of(AxisAccess(True, 8192, 2048, 1, 3), 2)
    assert time.process_time() - begun < 2
    assert len(found.phases) == 2048 and asked[0] == 8192


def test_every_output_depends_on_its_own_window_alone() -> None:
    """Whatever is infinite elsewhere: no point of an output reads beyond its window."""
    shapes = itertools.product((False, True), range(1, 20), (1, 2, 3, 4), (1, 2), (2, 4))
    for transposed, kernel, stride, dilation, tile in shapes:
        for f in filters_of(AxisAccess(transposed, kernel, stride, dilation, 1), tile):
            reach = f.inputs
            window = range(reach[0], reach[-1] - (tile - 1) * f.in_step + 1)
            for e, output in enumerate(f.outputs):
                for point, _ in output:
                    for term in f.points[point]:
                        assert all(i - e * f.in_step in window for i, _ in term.inputs)
