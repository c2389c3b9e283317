# SPDX-License-Identifier: Apache-2.0
"""Questions about the blocks of a schedule: kinds of loops, extents, and how operands are read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any

from ..compat import as_size, buffer_of_region, same_size, simplify, tir, uses_var, with_replaced

SPATIAL, REDUCTION = tir.IterVar.DataPar, tir.IterVar.CommReduce

FUNCTIONS = frozenset(("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "pow"))
"""Functions of mathematics, which take longer than to read their result."""


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


def has_nodes(schedule: Any, block: Any, kinds: Iterable[str]) -> bool:
    """Return whether the statement of `block` has a node of one of the kinds, such as ``LT``."""
    found: list[Any] = []
    with_replaced(schedule.get(block).body, dict.fromkeys(kinds, found.append))
    return bool(found)


def row_parts(schedule: Any, block: Any) -> int | None:
    """Return the length of the parts in which a block without a reduction computes a row.

    It is the number by which indices divide the last variable of the block, and of which they take
    the remainder: there one operand begins again, and another moves on.  LLVM 22 makes vectors of
    the whole row that read behind the operand which begins again, where both operands begin at the
    same offset and parts have 8 elements or 16.

    Returns
    -------
    int or None
        None where a row is one part.
    """
    if not is_spatial(schedule, block) or not schedule.get_loops(block):
        return None
    stated, row = schedule.get(block), known_extent(schedule, schedule.get_loops(block)[-1])
    divisors: dict[str, set[int]] = {"FloorDiv": set(), "FloorMod": set()}

    def note(kind: str, node: Any) -> None:
        divisor = as_size(node.b)
        if isinstance(divisor, int) and uses_var(node.a, stated.iter_vars[-1].var):
            divisors[kind].add(divisor)

    with_replaced(stated.body, {kind: partial(note, kind) for kind in divisors})
    both = set.intersection(*divisors.values()) if row else set[int]()
    return max((n for n in both if row and 8 <= n < row and row % n == 0), default=None)


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
    offset: Any = 0
    stride: Any = 1
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
    if same_size(values, elements):
        return True
    return isinstance(values, int) and isinstance(elements, int) and values < 2 * elements
