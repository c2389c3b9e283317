# SPDX-License-Identifier: Apache-2.0
"""Copies of neighbouring elements by vectors that are written out.

LLVM makes vectors of a loop where it knows that source and destination are apart.  TVM tells it so
where a function promises that of its arguments, but 0.27 asks only the last function of a module,
by name.  Of a Relax program with symbolic shapes that may be ``shape_func``, which promises none:
then LLVM knows it neither of arguments nor of memory that a kernel reaches by its address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from .. import emit
from ..emit import Array, Expr
from ..plan.vectors import MOST_STEP, NARROW


def copy(
    into: Array, at: Expr, source: Array, start: Expr, count: Expr, lanes: int, step: Expr = 1
) -> None:
    """``into[at + i] = source[start + i * step]`` for i below `count`.

    The last vector overlaps the one before it.  One by one go elements that are not known to be
    near, and those of another dtype unless they are neighbours and neither is bfloat16.
    """

    def one(i: Expr) -> None:
        emit.store(into, at + i, source.load(start + i * step, into.dtype))

    def vector(first: Expr, lanes: int) -> None:
        begin = emit.let(start + first * step)
        if source.dtype == into.dtype:
            value = every(source, begin, step, lanes)
        else:
            value = source.neighbours(begin, into.dtype, lanes)
        emit.store(into, emit.lanes_of(at + first, lanes), value)

    # Not every release of TVM converts vectors of bfloat16.
    is_same, dtypes = source.dtype == into.dtype, (source.dtype, into.dtype)
    if are_near(step, MOST_STEP if is_same else 1) and (is_same or "bfloat16" not in dtypes):
        _by_vectors(count, lanes, vector, one)
    else:
        emit.loop(count, one)


def are_near(step: Expr, most: int = MOST_STEP) -> bool:
    """Whether elements `step` apart are known to be near enough to be picked from vectors."""
    return isinstance(step, int) and step <= most


def deal(
    into: Array,
    at: Mapping[int, Expr],
    source: Array,
    start: Expr,
    count: Expr,
    step: int,
    lanes: int,
) -> None:
    """``into[at[r] + i] = source[start + i * step + r]`` for i below `count` and each r, which are
    less than `step`; each element is read once."""

    def element(i: Expr) -> None:
        for residue, place in at.items():
            emit.store(into, place + i, source[start + (i * step + residue)])

    def vector(first: Expr, lanes: int) -> None:
        begin = emit.let(start + first * step)
        values = _every(source, begin, step, lanes, sorted(at))
        for residue, value in zip(sorted(at), values):
            emit.store(into, emit.lanes_of(at[residue] + first, lanes), value)

    _by_vectors(count, lanes, vector, element)


def _by_vectors(
    count: Expr, lanes: int, vector: Callable[[Expr, int], None], one: Callable[[Expr], None]
) -> None:
    """``vector(first, lanes)`` for vectors that cover `count` elements, or narrow ones that do, or
    ``one(i)`` for the few."""

    def vectors(lanes: int) -> None:
        def numbered(i: Expr) -> None:
            first = i * lanes
            if not (isinstance(count, int) and count % lanes == 0):
                first = emit.let(emit.least(first, count - lanes))
            vector(first, lanes)

        emit.loop(emit.ceil_div(count, lanes), numbered)

    def few() -> None:
        if lanes > NARROW:
            emit.when(count >= NARROW, lambda: vectors(NARROW), lambda: emit.loop(count, one))
        else:
            emit.loop(count, one)

    emit.when(count >= lanes, lambda: vectors(lanes), few)


def every(source: Array, start: Expr, step: int, lanes: int) -> Expr:
    """A vector of elements of `source` that are `step` apart; none is read behind the last."""
    if step == 1:
        return source[emit.lanes_of(start, lanes)]
    return next(_every(source, start, step, lanes, [0]))


def _every(
    source: Array, start: Expr, step: int, lanes: int, residues: Sequence[int]
) -> Iterator[Expr]:
    """The same of elements from each of `residues` on, which ascend: they are read once."""
    last = (lanes - 1) * (step - 1) + residues[-1]
    begins = [min(i * lanes, last) for i in range(step - 1)] + [last]
    read = [emit.let(source[emit.lanes_of(start + begin, lanes)]) for begin in begins]
    for residue in residues:
        places = range(residue, residue + lanes * step, step)
        vectors = [min(place // lanes, step - 1) for place in places]
        yield emit.shuffled(
            read, [v * lanes + place - begins[v] for place, v in zip(places, vectors)]
        )
