# SPDX-License-Identifier: Apache-2.0
"""Transposition: a run of positions of some channels becomes rows of neighbouring channels.

::

    for some positions at a time, some channels at a time:
        load these positions of each channel, transpose in registers, store   -> rows

A run that is shorter than a square goes by smaller ones, or element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .. import emit
from ..emit import Array, Expr
from ..plan.vectors import NARROW, square_side
from .copies import are_near, copy, every


class Pitched(NamedTuple):
    """Rows of an array: row p begins at ``start + p * pitch``."""

    array: Array
    start: Expr
    pitch: Expr


class Runs(NamedTuple):
    """A run of positions of some channels of an operand.

    Attributes
    ----------
    source : Array
    start, step : Expr
        Where position 0 of channel 0 is, and how far positions are apart.
    channels : Expr
        How many there are.
    length, longest : Expr
        Positions, and the most that they can be.
    apart : Expr
        How far channels are apart.
    """

    source: Array
    start: Expr
    step: Expr
    channels: Expr
    length: Expr
    longest: Expr
    apart: Expr


def transpose(rows: Pitched, runs: Runs, lanes: int) -> None:
    """Write position p of channel k of `runs` to element k of row p of `rows`.

    A row has room for `lanes` channels; behind the last channel its elements repeat that one.
    """
    source, start, step, channels, length, longest, apart = runs
    known = isinstance(longest, int)
    sides = [square_side(longest, lanes)] if known else sorted({lanes, min(lanes, NARROW)})
    may = are_near(step) and source.dtype == rows.array.dtype

    for size in _side_of(sides if may else [], length, channels):
        if not size:
            for p, k in emit.grid(length, channels):
                value = source.load(start + k * apart + p * step, rows.array.dtype)
                emit.store(rows.array, rows.start + p * rows.pitch + k, value)
        else:
            starts = [
                emit.opaque_base(start + emit.least(k, channels - 1) * apart) for k in range(lanes)
            ]

            def load(at: Expr, size: int = size) -> Expr:
                return emit.let(every(source, emit.let(at), step, size))

            transpose_squares(rows, starts, size, length, load, step)


def _side_of(sides: Sequence[int], length: Expr, channels: Expr) -> Iterator[int]:
    """Emit ``for size in _side_of(sides, length, channels)``: a branch for each of `sides`, which
    is taken where a square of that side is the largest that fits; 0 where none does."""
    if not sides:
        yield 0
        return
    *smaller, size = sides
    for fits in emit.sides(emit.both(size > 0, length >= size, channels > 0)):
        if fits:
            yield size
        else:
            yield from _side_of(smaller, length, channels)


def transpose_squares(
    rows: Pitched,
    starts: Sequence[Expr],
    size: int,
    length: Expr,
    load: Callable[[Expr], Expr],
    step: int = 1,
) -> None:
    """Write position p of run k to element k of row p of `rows`.

    Parameters
    ----------
    starts, length, step
        Where the runs begin, how long all of them are, and how far their elements are apart.
    size : int
        Side of a square.  There are so many runs, or a multiple: of squares side by side whole
        vectors are stored.
    load : callable
        The vector of a run that begins at an index, of so many elements.
    """

    for number in emit.loop(emit.ceil_div(length, size)):
        # The last overlaps the one before it.
        p = emit.let(emit.least(number * size, length - size))
        read = [load(start + p * step) for start in starts]
        offset = emit.opaque_base(rows.start + p * rows.pitch)
        squares = [transposed(read[k : k + size]) for k in range(0, len(read), size)]
        for i, columns in enumerate(zip(*squares)):
            row = columns[0] if len(columns) == 1 else emit.shuffled(columns, range(len(read)))
            emit.store(rows.array, emit.lanes_of(offset + i * rows.pitch, len(read)), row)


def transposed(rows: Sequence[Expr]) -> list[Expr]:
    """Return the columns of a square: as many vectors as each has lanes, a power of two.

    Rows at distances of 1, 2, 4, ... exchange the halves that lie across the diagonal.
    """
    lanes, distance, columns = len(rows), 1, list(rows)
    while distance < lanes:
        kept = [lanes + i - distance if i & distance else i for i in range(lanes)]
        taken = [lanes + i if i & distance else i + distance for i in range(lanes)]
        for i in range(lanes):
            if not i & distance:
                pair = columns[i], columns[i + distance]
                columns[i], columns[i + distance] = (
                    emit.let(emit.shuffled(pair, elements)) for elements in (kept, taken)
                )
        distance *= 2
    return columns


def copy_matrix(
    into: Pitched,
    source: Array,
    start: Expr,
    steps: tuple[Expr, Expr],
    shape: tuple[Expr, Expr],
    lanes: int,
    longest: Expr,
) -> None:
    """Write ``source[start + r * apart + i * step]`` to element i of row r.

    Where elements of a row are apart and rows are neighbours, squares are transposed: rows have
    room for whole vectors then.

    Parameters
    ----------
    steps : tuple
        `apart` and `step`.
    shape : tuple
        Numbers of rows, and of elements of a row.
    longest : Expr
        Number of rows at most.
    """
    (apart, step), (rows, elements) = steps, shape
    if step == 1 or apart != 1:
        for r in emit.loop(rows):
            begin = emit.opaque_base(start + r * apart)
            row = emit.opaque_base(into.start + r * into.pitch)
            copy(into.array, row, source, begin, elements, lanes, step)
        return
    for v in emit.loop(emit.ceil_div(elements, lanes)):
        first = emit.let(v * lanes)
        begin = emit.opaque_base(start + first * step)
        present = emit.let(emit.least(elements - first, lanes))
        runs = Runs(source, begin, 1, present, rows, longest, step)
        transpose(
            Pitched(into.array, emit.opaque_base(into.start + first), into.pitch), runs, lanes
        )
