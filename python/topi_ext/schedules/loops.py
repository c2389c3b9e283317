# SPDX-License-Identifier: Apache-2.0
"""Schedules for the operators around ours.  TVM's CPU pipeline leaves them as they were defined::

    parallel over all spatial axes but the last:
        for each reduction:
            for the last spatial axis:          LLVM makes vectors of it
                ...

Where that would read across memory, the reduction stays inside.
:mod:`~topi_ext.schedules.reductions` has made that rare, and has inlined element-wise blocks.
Where sizes are symbolic, a stage of a reduction is computed where the next stage reads it, if there
are enough results for all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

from ..compat import as_size, buffer_of_region, s_tir
from .blocks import (
    REDUCTION,
    SPATIAL,
    has_columns,
    known_extent,
    loop_kinds,
    reads_once,
    row_parts,
)
from .concatenations import cut
from .remainders import without_shifted_remainders

_PARALLEL_POINTS = 1 << 15
"""Loops over fewer points are left to the calling thread: waking the others takes about as long."""

_TASKS = 64
"""Enough for a few per thread."""

_UNROLLED, _UNROLLED_WINDOW = 16, 25
"""LLVM unrolls reductions of so many elements inside of a row, and keeps their results in
registers; it reads windows that overlap from there too."""

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
    axes = [axis for block in _leaves(schedule) for axis in schedule.get(block).iter_vars]
    exact = without_shifted_remainders(schedule.mod["main"], axes)
    return exact.with_attr("tirx.is_scheduled", True)


def _blocks(schedule: Any) -> list[Any]:
    found: list[Any] = schedule.get_child_blocks(schedule.get_sblock("root"))
    return found


def _leaves(schedule: Any, block: Any = None) -> Iterator[Any]:
    """Yield the blocks that have no others inside."""
    children = _blocks(schedule) if block is None else schedule.get_child_blocks(block)
    for child in children:
        yield from _leaves(schedule, child)
    if not children:
        yield block


def _parallel(schedule: Any, blocks: list[Any]) -> bool:
    if any(loop_kinds(schedule, block) is None for block in blocks):
        return False
    first: list[tuple[Any, Any]] = []
    for block in reversed(blocks):
        parts = cut(schedule, block)
        for part in parts:
            _share(schedule, part)
        if not parts:
            first.append((block, _nest(schedule, block, first) or _schedule(schedule, block)))
    for block, loop in first:
        if loop is not None:
            schedule.decompose_reduction(block, loop)
    return True


def _nest(schedule: Any, block: Any, first: list[tuple[Any, Any]]) -> Any:
    """Compute a stage of a reduction where the next stage reads it, if there are many results.

    Its parts then stay in the first cache.  In functions of known sizes that was not faster.

    Parameters
    ----------
    schedule : Schedule
    block : SBlockRV
    first : list
        The blocks that are scheduled, each with the outermost loop of its reduction or None.

    Returns
    -------
    LoopRV or None
        The outermost loop of the reduction of `block`; None where it is not nested.
    """
    if not _is_stage(schedule, block):
        return None
    reader = schedule.get_consumers(block)[0]
    (inner,) = (loop for one, loop in first if schedule.get(one).same_as(schedule.get(reader)))
    loops = schedule.get_loops(reader)
    depth = [schedule.get(loop).same_as(schedule.get(inner)) for loop in loops].index(True)
    if _points(schedule, loops[:depth]) < _TASKS:
        return None
    is_chunk = known_extent(schedule, inner) is None  # one part at a time
    schedule.compute_at(block, loops[depth if is_chunk else depth - 1], preserve_unit_loops=True)
    kinds = [axis.iter_type for axis in schedule.get(block).iter_vars]
    spatial, own = kinds.count(SPATIAL), schedule.get_loops(block)[-len(kinds) :]
    schedule.reorder(*own[spatial:], own[spatial - 1])
    return own[spatial]


def _is_stage(schedule: Any, block: Any) -> bool:
    """Return whether `block` is a stage of a reduction in a function of symbolic sizes, whose
    results another stage reads, each once.
    """
    if not _is_symbolic(schedule):
        return False
    readers = schedule.get_consumers(block)
    if len(readers) != 1 or not all(_reduces(schedule, one) for one in (block, *readers)):
        return False
    (written,) = map(buffer_of_region, schedule.get(block).writes)
    return reads_once(schedule, readers[0], written)


def _is_symbolic(schedule: Any) -> bool:
    axes = (axis for block in _blocks(schedule) for axis in schedule.get(block).iter_vars)
    return any(not isinstance(as_size(axis.dom.extent), int) for axis in axes)


def _reduces(schedule: Any, block: Any) -> bool:
    return any(axis.iter_type == REDUCTION for axis in schedule.get(block).iter_vars)


def _points(schedule: Any, loops: Iterable[Any]) -> int:
    """Return the number of iterations of nested loops; a symbolic loop counts as ``_TASKS``."""
    return prod(known_extent(schedule, loop) or _TASKS for loop in loops)


def _work(schedule: Any, block: Any) -> int:
    """Return the points of a block, or of a stage before it if that has more."""
    stages = [one for one in schedule.get_producers(block) if _is_stage(schedule, one)]
    own = _points(schedule, schedule.get_loops(block))
    return max([own, *(_work(schedule, stage) for stage in stages)])


def _is_unrolled(schedule: Any, block: Any, loops: list[Any]) -> bool:
    """Return whether LLVM unrolls a reduction inside of a row."""
    limit = _UNROLLED if reads_once(schedule, block) else _UNROLLED_WINDOW
    extents = [known_extent(schedule, loop) for loop in loops]
    return None not in extents and prod(extent or 0 for extent in extents) <= limit


def _schedule(schedule: Any, block: Any) -> Any:
    """Share a block's spatial loops among the threads, reductions outside of the last of them.

    Return the outermost loop of the reduction, or None where there is none.
    """
    loops, kinds = schedule.get_loops(block), loop_kinds(schedule, block) or []
    spatial = kinds.count(SPATIAL)
    outer, reductions = loops[:spatial], loops[spatial:]
    length = row_parts(schedule, block)
    if length is not None:
        outer[-1:] = schedule.split(outer[-1], [None, length])
        spatial += 1
    is_columns = has_columns(schedule, block) and not _is_unrolled(schedule, block, reductions)
    known = [known_extent(schedule, loop) or _TASKS for loop in (*outer, *reductions)]
    are_many = prod(known[: spatial - is_columns]) >= _TASKS
    points = _work(schedule, block) if are_many else prod(known)
    is_worth_it = points >= _PARALLEL_POINTS
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
    return reductions[0] if reductions else None


def _share(schedule: Any, part: Any) -> None:
    """Share the longest loop of a part of a block, except the last one, among the threads.

    Loops that begin behind 0 cannot be joined.
    """
    *outer, row = schedule.get_loops(part)
    if outer and _points(schedule, (*outer, row)) >= _PARALLEL_POINTS:
        schedule.parallel(max(outer, key=lambda loop: known_extent(schedule, loop) or 0))
