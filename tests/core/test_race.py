# SPDX-License-Identifier: Apache-2.0
"""Races of functions whose times are made up."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.registry import KERNELS
from topi_ext.cpu.select.choose import by_other_stores, candidates, choose
from topi_ext.cpu.select.lookup import entry, measured
from topi_ext.cpu.select.shortlist import shortlist
from topi_ext.kernel.database import Database, machine_name
from topi_ext.spec.conv import Convolution
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts
from topi_ext.tuning.interleaved import race

RACES = {
    "the fastest": ({0: 1.0, 1: 0.5, 2: 0.8}, 1),
    "the first of equals": ({0: 1.0, 1: 1.0}, 0),
    "the first if the gain is noise": ({0: 1.0, 1: 0.99, 2: 3.0}, 0),
    "alone": ({3: 1.0}, 3),
}


@pytest.mark.parametrize(("seconds", "wins"), RACES.values(), ids=RACES)
def test_who_wins(seconds: dict[int, float], wins: int) -> None:
    """Every call of one in eight takes ten times as long: a neighbour's doing."""
    slow = itertools.cycle([1, 1, 1, 1, 1, 1, 1, 10])
    best, found = race({
        number: lambda _, one=one: one * next(slow) for number, one in seconds.items()
    })  # fmt: skip
    assert best == wins
    assert found == pytest.approx(seconds)


def test_clear_losers_are_left_out() -> None:
    calls: Counter[int] = Counter()

    def timed(number: int, seconds: float) -> object:
        def run(times: int) -> float:
            calls[number] += 1
            return seconds

        return run

    best, found = race({number: timed(number, 1.0 + number) for number in range(5)})
    assert best == 0
    assert set(found) == set(range(5))
    assert calls[4] == 2  # one to see how long it takes
    assert calls[0] == 8


def test_the_shortlist_begins_with_the_choice_and_has_every_kernel_near_it() -> None:
    machine = CpuMachine(vector_bytes=32, threads=2)
    geometry = Geometry.of_conv("conv2d", (1, 64, 28, 28), (64, 64, 3, 3), padding=1)
    for face in ("conv", "conv_transpose", "conv_weight_grad"):
        problem = Convolution(face, geometry.as_rank3(), Layouts.canonical(2), 1, ("float32",) * 3)
        plans = shortlist(problem, machine, 10)
        assert plans[0] == choose(problem, machine)
        assert len(set(plans)) == len(plans) == 10
        assert set(plans) <= {plan for _, plan in candidates(problem, machine)}
        assert len({KERNELS.of_plan(plan).name for plan in plans}) > 1
        assert shortlist(problem, machine, 1) == plans[:1]


def test_the_shortlist_has_the_choice_by_other_stores_where_the_size_is_in_doubt() -> None:
    """And a database that has such a plan finds it again."""
    machine = CpuMachine(vector_bytes=32, threads=2, streams=True)
    for size, expected in ((64, False), (256, True), (512, True), (2048, False)):
        geometry = Geometry.of_conv("conv2d", (1, 8, size, size), (16, 8, 3, 3), padding=1)
        problem = Convolution(
            "conv", geometry.as_rank3(), Layouts.canonical(2), 1, ("float32",) * 3
        )
        chosen = choose(problem, machine)
        other = by_other_stores(problem, chosen, machine)
        assert (other is not None) == expected, size
        assert (other in shortlist(problem, machine, 10)) == expected
        if other is None:
            continue
        assert by_other_stores(problem, other, machine) == chosen
        plans = {machine_name("", machine): {problem.signature: entry(other, 1.0, 2.0)}}
        assert measured(problem, machine, "", Database("p.json", (size,), plans)) == other
