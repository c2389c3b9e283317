# SPDX-License-Identifier: Apache-2.0
"""Choose kernel and plan: the ones with the fewest cycles by the planners' estimates.

These follow from sizes, caches, registers and cores, never from a table of shapes.  Where sizes are
symbolic, plans are rated over many; the kernel is right for every size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import isnan, prod
from typing import Any

from ...kernel.registry import cost_of
from ...kernel.selection import ALL, Selection
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.problem import Problem
from ..machine import CACHE_LINE, CpuMachine
from ..plan.base import Plan
from ..registry import KERNELS
from .dynamic_shapes import plan_of_any_size

NON_TEMPORAL_CACHES = 16
"""Smallest size of a result that is written by non-temporal stores, in second caches of all cores.

The cache that cores share is seldom larger."""

NON_TEMPORAL_DOUBT = 8
"""Times more or less, within which a measurement asks whether that size is right."""

NON_TEMPORAL_RUN = 20
"""Fewest cache lines that a task writes one after the other, unless a row consists of whole ones.

Lines of which it has but a part are slow to write in both ways."""

NON_TEMPORAL_DTYPES = {"float32": ("float32", "float16", "bfloat16"), "float64": ("float64",)}
"""By dtype of sums, what non-temporal stores write."""


def choose(problem: Problem, machine: CpuMachine, selection: Selection = ALL) -> Plan:
    """Return the plan of the fewest estimated cycles, of every kernel that serves `problem`."""
    return rated(problem.planned(), machine, selection)[1]


@lru_cache(maxsize=1024)
def rated(
    problem: Problem, machine: CpuMachine, selection: Selection = ALL
) -> tuple[float | None, Plan]:
    """Return the plan of :func:`choose` and its estimated cycles.

    Parameters
    ----------
    problem : Problem
        A problem of any kind.
    machine : CpuMachine
    selection : Selection
        Kernels that may be chosen, where one of them serves the problem.

    Returns
    -------
    cycles : float or None
        None of symbolic sizes, whose plans are rated over many, and of kinds with one plan.
    plan : Plan
    """
    cycles, plan = _fastest(problem, machine, selection)
    return cycles, _with_stores(problem, plan, machine)


def candidates(
    problem: Problem, machine: CpuMachine, selection: Selection = ALL
) -> Iterator[tuple[float, Plan]]:
    """Yield every plan that is compared for `problem`, of every kernel that serves it.

    For tests, for tuning, and to see how good the estimates are: any of them makes a kernel that
    is right, by ``CpuBackend.build(problem, plan)``.  There may be thousands.

    Parameters
    ----------
    problem : Problem
        A problem with known sizes.
    machine : CpuMachine
    selection : Selection
        Kernels whose plans are yielded.

    Yields
    ------
    cycles : float
        Estimated, of one core from the first task to the last; four times as many where the plan
        holds more memory than operands and result.
    plan : Plan
        With non-temporal stores where :func:`choose` would have them: its choice is among them.

    Raises
    ------
    ValueError
        For symbolic sizes, whose plans are rated over many.
    """
    if not problem.is_static:
        raise ValueError("candidates: sizes must be known")
    for cycles, plan in KERNELS.candidates(problem, machine, selection):
        yield cycles, _with_stores(problem, plan, machine)


def by_other_stores(problem: Problem, plan: Plan, machine: CpuMachine) -> Plan | None:
    """Return the same plan with non-temporal stores instead of without, or the other way around.

    None where a result is by far too small or too large for a doubt, and where it can't be.
    """
    through = plan.with_non_temporal(False)
    if through == plan:
        past = _with_stores(problem, plan, machine, NON_TEMPORAL_CACHES / NON_TEMPORAL_DOUBT)
        return None if past == plan else past
    many = NON_TEMPORAL_CACHES * NON_TEMPORAL_DOUBT
    is_large = through != _with_stores(problem, through, machine, many)
    return None if is_large else through


def _with_stores(
    problem: Any, plan: Plan, machine: CpuMachine, caches: float = NON_TEMPORAL_CACHES
) -> Plan:
    """Return the plan, with non-temporal stores where they pay."""
    pays = problem.is_static and pays_past_caches(problem, plan, machine, caches)
    return plan.with_non_temporal(True) if pays else plan


def _fastest(
    problem: Problem, machine: CpuMachine, selection: Selection
) -> tuple[float | None, Plan]:
    """Return the plan of the fewest cycles, without non-temporal stores."""
    proposals = KERNELS.proposals(problem, machine, selection)
    if not problem.is_static and proposals and not selection.is_all:
        return None, min(proposals, key=cost_of)[1]
    proposals = proposals or KERNELS.proposals(problem, machine)
    if problem.is_static:
        cycles, plan = min(proposals, key=cost_of)
        return None if isnan(cycles) else cycles, plan
    best = min(proposals, key=cost_of, default=None)
    if best is None or KERNELS.of_plan(best[1]).dynamic.is_contested:
        return None, plan_of_any_size(problem, machine)
    return None, best[1]


def pays_past_caches(
    problem: Convolution, plan: Plan, machine: CpuMachine, caches: float = NON_TEMPORAL_CACHES
) -> bool:
    """Return whether a result is so large that no cache would keep it for what reads it next, and a
    task of the plan writes long runs of it."""
    run = plan.non_temporal_run(problem, machine)
    if run is None or not (machine.streams and problem.rows_are_runs):
        return False
    if problem.dtypes[2] not in NON_TEMPORAL_DTYPES.get(problem.acc_dtype, ()):
        return False
    width = byte_width(problem.dtypes[2])
    has_parts = problem.out_sizes[-1] * width % CACHE_LINE > 0
    if has_parts and run * width < NON_TEMPORAL_RUN * CACHE_LINE:
        return False
    channels = problem.geometry.groups * problem.out_channels
    size = channels * prod(problem.out_sizes) * width
    return size >= caches * machine.l2 * machine.threads
