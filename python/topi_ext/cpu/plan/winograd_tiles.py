# SPDX-License-Identifier: Apache-2.0
"""Functions that plans with minimal filtering share: tiles, and the cost of transformed inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any, TypeVar

from ...kernel.registry import require
from ...spec.axis_access import AxisAccess
from ...spec.conv import Convolution
from ...spec.geometry import Size
from ...spec.minimal_filtering import Filter, filters_of, steps_of
from .base import Plan
from .estimate import blocks_in
from .step_costs import TileCosts
from .vectors import MOST_STEP, row_lanes

Block = TypeVar("Block")


class Tiled(Plan):
    """Base of plans that compute in tiles of 1, 2 or 4 outputs along an axis."""

    tile: tuple[int, ...]

    def filters(self, problem: Convolution) -> tuple[tuple[Filter, ...], ...]:
        """Return how each spatial axis is computed."""
        accesses = problem.accesses[1:]
        return tuple(filters_of(access, tile) for access, tile in zip(accesses, self.tile))

    def tiles(self, problem: Convolution) -> tuple[Size, ...]:
        """Return the tiles of a phase along the four axes."""
        steps = (1, *(f[0].out_step * f[0].tile for f in self.filters(problem)))
        return tuple((size + step - 1) // step for size, step in zip(problem.out_sizes, steps))


MOST_TERMS = 170
"""Terms of a tile, one for each kind of phase, that a kernel writes out: a matter of build time."""

TERMS_IN_REGISTERS = 32
"""Terms of a chunk of tiles that stay in registers."""

MANY_TERMS = 56
"""Terms from which on most are written to memory and read again."""

MOST_PHASES = 1 << 12
"""Phases of all axes together: their offsets are tables."""

ROOMS = (1, 2, 4, 8, 16)
"""Capacities of a block in vectors of tiles, for symbolic sizes."""

Tile = tuple[int, ...]
"""Outputs of a tile along depth, height and width: one, two or four."""


def candidate_tiles(problem: Convolution) -> list[Tile]:
    """Candidates: two outputs along all axes on which that saves products, or on less; along a row
    also four, if that saves more.

    Raises
    ------
    Refused
        Where no tile saves products that a kernel may save.
    """
    require(problem.acc_dtype.startswith("float"), "sums of integers have to be exact")
    is_empty = any(access.has_empty_phase for access in problem.accesses)
    require(not is_empty, "every phase must have taps")
    phases = prod(steps_of(access)[0] for access in problem.accesses)
    require(phases <= MOST_PHASES, f"phases must be at most {MOST_PHASES}")

    def is_short(positions: Any, outputs: int) -> bool:
        return isinstance(positions, int) and positions < outputs

    axes = zip(problem.accesses[1:], problem.positions[1:])
    depth, height, width = (
        2 if _saves_products(access, 2) and not is_short(p, 2) else 1 for access, p in axes
    )
    found: set[Tile] = {(depth, height, width)}
    if depth > 1:
        # Terms along depth are then a loop.
        found.add((1, height, width))
    if depth > 1 or _has_too_many_terms(problem, (depth, height, width)):
        # There are fewer of them along the row.
        found.add((depth, height, 1))
    if _saves_products(problem.accesses[3], 4) and not is_short(problem.positions[3], 4):
        found |= {(*outer, 4) for *outer, last in found if last == 2}
    require(found != {(1, 1, 1)}, "neighbouring taps must be in one phase, and outputs many")
    return sorted(tile for tile in found if max(tile) > 1)


def written_terms(combinations: Sequence[Sequence[Filter]]) -> float:
    """Return the terms that are written out, of all kinds of phases.

    Where depth has no tiles they are a loop along it; where rows have none, terms along them take
    no additions, and count half.
    """
    number = 0.0
    for depth, height, last in combinations:
        written = len(height.terms) * len(last.terms) / (2 if last.is_direct else 1)
        number += written * (1 if depth.is_direct else len(depth.terms))
    return number


def _has_too_many_terms(problem: Convolution, tile: Tile) -> bool:
    """Return whether they are more than a kernel writes out."""
    axes = (filters_of(access, size) for access, size in zip(problem.accesses[1:], tile))
    return written_terms(list(product(*axes))) > MOST_TERMS


def _saves_products(access: AxisAccess, tile: int) -> bool:
    """Return whether a tile of so many outputs takes fewer products than two of half as many."""
    half, whole = (
        sum(len(f.terms) * len(f.phases) for f in filters_of(access, outputs))
        for outputs in (tile // 2, tile)
    )
    return whole < 2 * half


def winograd_input_cycles(
    filters: Sequence[Filter],
    block: Sequence[int],
    lanes: int,
    costs: TileCosts,
    narrowest: int = 1,
) -> float:
    """Return the estimated cycles of combining the inputs of one channel, phase and block of tiles.

    Rows of fewer tiles than the `narrowest` vectors have lanes are combined one by one.
    """
    depth, height, last = filters[0], filters[1], filters[2].packed
    count = row_lanes(block[3], lanes)
    count = count if count >= narrowest else 1
    rows, length = input_rows(filters, block)
    vectors: int = -(-last.span(count) // count)
    of_depth = depth.mean_terms * len(height.terms)
    # Elements further apart are picked from more vectors.
    picked = len(last.inputs) * max(1, last.in_step * last.tile - 1)
    mixed = vectors * costs.load + picked + costs.term * len(last.terms)
    each = len(depth.inputs) * len(height.inputs) * vectors + of_depth * mixed
    written = of_depth * len(last.terms)
    if written > TERMS_IN_REGISTERS:
        each *= costs.many if written <= MANY_TERMS else costs.most
    chunks = prod(block[:3]) * -(-block[3] // count)
    step = _step_cycles(count, lanes, costs) if count >= narrowest else costs.single
    every = filters[2].input_stride
    copied = costs.element if every == 1 else costs.element_step
    copied = copied if every <= MOST_STEP else costs.element_apart
    copy = rows * (costs.row + length * copied) + costs.first_rows / rows
    return copy + chunks * each * step


def _step_cycles(count: int, lanes: int, costs: TileCosts) -> float:
    """Return the cycles of a step of vectors with so many lanes, of so many."""
    if count == lanes:
        return costs.full
    return costs.half if count > 4 else costs.quarter if count > 2 else costs.narrow


def input_rows(filters: Sequence[Filter], block: Sequence[int]) -> tuple[int, int]:
    """Return the rows of one channel that a block of tiles reads, and their length."""
    rows = block[0]
    for f, tiles in zip(filters[:2], block[1:3]):
        rows *= len(f.residues) * (tiles * f.tile + f.halo)
    return rows, filters[2].packed.span(block[3])


def fitted_block(sizes: Sequence[int], room: int, blocks: int) -> tuple[int, ...]:
    """Return the block that a kernel chooses when it runs: as many whole rows, planes and images as
    there is room for, in equal parts, and so many `blocks` if there are enough.
    """
    wanted, share = blocks, []
    for size in sizes[:-1]:
        parts = min(size, wanted)
        share.append(-(-size // parts))
        wanted = -(-wanted // parts)
    block, inner = [1, 1, 1, 1], 1
    for axis, most in zip((3, 2, 1, 0), (sizes[3], *reversed(share))):
        parts = -(-sizes[axis] // max(1, min(room // inner, most)))
        block[axis] = -(-sizes[axis] // parts)
        inner *= block[axis]
        if parts > 1:
            break
    return tuple(block)


def fitted_blocks(
    sizes: Sequence[Sequence[int]], block_of: Callable[[tuple[int, ...]], Block]
) -> Callable[[int, int], list[tuple[Block, int]]]:
    """Return a function of the arguments of :func:`fitted_block` but for sizes: for each of `sizes`
    what `block_of` makes of its block, and how many of them there are.  Each is made once.
    """
    made = cache(block_of)

    @cache
    def fitted(room: int, blocks: int) -> list[tuple[Block, int]]:
        found = ((size, fitted_block(size, room, blocks)) for size in sizes)
        return [(made(block), blocks_in(size, block)) for size, block in found]

    return fitted
