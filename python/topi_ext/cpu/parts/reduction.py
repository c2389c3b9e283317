# SPDX-License-Identifier: Apache-2.0
"""Sums and maxima of neighbouring elements by vectors, which LLVM doesn't make of them itself: it
keeps the order of additions."""

from __future__ import annotations

from collections.abc import Callable

from .. import emit
from ..emit import Expr

_ACCUMULATORS = 4
"""Vectors that are added to in turns: an addition takes that long."""


def reduced(
    count: Expr,
    value: Callable[[Expr, int], Expr],
    combine: Callable[[Expr, Expr], Expr],
    start: Expr,
    shape: tuple[int, str],
) -> Expr:
    """Return the combination of all values below `count`.

    Parameters
    ----------
    count : Expr
    value : callable
        ``value(first, lanes)``: a vector of values, or a number for one lane.
    combine : callable
        Associative and commutative, up to roundings; of numbers or of vectors.
    start : Expr
        The neutral element of `combine`.
    shape : tuple
        Lanes and dtype of vectors.
    """
    lanes, dtype = shape
    turn = lanes * _ACCUMULATORS
    accumulators = emit.registers(_ACCUMULATORS, lanes, dtype)
    for register, index in accumulators:
        emit.store(register, index, emit.broadcast(start, lanes))
    whole = emit.quotient(count, turn)
    for i in emit.loop(whole):
        for number, (register, index) in enumerate(accumulators):
            vector = value(i * turn + number * lanes, lanes)
            emit.store(register, index, combine(register[index], vector))
    done = whole * turn
    vectors = emit.quotient(count - done, lanes)
    register, index = accumulators[0]
    for i in emit.loop(vectors):
        vector = value(done + i * lanes, lanes)
        emit.store(register, index, combine(register[index], vector))
    done = done + vectors * lanes
    rest = emit.scratch(1, dtype)
    emit.store(rest, 0, start)
    for i in emit.loop(count - done):
        emit.store(rest, 0, combine(rest[0], value(done + i, 1)))
    totals = [emit.let(register[index]) for register, index in accumulators]
    return emit.let(combine(folded(totals, combine, lanes), rest[0]))


def folded(vectors: list[Expr], combine: Callable[[Expr, Expr], Expr], lanes: int) -> Expr:
    """Return the combination of all elements of some vectors."""
    while len(vectors) > 1:
        vectors = [emit.let(combine(a, b)) for a, b in zip(vectors[::2], vectors[1::2])]
    (vector,) = vectors
    while lanes > 1:
        lanes //= 2
        low, high = (
            emit.let(emit.shuffled([vector], range(first, first + lanes))) for first in (0, lanes)
        )
        vector = emit.let(combine(low, high))
    return vector


def row_sums(rows: list[Expr], lanes: int) -> Expr:
    """Return the vector whose element i is the sum of the elements of vector i of `lanes` ones.

    Two vectors whose numbers differ in one bit become one: its elements with that bit are those of
    the second, and each is added to its neighbour at the distance of the bit.
    """
    distance = 1
    while len(rows) > 1:
        kept = [i + lanes if i & distance else i for i in range(lanes)]
        added = [i ^ distance for i in kept]
        rows = [
            emit.let(emit.let(emit.shuffled(pair, kept)) + emit.let(emit.shuffled(pair, added)))
            for pair in zip(rows[::2], rows[1::2])
        ]
        distance *= 2
    return rows[0]
