# SPDX-License-Identifier: Apache-2.0
"""Counts of vectors in plans and kernels, and the rows that vectors read or transpose."""

from __future__ import annotations

from ...spec.conv import Convolution

MOST_STEP = 4
"""Longest step of elements that are read as vectors, of which most is dropped."""


NARROW = 4
"""Lanes of the narrowest vectors of kernels for symbolic sizes: shorter rows go one by one."""


def row_lanes(tiles: int, lanes: int) -> int:
    """Return the lanes of the vectors in which a row of tiles is combined: no more than it has
    tiles.
    """
    return min(lanes, 1 << (tiles.bit_length() - 1))


def odd_vectors(vectors: int) -> int:
    """So many, or one more: rows a power of two of cache lines apart share one set of a cache."""
    return vectors | 1


def square_size(problem: Convolution, channels: int, lanes: int) -> int:
    """Return the weights of how many of a block's output channels, and of as many taps, are copied
    at a time.

    Zero where they are copied one by one.
    """
    run = min(problem.geometry.taps, channels) if problem.taps_are_runs else 1
    return square_side(run, lanes)


def square_side(run: int, lanes: int) -> int:
    """Side of the squares in which runs of so many elements are transposed in registers.

    Zero where they are too short.
    """
    side = row_lanes(run, lanes)
    return side if side >= 4 else 0
