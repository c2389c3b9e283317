# SPDX-License-Identifier: Apache-2.0
"""What plans share that save products: their tiles, and what combined inputs cost."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..filtering import Filter, filters_of
from ..geometry import Gather
from .plans import row_lanes
from .problem import Problem

MOST_TERMS = 128
"""Terms of a tile, one for each kind of phase, that a kernel writes out."""


def tile_of(problem: Problem) -> tuple[int, ...]:
    """Outputs of a tile along depth, height and width."""
    axes = zip(problem.gathers[2:], problem.positions[2:])
    can_save = (
        _saves_products(gather) and not (isinstance(p, int) and p < 2) for gather, p in axes
    )
    return (1, *(2 if can else 1 for can in can_save))


def _saves_products(gather: Gather) -> bool:
    """Whether two outputs along an axis take fewer products than twice those of one."""
    one, two = (
        sum(len(f.terms) * len(f.phases) for f in filters_of(gather, tile)) for tile in (1, 2)
    )
    return two < 2 * one


def combined_inputs_cycles(filters: Sequence[Filter], block: Sequence[int], lanes: int) -> float:
    """Estimated cycles of combining the inputs of one channel, phase and block of tiles."""
    depth, height, last = filters
    count = row_lanes(block[3], lanes)
    rows, length = input_rows(filters, block)
    vectors: int = -(-last.span(count) // count)
    mixed = vectors * 1.5 + len(last.reach) + 2 * len(last.terms)
    read = len(depth.reach) * len(height.reach) * vectors
    each = read + len(depth.terms) * len(height.terms) * mixed
    chunks = prod(block[:3]) * -(-block[3] // count)
    return rows * (6 + length * 0.2) + chunks * each * (0.6 if count == lanes else 0.3)


def input_rows(filters: Sequence[Filter], block: Sequence[int]) -> tuple[int, int]:
    """Rows of one channel that a block of tiles reads, and their length."""
    rows = block[0]
    for f, tiles in zip(filters[:2], block[1:3]):
        rows *= len(f.residues) * (tiles * f.tile + f.beyond)
    return rows, filters[2].span(block[3])
