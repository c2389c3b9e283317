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

Where there are few rows, the statistics of each are computed by split-K: in parts, in parallel, by
tasks that run first.  It has no matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...emit.post_ops import RowEpilogue, exp
from ...spec.rowwise import MASKED_SOFTMAX, NORMALIZE, RowWise
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.copies import copy
from ..parts.reduction import reduced
from ..plan.rowwise import RowwisePlan

_BLOCK = 4096
"""Elements whose mean and variance are computed at a time."""

_LOWEST = {"float32": -3.4028234663852886e38, "float64": -1.7976931348623157e308}


def emit_body(rowwise: RowWise, plan: RowwisePlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    x, *others, out = operands
    sizes = {a: emit.opaque_value(size) for a, size in rowwise.sizes}
    _Kernel(rowwise, plan, sizes, (x, others, out)).emit()


class _Moments(NamedTuple):
    """The number of some elements, in their dtype, their mean, and the sum of the squares of their
    differences from it."""

    count: Expr
    mean: Expr
    squares: Expr

    @classmethod
    def read(cls, array: Array, at: Expr = 0) -> _Moments:
        """Load the moments that begin at ``array[at]``."""
        return cls(*(emit.let(array[at + i]) for i in range(len(cls._fields))))


class _Kernel:
    """The emitter of one kernel."""

    def __init__(
        self,
        rowwise: RowWise,
        plan: RowwisePlan,
        sizes: dict[str, Expr],
        operands: tuple[Operand, Sequence[Operand], Operand],
    ):
        self.rowwise, self.plan, self.dtype = rowwise, plan, rowwise.acc_dtype
        self.x, self.others, self.out = operands
        self.size = sizes
        self.rows = _product(sizes[a] for a in rowwise.rows)
        self.length = _product(sizes[a] for a in rowwise.columns)
        self.outer, self.run = rowwise.columns[:-1], rowwise.columns[-1]

    def emit(self) -> None:
        """Emit the whole kernel."""
        plan = self.plan
        if plan.parts > 1:
            self._split_k()
            return
        blocks = emit.ceil_div(self.rows, plan.rows)
        with emit.tasks(blocks, plan.parallel) as task:
            first = emit.let(task * plan.rows)
            count = emit.clamped_extent(first, self.rows, plan.rows)
            for i in emit.loop(count):
                self._row(emit.let(first + i))

    def _row(self, row: Expr) -> None:
        """Emit one row."""
        start = emit.opaque_base(row * self.length)
        source, begin = self._as_computed(start, self.length)
        if self.rowwise.op == NORMALIZE:
            finish = self._normalized(self._moments(source, begin, self.length))
        else:
            source, begin, finish = self._softmax(source, begin, start)
        self._write_row(row, source, begin, finish)

    def _as_computed(self, start: Expr, count: Expr) -> tuple[Array, Expr]:
        """Return elements of x in the dtype of the computation, and where they begin."""
        if self.x.dtype == self.dtype:
            return self.x, start
        converted = emit.scratch(count, self.dtype)
        copy(converted, 0, self.x, start, count, self.plan.lanes)
        return converted, 0

    # ------------------------------------------------------------ softmax

    def _softmax(
        self, source: Array, begin: Expr, start: Expr
    ) -> tuple[Array, Expr, Callable[[Expr], Expr]]:
        """Return where the exponentials are, and the function that divides each by their sum."""
        largest = self._reduced(source, begin, self.length, emit.most, -float("inf"))
        masked = self.rowwise.op == MASKED_SOFTMAX
        if masked:  # minus infinity less this is what it was
            lowest = emit.constant(_LOWEST[self.dtype], self.dtype)
            largest = emit.let(emit.most(largest, lowest))
        into: Array = self.out
        at = start
        if into.dtype != self.dtype:
            into, at = source, begin
        for i in emit.loop(self.length):
            emit.store(into, at + i, exp(source[begin + i] - largest, self.dtype))
        total = self._reduced(into, at, self.length, lambda a, b: a + b, 0.0)
        zero, one = (emit.constant(value, self.dtype) for value in (0.0, 1.0))
        factor = one / total
        factor = emit.let(emit.select(total == zero, zero, factor) if masked else factor)
        return into, at, lambda value: value * factor

    def _reduced(
        self,
        source: Array,
        begin: Expr,
        count: Expr,
        combine: Callable[[Expr, Expr], Expr],
        start: float,
    ) -> Expr:
        """Return the combination of `count` elements from `begin` on."""

        def value(i: Expr, lanes: int) -> Expr:
            return _read(source, begin + i, lanes)

        shape = self.plan.lanes, self.dtype
        return reduced(count, value, combine, emit.constant(start, self.dtype), shape)

    # ------------------------------------------------------------ mean and variance

    def _moments(self, source: Array, begin: Expr, count: Expr) -> _Moments:
        """Return the moments of neighbouring elements, computed block by block."""
        if isinstance(count, int) and count <= _BLOCK:
            return self._of_block(source, begin, count)
        total = self._no_moments()
        for i in emit.loop(emit.ceil_div(count, _BLOCK)):
            first = emit.let(i * _BLOCK)
            of_block = emit.clamped_extent(first, count, _BLOCK)
            start = emit.opaque_base(begin + first)
            self._add(total, self._of_block(source, start, of_block))
        return _Moments.read(total)

    def _of_block(self, source: Array, begin: Expr, count: Expr) -> _Moments:
        """Return the moments of a block: the mean first, then the differences from it."""
        number = emit.constant(count, self.dtype) if isinstance(count, int) else count
        number = number if isinstance(count, int) else emit.let(count.astype(self.dtype))
        mean = emit.let(self._reduced(source, begin, count, lambda a, b: a + b, 0.0) / number)

        def square(i: Expr, lanes: int) -> Expr:
            same = mean if lanes == 1 else emit.broadcast(mean, lanes)
            difference = emit.let(_read(source, begin + i, lanes) - same)
            return difference * difference

        zero, shape = emit.constant(0, self.dtype), (self.plan.lanes, self.dtype)
        return _Moments(number, mean, reduced(count, square, lambda a, b: a + b, zero, shape))

    def _no_moments(self) -> Array:
        """Allocate the moments of no elements."""
        total = emit.scratch(len(_Moments._fields), self.dtype)
        emit.fill(total, 0, len(_Moments._fields), emit.constant(0, self.dtype))
        return total

    def _add(self, total: Array, more: _Moments) -> None:
        """Add the moments of more elements to `total`."""
        before = _Moments.read(total)
        count, difference = emit.let(before.count + more.count), emit.let(more.mean - before.mean)
        ratio = emit.let(more.count / count)
        squares = before.squares + more.squares + difference * difference * (before.count * ratio)
        for i, value in enumerate((count, before.mean + difference * ratio, squares)):
            emit.store(total, i, value)

    def _normalized(self, moments: _Moments) -> Callable[[Expr], Expr]:
        """Return the function that normalizes an element."""
        epsilon, one = (emit.constant(a, self.dtype) for a in (self.rowwise.epsilon, 1))
        variance = moments.squares / moments.count
        scale = emit.let(one / emit.function("sqrt", variance + epsilon))
        return lambda value: (value - moments.mean) * scale

    def _split_k(self) -> None:
        """Emit the moments of all parts of all rows, then all elements."""
        parts, width = self.plan.parts, len(_Moments._fields)
        of_part = emit.ceil_div(self.length, parts)
        moments = emit.scratch(self.rows * parts * width, self.dtype)
        with emit.tasks(self.rows * parts, self.plan.parallel) as task:
            row, part = emit.unravel(task, (self.rows, parts))
            first = emit.let(part * of_part)
            count = emit.clamped_extent(first, self.length, of_part)
            start = emit.opaque_base(row * self.length + first)
            for i, value in enumerate(self._moments(*self._as_computed(start, count), count)):
                emit.store(moments, task * width + i, value)
        self._normalize_blocks(moments)

    def _normalize_blocks(self, moments: Array) -> None:
        """Normalize all elements, by at least as many tasks a row as it has parts."""
        parts = self.plan.parts
        runs, run = _product(self.size[a] for a in self.outer), self.size[self.run]
        blocks = emit.ceil_div(parts, runs)
        of_block = emit.ceil_div(run, blocks)
        with emit.tasks(self.rows * runs * blocks, self.plan.parallel) as task:
            row, number, block = map(emit.let, emit.unravel(task, (self.rows, runs, blocks)))
            total = self._no_moments()
            for part in emit.loop(parts):
                at = (row * parts + part) * len(_Moments._fields)
                self._add(total, _Moments.read(moments, at))
            finish = self._normalized(_Moments.read(total))
            first = emit.let(block * of_block)
            count = emit.clamped_extent(first, run, of_block)
            start = emit.opaque_base((row * runs + number) * run + first)
            where = {**self._where(self.rowwise.rows, row), **self._where(self.outer, number)}
            source = self._as_computed(start, count)
            self._write({**where, self.run: first}, source, (start, count), finish)

    # ------------------------------------------------------------ output

    def _where(self, letters: Sequence[str], number: Expr) -> dict[str, Expr]:
        """Return the index along some letters, of a number among all of their combinations."""
        if not letters:
            return {}
        digits = emit.unravel(number, [self.size[a] for a in letters])
        return {a: emit.let(i) for a, i in zip(letters, digits)}

    def _write_row(
        self, row: Expr, source: Array, begin: Expr, finish: Callable[[Expr], Expr]
    ) -> None:
        """Write all elements of a row."""
        rows, run = self._where(self.rowwise.rows, row), self.size[self.run]
        for number in emit.loop(_product(self.size[a] for a in self.outer)):
            where = {**rows, **self._where(self.outer, number), self.run: 0}
            at = emit.opaque_base(begin + number * run)
            into = emit.opaque_base(row * self.length + number * run)
            self._write(where, (source, at), (into, run), finish)

    def _write(
        self,
        where: dict[str, Expr],
        source: tuple[Array, Expr],
        out: tuple[Expr, Expr],
        finish: Callable[[Expr], Expr],
    ) -> None:
        """Write neighbouring elements.

        Parameters
        ----------
        where : dict
            Index of the first one by letter.
        source, out : tuple
            The array where they are and the offset of the first one, and its offset in the result
            and how many they are.
        finish : callable
            The function of each element before the epilogue.
        """
        (array, begin), (into, count) = source, out
        epilogue = RowEpilogue.along(
            self.rowwise.epilogue, self.dtype, self.others, where, self.run
        )
        for i in emit.loop(count):
            value = epilogue(finish(array[begin + i]), i)
            emit.store(self.out, into + i, emit.cast(value, self.dtype, self.out.dtype))


def _read(array: Array, first: Expr, lanes: int) -> Expr:
    return array[first] if lanes == 1 else array[emit.lanes_of(first, lanes)]


def _product(sizes: Iterable[Expr]) -> Expr:
    result: Expr = 1
    for size in sizes:
        result = result * size
    return result
