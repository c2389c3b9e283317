# SPDX-License-Identifier: Apache-2.0
"""Which kernel, by which plan: the one that takes the fewest cycles by the planners' estimates.

These follow from sizes, caches, registers and cores, never from a table of shapes.  Where sizes are
symbolic, plans are rated over many; the kernel is right for every size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import isnan, prod
from typing import Any

from ...dtypes import byte_width
from ...kernel_selection import ALL, Selection
from ...problem import Problem
from ..machine import CACHE_LINE, Machine
from ..registry import kernels_of
from .any_size import plan_for_any_size, plan_weights_of_any_size
from .direct import DirectPlan
from .direct_dot_bf16 import DirectDotPlan
from .phase_lanes import PhaseLanesPlan
from .window import Plan
from .winograd import WinogradPlan

STREAMED_CACHES = 16
"""Least size of a result that is written past the caches, in second caches of all cores.

What cores share behind these is seldom larger."""

STREAMED_DOUBT = 8
"""Times more or less, within which a measurement asks whether that size is right."""

STREAMED_RUN = 20
"""Least cache lines that a task writes one after the other, unless a row consists of whole ones.

Lines of which it has but a part are slow to write in both ways."""

STREAMED_DTYPES = {"float32": ("float32", "float16", "bfloat16"), "float64": ("float64",)}
"""By dtype of sums, what they become on their way past the caches."""


def choose(problem: Problem, machine: Machine, selection: Selection = ALL) -> Plan:
    """The plan that takes the fewest cycles, by estimate, of every kernel that serves `problem`."""
    return rated(problem, machine, selection)[1]


@lru_cache(maxsize=1024)
def rated(problem: Any, machine: Machine, selection: Selection = ALL) -> tuple[float | None, Plan]:
    """Return the plan of :func:`choose` and its estimated cycles.

    Parameters
    ----------
    problem : Problem, Product, RowWise, Transposition or Resize
    machine : Machine
    selection : Selection
        Kernels that may be chosen, where one of them serves the problem.

    Returns
    -------
    cycles : float or None
        None of symbolic sizes, whose plans are rated over many, and of kinds with one plan.
    plan : Plan
    """
    cycles, plan = _fastest(problem, machine, selection)
    return cycles, _streamed(problem, plan, machine)


def candidates(problem: Problem, machine: Machine) -> Iterator[tuple[float, Plan]]:
    """Every plan that is compared for `problem`, of every kernel that serves it.

    For tests, for tuning, and to see how good the estimates are: any of them makes a kernel that
    is right, by ``CpuBackend.build(problem, plan)``.  There may be thousands.

    Parameters
    ----------
    problem : Problem
        Of known sizes.
    machine : Machine

    Yields
    ------
    cycles : float
        Estimated, of one core from the first task to the last; four times as many where the plan
        holds more memory than operands and result.
    plan : Plan
        Written past the caches where :func:`choose` would have it so: its choice is among them.

    Raises
    ------
    ValueError
        For symbolic sizes, whose plans are rated over many.
    """
    if not problem.is_static:
        raise ValueError("candidates: sizes must be known")
    for kernel in kernels_of(problem.face):
        for cycles, plan in kernel.candidates(problem, machine) if kernel.candidates else ():
            yield cycles, _streamed(problem, plan, machine)


def by_other_stores(problem: Problem, plan: Plan, machine: Machine) -> Plan | None:
    """The same plan past the caches instead of through them, or the other way around.

    None where a result is by far too small or too large for a doubt, and where it can't be.
    """
    through = _past_caches(plan, False)
    if through == plan:
        past = _streamed(problem, plan, machine, STREAMED_CACHES / STREAMED_DOUBT)
        return None if past == plan else past
    is_large = through != _streamed(problem, through, machine, STREAMED_CACHES * STREAMED_DOUBT)
    return None if is_large else through


def _streamed(problem: Any, plan: Plan, machine: Machine, caches: float = STREAMED_CACHES) -> Plan:
    """The plan, which writes past the caches where that pays."""
    if isinstance(plan, PhaseLanesPlan) and plan.phase_splits > 1:
        return plan  # tasks share rows
    writes = plan.gather if isinstance(plan, DirectDotPlan) else plan
    is_known = isinstance(writes, (DirectPlan, WinogradPlan, PhaseLanesPlan))
    pays = is_known and streams(problem, writes, machine, caches)
    return _past_caches(plan, True) if pays else plan


def _past_caches(plan: Plan, past: bool) -> Plan:
    """The plan, by such stores; itself where it knows no others."""
    if isinstance(plan, DirectDotPlan):
        return replace(plan, gather=replace(plan.gather, streamed=past))
    if isinstance(plan, (DirectPlan, WinogradPlan, PhaseLanesPlan)):
        return replace(plan, streamed=past)
    return plan


def _fastest(problem: Problem, machine: Machine, selection: Selection) -> tuple[float | None, Plan]:
    """The one of fewest cycles, whose result stays in the caches."""
    is_known = problem.is_static or not isinstance(problem, Problem)
    proposed = list(_proposed(problem, machine, selection))
    if is_known or (proposed and not selection.is_all):
        proposed = proposed or list(_proposed(problem, machine, ALL))
        cycles, plan = min(proposed, key=lambda one: one[0])
        return None if isnan(cycles) or not problem.is_static else cycles, plan
    if problem.face == "conv_weight_grad":
        return None, plan_weights_of_any_size(problem, machine)
    best = min(_proposed(problem, machine, ALL), key=lambda one: one[0])[1]
    if isinstance(best, DirectPlan):
        return None, plan_for_any_size(problem, best, machine)
    return None, best


def _proposed(problem: Any, machine: Machine, selection: Selection) -> Iterator[tuple[float, Plan]]:
    """The fastest plan of each selected kernel that serves `problem`, and its cycles."""
    for kernel in kernels_of(problem.kind):
        if not selection.allows(kernel.name):
            continue
        serves = problem.is_static or kernel.symbolic or not isinstance(problem, Problem)
        if kernel.propose and serves:
            found = kernel.propose(problem, machine)
            if found:
                yield found


def streams(
    problem: Problem, plan: Plan, machine: Machine, caches: float = STREAMED_CACHES
) -> bool:
    """Whether a result is so large that no cache would keep it for who reads it next, and a task
    writes long runs of it."""
    if not (machine.streams and problem.is_static and problem.rows_are_runs):
        return False
    if problem.dtypes[2] not in STREAMED_DTYPES.get(problem.acc_dtype, ()):
        return False
    held = problem.out_sizes[-1] * byte_width(problem.acc_dtype)
    if isinstance(plan, PhaseLanesPlan) and held > machine.l2 // 4:
        return False  # it collects whole rows
    width = byte_width(problem.dtypes[2])
    has_parts = problem.out_sizes[-1] * width % CACHE_LINE > 0
    if has_parts and _run(problem, plan) * width < STREAMED_RUN * CACHE_LINE:
        return False
    channels = problem.geometry.groups * problem.out_channels
    size = channels * prod(problem.out_sizes) * width
    return size >= caches * machine.l2 * machine.threads


def _run(problem: Problem, plan: Plan) -> int:
    """Elements of a row that a task writes, and of those that follow it."""
    run: int = problem.out_sizes[-1]
    step = problem.gathers[-1].out_step
    if isinstance(plan, WinogradPlan):
        run = min(run, plan.block[-1] * plan.tile[-1] * step)
    if isinstance(plan, DirectPlan):
        block = plan.window.block
        run = min(run, block[-1] * step)
        for axis in (3, 2):
            if block[axis] < problem.positions[axis]:
                break
            run *= block[axis - 1] * problem.gathers[axis - 1].out_step
    return run
