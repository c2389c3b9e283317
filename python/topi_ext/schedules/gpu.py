# SPDX-License-Identifier: Apache-2.0
"""Schedules of the operators around our kernels for GPUs.

==========================  ===================================================================
element-wise, copies        a thread computes a vector of neighbours
windows (poolings)          a thread reduces a window in a register
reductions along memory     a warp or a block shares a row, by shuffles
reductions across memory    neighbouring threads have neighbouring columns, rows of threads share
                            the elements of a column in shared memory
normalized rows             a block reduces its row, then computes its elements: one launch
reductions to one number    blocks share the elements
==========================  ===================================================================

Where there are too few results to fill a GPU, a reduction is computed in parts by one launch, and
a second launch combines the parts.  There are no atomic operations, so results are the same in
every run.  An element-wise block is computed where it is read; one that reads each result of a
reduction once is computed by the launch of the reduction.

Matrix products are left to TVM's rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..compat import buffer_of_region, dtype_name, s_tir
from ..spec.dtypes import byte_width
from .blocks import (
    SPATIAL,
    has_columns,
    has_nodes,
    is_spatial,
    known_extent,
    loop_kinds,
    reads_along,
    reads_once,
)
from .loops import scheduled

_THREADS = 256
"""Threads of a block."""

_WARP = 32

_BLOCKS = 256
"""Blocks that fill a GPU."""

_SHORT = 32
"""Reductions of at most so many elements are computed by one thread."""

_WARP_ROW = 1024
"""Rows of at most so many elements are shared by a warp, longer ones by a block."""

_TURNS = 8
"""Elements of a thread in a part of a reduction, at least."""

_LONG_ROW, _FEW_ROWS = 4096, 128
"""Fewer and longer rows are normalized by several launches, which fill a GPU."""

_MANY_RESULTS = 1 << 16
"""So many results fill a GPU with one thread each."""

_SCALAR_BLOCKS = 64
"""Most blocks that share a reduction to one number."""

_VECTOR_BYTES = 16
_VECTOR_DTYPES = {"float16", "float32"}
_OTHER_LANES = 4
"""Most lanes of vectors of conditions, and of float32 from halves, that TVM's CUDA code has."""
_OTHER_NODES = ("EQ", "NE", "LT", "LE", "GT", "GE", "Not", "Select", "Cast")


def on_gpu(func: Any) -> Any:
    """Bind the loops of `func` to the blocks and threads of a GPU.

    Parameters
    ----------
    func : PrimFunc
        As an operator was legalized; with or without symbolic sizes.

    Returns
    -------
    PrimFunc
        `func` itself if it has a schedule, contains a matrix product, or has a block that is more
        than loops around one statement.
    """
    return scheduled(func, _bind)


def _bind(schedule: Any, blocks: list[Any]) -> bool:
    for block in blocks:
        if not schedule.get_loops(block):
            schedule.add_unit_loop(block)
    if not blocks or any(loop_kinds(schedule, block) is None for block in blocks):
        return False
    if any(_is_product(schedule, block) for block in blocks):
        return False
    kept = []
    for block in blocks:
        if schedule.get_consumers(block) and is_spatial(schedule, block):
            schedule.compute_inline(block)
        else:
            kept.append(block)
    if _are_normalized_rows(schedule, kept):
        _normalize_rows(schedule, kept)
        return True
    finished = {_name(schedule, end) for block in kept for end in _ends(schedule, block)}
    for block in kept:
        if _name(schedule, block) not in finished:
            _bind_block(schedule, block)
    return True


def _is_product(schedule: Any, block: Any) -> bool:
    """Return whether `block` is a sum of products that reads each of its operands repeatedly."""
    if is_spatial(schedule, block) or reads_once(schedule, block):
        return False
    _, reduced = _loops(schedule, block)
    count = _count(schedule, reduced)
    return len(_operands(schedule, block)) > 1 and (count is None or count > _SHORT)


def _operands(schedule: Any, block: Any) -> list[Any]:
    """Return what `block` reads, besides its own results."""
    stated = schedule.get(block)
    written = [buffer_of_region(write) for write in stated.writes]
    read = map(buffer_of_region, stated.reads)
    return [buffer for buffer in read if not any(buffer.same_as(own) for own in written)]


def _name(schedule: Any, block: Any) -> str:
    return str(schedule.get(block).name_hint)


def _loops(schedule: Any, block: Any) -> tuple[list[Any], list[Any]]:
    """Return the loops over results, and those that are reduced."""
    loops, kinds = list(schedule.get_loops(block)), loop_kinds(schedule, block) or []
    return loops[: kinds.count(SPATIAL)], loops[kinds.count(SPATIAL) :]


def _count(schedule: Any, loops: Sequence[Any]) -> int | None:
    """Return the number of iterations of some loops, or None where it is symbolic."""
    extents = [known_extent(schedule, loop) for loop in loops]
    return None if None in extents else prod(extent or 0 for extent in extents)


def _ends(schedule: Any, block: Any) -> list[Any]:
    """Return the element-wise block that alone reads each result of the reduction `block`, once."""
    readers = schedule.get_consumers(block)
    if is_spatial(schedule, block) or len(readers) != 1 or not is_spatial(schedule, readers[0]):
        return []
    results, reader = _loops(schedule, block)[0], schedule.get(readers[0])
    if len(reader.iter_vars) != len(results) or _count(schedule, results) != _count(
        schedule, schedule.get_loops(readers[0])
    ):
        return []
    return [readers[0]] if _reads_at(schedule, block, reader, len(results)) else []


def _reads_at(schedule: Any, block: Any, reader: Any, axes: int) -> bool:
    """Return whether `reader` reads the results of `block` only at its own first `axes` indices."""
    written = [buffer_of_region(write) for write in schedule.get(block).writes]
    variables = [axis.var for axis in reader.iter_vars][:axes]
    for read in reader.reads:
        if any(buffer_of_region(read).same_as(buffer) for buffer in written):
            indices = [index.min for index in read.region]
            if len(indices) != axes or not all(map(_is_same, indices, variables)):
                return False
    return True


def _is_same(a: Any, b: Any) -> bool:
    return bool(a.same_as(b))


def _fused(schedule: Any, loops: Sequence[Any]) -> Any:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _bind_block(schedule: Any, block: Any) -> None:
    results, reduced = _loops(schedule, block)
    if not results:
        results = [schedule.add_unit_loop(reduced[0])]
    if not reduced:
        _elementwise(schedule, block)
        return
    count, length = _count(schedule, results), _count(schedule, reduced)
    if (length is not None and length <= _SHORT) or not _is_shared(schedule, block, reduced):
        _one_thread_each(schedule, block, results, reduced)
    elif count == 1:
        _one_number(schedule, block, results, reduced)
    elif has_columns(schedule, block):
        _columns(schedule, block, results, reduced)
    else:
        _rows(schedule, block, results, reduced)


def _is_shared(schedule: Any, block: Any, reduced: Sequence[Any]) -> bool:
    """Return whether threads can share the reduction: TVM knows how to combine its parts."""
    trial = schedule.copy()
    try:
        trial.rfactor(reduced[0], 0)
    except s_tir.ScheduleError:
        return False
    return True


# ---------------------------------------------------------------------- one thread for a result


def _elementwise(schedule: Any, block: Any) -> None:
    loops, vector = list(schedule.get_loops(block)), None
    lanes = _lanes(schedule, block)
    if lanes > 1:
        loops[-1], vector = schedule.split(loops[-1], [None, lanes])
    _on_threads(schedule, loops)
    if vector is not None:
        schedule.vectorize(vector)


def _lanes(schedule: Any, block: Any) -> int:
    """Return the number of results of a thread: a vector where they are neighbours in memory, in
    every operand too."""
    row = known_extent(schedule, schedule.get_loops(block)[-1])
    stated = schedule.get(block)
    buffers = [*map(buffer_of_region, stated.writes), *_operands(schedule, block)]
    dtypes = {dtype_name(buffer.dtype) for buffer in buffers}
    if row is None or not dtypes <= _VECTOR_DTYPES:
        return 1
    if not reads_along(schedule, block, len(stated.iter_vars) - 1):
        return 1
    lanes = _VECTOR_BYTES // max(map(byte_width, dtypes))
    if has_nodes(schedule, block, _OTHER_NODES):
        lanes = min(lanes, _OTHER_LANES)
    while row % lanes:
        lanes //= 2
    return lanes


def _on_threads(schedule: Any, loops: Sequence[Any]) -> Any:
    """Bind loops to blocks and their threads, and return the loop over threads."""
    number, thread = schedule.split(_fused(schedule, loops), [None, _THREADS])
    schedule.bind(number, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return thread


def _one_thread_each(
    schedule: Any, block: Any, results: Sequence[Any], reduced: Sequence[Any]
) -> None:
    """Have a thread compute each result, in a register."""
    ends = _in_registers(schedule, block)
    thread = _on_threads(schedule, results)
    for end in ends:
        schedule.reverse_compute_at(end, thread)
    schedule.decompose_reduction(block, reduced[0])


def _in_registers(schedule: Any, block: Any) -> list[Any]:
    """Keep the results of a reduction in registers, and return the blocks that read them there."""
    ends = _fused_ends(schedule, block)
    count = len(schedule.get(block).writes)
    return ends or [schedule.cache_write(block, number, "local") for number in range(count)]


def _fused_ends(schedule: Any, block: Any) -> list[Any]:
    """Return the block that finishes the results of a reduction, which then stay in registers."""
    ends = _ends(schedule, block)
    for number in range(len(schedule.get(block).writes) if ends else 0):
        schedule.set_scope(block, number, "local")
    return ends


# ---------------------------------------------------------------------- threads share a result


def _rows(schedule: Any, block: Any, results: list[Any], reduced: list[Any]) -> None:
    """Have a warp or a block reduce each row; few long rows in parts."""
    count, length = _count(schedule, results), _count(schedule, reduced)
    parts = _part_count(length, 1 if count is None else count, _THREADS)
    if parts > 1:
        part = _factored(schedule, block, reduced, parts, len(results))
        *outer, chunk = schedule.get_loops(part)
        _share(schedule, part, outer, [chunk], (1, _THREADS), "xy")
        _bind_block(schedule, block)
        return
    is_short = length is not None and length <= _WARP_ROW
    rows = _divisor(count, 8) if is_short else 1
    _share(schedule, block, results, reduced, (rows, _WARP if is_short else _THREADS), "xy")


def _columns(schedule: Any, block: Any, results: list[Any], reduced: list[Any]) -> None:
    """Have a block reduce neighbouring columns; few long columns in parts."""
    count, length = _count(schedule, results), _count(schedule, reduced)
    width = _divisor(count, _WARP)
    if count is None or length is None or count >= _MANY_RESULTS or width < _WARP // 4:
        _one_thread_each(schedule, block, results, reduced)
        return
    height = _THREADS // _WARP
    parts = _part_count(length, count // width, height)
    if parts > 1:
        part = _factored(schedule, block, reduced, parts, 0)
        *outer, number, chunk = schedule.get_loops(part)
        schedule.reorder(number, *outer, chunk)
        _share(schedule, part, [number, *outer], [chunk], (width, height), "yx")
        _bind_block(schedule, block)
        return
    _share(schedule, block, results, reduced, (width, height), "yx")


def _divisor(count: int | None, most: int) -> int:
    """Return the largest divisor of `count` up to `most`; 1 for a symbolic number.

    Results of a block are a divisor of all of them: TVM makes of a sum over threads one that all
    of them add to at once, where a condition names the block as well.
    """
    return max((n for n in range(1, most + 1) if count is not None and count % n == 0), default=1)


def _part_count(length: int | None, blocks: int, threads: int) -> int:
    """Return into how many parts a reduction of `length` elements is divided, which `blocks` blocks
    compute otherwise: a divisor of its length."""
    if length is None:
        return 1
    return _divisor(length, min(_BLOCKS // max(1, blocks), length // (threads * _TURNS)))


def _factored(schedule: Any, block: Any, reduced: list[Any], parts: int, axis: int) -> Any:
    """Return the new block that reduces parts, whose number is this axis of its result."""
    number, _ = schedule.split(_fused(schedule, reduced), [parts, None])
    part = schedule.rfactor(number, axis)
    count = len(schedule.get(block).iter_vars)
    schedule.reorder_block_iter_var(block, [*range(1, count), 0])
    return part


def _share(
    schedule: Any,
    block: Any,
    results: list[Any],
    reduced: list[Any],
    tile: tuple[int, int],
    axes: str,
) -> None:
    """Bind a reduction to blocks of ``tile = (results, threads of a result)``.

    The threads of a result are numbered by ``threadIdx`` of the first of two `axes`, the results of
    a block by the second.
    """
    shared, own = (f"threadIdx.{axis}" for axis in axes)
    ends = _fused_ends(schedule, block)
    number, result = schedule.split(_fused(schedule, results), [None, tile[0]])
    turn, thread = schedule.split(_fused(schedule, reduced), [None, tile[1]])
    schedule.bind(number, "blockIdx.x")
    schedule.bind(result, own)
    schedule.bind(thread, shared)
    schedule.annotate(turn, "pragma_auto_unroll_max_step", _TURNS)
    schedule.annotate(turn, "pragma_unroll_explicit", 0)
    for end in ends:
        schedule.reverse_compute_at(end, result, preserve_unit_loops=True)
        _, one = schedule.split(_fused(schedule, schedule.get_loops(end)[2:]), [None, tile[1]])
        schedule.bind(one, shared)


# ---------------------------------------------------------------------- normalized rows


def _are_normalized_rows(schedule: Any, blocks: Sequence[Any]) -> bool:
    """Return whether the last block is element-wise on rows that all others reduce, such as softmax
    of the last axis: one launch computes it, unless rows are few and long."""
    *reductions, end = blocks
    if not reductions or not is_spatial(schedule, end):
        return False
    extents = [known_extent(schedule, loop) for loop in schedule.get_loops(end)]
    for block in reductions:
        results, reduced = _loops(schedule, block)
        rows = [known_extent(schedule, loop) for loop in results]
        is_row = 0 < len(rows) < len(extents) and rows == extents[: len(rows)]
        if not reduced or not is_row or has_columns(schedule, block):
            return False
        if not _reads_at(schedule, block, schedule.get(end), len(rows)):
            return False
        count, elements = _count(schedule, results), _count(schedule, schedule.get_loops(end))
        if not count or not elements or len(rows) != len(_loops(schedule, reductions[0])[0]):
            return False
        if elements // count > _LONG_ROW and count < _FEW_ROWS:
            return False
    return all(_is_shared(schedule, one, _loops(schedule, one)[1]) for one in reductions)


def _normalize_rows(schedule: Any, blocks: Sequence[Any]) -> None:
    """Have a block reduce a row as often as it takes, and compute its elements."""
    *reductions, end = blocks
    loops = schedule.get_loops(end)
    rows = len(_loops(schedule, reductions[0])[0])
    row, column = _fused(schedule, loops[:rows]), _fused(schedule, loops[rows:])
    extent = known_extent(schedule, column)
    threads = _WARP if extent is not None and extent <= _WARP * _TURNS else _THREADS
    _, thread = schedule.split(column, [None, threads])
    schedule.bind(row, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    for block in reversed(reductions):
        count = len(_loops(schedule, block)[1])
        for number in range(len(schedule.get(block).writes)):
            schedule.set_scope(block, number, "shared")
        schedule.compute_at(block, row, preserve_unit_loops=True)
        reduced = _fused(schedule, schedule.get_loops(block)[-count:])
        _, lane = schedule.split(reduced, [None, threads])
        schedule.bind(lane, "threadIdx.x")


# ---------------------------------------------------------------------- one number


def _one_number(schedule: Any, block: Any, results: list[Any], reduced: list[Any]) -> None:
    """Have blocks of threads share a reduction to one number, and a block combine what they have::

    launch: part[thread of any block] = every (blocks * threads)-th element
    launch: part, by the threads of one block
    """
    loop = _in_parts(schedule, block, _fused(schedule, reduced))
    number = schedule.add_unit_loop(loop)
    _, thread = schedule.split(loop, [None, _THREADS])
    schedule.bind(number, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")


def _in_parts(schedule: Any, block: Any, loop: Any) -> Any:
    """Have the reduction of `block` over `loop` made of parts, one a thread; the loop over the
    parts.

    Parts are as many as threads, so their own reduction needs no condition.
    """
    elements = known_extent(schedule, loop)
    most = _SCALAR_BLOCKS
    blocks = most if elements is None else min(most, elements // _THREADS)
    if blocks == 0:
        return loop
    turn, lane = schedule.split(loop, [None, blocks * _THREADS])
    part = schedule.rfactor(lane, 0)
    turn, lane = schedule.get_loops(part)[-2:]
    schedule.reorder(lane, turn)
    _on_threads(schedule, [lane])
    # Also of a part that no element belongs to: an update alone would leave it as it is.
    schedule.decompose_reduction(part, turn)
    return schedule.get_loops(block)[-1]
