# SPDX-License-Identifier: Apache-2.0
"""Attention of few queries, such as a step of decoding: lanes run over keys and channels, and tasks
share the keys of a head.

::

    parallel (batch, share of the keys):
        copy and scale the queries
        for each block of `keys` keys of the share:
            for each tile of as many keys as a vector of the head size has lanes, each query:
                vectors[key] += k[key] * query, over the head size
                scores[query][keys] = sum of each vector
            mask scores, largest, exp, and their sum, by vectors of keys
            rescale columns and sums, where the largest changes
            for each tile of queries and of vectors of columns:
                columns[query][e] += scores[query][key] * v[key]
        one share: columns / sums, epilogue                             -> out
    for each batch, query, where there are several shares:
        sum of columns and of sums, each times exp(largest - largest of all shares)
        columns / sums, epilogue                                        -> out

Scores and values are matrix products of the queries: M is queries, N and K are keys and head size,
then columns and keys.  A key and its values are read once for all queries, in memory order: with
one query, memory limits the speed of a kernel.  :mod:`.attention`, which has a lane for each query,
would leave most lanes empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from ...emit.post_ops import exp_below_zero
from ...spec.attention import COLUMN, INNER, KEY, QUERY, Attention
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.attention import LOWEST, AttentionOperands, inverse, masked, write_row
from ..parts.copies import copy
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.reduction import folded, row_sums
from ..parts.transpose import Pitched, copy_matrix
from ..plan.attention_few import AttentionFewPlan


def emit_body(problem: Attention, plan: AttentionFewPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of ``(q, k, v, *masks, *operands of the epilogue, out)``."""
    kernel = AttentionOperands.of(problem, plan, operands)
    extents = [kernel.size[a] for a in problem.outer]
    shared = _Partial.allocated(kernel, prod(extents) * plan.splits) if plan.splits > 1 else None
    with emit.tasks(prod(extents) * plan.splits, plan.parallel) as number:
        *digits, split = map(emit.opaque_value, emit.unravel(number, (*extents, plan.splits)))
        where = dict(zip(problem.outer, digits))
        partial = shared.of_task(number) if shared else _Partial.allocated(kernel, 1)
        counts = (kernel.size[INNER], plan.pitch)
        scratch = [emit.scratch(kernel.size[QUERY] * n, problem.acc_dtype) for n in counts]
        _Share(kernel, where, split, partial, scratch).emit()
        if shared is None:
            _write(kernel, where, partial)
    if shared is None:
        return
    for number in emit.loop(prod(extents)):
        where = dict(zip(problem.outer, map(emit.opaque_value, emit.unravel(number, extents))))
        partial = shared.of_task(number * plan.splits)
        _merge(kernel, partial)
        _write(kernel, where, partial)


class _Partial(NamedTuple):
    """Sums of a task over its share of the keys.

    Attributes
    ----------
    columns : Array
        Rows of columns, one for each query; row 0 is row `first`.
    largest, sums : Array
        The largest score of each query, and the sum of its exponentials.
    """

    columns: Array
    largest: Array
    sums: Array
    first: Expr
    queries: int
    pitch: int

    @classmethod
    def allocated(cls, kernel: AttentionOperands, tasks: Expr) -> _Partial:
        """Allocate the sums of some tasks."""
        queries, pitch, dtype = kernel.size[QUERY], kernel.size[COLUMN], kernel.problem.acc_dtype
        rows = tasks * queries
        columns, largest, sums = (emit.scratch(rows * each, dtype) for each in (pitch, 1, 1))
        return cls(columns, largest, sums, 0, queries, pitch)

    def of_task(self, number: Expr) -> _Partial:
        """Return the sums of one task."""
        return self._replace(first=emit.opaque_value(number * self.queries))

    def scale(self, row: Expr, factor: Expr, lanes: int) -> None:
        """Multiply a row of columns by a number."""
        start = emit.opaque_base(row * self.pitch)
        for v in emit.loop(self.pitch // lanes):
            at = emit.lanes_of(start + v * lanes, lanes)
            emit.store(self.columns, at, self.columns[at] * emit.broadcast(factor, lanes))


class _Share:
    """The emitter of a task: a share of the keys of all queries of a head.

    Attributes
    ----------
    where : dict
        Index along the letters of the batch.
    split : Expr
        Number of the share.
    rows, scores : Array
        The scaled queries, and the scores of a block of keys, each row `plan.pitch` elements apart.
    """

    def __init__(
        self,
        kernel: AttentionOperands,
        where: dict[str, Expr],
        split: Expr,
        partial: _Partial,
        scratch: Sequence[Array],
    ):
        self.kernel, self.problem, self.plan = kernel, kernel.problem, kernel.plan
        self.size, self.dtype = kernel.size, kernel.problem.acc_dtype
        self.where, self.split, self.partial = where, split, partial
        self.lanes, self.queries = self.plan.lanes, self.size[QUERY]
        self.pitch = self.plan.pitch
        self.rows, self.scores = scratch

    def emit(self) -> None:
        """Emit the whole task."""
        self._begin()
        keys = self.kernel.keys_before(self.queries)
        blocks = emit.ceil_div(keys, self.plan.keys)
        for number in emit.share_of(blocks, self.plan.splits, self.split):
            key = emit.opaque_value(number * self.plan.keys)
            count = emit.clamped_extent(key, keys, self.plan.keys)
            self._scores(key, count)
            for m in emit.loop(self.queries):
                start = emit.opaque_base(m * self.pitch)
                self._mask(start, m, key, count)
                self._softmax(start, m, count)
            self._values(key, count)

    def _begin(self) -> None:
        """Copy and scale the queries; initialize maxima, sums and columns."""
        q, inner, partial = self.kernel.q, self.size[INNER], self.partial
        start = emit.opaque_base(self._start(q))
        step, apart = q.strides[INNER], q.strides[QUERY]
        scale = emit.constant(self.problem.scale, self.dtype)
        for m, d in emit.grid(self.queries, inner):
            value = q.load(start + m * apart + d * step, self.dtype)
            emit.store(self.rows, m * inner + d, emit.via_memory(value, self.dtype) * scale)
        zero, lowest = (emit.constant(number, self.dtype) for number in (0, LOWEST[self.dtype]))
        first = partial.first
        emit.fill(partial.columns, first * partial.pitch, self.queries * partial.pitch, zero)
        emit.fill(partial.sums, first, self.queries, zero)
        emit.fill(partial.largest, first, self.queries, lowest)

    def _start(self, operand: Operand) -> Expr:
        """Return the index at which the batch of this task begins in an operand."""
        return operand.at("".join(self.where), *self.where.values())

    # ------------------------------------------------------------ scores

    def _scores(self, key: Expr, count: Expr) -> None:
        """Write scores[query][key]; after the last key, its scores are repeated."""
        inner, lanes, width = self.size[INNER], self.plan.inner_lanes, self.plan.inner_vectors
        rows, start, apart = self._rows(self.kernel.k, INNER, (key, count))
        zero = emit.broadcast(emit.constant(0, self.dtype), lanes)
        is_whole = isinstance(count, int) and count % lanes == 0
        for i in emit.loop(emit.ceil_div(count, lanes)):
            first = emit.let(i * lanes)
            numbers = [first + t for t in range(lanes)]
            if not is_whole:
                numbers = [emit.least(number, count - 1) for number in numbers]
            starts = [emit.opaque_base(start + number * apart) for number in numbers]
            for m in emit.loop(self.queries):
                registers = emit.registers(lanes, lanes, self.dtype)
                for register, index in registers:
                    emit.store(register, index, zero)
                for part in emit.loop(inner // (width * lanes)):
                    offsets = [emit.let((part * width + v) * lanes) for v in range(width)]
                    queries = [
                        emit.let(self.rows[emit.lanes_of(m * inner + d, lanes)]) for d in offsets
                    ]
                    for begin, (register, index) in zip(starts, registers):
                        for d, query in zip(offsets, queries):
                            product = rows[emit.lanes_of(begin + d, lanes)] * query
                            emit.store(register, index, register[index] + product)
                sums = row_sums([emit.let(each[index]) for each, index in registers], lanes)
                emit.store(self.scores, emit.lanes_of(m * self.pitch + first, lanes), sums)

    def _rows(
        self, operand: Operand, letter: str, keys: tuple[Expr, Expr]
    ) -> tuple[Array, Expr, Expr]:
        """Return rows of keys or values whose elements are neighbours, as stored or copied: the
        array, their first index, and the distance of rows.
        """
        (first, count), plan = keys, self.plan
        steps = operand.strides[KEY], operand.strides[letter]
        start = emit.opaque_base(self._start(operand) + first * steps[0])
        if not (plan.copies_k if letter == INNER else plan.copies_v):
            return operand, start, steps[0]
        elements = self.size[letter]
        pitch = -(-elements // self.lanes) * self.lanes
        copied = emit.scratch(plan.keys * pitch, self.dtype)
        shape = (count, elements)
        copy_matrix(Pitched(copied, 0, pitch), operand, start, steps, shape, self.lanes, plan.keys)
        return copied, 0, pitch

    # ------------------------------------------------------------ masks

    def _mask(self, start: Expr, m: Expr, key: Expr, count: Expr) -> None:
        """Apply masks to the scores of a query; after the last key they become minus infinity."""
        lanes, dtype = self.lanes, self.dtype
        masks = [self._mask_values(mask, m, key, count) for mask in self.kernel.masks]
        lowest = emit.broadcast(emit.constant(-float("inf"), dtype), lanes)
        last = count if not self.problem.causal else emit.least(count, m + self._behind(key))
        last = emit.opaque_value(last)
        is_whole = isinstance(last, int) and last % lanes == 0
        if is_whole and not masks:
            return
        for v in emit.loop(emit.ceil_div(count, lanes)):
            first = emit.let(v * lanes)
            at = emit.lanes_of(start + first, lanes)
            value = emit.let(self.scores[at])
            for stated, mask in zip(self.problem.masks, masks):
                value = emit.let(masked(value, stated, mask(first), (lanes, dtype)))
            if not is_whole:
                present = emit.broadcast(emit.let(emit.wide(last - first).astype("int32")), lanes)
                value = emit.select(emit.lane_numbers(lanes) < present, value, lowest)
            emit.store(self.scores, at, value)

    def _behind(self, key: Expr) -> Expr:
        """Return the first key of a block that query 0 does not read."""
        return self.kernel.diagonal + 1 - key

    def _mask_values(
        self, mask: Operand, m: Expr, key: Expr, count: Expr
    ) -> Callable[[Expr], Expr]:
        """Return ``value(first)``: the vector of a mask from a key of the block on."""
        step, apart = (mask.strides.get(letter, 0) for letter in (KEY, QUERY))
        start = emit.opaque_base(self._start(mask) + key * step + m * apart)
        if KEY not in mask.strides:
            value = emit.let(emit.via_memory(mask.load(start, self.dtype), self.dtype))
            return lambda _: emit.broadcast(value, self.lanes)
        copied = emit.scratch(self.pitch, self.dtype)
        copy(copied, 0, mask, start, count, self.lanes, step)
        return lambda first: copied[emit.lanes_of(first, self.lanes)]

    # ------------------------------------------------------------ softmax

    def _softmax(self, start: Expr, m: Expr, count: Expr) -> None:
        """Replace scores by exponentials, and rescale the sums and columns of earlier keys."""
        partial, lanes, dtype = self.partial, self.lanes, self.dtype
        row = emit.opaque_base(partial.first + m)
        before = emit.let(partial.largest[row])
        largest = self._reduced(start, count, emit.most, LOWEST[dtype], lambda score: score)
        largest = emit.let(emit.most(before, largest))
        factor = exponential(before - largest, dtype)
        partial.scale(row, factor, self.plan.column_lanes)
        emit.store(partial.largest, row, largest)

        def weight(score: Expr) -> Expr:
            difference = emit.let(score - emit.broadcast(largest, lanes))
            return exp_below_zero(difference, dtype, lanes)

        sums = self._reduced(start, count, lambda a, b: a + b, 0, weight, stores=True)
        emit.store(partial.sums, row, partial.sums[row] * factor + sums)

    def _reduced(
        self,
        start: Expr,
        count: Expr,
        combine: Callable[[Expr, Expr], Expr],
        neutral: float,
        value: Callable[[Expr], Expr],
        *,
        stores: bool = False,
    ) -> Expr:
        """Return ``value(score)`` of all scores of a query, combined; with `stores` the values
        replace the scores.
        """
        lanes = self.lanes
        ((register, index),) = emit.registers(1, lanes, self.dtype)
        emit.store(register, index, emit.broadcast(emit.constant(neutral, self.dtype), lanes))
        for v in emit.loop(emit.ceil_div(count, lanes)):
            at = emit.lanes_of(start + v * lanes, lanes)
            result = emit.let(value(emit.let(self.scores[at])))
            if stores:
                emit.store(self.scores, at, result)
            emit.store(register, index, combine(register[index], result))
        return folded([emit.let(register[index])], combine, lanes)

    # ------------------------------------------------------------ values

    def _values(self, key: Expr, count: Expr) -> None:
        """Add values times exponentials to the columns."""
        plan, partial, lanes = self.plan, self.partial, self.plan.column_lanes
        rows, start, apart = self._rows(self.kernel.v, COLUMN, (key, count))
        vectors = self.size[COLUMN] // lanes
        for query, height in emit.tiles(self.queries, plan.query_tile):
            scores = emit.opaque_base(query * self.pitch)
            for vector, width in emit.tiles(vectors, plan.column_vectors):
                begin = emit.opaque_base(start + vector * lanes)
                into = (partial.first + query) * partial.pitch + vector * lanes
                offsets = [emit.opaque_base(into + o * partial.pitch) for o in range(height)]
                a = Matrix(self.scores, lambda o, n, at=scores: at + o * self.pitch + n, 1)
                b = Matrix(rows, lambda n, begin=begin: begin + n * apart, apart)
                c = RegisterTile(partial.columns, offsets, width, lanes)
                add_products((count,), a, b, c, fresh=False)


def exponential(value: Expr, dtype: str) -> Expr:
    """Return the exponential function of a number that is not positive."""
    vector = emit.broadcast(emit.let(value), 2)
    return emit.let(emit.shuffled([emit.let(exp_below_zero(emit.let(vector), dtype, 2))], [0]))


def _merge(kernel: AttentionOperands, partial: _Partial) -> None:
    """Add the sums of all shares of a head to those of the first."""
    plan, dtype, lanes = kernel.plan, kernel.problem.acc_dtype, kernel.plan.column_lanes
    largest = emit.scratch(1, dtype)
    for m in emit.loop(partial.queries):
        first = emit.opaque_base(partial.first + m)
        rows = [emit.opaque_base(first + i * partial.queries) for i in range(plan.splits)]
        emit.store(largest, 0, partial.largest[first])
        for row in rows[1:]:
            emit.store(largest, 0, emit.most(largest[0], partial.largest[row]))
        top = emit.let(largest[0])
        for row in rows:
            factor = exponential(partial.largest[row] - top, dtype)
            partial.scale(row, factor, lanes)
            emit.store(partial.sums, row, partial.sums[row] * factor)
        for row in rows[1:]:
            emit.store(partial.sums, first, partial.sums[first] + partial.sums[row])
            for v in emit.loop(partial.pitch // lanes):
                into, source = (
                    emit.lanes_of(one * partial.pitch + v * lanes, lanes) for one in (first, row)
                )
                emit.store(partial.columns, into, partial.columns[into] + partial.columns[source])


def _write(kernel: AttentionOperands, where: dict[str, Expr], partial: _Partial) -> None:
    """Write columns divided by sums."""
    lanes = kernel.plan.column_lanes
    for m in emit.loop(partial.queries):
        row = emit.opaque_base(partial.first + m)
        factor = inverse(emit.let(partial.sums[row]), kernel.problem, 1)
        partial.scale(row, factor, lanes)
        write_row(kernel, {**where, QUERY: m}, partial.columns, row * partial.pitch, lanes)
