# SPDX-License-Identifier: Apache-2.0
"""Schedules for the operators around ours.  TVM's CPU pipeline leaves them as they were defined::

    parallel over all spatial axes but the last:
        for each reduction:
            for the last spatial axis:          LLVM makes vectors of it
                ...

Where that would read across memory, the reduction stays inside.
:mod:`~topi_ext.schedules.reductions` has made that rare, and has inlined element-wise blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..compat import s_tir
from .blocks import SPATIAL, has_columns, known_extent, loop_kinds, row_parts
from .remainders import without_shifted_remainders

_PARALLEL_POINTS = 1 << 15
"""Loops over fewer points are left to the calling thread: waking the others takes about as long."""

_TASKS = 64
"""Enough for a few per thread."""

_ROW_TASKS = 8
"""Into how many tasks a row is cut where there are no other axes."""


def parallelized(func: Any) -> Any:
    """`func`, its blocks parallel and their loops in an order that makes vectors.

    Parameters
    ----------
    func : PrimFunc
        As an operator was legalized; with or without symbolic sizes.

    Returns
    -------
    PrimFunc
        `func` itself where a schedule is there already, or where a block is more than loops around
        one statement.
    """
    return scheduled(func, _parallel)


def scheduled(func: Any, write: Callable[[Any, list[Any]], bool]) -> Any:
    """Return `func`, scheduled by ``write(schedule, blocks)``; `func` itself where that returns
    False or fails, or where there is a schedule.
    """
    attrs = func.attrs or {}
    if "tirx.is_scheduled" in attrs or "tirx.noalias" not in attrs:
        return func
    schedule = s_tir.Schedule(func, debug_mask="none")
    try:
        if not write(schedule, _blocks(schedule)):
            return func
    except s_tir.ScheduleError:
        return func  # as TVM would have it
    axes = [axis for block in _blocks(schedule) for axis in schedule.get(block).iter_vars]
    exact = without_shifted_remainders(schedule.mod["main"], axes)
    return exact.with_attr("tirx.is_scheduled", True)


def _blocks(schedule: Any) -> list[Any]:
    found: list[Any] = schedule.get_child_blocks(schedule.get_sblock("root"))
    return found


def _parallel(schedule: Any, blocks: list[Any]) -> bool:
    if any(loop_kinds(schedule, block) is None for block in blocks):
        return False
    for block in blocks:
        _schedule(schedule, block)
    return True


def _schedule(schedule: Any, block: Any) -> None:
    """Share a block's spatial loops among the threads, reductions outside of the last of them."""
    loops, kinds = schedule.get_loops(block), loop_kinds(schedule, block) or []
    spatial = kinds.count(SPATIAL)
    outer, reductions = loops[:spatial], loops[spatial:]
    length = row_parts(schedule, block)
    if length is not None:
        outer[-1:] = schedule.split(outer[-1], [None, length])
        spatial += 1
    is_columns = has_columns(schedule, block)
    known = [known_extent(schedule, loop) or _TASKS for loop in (*outer, *reductions)]
    is_worth_it = prod(known) >= _PARALLEL_POINTS
    if outer and is_worth_it and prod(known[: spatial - 1]) < _ROW_TASKS <= known[spatial - 1] // 8:
        outer[-1:] = schedule.split(outer[-1], [_ROW_TASKS, None])
    row = outer.pop() if len(outer) > 1 or is_columns else None
    if is_columns:
        schedule.reorder(*outer, *reductions, row)
    if outer and is_worth_it:
        # Of the outer loops as many as make enough tasks: what is left keeps its simple indices.
        count, tasks = 0, 1
        while count < len(outer) and tasks < _TASKS:
            tasks *= known_extent(schedule, outer[count]) or _TASKS
            count += 1
        schedule.parallel(schedule.fuse(*outer[:count]) if count > 1 else outer[0])
    if reductions:
        schedule.decompose_reduction(block, reductions[0])
