# SPDX-License-Identifier: Apache-2.0
"""Rows of the result, written as kernels put them together: phase by phase, element by element.

A result that is so large that it is written past the caches is written by stores of whole cache
lines.  Some rows are collected first::

    for each row, while the next would fit:
        for each element, in any order: finish it (epilogue)              -> collected
    for each vector of what is collected: stream it                       -> out

What was put there an element or two at a time can't be read as a vector before it is in the first
cache, and on its way waits for stores before it, past the caches: one row at a time would wait for
memory at each.  Rows that follow each other also share a cache line, which is filled by both here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...emit.post_ops import RowEpilogue
from ...problem import DATA, Problem
from .. import emit
from ..emit import Array, Expr, Operand
from ..isa import nontemporal
from .copies import copy

COLLECTED_BYTES = 8192
"""How much is collected, if no row is longer: what the first cache has room for beside sums."""


class Result:
    """The result of a kernel, of which each task writes some rows.

    Parameters
    ----------
    problem, out, extra
        With the operands of its epilogue.
    streamed : int
        Lanes, of vectors of sums, if they are written past the caches, a power of two; else 0.
    """

    def __init__(self, problem: Problem, out: Operand, extra: Sequence[Operand], streamed: int = 0):
        self.problem, self.out, self.extra = problem, out, extra
        self.dtype = problem.acc_dtype
        # Of vectors of the result, which have as many bytes.
        self.lanes = streamed * emit.byte_width(self.dtype) // emit.byte_width(out.dtype)
        self.stride = out.strides[DATA[-1]]
        self.collected: Collected | None = None

    @contextmanager
    def kernel(self) -> Iterator[None]:
        """Around all tasks."""
        if self.lanes:
            with nontemporal.instructions(self.out.dtype, self.dtype, self.lanes):
                yield
        else:
            yield

    @contextmanager
    def task(self, room: Expr) -> Iterator[None]:
        """Around one task, whose rows have at most `room` elements."""
        if not self.lanes:
            yield
            return
        self.collected = Collected(self.out, self.dtype, self.lanes, room)
        yield
        self.collected.write(is_apart=True, then=0)
        nontemporal.settle()

    def row(self, channel: Expr, where: Sequence[Expr]) -> Row:
        """The row of `channel`, of all channels, that begins at this place along the four axes."""
        return Row(self, channel, where)


class Row:
    """One row while it is written."""

    def __init__(self, result: Result, channel: Expr, where: Sequence[Expr]):
        self.result, self.first = result, where[-1]
        self.into = emit.opaque_base(result.out.at("C" + DATA, channel, *where))
        self.finished = RowEpilogue(result.problem, result.extra, channel, where[:-1])
        self.place = result.collected.begin(self.into) if result.collected else 0

    def put(self, place: Expr, value: Expr) -> None:
        """The sum that belongs to element `place` of the row."""
        result = self.result
        value = self.finished(value, self.first + place)
        if result.collected:
            emit.store(result.collected.elements, self.place + place, value)
        else:
            narrow = emit.cast(value, result.dtype, result.out.dtype)
            emit.store(result.out, self.into + place * result.stride, narrow)

    def put_all(self, place: Expr, sums: Array, start: Expr, count: Expr, lanes: int) -> None:
        """The sums ``sums[start + i]`` of the elements ``place + i``, i below `count`."""
        result = self.result
        if result.collected or result.stride != 1 or result.problem.epilogue:
            emit.loop(count, lambda i: self.put(place + i, sums[start + i]))
        else:
            copy(result.out, self.into + place, sums, start, count, lanes)

    def end(self, count: Expr) -> None:
        """All `count` elements were put."""
        if self.result.collected:
            self.result.collected.end(self.into + count)


class Collected:
    """Rows of a result, or parts of them, that are to be written together.

    The first of its elements is that of a vector of the result, as are all that begin with a
    multiple of `lanes`; so many of them may belong to no row.  Vectors of the result begin with a
    multiple of their bytes in memory, wherever the result itself does.
    """

    def __init__(self, out: Operand, dtype: str, lanes: int, room: Expr):
        self.out, self.lanes, self.room = out, lanes, room
        self.most = emit.most(room, COLLECTED_BYTES // emit.byte_width(dtype)) + 2 * lanes
        # What is kept of a last vector that is none is read as if it were one.
        self.elements = emit.scratch(self.most + lanes, dtype)
        # Where in the result it begins and ends.
        self.span = emit.scratch(2, "int64")
        emit.fill(self.span, 0, 2, emit.wide(0))
        self.skew = emit.let(emit.via_memory(nontemporal.skew(out, lanes), "int64"))

    def begin(self, into: Expr) -> Expr:
        """Where the elements of a row go that begins at `into` of the result."""
        end = emit.let(self.span[1])
        is_apart, is_full = into != end, end - self._base() > self.most - self.room
        emit.when(is_apart | is_full, lambda: self.write(emit.let(is_apart), into))
        return emit.opaque_base(into - self._base())

    def end(self, end: Expr) -> None:
        """The row was put, and ends there."""
        emit.store(self.span, 1, end)

    def _base(self) -> Expr:
        """What element of the result the first one is."""
        return emit.let(self._vector_of(self.span[0]))

    def _vector_of(self, element: Expr) -> Expr:
        """Where in the result the vector begins that holds its element of this number."""
        return ((element + self.skew) & emit.wide(-self.lanes)) - self.skew

    def write(self, is_apart: Expr, then: Expr) -> None:
        """Write vectors, and what is no whole one: at the end only if the next row `is_apart`; that
        begins at `then`."""
        lanes = self.lanes
        start, end, base = emit.let(self.span[0]), emit.let(self.span[1]), self._base()
        # Of the result: where the first vector begins, and the last ends.
        first = emit.let(self._vector_of(start + (lanes - 1)))
        last = emit.let(self._vector_of(end))
        rest = emit.let(emit.most(start, last))
        source, into = emit.opaque_base(first - base), emit.opaque_base(first)

        def one_by_one(begin: Expr, count: Expr) -> None:
            place = emit.opaque_base(begin - base)

            def element(i: Expr) -> None:
                value = emit.cast(self.elements[place + i], self.elements.dtype, self.out.dtype)
                emit.store(self.out, begin + i, value)

            emit.loop(count, element)

        def vector(i: Expr) -> None:
            value = self.elements[emit.lanes_of(source + i * lanes, lanes)]
            nontemporal.store(self.out, into + i * lanes, value, lanes)

        def whole() -> None:
            one_by_one(start, emit.let(first - start))
            emit.loop(emit.let((last - first) >> (lanes.bit_length() - 1)), vector)

        def all_of_it() -> None:
            one_by_one(rest, emit.let(end - rest))
            emit.store(self.span, 0, emit.wide(then))

        def keep() -> None:
            place = emit.opaque_base(self._vector_of(rest)) - base
            value = self.elements[emit.lanes_of(place, lanes)]
            emit.store(self.elements, emit.lanes_of(0, lanes), value)
            emit.store(self.span, 0, rest)

        emit.when(last >= first, whole)
        emit.when(is_apart, all_of_it, keep)
