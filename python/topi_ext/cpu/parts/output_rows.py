# SPDX-License-Identifier: Apache-2.0
"""Rows of the result, which kernels write phase by phase, element by element.

Non-temporal stores, which large results use, write whole cache lines.  Their rows are collected in
a staging buffer first::

    for each row, while the next would fit:
        for each element, in any order: epilogue                          -> staging buffer
    for each vector of the staging buffer: non-temporal store             -> out

Elements that were stored one or two at a time cannot be read as a vector before they are in the
cache, and on its way waits for the non-temporal stores before it: one row at a time would wait for
memory at each.  Rows that follow each other also share a cache line, which is filled by both here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ...emit.post_ops import RowEpilogue
from ...spec.conv import DATA, Convolution
from ...spec.dtypes import byte_width
from .. import emit
from ..emit import Array, Expr, Operand
from ..isa import nontemporal
from .copies import copy

COLLECTED_BYTES = 8192
"""Bytes that are collected, if no row is longer: the room of the first cache beside sums."""


class Result:
    """The result of a kernel; each task writes some of its rows.

    Parameters
    ----------
    problem, out, extra
        The result, and the operands of its epilogue.
    streamed : int
        Lanes of vectors of sums, a power of two, with non-temporal stores; else 0.
    """

    def __init__(
        self, problem: Convolution, out: Operand, extra: Sequence[Operand], streamed: int = 0
    ):
        self.problem, self.out, self.extra = problem, out, extra
        self.dtype = problem.finished_dtype
        # Of vectors of the result, which have as many bytes.
        self.lanes = streamed * byte_width(self.dtype) // byte_width(out.dtype)
        self.stride = out.strides[DATA[-1]]

    @contextmanager
    def kernel(self) -> Iterator[None]:
        """Enclose all tasks of the kernel."""
        if self.lanes:
            with nontemporal.instructions(self.out.dtype, self.dtype, self.lanes):
                yield
        else:
            yield

    @contextmanager
    def task(self, room: Expr) -> Iterator[Rows]:
        """Enclose one task, whose rows have at most `room` elements; yield the rows to write by."""
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
        Where they are collected, if they are written by non-temporal stores.
    """

    result: Result
    staging: StagingBuffer | None = None

    def row(self, channel: Expr, where: Sequence[Expr]) -> Row:
        """Begin the row of `channel`, counted through all groups, at this index along the four
        axes."""
        result, staging = self
        into = emit.opaque_base(result.out.at("C" + DATA, channel, *where))
        epilogue = RowEpilogue.emitted(result.problem, result.extra, channel, where[:-1])
        offset = staging.begin(into) if staging else 0
        return Row(result, staging, epilogue, where[-1], into, offset)


class Row(NamedTuple):
    """One row while it is written.

    Attributes
    ----------
    result, staging
        As of :class:`Rows`.
    epilogue : RowEpilogue
        Post-ops that are applied to each sum.
    first : Expr
        The position of its first element along the row's axis.
    into, offset : Expr
        Where that is in the result, and in the staging buffer.
    """

    result: Result
    staging: StagingBuffer | None
    epilogue: RowEpilogue
    first: Expr
    into: Expr
    offset: Expr

    def put(self, i: Expr, value: Expr) -> None:
        """Write a sum to element `i` of the row."""
        result = self.result
        value = self.epilogue(value, self.first + i)
        if self.staging:
            emit.store(self.staging.elements, self.offset + i, value)
        else:
            narrow = emit.cast(value, result.dtype, result.out.dtype)
            emit.store(result.out, self.into + i * result.stride, narrow)

    def put_all(self, first: Expr, acc: Array, start: Expr, count: Expr, lanes: int) -> None:
        """Write the sums ``acc[start + i]`` to elements ``first + i``, for i below `count`."""
        result = self.result
        if self.staging or result.stride != 1 or result.problem.epilogue:
            for i in emit.loop(count):
                self.put(first + i, acc[start + i])
        else:
            copy(result.out, self.into + first, acc, start, count, lanes)

    def interleaved(
        self, factor: int, counts: tuple[Expr, Expr], unrolled: int
    ) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Emit ``for i, q, a in row.interleaved(...)``: loops over all elements ``i = q * factor +
        a``.

        `counts` are the number of positions q that have all elements a below `factor`, and the
        elements of one position more.  A loop over at most `unrolled` elements is written out.
        """
        whole, rest = counts
        for q in emit.loop(whole):
            for a in range(factor) if factor <= unrolled else emit.loop(factor):
                yield q * factor + a, q, a
        for a in emit.loop(rest):
            yield whole * factor + a, whole, a

    def end(self, count: Expr) -> None:
        """End the row, all `count` elements of which were put."""
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
        Lanes of its vectors.
    room, most : int or expression
        Elements of the longest row, and of all that is collected.
    elements, span : Array
        Collected elements, and their start and end in the result.
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
        """Allocate an empty buffer of this dtype."""
        most = emit.most(room, COLLECTED_BYTES // byte_width(dtype)) + 2 * lanes
        # The last elements are stored by whole vectors, which may reach past them.
        elements = emit.scratch(most + lanes, dtype)
        span = emit.scratch(2, "int64")
        emit.fill(span, 0, 2, emit.wide(0))
        skew = emit.let(emit.via_memory(nontemporal.skew(out, lanes), "int64"))
        return cls(out, lanes, room, most, elements, span, skew)

    def begin(self, into: Expr) -> Expr:
        """Return where to collect the row that begins at `into` of the result."""
        end = emit.let(self.span[1])
        is_apart, is_full = into != end, end - self._base() > self.most - self.room
        for _ in emit.only_if(is_apart | is_full):
            self.write(emit.let(is_apart), into)
        return emit.opaque_base(into - self._base())

    def end(self, end: Expr) -> None:
        """End a row, which ends before element `end` of the result."""
        emit.store(self.span, 1, end)

    def _base(self) -> Expr:
        """Return the number of the first collected element in the result."""
        return emit.let(self._vector_of(self.span[0]))

    def _vector_of(self, element: Expr) -> Expr:
        """Return where in the result the vector begins that contains this element."""
        return ((element + self.skew) & emit.wide(-self.lanes)) - self.skew

    def write(self, is_apart: Expr, then: Expr) -> None:
        """Write all whole vectors, the elements before them, and, if the next row `is_apart`, those
        behind them.  The next row begins at `then`."""
        lanes = self.lanes
        start, end, base = emit.let(self.span[0]), emit.let(self.span[1]), self._base()
        # Of the result: where the first vector begins, and the last ends.
        first = emit.let(self._vector_of(start + (lanes - 1)))
        last = emit.let(self._vector_of(end))
        rest = emit.let(emit.most(start, last))
        source, into = emit.opaque_base(first - base), emit.opaque_base(first)

        for _ in emit.only_if(last >= first):
            self._copy_elements(base, start, emit.let(first - start))
            for i in emit.loop(emit.let((last - first) >> (lanes.bit_length() - 1))):
                value = self.elements[emit.lanes_of(source + i * lanes, lanes)]
                nontemporal.store(self.out, into + i * lanes, value, lanes)
        for is_last in emit.sides(is_apart):
            if is_last:
                self._copy_elements(base, rest, emit.let(end - rest))
                emit.store(self.span, 0, emit.wide(then))
            else:
                # Kept in front, to be written with the next row.
                kept = emit.opaque_base(self._vector_of(rest)) - base
                value = self.elements[emit.lanes_of(kept, lanes)]
                emit.store(self.elements, emit.lanes_of(0, lanes), value)
                emit.store(self.span, 0, rest)

    def _copy_elements(self, base: Expr, begin: Expr, count: Expr) -> None:
        """Write `count` elements of the result from `begin` on, one by one."""
        source = emit.opaque_base(begin - base)
        for i in emit.loop(count):
            value = emit.cast(self.elements[source + i], self.elements.dtype, self.out.dtype)
            emit.store(self.out, begin + i, value)
