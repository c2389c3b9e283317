# SPDX-License-Identifier: Apache-2.0
"""Reductions in stages: rows first, in vectors, then the elements of a row.

TVM reduces to one number, one element after the other, which no compiler may make vectors of::

    for each result:
        for each reduced element: result = combine(result, element)

A reduction whose operands are read along its last reduced axis becomes two::

    for each result:
        for each reduced row:
            for each lane of a row: part[lane] = combine(part[lane], row[lane])      vectors
        for each lane: result = combine(result, part[lane])

Many rows are reduced in chunks, which threads share.  A sum then rounds as often as its longest
stage, instead of once for each element.

The number of chunks of a symbolic axis follows from its size: no chunk is padded to a constant
length.  Calls with few elements skip the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from math import isqrt, prod
from typing import Any

from ..compat import (
    as_size,
    buffer_of_region,
    intrinsic_name,
    s_tir,
    same_size,
    simplify,
    tir,
    uses_var,
    with_choice,
    with_merged_loops,
    with_replaced,
    with_split_loop,
    with_updates,
)
from .blocks import (
    FUNCTIONS,
    REDUCTION,
    SPATIAL,
    has_columns,
    is_spatial,
    known_extent,
    loop_kinds,
    reads_along,
    reads_once,
)
from .float_semantics import infinite
from .partition import partitioned

_SHORT = 32
"""Reductions of fewer elements stay as they are."""

_SHORT_ROW = 64
"""Reductions of symbolic length stay as they are in calls where they have fewer elements."""

_LANES = 16
"""Lanes of a row that is the only reduced axis; shorter rows are fused with the axis before."""

_WIDE_LANES = 64
"""Lanes of a long row: several vectors, whose additions do not wait for each other."""

_SYMBOLIC_LANES = 32
"""Lanes of a row of symbolic length: short rows fill them, and long rows have several vectors."""

_TOTAL_LANES = 8
"""Lanes of a stage that reduces many lanes: few are left to be combined one after the other."""

_LONG_ROW = 1024
"""Rows of more elements are cut into steps of lanes: the lanes stay in the first cache."""

_LONG_STAGE = 512
"""Stages of more steps are cut into chunks."""

_CHUNK_STEPS = 128
"""Most steps of a chunk where their number is symbolic."""

_POINTS = 1 << 15
_TASKS = 16
"""Reductions of so many points or more are cut into so many tasks where results are fewer."""

_STAGE = "topi_ext_stage"
"""Annotation of a block that is a stage of a reduction, and reads its operand once as that does."""

_SHORT_LOOP = 64
"""Loops of so many elements are unrolled by LLVM as a whole."""

_CHUNK = "topi_ext_chunk"
"""Annotation of a stage that reduces a chunk of steps, and is not cut again."""

_GUARD = "topi_ext_guard"
"""Annotation of the block that :func:`_guarded` rewrites."""


def in_stages(func: Any, schedule: Callable[[Any], Any]) -> Any:
    """Schedule `func` with its reductions rewritten into stages that read rows.

    Element-wise blocks that only a reduction reads are computed where it reads them.  Reductions of
    symbolic length are rewritten and also kept as they are, for the calls where they are short.

    Parameters
    ----------
    func : PrimFunc
        As an operator was legalized, without a schedule; with or without symbolic sizes.
    schedule : callable
        Such as :func:`topi_ext.schedules.loops.parallelized`: ``schedule(func)`` returns a
        function, scheduled.

    Returns
    -------
    PrimFunc
    """
    attrs = func.attrs or {}
    if "tirx.is_scheduled" in attrs or "tirx.noalias" not in attrs:
        return schedule(func)
    try:
        whole = _everywhere(_in_loops(func), _inline)
        whole = staged = _everywhere(whole, _merge)
        for rewrite in (_split_rows, _split_steps, _unmark):
            staged = _everywhere(staged, rewrite)
        condition = None if staged is whole else _is_short(whole)
    except s_tir.ScheduleError:  # no root block
        return schedule(func)
    long = partitioned(schedule(staged))
    return long if condition is None else with_choice(condition, schedule(whole), long)


def _in_loops(func: Any) -> Any:
    """Return `func` with a loop around each block that has none.

    Beside such a block, TVM's ``rfactor`` of another one fails.
    """
    schedule = s_tir.Schedule(func, debug_mask="none")
    for block in _blocks(schedule):
        if not schedule.get_loops(block):
            schedule.add_unit_loop(block)
    return schedule.mod["main"]


def _is_short(func: Any) -> Any:
    """Return the condition that all reductions of `func` are short, or None where it is known."""
    schedule = s_tir.Schedule(func, debug_mask="none")
    counts = []
    for block in _blocks(schedule):
        axes = [axis for axis in schedule.get(block).iter_vars if axis.iter_type == REDUCTION]
        counts.append(simplify(prod(axis.dom.extent for axis in axes)))
    if any(isinstance(count, int) and count >= _SHORT for count in counts):
        return None
    conditions = [count < _SHORT_ROW for count in counts if not isinstance(count, int)]
    return reduce(tir.And, conditions) if conditions else None


def _everywhere(func: Any, rewrite: Callable[[Any, Any], Any]) -> Any:
    """Return `func` after ``rewrite(schedule, block)`` of its blocks and of those that it makes.

    A rewrite returns the function that it makes, or None for a block that stays as it is; it may
    then have reordered loops.
    """
    refused: set[str] = set()
    while (rewritten := _first_rewritten(func, rewrite, refused)) is not None:
        func = rewritten
    return func


def _first_rewritten(func: Any, rewrite: Callable[[Any, Any], Any], refused: set[str]) -> Any:
    """Return `func` after a rewrite of its first block that is not in `refused`, or None.

    A block at which TVM refuses the rewrite is added to `refused`, and `func` is returned.
    """
    schedule = s_tir.Schedule(func, debug_mask="none")
    for block in _blocks(schedule):
        name = schedule.get(block).name_hint
        if name in refused or loop_kinds(schedule, block) is None:
            continue
        try:
            rewritten = rewrite(schedule, block)
        except s_tir.ScheduleError:
            refused.add(name)
            return func  # the schedule may have changed
        if rewritten is not None:
            return rewritten
    return None


def _inline(schedule: Any, block: Any) -> Any:
    """Inline an element-wise block into the only block that reads it.

    An element that is read several times is computed again each time only if it is no function such
    as a logarithm.
    """
    readers = schedule.get_consumers(block)
    if not is_spatial(schedule, block) or len(readers) != 1:
        return None
    (written,) = map(buffer_of_region, schedule.get(block).writes)
    if loop_kinds(schedule, readers[0]) is None:
        return None
    is_cheap = is_spatial(schedule, readers[0]) and not _calls_function(schedule, block)
    if not (is_cheap or reads_once(schedule, readers[0], written)):
        return None
    schedule.compute_inline(block)
    return schedule.mod["main"]


def _calls_function(schedule: Any, block: Any) -> bool:
    """Return whether the statement of `block` calls a function of mathematics."""
    found: list[str] = []

    def note(call: Any) -> None:
        found.append(intrinsic_name(call))

    with_replaced(schedule.get(block).body, {"Call": note})
    return not FUNCTIONS.isdisjoint(found)


def _merge(schedule: Any, block: Any) -> Any:
    """Merge two neighbouring axes, the last one of which is symbolic and may be short, or is short
    and that of an element-wise block: LLVM would unroll it before it makes vectors.

    Every operand and the result have both side by side in memory, or neither.  Threads get enough
    of the results' other axes.  Memory of the function itself keeps its axes: TVM makes it as large
    as its indices.
    """
    loops, stated = schedule.get_loops(block), schedule.get(block)
    regions = [*stated.reads, *stated.writes]
    inner = schedule.get(schedule.get_sblock("root")).alloc_buffers
    for first in _to_merge(schedule, block):
        axes = stated.iter_vars[first : first + 2]
        used = [region for region in regions if _uses(region, axes)]
        if any(buffer_of_region(region).same_as(one) for region in used for one in inner):
            continue
        if all(_are_neighbours(region, *axes) for region in used):
            pair = schedule.get(loops[first]), schedule.get(loops[first + 1])
            func = schedule.mod["main"]
            body = with_merged_loops(func.body, stated, pair, first)
            return None if body is None else func.with_body(body)
    return None


def _to_merge(schedule: Any, block: Any) -> Iterator[int]:
    """Yield the number of each axis that may be merged with the next one."""
    kinds, loops = loop_kinds(schedule, block) or [], schedule.get_loops(block)
    extents = [known_extent(schedule, loop) for loop in loops]
    spatial = kinds.count(SPATIAL)
    for first in [*range(max(spatial - 2, 0), spatial - 1), *range(spatial, len(kinds) - 1)]:
        last = extents[first + 1]
        if 1 in extents[first : first + 2]:
            continue
        if last is not None and (spatial < len(kinds) or last > _SHORT_LOOP):
            continue
        # A symbolic batch may be one element.
        others = extents[last is None : max(spatial - 2, 0)]
        are_many = spatial > 3 and prod(size or _TASKS for size in others) >= _TASKS
        if first >= spatial or are_many:
            yield first


def _uses(region: Any, axes: Any) -> bool:
    return any(uses_var(index.min, axis.var) for index in region.region for axis in axes)


def _are_neighbours(read: Any, first: Any, second: Any) -> bool:
    """Return whether two variables of a block are neighbouring indices of an operand, of which the
    second one reaches whole axes, and occur in no others."""
    indices, sizes = [index.min for index in read.region], buffer_of_region(read).shape
    pairs = [
        axis
        for axis in range(1, len(indices))
        if indices[axis - 1].same_as(first.var)
        and indices[axis].same_as(second.var)
        and same_size(sizes[axis], second.dom.extent)
    ]
    others = [index for axis, index in enumerate(indices) if not {axis, axis + 1} & set(pairs)]
    return not any(uses_var(index, axis.var) for index in others for axis in (first, second))


def _split_rows(schedule: Any, block: Any) -> Any:
    """Have a reduction that reads along its last axis reduce rows, then the lanes of a row."""
    kinds = loop_kinds(schedule, block) or []
    spatial = kinds.count(SPATIAL)
    reduced = schedule.get_loops(block)[spatial:]
    points = prod(known_extent(schedule, loop) or _LONG_ROW for loop in reduced)
    if points < _SHORT or not _is_reduction(schedule, block) or has_columns(schedule, block):
        return None
    steps = _steps(schedule, block)
    count, length = _innermost([known_extent(schedule, loop) for loop in steps])
    is_short = length is not None and length < _LANES
    if is_short or not reads_along(schedule, block, len(kinds) - 1):
        return None
    row = schedule.fuse(*steps[-count:]) if count > 1 else steps[-1]
    if count < len(steps) and length is not None and length <= _LONG_ROW:
        _factor(schedule, block, row, spatial)
        return schedule.mod["main"]
    size = schedule.get(row).extent
    lanes = _TOTAL_LANES if _is_total(schedule, block) else _lane_count(length)
    turns = None if length is None else _even_steps(-(-length // lanes))
    _, lane = schedule.split(row, [turns, lanes], disable_predication=True)
    part = _factor(schedule, block, lane, spatial)
    if turns is not None and turns * lanes == length:
        return schedule.mod["main"]
    return _guarded(schedule, part, (-1, spatial), size)


def _innermost(extents: list[int | None]) -> tuple[int, int | None]:
    """Return how many of the last loops are a row, and its length, None where it is symbolic."""
    count, length = 1, extents[-1]
    while length is not None and length < _LANES and count < len(extents):
        extent = extents[-count - 1]
        count, length = count + 1, None if extent is None else extent * length
    return count, length


def _split_steps(schedule: Any, block: Any) -> Any:
    """Have a reduction of many columns reduce chunks of them, then the chunks."""
    if not _is_reduction(schedule, block) or not has_columns(schedule, block):
        return None
    spatial = (loop_kinds(schedule, block) or []).count(SPATIAL)
    steps = _steps(schedule, block)
    if not steps:
        return None
    count = prod(known_extent(schedule, loop) or 0 for loop in steps)
    if not count:
        step = next(loop for loop in steps if known_extent(schedule, loop) is None)
        return _split_symbolic_steps(schedule, block, step, spatial - 1)
    results = schedule.get_loops(block)[:spatial]
    *outer, row = (known_extent(schedule, loop) or _TASKS for loop in results)
    chunks = _chunk_count(count, prod(outer), row)
    if chunks == 1:
        return None
    length = -(-count // chunks)
    step = schedule.fuse(*steps) if len(steps) > 1 else steps[0]
    size = schedule.get(step).extent
    chunk, _ = schedule.split(step, [None, length], disable_predication=True)
    part = _factor(schedule, block, chunk, spatial - 1)
    if count % length == 0:
        return schedule.mod["main"]
    return _guarded(schedule, part, (spatial - 1, -1), size)


def _split_symbolic_steps(schedule: Any, block: Any, step: Any, axis: int) -> Any:
    """Have a reduction reduce chunks of a loop of symbolic length, then the chunks.

    There is one chunk at least, and no chunk has more than ``_CHUNK_STEPS`` steps: a loop of fewer
    steps is one chunk, and not padded.
    """
    if _is_total(schedule, block) or _CHUNK in schedule.get(block).annotations:
        return None
    loop = schedule.get(step)
    number = _position(schedule, _blocks(schedule), block)
    depth = _position(schedule, schedule.get_loops(block), step)
    # Quotients of powers of two only: others take longer than short rows, for each of them.
    chunks = tir.max((loop.extent + _CHUNK_STEPS - 1) // _CHUNK_STEPS, 1)
    length = tir.min(loop.extent, _CHUNK_STEPS)
    func = schedule.mod["main"]
    func = func.with_body(with_split_loop(func.body, loop, chunks, length))
    schedule = s_tir.Schedule(func, debug_mask="none")
    block = _blocks(schedule)[number]
    part = _factor(schedule, block, schedule.get_loops(block)[depth], axis)
    schedule.annotate(part, _CHUNK, 1)
    return _guarded(schedule, part, (axis, depth + 1), loop.extent)


def _position(schedule: Any, handles: list[Any], handle: Any) -> int:
    """Return the position of a block or a loop among others."""
    return [schedule.get(one).same_as(schedule.get(handle)) for one in handles].index(True)


def _blocks(schedule: Any) -> list[Any]:
    found: list[Any] = schedule.get_child_blocks(schedule.get_sblock("root"))
    return found


def _chunk_count(steps: int, results: int, row: int) -> int:
    """Return into how many chunks `steps` are cut, for `results` rows of so many elements."""
    chunks = isqrt(steps) if steps > _LONG_STAGE else 1
    if steps * results * row >= _POINTS and results < _TASKS:
        chunks = max(chunks, min(-(-_TASKS // results), steps // _LANES))
    divisors = (count for count in range(chunks, 2 * chunks + 1) if steps % count == 0)
    return next(divisors, chunks) if chunks > 1 else 1


def _even_steps(steps: int) -> int:
    """Return how many steps a row takes that is cut into chunks of equal length."""
    if steps <= _LONG_STAGE:
        return steps
    chunks = isqrt(steps)
    return -(-steps // chunks) * chunks


def _steps(schedule: Any, block: Any) -> list[Any]:
    """Return the loops of a reduction that have steps, after the others have moved before them."""
    spatial = (loop_kinds(schedule, block) or []).count(SPATIAL)
    loops = schedule.get_loops(block)[spatial:]
    is_step = [known_extent(schedule, loop) != 1 for loop in loops]
    order = sorted(range(len(loops)), key=is_step.__getitem__)
    if order != sorted(order):
        schedule.reorder(*(loops[axis] for axis in order))
        order = [*range(spatial), *(spatial + axis for axis in order)]
        schedule.reorder_block_iter_var(block, order)
    return [loop for loop, has_steps in zip(loops, is_step) if has_steps]


def _is_total(schedule: Any, block: Any) -> bool:
    """Return whether `block` reads nothing but the result of a reduction."""
    producers = schedule.get_producers(block)
    return (
        bool(producers)
        and len(schedule.get(block).reads) == 1
        and (not any(is_spatial(schedule, producer) for producer in producers))
    )


def _is_reduction(schedule: Any, block: Any) -> bool:
    """Return whether `block` reduces to one result elements each of which it reads once."""
    if is_spatial(schedule, block) or len(schedule.get(block).writes) != 1:
        return False
    return _STAGE in schedule.get(block).annotations or reads_once(schedule, block)


def _unmark(schedule: Any, block: Any) -> Any:
    """Remove the annotations of a stage."""
    marks = [mark for mark in (_STAGE, _CHUNK) if mark in schedule.get(block).annotations]
    for mark in marks:
        schedule.unannotate(block, mark)
    return schedule.mod["main"] if marks else None


def _factor(schedule: Any, block: Any, loop: Any, axis: int) -> Any:
    """Return the block that reduces to one part for each iteration of `loop`.

    The parts are axis `axis` of its results.  `block` is left with the reduction of the parts.
    """
    name = schedule.get(loop).loop_var.name
    part = schedule.rfactor(loop, axis)
    loops = schedule.get_loops(part)
    (loop,) = (one for one in loops if schedule.get(one).loop_var.name == name)
    others = [one for one in loops if not one.same_as(loop)]
    schedule.reorder(*others[:axis], loop, *others[axis:])
    # rfactor puts the iteration variable of the parts in front of the others.
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(schedule.get(part).iter_vars))]
    schedule.reorder_block_iter_var(part, order)
    if _STAGE not in schedule.get(part).annotations:
        schedule.annotate(part, _STAGE, 1)
    count = len(schedule.get(block).iter_vars)
    schedule.reorder_block_iter_var(block, [*range(1, count), 0])
    return part


def _lane_count(length: int | None) -> int:
    """Return how many lanes a row has: a divisor of its length where there is a fitting one."""
    if length is None:
        return _SYMBOLIC_LANES
    count = _LANES if length < _LONG_ROW else _WIDE_LANES
    divisors = [n for n in range(count // 2, 2 * count + 1) if length % n == 0]
    return min(divisors, key=lambda n: (n % 8 != 0, abs(n - count)), default=count)


def _guarded(schedule: Any, block: Any, axes: tuple[int, int], size: Any) -> Any:
    """Return the scheduled function, whose `block` combines nothing beyond the end of an axis.

    The axis has `size` elements; variables `axes` of the block are its outer and inner part.
    """

    def within(block: Any, value: Any) -> Any:
        outer, inner = (block.iter_vars[axis] for axis in axes)
        length = as_size(inner.dom.extent)
        is_inside = outer.var * length + inner.var < size
        initial, infinity = block.init.value, infinite(block.init.value)
        guarded = tir.if_then_else(is_inside, value, initial if infinity is None else infinity)
        if not isinstance(length, int):
            return guarded
        # LLVM makes a loop without the guard of whole steps.
        return tir.if_then_else(outer.var < size // length, value, guarded)

    schedule.annotate(block, _GUARD, 1)
    func = schedule.mod["main"]
    return func.with_body(with_updates(func.body, _GUARD, within))
