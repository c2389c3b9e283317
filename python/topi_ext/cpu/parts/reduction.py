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
    """All values below `count`, combined.

    Parameters
    ----------
    count : Expr
    value : callable
        ``value(first, lanes)``: a vector of values, or a number for one lane.
    combine : callable
        Associative and commutative, up to roundings; of numbers or of vectors.
    start : Expr
        What is combined with others without a change.
    shape : tuple
        Lanes and dtype of vectors.
    """
    lanes, dtype = shape
    turn = lanes * _ACCUMULATORS
    held = emit.registers(_ACCUMULATORS, lanes, dtype)
    for register, index in held:
        emit.store(register, index, emit.broadcast(start, lanes))

    def add(first: Expr, number: int) -> None:
        register, index = held[number]
        emit.store(register, index, combine(register[index], value(first, lanes)))

    def turns(i: Expr) -> None:
        for number in range(_ACCUMULATORS):
            add(i * turn + number * lanes, number)

    whole = emit.quotient(count, turn)
    emit.loop(whole, turns)
    done = whole * turn
    vectors = emit.quotient(count - done, lanes)
    emit.loop(vectors, lambda i: add(done + i * lanes, 0))
    done = done + vectors * lanes
    rest = emit.scratch(1, dtype)
    emit.store(rest, 0, start)

    def one(i: Expr) -> None:
        emit.store(rest, 0, combine(rest[0], value(done + i, 1)))

    emit.loop(count - done, one)
    vectors_held = [emit.let(register[index]) for register, index in held]
    return emit.let(combine(_folded(vectors_held, combine, lanes), rest[0]))


def _folded(vectors: list[Expr], combine: Callable[[Expr, Expr], Expr], lanes: int) -> Expr:
    """All elements of some vectors, combined."""
    while len(vectors) > 1:
        vectors = [emit.let(combine(a, b)) for a, b in zip(vectors[::2], vectors[1::2])]
    (one,) = vectors
    while lanes > 1:
        lanes //= 2
        low, high = (
            emit.let(emit.shuffled([one], range(first, first + lanes))) for first in (0, lanes)
        )
        one = emit.let(combine(low, high))
    return one
