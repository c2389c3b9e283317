# SPDX-License-Identifier: Apache-2.0
"""Rows of the result, written as kernels put them together: phase by phase, element by element.

A result that is so large that it is written past the caches is written by stores of whole cache
lines.  Its rows are put together in a line of their own first::

    for each element, in any order: finish it (epilogue)                  -> line
    for each vector of the line: stream it                                -> out
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .. import emit, streaming
from ..emit import Array, Expr, Operand
from ..plan.problem import Problem
from . import DATA
from .copies import copy
from .epilogue import RowEpilogue


class Result:
    """The result of a kernel, of which each task writes some rows.

    Parameters
    ----------
    problem, out, extra
        With the operands of its epilogue.
    streamed : int
        Lanes of the vectors that are written past the caches; 0 if none are.
    """

    def __init__(self, problem: Problem, out: Operand, extra: Sequence[Operand], streamed: int = 0):
        self.problem, self.out, self.extra, self.streamed = problem, out, extra, streamed
        self.dtype = problem.acc_dtype
        self.stride = out.strides[DATA[-1]]
        self.line: Array | None = None

    @contextmanager
    def kernel(self) -> Iterator[None]:
        """Around all tasks."""
        if self.streamed:
            with streaming.instructions(self.dtype, self.streamed):
                yield
        else:
            yield

    @contextmanager
    def task(self, room: Expr) -> Iterator[None]:
        """Around one task, whose rows have at most `room` elements."""
        if self.streamed:
            self.line = emit.scratch(room, self.dtype)
        yield
        if self.streamed:
            streaming.settle()

    def row(self, channel: Expr, where: Sequence[Expr]) -> Row:
        """The row of `channel`, of all channels, that begins at this place along the four axes."""
        return Row(self, channel, where)


class Row:
    """One row while it is written."""

    def __init__(self, result: Result, channel: Expr, where: Sequence[Expr]):
        self.result, self.first = result, where[-1]
        self.into = emit.origin(result.out.at("C" + DATA, channel, *where))
        self.finished = RowEpilogue(result.problem, result.extra, channel, where[:-1])

    def put(self, place: Expr, value: Expr) -> None:
        """The sum that belongs to element `place` of the row."""
        result = self.result
        value = self.finished(value, self.first + place)
        if result.line:
            emit.store(result.line, place, value)
        else:
            narrow = emit.cast(value, result.dtype, result.out.dtype)
            emit.store(result.out, self.into + place * result.stride, narrow)

    def put_all(self, place: Expr, sums: Array, start: Expr, count: Expr, lanes: int) -> None:
        """The sums ``sums[start + i]`` of the elements ``place + i``, i below `count`."""
        result = self.result
        if result.line or result.stride != 1 or result.problem.epilogue:
            emit.loop(count, lambda i: self.put(place + i, sums[start + i]))
        else:
            copy(result.out, self.into + place, sums, start, count, lanes)

    def end(self, count: Expr) -> None:
        """All `count` elements were put."""
        if self.result.streamed:
            self._stream(self.result.line, count)

    def _stream(self, line: Array, count: Expr) -> None:
        """Vectors that fill cache lines, or parts of them, and what lies around them."""
        result, lanes = self.result, self.result.streamed

        def one_by_one(first: Expr, count: Expr) -> None:
            emit.loop(
                count, lambda i: emit.store(result.out, self.into + first + i, line[first + i])
            )

        # The rest of the vector in which the row begins; lanes are a power of two.
        head = emit.let(emit.least((0 - self.into) & emit.wide(lanes - 1), count))
        vectors = emit.let((count - head) >> (lanes.bit_length() - 1))
        one_by_one(0, head)
        start = emit.origin(self.into + head)

        def vector(i: Expr) -> None:
            value = line[emit.lanes_of(head + i * lanes, lanes)]
            streaming.store(result.out, start + i * lanes, value, lanes)

        emit.loop(vectors, vector)
        done = emit.let(head + vectors * lanes)
        one_by_one(done, emit.let(count - done))
