# SPDX-License-Identifier: Apache-2.0
"""A schedule for the operators around ours, which TVM's CPU pipeline leaves as they were defined.

::

    parallel over all spatial axes but the last:
        for each reduction:
            for the last spatial axis:          LLVM makes vectors of it
                ...

Where that would read across memory, the reduction stays inside.  Element-wise blocks with one
reader that is element-wise too are inlined first.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .compat import as_size, s_tir, tir, uses_var

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
    attrs = func.attrs or {}
    if "tirx.is_scheduled" in attrs or "tirx.noalias" not in attrs:
        return func
    schedule = s_tir.Schedule(func, debug_mask="none")
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
        if any(_kinds(schedule, block) is None for block in blocks):
            return func
        for block in blocks:
            readers = schedule.get_consumers(block)
            if len(readers) == 1 and all(_is_spatial(schedule, b) for b in (block, *readers)):
                schedule.compute_inline(block)
            else:
                _schedule(schedule, block)
    except s_tir.ScheduleError:
        return func  # as TVM would have it
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)


_SPATIAL, _REDUCTION = tir.IterVar.DataPar, tir.IterVar.CommReduce


def _is_spatial(schedule: Any, block: Any) -> bool:
    return _REDUCTION not in (_kinds(schedule, block) or ())


def _kinds(schedule: Any, block: Any) -> list[int] | None:
    """For each loop around `block`, whether it is spatial or a reduction; None for other blocks."""
    kinds = [axis.iter_type for axis in schedule.get(block).iter_vars]
    if len(kinds) != len(schedule.get_loops(block)):
        return None
    spatial = kinds.count(_SPATIAL)
    ordered = [_SPATIAL] * spatial + [_REDUCTION] * (len(kinds) - spatial)
    return kinds if kinds == ordered else None


def _schedule(schedule: Any, block: Any) -> None:
    """Share a block's spatial loops among the threads, reductions outside of the last of them."""
    loops, kinds = schedule.get_loops(block), _kinds(schedule, block) or []
    extents = [as_size(schedule.get(loop).extent) for loop in loops]
    *outer, row = loops[: kinds.count(_SPATIAL)] or [None]
    reductions = loops[kinds.count(_SPATIAL) :]
    if row is None:
        return
    known = [extent if isinstance(extent, int) else _TASKS for extent in extents]
    length = known[len(outer)]
    is_worth_it = prod(known) >= _PARALLEL_POINTS
    if is_worth_it and prod(known[: len(outer)]) < _ROW_TASKS <= length // 8:
        chunk, row = schedule.split(row, [_ROW_TASKS, None])
        outer.append(chunk)
    if not outer:
        outer, row = [row], None
    if row is not None and reductions and _reads_along(schedule, block, kinds.count(_SPATIAL) - 1):
        schedule.reorder(*outer, *reductions, row)
    if is_worth_it:
        # Of the outer loops as many as make enough tasks: what is left keeps its simple indices.
        count, tasks = 0, 1
        while count < len(outer) and tasks < _TASKS:
            extent = as_size(schedule.get(outer[count]).extent)
            count, tasks = count + 1, tasks * (extent if isinstance(extent, int) else _TASKS)
        schedule.parallel(schedule.fuse(*outer[:count]) if count > 1 else outer[0])
    if reductions:
        schedule.decompose_reduction(block, reductions[0])


def _reads_along(schedule: Any, block: Any, axis: int) -> bool:
    """Whether neighbours along a block's `axis` are neighbours, or the same, in all it reads."""
    stated = schedule.get(block)
    variable = stated.iter_vars[axis].var
    for read in stated.reads:
        *outer, last = [index.min for index in read.region]
        neighbours = last.same_as(variable) or not uses_var(last, variable)
        if not neighbours or any(uses_var(index, variable) for index in outer):
            return False
    return True
