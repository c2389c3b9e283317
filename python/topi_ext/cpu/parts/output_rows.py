# SPDX-License-Identifier: Apache-2.0
"""Rows of the result, written as kernels put them together: phase by phase, element by element.

A result that is so large that it is written past the caches is written by stores of whole cache
lines.  Some rows are collected in a staging buffer first::

    for each row, while the next would fit:
        for each element, in any order: epilogue                          -> staging buffer
    for each vector of the staging buffer: non-temporal store             -> out

What was put there an element or two at a time can't be read as a vector before it is in the first
cache, and on its way waits for stores before it, past the caches: one row at a time would wait for
memory at each.  Rows that follow each other also share a cache line, which is filled by both here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

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
        self.dtype = problem.finished_dtype
        # Of vectors of the result, which have as many bytes.
        self.lanes = streamed * emit.byte_width(self.dtype) // emit.byte_width(out.dtype)
        self.stride = out.strides[DATA[-1]]

    @contextmanager
    def kernel(self) -> Iterator[None]:
        """Around all tasks."""
        if self.lanes:
            with nontemporal.instructions(self.out.dtype, self.dtype, self.lanes):
                yield
        else:
            yield

    @contextmanager
    def task(self, room: Expr) -> Iterator[Rows]:
        """Around one task, whose rows have at most `room` elements: what it writes them by."""
        if not self.lanes:
            yield Rows(self)
            return
        staging = StagingBuffer.emitted(self.out, self.dtype, self.lanes, room)
        yield Rows(self, staging)
        staging.write(is_apart=True, then=0)
        nontemporal.settle()


class Rows(NamedTuple):
    """The rows that one task writes.

    Attributes
    ----------
    result : Result
    staging : StagingBuffer, optional
        Where they are collected, if they are written past the caches.
    """

    result: Result
    staging: StagingBuffer | None = None

    def row(self, channel: Expr, where: Sequence[Expr]) -> Row:
        """The row of `channel`, of all channels, that begins at this place along the four axes."""
        result, staging = self
        into = emit.opaque_base(result.out.at("C" + DATA, channel, *where))
        epilogue = RowEpilogue.emitted(result.problem, result.extra, channel, where[:-1])
        place = staging.begin(into) if staging else 0
        return Row(result, staging, epilogue, where[-1], into, place)


class Row(NamedTuple):
    """One row while it is written.

    Attributes
    ----------
    result, staging
        As of :class:`Rows`.
    epilogue : RowEpilogue
        What is done to each sum.
    first : Expr
        The position of its first element along the row's axis.
    into, place : Expr
        Where that is in the result, and in the staging buffer.
    """

    result: Result
    staging: StagingBuffer | None
    epilogue: RowEpilogue
    first: Expr
    into: Expr
    place: Expr

    def put(self, place: Expr, value: Expr) -> None:
        """The sum that belongs to element `place` of the row."""
        result = self.result
        value = self.epilogue(value, self.first + place)
        if self.staging:
            emit.store(self.staging.elements, self.place + place, value)
        else:
            narrow = emit.cast(value, result.dtype, result.out.dtype)
            emit.store(result.out, self.into + place * result.stride, narrow)

    def put_all(self, place: Expr, acc: Array, start: Expr, count: Expr, lanes: int) -> None:
        """The sums ``acc[start + i]`` of the elements ``place + i``, i below `count`."""
        result = self.result
        if self.staging or result.stride != 1 or result.problem.epilogue:
            emit.loop(count, lambda i: self.put(place + i, acc[start + i]))
        else:
            copy(result.out, self.into + place, acc, start, count, lanes)

    def put_interleaved(
        self,
        factor: int,
        counts: tuple[Expr, Expr],
        value_of: Callable[[Expr, Expr], Expr],
        unrolled: int,
    ) -> None:
        """``value_of(q, a)`` for element ``q * factor + a``: all a below `factor` of the first of
        `counts` positions q, and so many as the second says of the next.  A loop over at most
        `unrolled` elements is written out."""
        whole, rest = counts

        def element(q: Expr, a: Expr) -> None:
            self.put(q * factor + a, value_of(q, a))

        def position(q: Expr) -> None:
            if factor <= unrolled:
                for a in range(factor):
                    element(q, a)
            else:
                emit.loop(factor, lambda a: element(q, a))

        emit.loop(whole, position)
        emit.loop(rest, lambda a: element(whole, a))

    def end(self, count: Expr) -> None:
        """All `count` elements were put."""
        if self.staging:
            self.staging.end(self.into + count)


@dataclass(frozen=True)
class StagingBuffer:
    """Rows of a result, or parts of them, that are to be written together.

    The first of its elements is that of a vector of the result, as are all that begin with a
    multiple of `lanes`; so many of them may belong to no row.  Vectors of the result begin with a
    multiple of their bytes in memory, wherever the result itself does.

    Attributes
    ----------
    out : Operand
        The result.
    lanes : int
        Of its vectors.
    room, most : int or expression
        Elements of the longest row, and of all that is collected.
    elements, span : Array
        What is collected, and where in the result it begins and ends.
    skew : Expr
        Elements of the result before its first whole vector in memory.
    """

    out: Operand
    lanes: int
    room: Expr
    most: Expr
    elements: Array
    span: Array
    skew: Expr

    @classmethod
    def emitted(cls, out: Operand, dtype: str, lanes: int, room: Expr) -> StagingBuffer:
        """An empty one of this dtype."""
        most = emit.most(room, COLLECTED_BYTES // emit.byte_width(dtype)) + 2 * lanes
        # What is kept of a last vector that is none is read as if it were one.
        elements = emit.scratch(most + lanes, dtype)
        span = emit.scratch(2, "int64")
        emit.fill(span, 0, 2, emit.wide(0))
        skew = emit.let(emit.via_memory(nontemporal.skew(out, lanes), "int64"))
        return cls(out, lanes, room, most, elements, span, skew)

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
