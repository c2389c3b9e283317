# SPDX-License-Identifier: Apache-2.0
"""Schedules for the operators around ours.  TVM's CPU pipeline leaves them as they were defined::

    parallel over all spatial axes but the last:
        for each reduction:
            for the last spatial axis:          LLVM makes vectors of it
                ...

Where that would read across memory, the reduction stays inside.
:mod:`~topi_ext.schedules.reductions` has made that rare, and has inlined element-wise blocks.

On GPUs TVM has rules of its own, but for scalars: :func:`scalars_on_gpu`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..compat import s_tir
from .blocks import SPATIAL, has_columns, is_spatial, known_extent, loop_kinds, row_parts

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
    return _scheduled(func, _parallel)


def _scheduled(func: Any, write: Callable[[Any, list[Any]], bool]) -> Any:
    """`func`, scheduled by ``write(schedule, blocks)``; `func` itself where that says no, or fails,
    or where there is a schedule."""
    attrs = func.attrs or {}
    if "tirx.is_scheduled" in attrs or "tirx.noalias" not in attrs:
        return func
    schedule = s_tir.Schedule(func, debug_mask="none")
    try:
        if not write(schedule, schedule.get_child_blocks(schedule.get_sblock("root"))):
            return func
    except s_tir.ScheduleError:
        return func  # as TVM would have it
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)


def _parallel(schedule: Any, blocks: list[Any]) -> bool:
    if any(loop_kinds(schedule, block) is None for block in blocks):
        return False
    for block in blocks:
        _schedule(schedule, block)
    return True


_THREADS = 256
"""Threads of a block of a GPU."""

_BLOCKS = 64
"""Most blocks that share one sum."""


def scalars_on_gpu(func: Any) -> Any:
    """`func`, bound to a GPU's threads where it makes one number of a tensor, in several steps.

    At a mean over all axes TVM's rules for GPUs fail; a variance they leave to the processor, which
    can't read the GPU's memory.  Here a sum is shared by blocks of threads, and a second launch
    adds what they have::

        launch: part[thread of any block] = sum of every (blocks * threads)-th element
        launch: sum of part, by the threads of one block
        launch: what is done to it

    Parameters
    ----------
    func : PrimFunc
        As an operator was legalized; with or without symbolic sizes.

    Returns
    -------
    PrimFunc
        `func` itself where TVM's rules do.
    """
    return _scheduled(func, _scalars)


def _scalars(schedule: Any, blocks: list[Any]) -> bool:
    scalars = [block for block in blocks if not schedule.get_loops(block)]
    for block in scalars:
        schedule.add_unit_loop(block)
    if any(loop_kinds(schedule, block) is None for block in blocks):
        return False
    if not scalars or all(is_spatial(schedule, block) for block in blocks):
        return False
    for block in blocks:
        if schedule.get_consumers(block) and is_spatial(schedule, block):
            schedule.compute_inline(block)
        else:
            _on_threads(schedule, block)
    return True


def _on_threads(schedule: Any, block: Any) -> None:
    """Bind a block's spatial loops to blocks and threads; a sum without any is shared by them."""
    loops, kinds = schedule.get_loops(block), loop_kinds(schedule, block) or []
    spatial, reductions = loops[: kinds.count(SPATIAL)], loops[kinds.count(SPATIAL) :]
    is_sum = reductions and all(known_extent(schedule, loop) == 1 for loop in spatial)
    chosen = reductions if is_sum else spatial
    one = schedule.fuse(*chosen) if len(chosen) > 1 else chosen[0]
    if is_sum:
        one = _in_parts(schedule, block, one)
        number = schedule.add_unit_loop(one)
        _, thread = schedule.split(one, [None, _THREADS])
    else:
        number, thread = schedule.split(one, [None, _THREADS])
    schedule.bind(number, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")


def _in_parts(schedule: Any, block: Any, loop: Any) -> Any:
    """Have the sum of `block` over `loop` made of parts, one a thread; the loop over the parts.

    Parts are as many as threads, so their own sum needs no condition.  Under one that names the
    block as well as the thread (6000 elements, by 256), TVM makes of a sum over threads one that
    all of them add to at once.
    """
    elements = known_extent(schedule, loop)
    blocks = _BLOCKS if elements is None else min(_BLOCKS, elements // _THREADS)
    if blocks == 0:
        return loop
    turn, lane = schedule.split(loop, [None, blocks * _THREADS])
    part = schedule.rfactor(lane, 0)
    turn, lane = schedule.get_loops(part)[-2:]
    schedule.reorder(lane, turn)
    number, thread = schedule.split(lane, [None, _THREADS])
    schedule.bind(number, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    # Also of a part that no element belongs to: an update alone would leave it as it is.
    schedule.decompose_reduction(part, turn)
    return schedule.get_loops(block)[-1]


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
