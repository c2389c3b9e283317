# SPDX-License-Identifier: Apache-2.0
"""Questions about the blocks of a schedule: kinds of loops, extents, and how operands are read."""

from __future__ import annotations

from math import prod
from typing import Any

from ..compat import as_size, buffer_of_region, simplify, tir, uses_var

SPATIAL, REDUCTION = tir.IterVar.DataPar, tir.IterVar.CommReduce


def loop_kinds(schedule: Any, block: Any) -> list[int] | None:
    """Return the kind of each loop around `block`: spatial loops, then reductions.

    Return None for a block whose loops and iteration variables differ in number or in order.
    """
    kinds = [axis.iter_type for axis in schedule.get(block).iter_vars]
    if len(kinds) != len(schedule.get_loops(block)):
        return None
    spatial = kinds.count(SPATIAL)
    ordered = [SPATIAL] * spatial + [REDUCTION] * (len(kinds) - spatial)
    return kinds if kinds == ordered else None


def is_spatial(schedule: Any, block: Any) -> bool:
    """Return whether `block` has no reduction."""
    return REDUCTION not in (loop_kinds(schedule, block) or ())


def known_extent(schedule: Any, loop: Any) -> int | None:
    """Return the extent of a loop, or None where it is symbolic."""
    extent = as_size(schedule.get(loop).extent)
    return extent if isinstance(extent, int) else None


def has_columns(schedule: Any, block: Any) -> bool:
    """Return whether neighbours among the results of a reduction read neighbours."""
    kinds = loop_kinds(schedule, block) or []
    last = kinds.count(SPATIAL) - 1
    if not 0 <= last < len(kinds) - 1:
        return False
    return known_extent(schedule, schedule.get_loops(block)[last]) != 1 and (
        reads_along(schedule, block, last)
    )


def reads_along(schedule: Any, block: Any, axis: int) -> bool:
    """Return whether neighbours along iteration variable `axis` are neighbours, or the same, in
    every operand of `block`."""
    stated = schedule.get(block)
    variable = stated.iter_vars[axis].var
    return all(_is_along(read, variable) for read in stated.reads)


def _is_along(read: Any, variable: Any) -> bool:
    offset, stride = 0, 1
    for index, size in reversed(list(zip(read.region, buffer_of_region(read).shape))):
        offset, stride = offset + index.min * stride, stride * size
    if isinstance(offset, int) or not uses_var(offset, variable):
        return True
    difference = simplify(offset - variable)
    return isinstance(difference, int) or not uses_var(difference, variable)


def reads_once(schedule: Any, block: Any, buffer: Any = None) -> bool:
    """Return whether `block` reads the elements of an operand once, or few of them twice.

    Every variable of the block is an index of the operand, or all of them occur in its indices and
    have fewer than twice as many values as the operand has elements.

    Parameters
    ----------
    schedule : Schedule
    block : SBlockRV
    buffer : Buffer, optional
        The operand; any operand where it is left out.
    """
    stated = schedule.get(block)
    axes = [axis for axis in stated.iter_vars if as_size(axis.dom.extent) != 1]
    return any(
        _are_indices(axes, read)
        for read in stated.reads
        if buffer is None or buffer_of_region(read).same_as(buffer)
    )


def _are_indices(axes: Any, read: Any) -> bool:
    indices = [index.min for index in read.region]
    if all(any(index.same_as(axis.var) for index in indices) for axis in axes):
        return True
    if not all(any(uses_var(index, axis.var) for index in indices) for axis in axes):
        return False
    values = simplify(prod(axis.dom.extent for axis in axes))
    elements = simplify(prod(buffer_of_region(read).shape))
    return isinstance(values, int) and isinstance(elements, int) and values < 2 * elements
