# SPDX-License-Identifier: Apache-2.0
"""Softmax and normalizations of rows of neighbouring elements.

::

    parallel over blocks of rows:
        for each row:
            softmax     largest element; exp(x - largest) and its sum
            normalize   mean and variance
            for each element: scaled, epilogue                          -> out

Mean and variance are those of blocks that stay in the first cache, each from its own mean, put
together (Chan, Golub and LeVeque, 1979): the square of a large mean cancels nothing, and memory is
read once.

Where there are few rows, each is divided into parts: their statistics come first, in parallel.
It has no matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...emit.post_ops import RowEpilogue, exp
from ...rowwise import MASKED_SOFTMAX, NORMALIZE, RowWise
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.copies import copy
from ..parts.reduction import reduced
from ..plan.rowwise import RowPlan

_BLOCK = 4096
"""Elements whose mean and variance are made at a time."""

_LOWEST = {"float32": -3.4028234663852886e38, "float64": -1.7976931348623157e308}


def emit_body(rowwise: RowWise, plan: RowPlan, operands: Sequence[Operand]) -> None:
    """What the PrimFunc does, with its arguments as `operands`."""
    x, *others, out = operands
    sizes = {a: emit.opaque_value(size) for a, size in rowwise.sizes}
    _Kernel(rowwise, plan, sizes, (x, others, out)).emit()


class _Moments(NamedTuple):
    """Of some elements: how many, as a number of the dtype; their mean; the sum of the squares of
    what they are off it."""

    count: Expr
    mean: Expr
    squares: Expr

    @classmethod
    def read(cls, held: Array, at: Expr = 0) -> _Moments:
        """Those that are there."""
        return cls(*(emit.let(held[at + i]) for i in range(len(cls._fields))))


class _Kernel:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        rowwise: RowWise,
        plan: RowPlan,
        sizes: dict[str, Expr],
        operands: tuple[Operand, Sequence[Operand], Operand],
    ):
        self.rowwise, self.plan, self.dtype = rowwise, plan, rowwise.acc_dtype
        self.x, self.others, self.out = operands
        self.size = sizes
        self.rows = _product(sizes[a] for a in rowwise.rows)
        self.length = _product(sizes[a] for a in rowwise.columns)
        *self.outer, self.run = rowwise.columns

    def emit(self) -> None:
        """All of it."""
        plan = self.plan
        if plan.parts > 1:
            self._in_parts()
            return
        blocks = emit.ceil_div(self.rows, plan.rows)
        with emit.tasks(blocks, plan.parallel) as task:
            first = emit.let(task * plan.rows)
            count = emit.clamped_extent(first, self.rows, plan.rows)
            emit.loop(count, lambda i: self._row(emit.let(first + i)))

    def _row(self, row: Expr) -> None:
        """One row, from its first element to its last."""
        start = emit.opaque_base(row * self.length)
        source, begin = self._as_computed(start, self.length)
        if self.rowwise.op == NORMALIZE:
            finish = self._normalized(self._moments(source, begin, self.length))
        else:
            source, begin, finish = self._softmax(source, begin, start)
        self._write_row(row, source, begin, finish)

    def _as_computed(self, start: Expr, count: Expr) -> tuple[Array, Expr]:
        """Elements of x in the dtype in which they are computed, and where they begin."""
        if self.x.dtype == self.dtype:
            return self.x, start
        held = emit.scratch(count, self.dtype)
        copy(held, 0, self.x, start, count, self.plan.lanes)
        return held, 0

    # ------------------------------------------------------------ softmax

    def _softmax(
        self, source: Array, begin: Expr, start: Expr
    ) -> tuple[Array, Expr, Callable[[Expr], Expr]]:
        """Where the exponentials are, and what makes a share of each."""
        largest = self._reduced(source, begin, self.length, emit.most, -float("inf"))
        masked = self.rowwise.op == MASKED_SOFTMAX
        if masked:  # minus infinity less this is what it was
            lowest = emit.constant(_LOWEST[self.dtype], self.dtype)
            largest = emit.let(emit.most(largest, lowest))
        into, at = self.out, start
        if into.dtype != self.dtype:
            into, at = source, begin

        def exponential(i: Expr) -> None:
            emit.store(into, at + i, exp(source[begin + i] - largest, self.dtype))

        emit.loop(self.length, exponential)
        total = self._reduced(into, at, self.length, lambda a, b: a + b, 0.0)
        zero, one = (emit.constant(value, self.dtype) for value in (0.0, 1.0))
        share = one / total
        share = emit.let(emit.select(total == zero, zero, share) if masked else share)
        return into, at, lambda value: value * share

    def _reduced(
        self,
        source: Array,
        begin: Expr,
        count: Expr,
        combine: Callable[[Expr, Expr], Expr],
        start: float,
    ) -> Expr:
        """All elements from one on, combined."""

        def value(i: Expr, lanes: int) -> Expr:
            return _read(source, begin + i, lanes)

        shape = self.plan.lanes, self.dtype
        return reduced(count, value, combine, emit.constant(start, self.dtype), shape)

    # ------------------------------------------------------------ mean and variance

    def _moments(self, source: Array, begin: Expr, count: Expr) -> _Moments:
        """Of neighbouring elements, block by block."""
        if isinstance(count, int) and count <= _BLOCK:
            return self._of_block(source, begin, count)
        held = self._no_moments()

        def block(i: Expr) -> None:
            first = emit.let(i * _BLOCK)
            of_block = emit.clamped_extent(first, count, _BLOCK)
            place = emit.opaque_base(begin + first)
            self._add(held, self._of_block(source, place, of_block))

        emit.loop(emit.ceil_div(count, _BLOCK), block)
        return _Moments.read(held)

    def _of_block(self, source: Array, begin: Expr, count: Expr) -> _Moments:
        """Of those of a block: the mean, then how far they are off it."""
        number = emit.constant(count, self.dtype) if isinstance(count, int) else count
        number = number if isinstance(count, int) else emit.let(count.astype(self.dtype))
        mean = emit.let(self._reduced(source, begin, count, lambda a, b: a + b, 0.0) / number)

        def square(i: Expr, lanes: int) -> Expr:
            same = mean if lanes == 1 else emit.broadcast(mean, lanes)
            off = emit.let(_read(source, begin + i, lanes) - same)
            return off * off

        zero, shape = emit.constant(0, self.dtype), (self.plan.lanes, self.dtype)
        return _Moments(number, mean, reduced(count, square, lambda a, b: a + b, zero, shape))

    def _no_moments(self) -> Array:
        held = emit.scratch(len(_Moments._fields), self.dtype)
        emit.fill(held, 0, len(_Moments._fields), emit.constant(0, self.dtype))
        return held

    def _add(self, held: Array, more: _Moments) -> None:
        """Put together what `held` has, and `more`."""
        before = _Moments.read(held)
        count, off = emit.let(before.count + more.count), emit.let(more.mean - before.mean)
        share = emit.let(more.count / count)
        squares = before.squares + more.squares + off * off * (before.count * share)
        for i, value in enumerate((count, before.mean + off * share, squares)):
            emit.store(held, i, value)

    def _normalized(self, moments: _Moments) -> Callable[[Expr], Expr]:
        """What becomes of an element."""
        epsilon, one = (emit.constant(a, self.dtype) for a in (self.rowwise.epsilon, 1))
        variance = moments.squares / moments.count
        scale = emit.let(one / emit.function("sqrt", variance + epsilon))
        return lambda value: (value - moments.mean) * scale

    def _in_parts(self) -> None:
        """The moments of all parts of all rows, then all elements."""
        parts, width = self.plan.parts, len(_Moments._fields)
        of_part = emit.ceil_div(self.length, parts)
        held = emit.scratch(self.rows * parts * width, self.dtype)
        with emit.tasks(self.rows * parts, self.plan.parallel) as task:
            row, part = emit.unravel(task, (self.rows, parts))
            first = emit.let(part * of_part)
            count = emit.clamped_extent(first, self.length, of_part)
            place = emit.opaque_base(row * self.length + first)
            for i, value in enumerate(self._moments(*self._as_computed(place, count), count)):
                emit.store(held, task * width + i, value)

        def whole(row: Expr) -> _Moments:
            made = self._no_moments()

            def part(number: Expr) -> None:
                self._add(made, _Moments.read(held, (row * parts + number) * width))

            emit.loop(parts, part)
            return _Moments.read(made)

        self._pieces(parts, whole)

    def _pieces(self, parts: int, moments: Callable[[Expr], _Moments]) -> None:
        """All elements, in so many tasks a row or more."""
        runs, run = _product(self.size[a] for a in self.outer), self.size[self.run]
        pieces = emit.ceil_div(parts, runs)
        of_piece = emit.ceil_div(run, pieces)
        with emit.tasks(self.rows * runs * pieces, self.plan.parallel) as task:
            row, number, piece = map(emit.let, emit.unravel(task, (self.rows, runs, pieces)))
            finish = self._normalized(moments(row))
            first = emit.let(piece * of_piece)
            count = emit.clamped_extent(first, run, of_piece)
            place = emit.opaque_base((row * runs + number) * run + first)
            where = {**self._where(self.rowwise.rows, row), **self._where(self.outer, number)}
            source = self._as_computed(place, count)
            self._write({**where, self.run: first}, source, (place, count), finish)

    # ------------------------------------------------------------ output

    def _where(self, letters: Sequence[str], number: Expr) -> dict[str, Expr]:
        """Numbers along some letters, of a number among all of their combinations."""
        if not letters:
            return {}
        found = emit.unravel(number, [self.size[a] for a in letters])
        return {a: emit.let(i) for a, i in zip(letters, found)}

    def _write_row(
        self, row: Expr, source: Array, begin: Expr, finish: Callable[[Expr], Expr]
    ) -> None:
        """All elements of a row."""
        rows, run = self._where(self.rowwise.rows, row), self.size[self.run]

        def one(number: Expr) -> None:
            where = {**rows, **self._where(self.outer, number), self.run: 0}
            at = emit.opaque_base(begin + number * run)
            place = emit.opaque_base(row * self.length + number * run)
            self._write(where, (source, at), (place, run), finish)

        emit.loop(_product(self.size[a] for a in self.outer), one)

    def _write(
        self,
        where: dict[str, Expr],
        source: tuple[Array, Expr],
        out: tuple[Expr, Expr],
        finish: Callable[[Expr], Expr],
    ) -> None:
        """Neighbouring elements: where the first is, where it is read, where it is written and how
        many there are."""
        (array, begin), (place, count) = source, out
        epilogue = RowEpilogue.along(
            self.rowwise.epilogue, self.dtype, self.others, where, self.run
        )

        def element(i: Expr) -> None:
            value = epilogue(finish(array[begin + i]), i)
            emit.store(self.out, place + i, emit.cast(value, self.dtype, self.out.dtype))

        emit.loop(count, element)


def _read(array: Array, first: Expr, lanes: int) -> Expr:
    return array[first] if lanes == 1 else array[emit.lanes_of(first, lanes)]


def _product(sizes: Iterable[Expr]) -> Expr:
    result: Expr = 1
    for size in sizes:
        result = result * size
    return result
