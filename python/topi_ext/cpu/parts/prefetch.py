# SPDX-License-Identifier: Apache-2.0
"""Prefetches of packed weights, which a model reads from memory once in each run.

A kernel reads a block of weights for one register tile after the other.  The first tile waits for
memory, unless the tiles of the block before prefetched them.  Hardware prefetches neighbouring
lines, but not across pages, and not across the passes over a block that stays in a cache.

Lines go to the second cache: in the first one they would replace the weights in use.
"""

from __future__ import annotations

from ...emit.arguments import Packed
from ...spec.dtypes import byte_width
from ...spec.geometry import Size
from .. import emit
from ..emit import Array, Expr
from ..machine import CACHE_LINE

FEWEST_BYTES = 128 << 10
"""Packed weights from which on prefetches pay: fewer are read from memory in no time."""

MOST_BYTES = 1 << 20
"""Packed weights that a second cache holds: more of them are read again by each task."""

MOST_TILES = 32
"""Register tiles up to which prefetches pay, where a cache holds the weights: with more of them,
the first one takes a small part of the time."""

MOST_LINES = 8
"""Cache lines that are prefetched at a time at most: a core waits for no more."""


def pays(packed: Packed, positions: Size, tile: int) -> bool:
    """Return whether these weights are worth prefetching; each is multiplied by so many positions,
    a tile of them at a time."""
    size = packed.elements * byte_width(packed.dtype)
    few = not isinstance(positions, int) or positions <= MOST_TILES * tile
    return size >= MOST_BYTES or (size >= FEWEST_BYTES and few)


def prefetch_block(array: Array, start: Expr, size: tuple[Expr, int], tile: Expr, k: Expr) -> None:
    """Prefetch a cache line of the next block of weights ``[term][columns]``, at term `k` of a
    tile.

    Each tile prefetches as many lines as the block has terms.  Tiles behind the last line begin
    again.

    Parameters
    ----------
    array : Array
    start : Expr
        Where the next block begins.
    size : tuple
        Its terms and columns.
    tile : Expr
        The number of the tile among those that read the same block.
    """
    (terms, columns), line = size, CACHE_LINE // byte_width(array.dtype)
    part = emit.remainder(tile, -(-columns // line))
    emit.prefetch(array, start + (part * terms + k) * line, cache=2)


def prefetch_share(array: Array, start: Expr, count: int, tile: Expr) -> None:
    """Prefetch some of the cache lines of `count` weights, which tile after tile reads, into the
    second cache; the next tile prefetches the following lines."""
    line = CACHE_LINE // byte_width(array.dtype)
    lines = -(-count // line)
    each = min(lines, MOST_LINES)
    first = emit.remainder(tile, -(-lines // each)) * each if lines > each else 0
    for i in range(each):
        emit.prefetch(array, start + (first + i) * line, cache=2)
