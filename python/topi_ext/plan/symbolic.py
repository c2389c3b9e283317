# SPDX-License-Identifier: Apache-2.0
"""Plans for sizes that are symbolic: which kernel is fastest, the kernel asks the sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ..geometry import conv_transpose_size
from .gather import plan_gather
from .plans import EitherPlan, GatherPlan, ScatterPlan, WinogradPlan
from .problem import NOMINAL, Machine, Problem
from .scatter import image_room, plan_scatter
from .winograd import plan_winograd


def plan_for_any_size(
    problem: Problem, gather: GatherPlan, machine: Machine
) -> EitherPlan | WinogradPlan | GatherPlan:
    """Of symbolic sizes, plans that the kernel chooses from when it knows them."""
    large = _plan_many_tiles(problem, machine) or gather
    small = _plan_small(problem, machine)
    return EitherPlan(small, large) if small else large


def _plan_small(problem: Problem, machine: Machine) -> ScatterPlan | None:
    """Of symbolic sizes, the plan of small images, where there is one.

    It is that of the largest square image for which the scatter kernel takes fewer cycles than the
    other, with room for images that are longer or more.
    """
    if problem.prepacked or not problem.transposed:
        return None
    g = problem.geometry
    found: ScatterPlan | None = None
    for known in _squares(problem, NOMINAL[0]):
        scatter = plan_scatter(known, machine)
        if scatter is None:
            break
        if scatter[0] < plan_gather(known, machine)[0]:
            found = replace(scatter[1], most=prod(known.geometry.y_size))
    if found is None:
        return None
    vectors = -(-found.c_block * g.taps // found.lanes)
    positions = max(found.most, machine.l2 // 2 // (vectors * machine.vector_bytes))
    held = image_room(problem, machine)
    return replace(found, positions=positions, held=held, parallel=True)


def _plan_many_tiles(problem: Problem, machine: Machine) -> WinogradPlan | None:
    """Of symbolic sizes, the plan that saves products where there are enough tiles.

    Enough are those of the smallest square image for which it takes fewer cycles.
    """
    plan = plan_winograd(problem, machine)
    if plan is None:
        return None
    for known in _squares(problem, 1):
        found = plan_winograd(known, machine, [plan[1].tile])
        if found and found[0] < plan_gather(known, machine)[0]:
            return replace(plan[1], least=prod(found[1].tiles(known)))
    return None


def _squares(problem: Problem, n: int) -> Iterator[Problem]:
    """The problem with symbolic sizes known: y as 1x1, 2x2, 4x4 image, and so on, n of them."""
    g = problem.geometry
    for exponent in range(9):
        y = [2**exponent if not isinstance(size, int) else size for size in g.y_size]
        x = [
            size if isinstance(size, int) else conv_transpose_size(*axis)
            for size, axis in zip(g.x_size, zip(y, *g.window))
        ]
        if min(x) >= 1:
            batch = problem.n if isinstance(problem.n, int) else n
            yield replace(problem, geometry=replace(g, x_size=tuple(x), y_size=tuple(y)), n=batch)
        if all(isinstance(size, int) for size in g.y_size):
            break
