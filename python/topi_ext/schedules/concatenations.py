# SPDX-License-Identifier: Apache-2.0
"""Concatenations as one nest of loops for each part.

TVM chooses the part that an element comes from inside of the innermost loop, of which LLVM then
makes no vectors: a concatenation of bytes took seven times as long as its parts.  So the loop along
the axis is cut where the choice changes, and each part is a copy.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .. import compat
from .blocks import is_spatial, known_extent

_MOST_PARTS = 16
_MOST_OUTSIDE = 16
"""Iterations of the loops around the parts, which are serial."""
_FEWEST_INSIDE = 64
"""Elements of a part that are neighbours: below, the choice is no more than the copy."""


def cut(schedule: Any, block: Any) -> list[Any]:
    """Cut the loops of a block, and return the blocks of its parts; none if it has no parts.

    Parameters
    ----------
    schedule : Schedule
    block : SBlockRV
        A block of spatial loops around one statement.
    """
    node, loops = schedule.get(block), schedule.get_loops(block)
    # TVM cannot cut a block that reads a tensor of no axes.
    is_cut = hasattr(schedule, "loop_partition") and all(read.region for read in node.reads)
    is_cut = is_cut and is_spatial(schedule, block)
    chosen = _choice(node) if is_cut else None
    if chosen is None:
        return []
    axis, bounds = chosen
    extents = [known_extent(schedule, loop) or 0 for loop in loops]
    if 0 in extents or len(loops) != len(node.iter_vars):
        return []
    ends = sorted({bound for bound in bounds if 0 < bound < extents[axis]})
    is_worth_it = prod(extents[:axis]) <= _MOST_OUTSIDE
    is_worth_it &= prod(extents[axis + 1 :]) >= _FEWEST_INSIDE
    if not ends or len(ends) >= _MOST_PARTS or not is_worth_it:
        return []
    sizes = [end - start for start, end in zip([0, *ends], ends)]
    parts = schedule.loop_partition(loops[axis], sizes)
    return [leaf for part in parts for leaf in schedule.get_child_blocks(part)]


def _choice(block: Any) -> tuple[int, list[int]] | None:
    """Return the axis along which a block selects what it reads, and where that changes."""
    conditions: list[Any] = []

    def note(node: Any) -> None:
        if compat.intrinsic_name(node) == "if_then_else":
            conditions.append(node.args[0])

    compat.with_replaced(block.body, {"Call": note})
    bounds: dict[int, list[int]] = {}
    for condition in conditions:
        bound = getattr(getattr(condition, "a", None), "value", None)
        if type(condition).__name__ == "LE" and isinstance(bound, int):
            for number, axis in enumerate(block.iter_vars):
                if axis.var.same_as(condition.b):
                    bounds.setdefault(number, []).append(bound)
    return next(iter(bounds.items())) if len(bounds) == 1 else None
