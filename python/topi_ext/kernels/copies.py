# SPDX-License-Identifier: Apache-2.0
"""Copies of neighbouring elements by vectors that are written out.

LLVM makes vectors of a loop where it knows that source and destination are apart.  TVM tells it so
where a function promises that of its arguments, but 0.27 asks only the last function of a module,
by name.  Of a Relax program with symbolic shapes that may be ``shape_func``, which promises none:
then LLVM knows it neither of arguments nor of memory that a kernel reaches by its address.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import emit
from ..emit import Array, Expr
from ..plan.plans import MOST_STEP


def copy(
    into: Array, at: Expr, source: Array, start: Expr, count: Expr, lanes: int, step: int = 1
) -> None:
    """``into[at + i] = source[start + i * step]`` for i below `count`.

    The last vector overlaps the one before it.  Few elements go one by one, and those of another
    dtype that are not neighbours or bfloat16.
    """

    def one(i: Expr) -> None:
        emit.store(into, at + i, source.load(start + i * step, into.dtype))

    def vector(i: Expr) -> None:
        first = i * lanes
        if not (isinstance(count, int) and count % lanes == 0):
            first = emit.let(emit.least(first, count - lanes))
        value = every(source, emit.let(start + first * step), step, lanes)
        if source.dtype != into.dtype:
            value = emit.converted(value, into.dtype, lanes)
        emit.store(into, emit.lanes_of(at + first, lanes), value)

    # Not every release of TVM converts vectors of bfloat16.
    is_same, dtypes = source.dtype == into.dtype, (source.dtype, into.dtype)
    if step > (MOST_STEP if is_same else 1) or (not is_same and "bfloat16" in dtypes):
        emit.loop(count, one)
        return
    emit.when(
        count >= lanes,
        lambda: emit.loop(emit.ceil_div(count, lanes), vector),
        lambda: emit.loop(count, one),
    )


def deal(
    into: Array, at: Sequence[Expr], source: Array, start: Expr, count: Expr, lanes: int
) -> None:
    """``into[at[r] + i] = source[start + i * step + r]`` for i below `count` and r below `step`,
    the number of places `at`; each element is read once."""
    step = len(at)

    def element(i: Expr) -> None:
        for residue, place in enumerate(at):
            emit.store(into, place + i, source[start + (i * step + residue)])

    def vector(i: Expr) -> None:
        first = emit.let(emit.least(i * lanes, count - lanes))
        begin = emit.let(start + first * step)
        read = [emit.let(source[emit.lanes_of(begin + v * lanes, lanes)]) for v in range(step)]
        for residue, place in enumerate(at):
            value = emit.shuffled(read, range(residue, lanes * step, step))
            emit.store(into, emit.lanes_of(place + first, lanes), value)

    emit.when(
        count >= lanes,
        lambda: emit.loop(emit.ceil_div(count, lanes), vector),
        lambda: emit.loop(count, element),
    )


def every(source: Array, start: Expr, step: int, lanes: int) -> Expr:
    """A vector of elements of `source` that are `step` apart; none is read behind the last."""
    if step == 1:
        return source[emit.lanes_of(start, lanes)]
    begins = [i * lanes for i in range(step - 1)] + [(lanes - 1) * (step - 1)]
    read = [emit.let(source[emit.lanes_of(start + begin, lanes)]) for begin in begins]
    vectors = [min(i * step // lanes, step - 1) for i in range(lanes)]
    return emit.shuffled(read, [v * lanes + i * step - begins[v] for i, v in enumerate(vectors)])
