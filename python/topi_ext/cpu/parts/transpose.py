# SPDX-License-Identifier: Apache-2.0
"""Transposition: a run of positions of some channels becomes rows of neighbouring channels.

::

    for some positions at a time, some channels at a time:
        load these positions of each channel, transpose in registers, store   -> rows

A run that is shorter than a square goes by smaller ones, or element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from .. import emit
from ..emit import Array, Expr, Operand
from ..plan.vectors import NARROW, square_side
from .copies import are_near, every


class Pitched(NamedTuple):
    """Rows of an array: row p begins at ``start + p * pitch``."""

    array: Array
    start: Expr
    pitch: Expr


class Runs(NamedTuple):
    """A run of positions of some channels of an operand.

    Attributes
    ----------
    source : Operand
    start, step : Expr
        Where position 0 of channel 0 is, and how far positions are apart.
    channels : Expr
        How many there are.
    length, longest : Expr
        Positions, and the most that they can be.
    apart : Expr, optional
        How far channels are apart, if not as the axis C of `source` is stored.
    """

    source: Operand
    start: Expr
    step: Expr
    channels: Expr
    length: Expr
    longest: Expr
    apart: Expr = None


def transpose(rows: Pitched, runs: Runs, lanes: int) -> None:
    """Element k of row p of `rows` is position p of channel k of `runs`.

    Of the channels, `lanes` have room; what else is written to a row repeats the last.
    """
    source, start, step, channels, length, longest, apart = runs
    if apart is None:
        apart = source.strides["C"]
    known = isinstance(longest, int)
    sides = [square_side(longest, lanes)] if known else sorted({lanes, min(lanes, NARROW)})
    may = are_near(step) and source.dtype == rows.array.dtype

    def element(p: Expr, k: Expr) -> None:
        value = source.load(start + k * apart + p * step, rows.array.dtype)
        emit.store(rows.array, rows.start + p * rows.pitch + k, value)

    def squares(size: int) -> None:
        starts = [
            emit.opaque_base(start + emit.least(k, channels - 1) * apart) for k in range(lanes)
        ]
        transpose_squares(
            rows, starts, size, length,
            lambda at: emit.let(every(source, emit.let(at), step, size)), step,
        )  # fmt: skip

    def by_squares(sides: Sequence[int]) -> None:
        if not sides:
            emit.nest((length, channels), element)
            return
        *smaller, size = sides
        emit.when(
            emit.both(may, size > 0, length >= size, channels > 0),
            partial(squares, size),
            partial(by_squares, smaller),
        )

    by_squares(sides)


def transpose_squares(
    rows: Pitched,
    starts: Sequence[Expr],
    size: int,
    length: Expr,
    load: Callable[[Expr], Expr],
    step: int = 1,
) -> None:
    """Element k of row p of `rows` is position p of run k.

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

    def squares(number: Expr) -> None:
        # The last overlaps the one before it.
        p = emit.let(emit.least(number * size, length - size))
        read = [load(start + p * step) for start in starts]
        place = emit.opaque_base(rows.start + p * rows.pitch)
        sides = [transposed(read[k : k + size]) for k in range(0, len(read), size)]
        for i, parts in enumerate(zip(*sides)):
            column = parts[0] if len(parts) == 1 else emit.shuffled(parts, range(len(read)))
            emit.store(rows.array, emit.lanes_of(place + i * rows.pitch, len(read)), column)

    emit.loop(emit.ceil_div(length, size), squares)


def transposed(rows: Sequence[Expr]) -> list[Expr]:
    """The columns of a square: as many vectors as each has lanes, a power of two.

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
