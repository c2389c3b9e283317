# SPDX-License-Identifier: Apache-2.0
"""Softmax and normalizations of rows: neighbouring elements, or those of a group of channels with
channels last.

::

    teams of threads (row, part of the row):
        elements of the row, by vectors                             -> registers
        softmax     largest element; sum of exp(x - largest)
        normalize   mean; sum of (x - mean)^2
        for each element: scaled, epilogue                          -> out

The variance is computed around the mean, so a large mean cancels nothing.  Rows that do not fit
into the registers of a team are read again by each pass.

A few long rows are divided into parts: a launch computes mean and squares of each part, and a
second one combines those of a row and writes its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

from ...emit.post_ops import RowEpilogue, exp
from ...spec.dtypes import FLOATS
from ...spec.rowwise import MASKED_SOFTMAX, NORMALIZE, RowWise
from .. import emit
from ..emit import Array, Expr, Operand, flat, local, narrow, opaque_value, pick, store
from ..isa import runs, team_reduction
from ..machine import WARP
from ..plan.rowwise import RowwisePlan, is_held

_COMBINED: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Sum": lambda a, b: a + b,
    "Maximum": lambda a, b: emit.select(a > b, a, b),
}

_LOWEST = {"float32": -3.4028234663852886e38, "float64": -1.7976931348623157e308}
"""Where maxima begin: minus infinity less this is what it was."""


def emit_body(rowwise: RowWise, plan: RowwisePlan, operands: Sequence[Operand]) -> None:
    """Emit one launch, or two for rows in parts."""
    rows = rowwise.extent(rowwise.rows)
    grid = emit.ceil_div(rows * plan.parts * plan.team, plan.threads)
    moments = None
    functions = runs.FUNCTIONS + team_reduction.FUNCTIONS
    if plan.parts > 1:
        moments = emit.workspace_of(rows * plan.parts * 2, rowwise.acc_dtype)
        with emit.launch(grid, plan.threads, functions) as numbers:
            _Team(rowwise, plan, operands, numbers).write_moments(moments)
    with emit.launch(grid, plan.threads, functions) as numbers:
        _Team(rowwise, plan, operands, numbers).write(moments)


class _Team:
    """The threads of a row, or of a part of one, from the column `first` on up to `limit`."""

    def __init__(
        self,
        rowwise: RowWise,
        plan: RowwisePlan,
        operands: Sequence[Operand],
        numbers: tuple[Expr, Expr],
    ):
        self.rowwise, self.plan, self.dtype = rowwise, plan, rowwise.acc_dtype
        self.x, *self.others, self.out = operands
        block, self.thread = numbers
        self.size = {a: opaque_value(narrow(size)) for a, size in rowwise.sizes}
        self.length = opaque_value(prod(self.size[a] for a in rowwise.columns))
        rows = prod(self.size[a] for a in rowwise.rows)
        teams = plan.threads // plan.team
        self.number = opaque_value(block * teams + emit.quotient(self.thread, plan.team))
        self.lane = opaque_value(emit.remainder(self.thread, plan.team))
        row, part = emit.unravel(self.number, (rows, plan.parts))
        self.row = opaque_value(row)
        count = rows * plan.parts
        is_even = isinstance(count, int) and count % teams == 0
        self.inside = True if is_even else self.number < count
        self.of_part = opaque_value(self._part_size())
        self.first = opaque_value(part * self.of_part) if plan.parts > 1 else 0
        end = emit.least(self.length, self.first + self.of_part) if plan.parts > 1 else self.length
        self.limit = opaque_value(pick(self.inside, lambda: emit.typed(end), self.first))
        self.is_full = isinstance(self.limit, int) and self.limit % plan.window == 0
        self.held = local(plan.turns * plan.vector, self.dtype)
        self.is_held = is_held(rowwise, plan)
        self.where = self._where(rowwise.rows, self.row)
        self.start = opaque_value(self.x.at(rowwise.rows, *self.where.values()))
        self.partial = self._partial()
        if self.is_held:
            self._read(self.first)

    def _part_size(self) -> Expr:
        """Return the number of elements of a part: whole vectors."""
        vectors = emit.ceil_div(self.length, self.plan.parts * self.plan.vector)
        return vectors * self.plan.vector

    def _partial(self) -> Array:
        """Return shared memory for the values of warps, for two reductions."""
        warps = self.plan.threads // WARP
        return emit.shared(2 * warps, self.dtype) if self.plan.team > WARP else local(1, self.dtype)

    # ------------------------------------------------------------ elements

    def _windows(self) -> Iterator[Expr]:
        """Emit a loop over windows, ``for first in ...``: the elements of one are in registers."""
        if self.is_held:
            yield self.first
            return
        for number in emit.loop(emit.ceil_div(self.of_part, self.plan.window)):
            first = opaque_value(self.first + number * self.plan.window)
            self._read(first)
            yield first

    def _vectors(self, first: Expr) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Emit an unrolled loop over the thread's vectors of a window: the number of each, its
        column, and whether it is in the row; it lies there entirely, or not at all."""
        for turn in emit.unrolled(self.plan.turns):
            column = opaque_value(first + (turn * self.plan.team + self.lane) * self.plan.vector)
            yield turn, column, True if self.is_full else column < self.limit

    def _read(self, first: Expr) -> None:
        """Read a window into registers, zeros in place of what lies behind the row."""
        for turn, column, is_here in self._vectors(first):
            at = turn * self.plan.vector
            self._read_run(self.held, at, self.x, self._offset(column), is_here)

    def _offset(self, column: Expr) -> Expr:
        """Return the offset of a column in the tensor, and in the result."""
        if not self.rowwise.is_strided:
            return self.start + flat(column)
        where = self._where(self.rowwise.columns, column)
        return self.start + self.x.at(self.rowwise.columns, *where.values())

    def _read_run(
        self, into: Array, first: Expr, source: Array, at: Expr, is_here: Expr = True
    ) -> None:
        """Read a vector into registers."""
        arguments = (into.buffer.data, first, source.buffer.data, emit.wide(at))
        emit.call(f"topi_read_run<{self.plan.vector}>", *arguments, emit.condition(is_here))

    def _reduced(
        self,
        op: str,
        neutral: float,
        term: Callable[[Expr], Expr],
        slot: int,
    ) -> Expr:
        """Return the sum or the maximum of the terms of all elements, in all threads of the team.

        Parameters
        ----------
        op : str
            ``Sum`` or ``Maximum``.
        neutral : float
        term : callable
            Function of an element.
        slot : int
            Number of the reduction: each has shared memory of its own.
        """
        start = emit.constant(neutral, self.dtype)
        total = local(1, self.dtype)
        store(total, 0, start)
        for first in self._windows():
            for turn, _, is_here in self._vectors(first):
                for i in range(self.plan.vector):
                    element = self.held[turn * self.plan.vector + i]
                    value = pick(is_here, partial(term, element), start)
                    store(total, 0, _COMBINED[op](total[0], value))
        arguments = total.buffer.data, self.partial.buffer.data
        place = slot * (self.plan.threads // WARP)
        emit.call(f"topi_team<Topi{op}, {self.plan.team}>", *arguments, place, self.thread)
        return total[0]

    # ------------------------------------------------------------ what is done to an element

    def write_moments(self, moments: Array) -> None:
        """Compute mean and squares of the part and store them."""
        mean, squares = self._moments(emit.most(1, self.limit - self.first))
        for _ in emit.only_if(emit.both(self.inside, self.lane < 1)):
            store(moments, flat(self.number) * 2, mean)
            store(moments, flat(self.number) * 2 + 1, squares)

    def write(self, moments: Array | None) -> None:
        """Compute all elements and write them."""
        if self.rowwise.op == NORMALIZE:
            of_row = self._combined(moments) if moments else self._moments(self.length)
            finish = self._normalized(*of_row)
        else:
            finish = self._softmax()
        for first in self._windows():
            for turn, column, is_here in self._vectors(first):
                for _ in emit.only_if(is_here):
                    self._write_run(column, turn, finish)

    def _moments(self, count: Expr) -> tuple[Expr, Expr]:
        """Return the mean of `count` elements, and the sum of squares of differences from it."""
        mean = self._reduced("Sum", 0.0, lambda x: x, 0) / self._number(count)
        mean = emit.via_register(mean, self.dtype)

        def square(x: Expr) -> Expr:
            difference = emit.let(x - mean)
            return difference * difference

        return mean, self._reduced("Sum", 0.0, square, 1)

    def _combined(self, moments: Array) -> tuple[Expr, Expr]:
        """Return mean and squares of the row from those of its parts, in order."""
        mean = self._over_parts(moments, lambda count, of_part, _: count * of_part)
        mean = emit.via_register(mean / self._number(self.length), self.dtype)

        def square(count: Expr, of_part: Expr, squares: Expr) -> Expr:
            difference = emit.let(of_part - mean)
            return squares + count * difference * difference

        return mean, self._over_parts(moments, square)

    def _over_parts(self, moments: Array, term: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
        """Return the sum of a function of the count, the mean and the squares of each part."""
        total, parts = local(1, self.dtype), self.plan.parts
        store(total, 0, emit.constant(0, self.dtype))
        first = opaque_value(flat(self.row) * parts)
        for _ in emit.only_if(self.inside):
            for part in emit.loop(parts):
                left = emit.most(0, self.length - part * self.of_part)
                count = self._number(emit.least(self.of_part, left))
                at = (first + part) * 2
                store(total, 0, total[0] + term(count, moments[at], moments[at + 1]))
        return total[0]

    def _normalized(self, mean: Expr, squares: Expr) -> Callable[[Expr], Expr]:
        """Return the function that normalizes an element."""
        epsilon, one = (emit.constant(a, self.dtype) for a in (self.rowwise.epsilon, 1))
        variance = squares / self._number(self.length)
        scale = emit.via_register(one / emit.function("sqrt", variance + epsilon), self.dtype)
        return lambda x: (x - mean) * scale

    def _softmax(self) -> Callable[[Expr], Expr]:
        """Return the function that divides the exponential of an element by their sum."""
        largest = self._reduced("Maximum", _LOWEST[self.dtype], lambda x: x, 0)
        largest = emit.via_register(largest, self.dtype)
        total = self._reduced("Sum", 0.0, lambda x: exp(x - largest, self.dtype), 1)
        zero, one = (emit.constant(value, self.dtype) for value in (0, 1))
        factor = one / total  # infinite where all of a row is minus infinity: 0 times it is NaN
        if self.rowwise.op == MASKED_SOFTMAX:
            factor = emit.select(total == zero, zero, factor)
        factor = emit.via_register(factor, self.dtype)
        return lambda x: exp(x - largest, self.dtype) * factor

    def _number(self, count: Expr) -> Expr:
        """Return a count in the dtype of the computation."""
        return emit.typed(count).astype(self.dtype)

    # ------------------------------------------------------------ output

    def _where(self, letters: Sequence[str], number: Expr) -> dict[str, Expr]:
        """Return the index along some letters, of a number among all of their combinations."""
        if not letters:
            return {}
        digits = emit.unravel(number, [self.size[a] for a in letters])
        return {a: flat(opaque_value(digit)) for a, digit in zip(letters, digits)}

    def _write_run(self, column: Expr, turn: Expr, finish: Callable[[Expr], Expr]) -> None:
        """Finish and write the vector at `column`."""
        count, steps = self.plan.vector, self.rowwise.epilogue
        where = {**self.where, **self._where(self.rowwise.columns, column)}
        run = self.rowwise.columns[-1]
        epilogue = RowEpilogue.along(steps, self.dtype, self.others, where, run)
        sources = [self._in_registers(*source) for source in epilogue.sources]
        epilogue = epilogue._replace(sources=sources, kept=emit.via_register)
        finished = local(count, self.out.dtype)
        for i in range(count):
            value = epilogue(finish(self.held[turn * count + i]), i)
            store(finished, i, emit.cast(value, self.dtype, self.out.dtype))
        data = (self.out.buffer.data, emit.wide(self._offset(column)), finished.buffer.data)
        emit.call(f"topi_store_run<{count}>", *data, count)

    def _in_registers(self, operand: Array, start: Expr, stride: Expr) -> tuple[Array, Expr, Expr]:
        """Load neighbours of an operand of the epilogue by one instruction, if it has them."""
        is_run = isinstance(stride, int) and stride == 1 and self.plan.vector > 1
        if not is_run or operand.dtype not in FLOATS:
            return operand, start, stride
        held = local(self.plan.vector, self.dtype)
        self._read_run(held, 0, operand, start)
        return held, 0, 1
