# SPDX-License-Identifier: Apache-2.0
"""Attention, ``softmax(scale * q k^T + masks) v``, without storing all scores.

Lanes run over queries, values of k and v are broadcast::

    parallel (batch, block of `width` queries):
        transpose and scale its rows of q                               -> queries[d][width]
        for each block of `keys` keys:
            for each tile of `key_tile` keys:
                scores[key][width] = k * queries
            mask scores, largest of each query
            scores = exp(scores - largest), and their sums
            rescale columns and sums, where the largest changes
            for each tile of `column_tile` columns:
                columns[e][width] += v * scores
        columns / sums, transposed, epilogue                            -> out

Both are matrix products: M are queries; N keys, K the head size of the first; N columns, K keys of
the second.

Every query has a lane, so that maxima and sums need no shuffles.  Keys and values are read as they
are stored, for every head size.  The online softmax combines blocks of keys (Milakov and
Gimelshein, 2018; Dao et al., *FlashAttention*, 2022): if a larger score occurs, earlier columns and
sums are multiplied by ``exp(before - now)``.  Keys that causal attention hides from a whole block
of queries are not read.

The result differs from that of exact arithmetic only by float32 rounding.  With n keys, head size
d, and u = 2^-24, a score s has the error ``d u sum |q k|``.  Its weight ``exp(s - largest)`` adds
2.2 u, and sums of weights add n u at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from ...emit.post_ops import exp_below_zero
from ...spec.attention import COLUMN, INNER, KEY, QUERY, Attention
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.attention import (
    LOWEST,
    AttentionOperands,
    QueryBlock,
    inverse,
    masks_of,
    write_row,
)
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.transpose import Pitched, copy_matrix
from ..plan.attention import AttentionPlan


def emit_body(problem: Attention, plan: AttentionPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of ``(q, k, v, *masks, *operands of the epilogue, out, perhaps sums)``."""
    kernel = AttentionOperands.of(problem, plan, operands)
    size = kernel.size
    outer, queries = problem.outer, size[QUERY]
    extents = (*(size[a] for a in outer), emit.ceil_div(queries, plan.width))
    with emit.tasks(prod(extents), plan.parallel) as number:
        *digits, block = map(emit.opaque_value, emit.unravel(number, extents))
        where = dict(zip(outer, digits))
        first = emit.opaque_value(block * plan.width)
        if not isinstance(queries, int):
            _emit_any_number(kernel, where, first)
        else:
            full, rest = divmod(queries, plan.width)
            for is_full in emit.sides(block < full if rest and full else full > 0):
                count = plan.width if is_full else rest
                _emit_block(kernel, where, (first, count), -(-count // plan.lanes))


def _emit_any_number(kernel: AttentionOperands, where: dict[str, Expr], first: Expr) -> None:
    """Emit a block of a symbolic number of queries, as a whole or vector by vector."""
    plan = kernel.plan
    count = emit.clamped_extent(first, kernel.size[QUERY], plan.width)
    for is_full in emit.sides(count > plan.width - plan.lanes):
        if is_full:
            _emit_block(kernel, where, (first, count), plan.vectors)
        else:
            for i in emit.loop(emit.ceil_div(count, plan.lanes)):
                begin = emit.let(i * plan.lanes)
                part = emit.clamped_extent(begin, count, plan.lanes)
                _emit_block(kernel, where, (emit.let(first + begin), part), 1)


def _emit_block(
    kernel: AttentionOperands, where: dict[str, Expr], queries: tuple[Expr, Expr], vectors: int
) -> None:
    """Emit a block of queries, given as the first one and their number, in `vectors` vectors."""
    arrays = _Arrays.allocated(kernel, vectors * kernel.plan.lanes)
    _Block(kernel, where, queries, vectors, arrays).emit()


class _Arrays(NamedTuple):
    """Memory of a block, of rows of `width` queries.

    Attributes
    ----------
    queries, scores, columns : Array
        Rows of the head size, keys, and columns of the values.
    largest, sums : Array
        The largest score of each query, and the sum of its exponentials.
    """

    queries: Array
    scores: Array
    columns: Array
    largest: Array
    sums: Array

    @classmethod
    def allocated(cls, kernel: AttentionOperands, width: int) -> _Arrays:
        """Allocate all of them."""
        tile = kernel.plan.key_tile
        keys = -(-kernel.plan.keys // tile) * tile
        rows = kernel.size[INNER], keys, kernel.size[COLUMN], 1, 1
        return cls(*(emit.scratch(each * width, kernel.problem.acc_dtype) for each in rows))


class _Block:
    """The emitter of a block of queries.

    Attributes
    ----------
    where : dict
        Index along the letters of the batch.
    first, count : Expr
        First query and number of queries of the block.
    vectors, width : int
        Number of vectors of queries, and of the queries that they can hold.
    is_one_block : bool
        Whether all keys are one block.
    """

    def __init__(
        self,
        kernel: AttentionOperands,
        where: dict[str, Expr],
        queries: tuple[Expr, Expr],
        vectors: int,
        arrays: _Arrays,
    ):
        self.kernel, self.problem, self.plan = kernel, kernel.problem, kernel.plan
        self.size, self.dtype = kernel.size, kernel.problem.acc_dtype
        self.where, (self.first, self.count), self.vectors = where, queries, vectors
        self.lanes, self.width = self.plan.lanes, vectors * self.plan.lanes
        self.queries, self.scores, self.columns, self.largest, self.sums = arrays
        keys = self.size[KEY]
        self.is_one_block = isinstance(keys, int) and 0 < keys <= self.plan.keys

    def emit(self) -> None:
        """Emit the whole block."""
        self._copy_queries()
        self._begin()
        keys = self.kernel.keys_before(self.first + self.count)
        for number in emit.loop(emit.ceil_div(keys, self.plan.keys)):
            key = emit.let(number * self.plan.keys)
            count = emit.clamped_extent(key, keys, self.plan.keys)
            self._scores(key, count)
            self._mask(key, count)
            self._softmax(count)
            self._values(key, count)
        self._write()

    def _copy_queries(self) -> None:
        """Copy the rows of q, transposed and scaled."""
        q, inner, queries = self.kernel.q, self.size[INNER], self.queries
        if not (isinstance(self.count, int) and self.count == self.width):
            emit.fill(queries, 0, inner * self.width, emit.constant(0, self.dtype))
        start = emit.opaque_base(self._start(q) + self.first * q.strides[QUERY])
        into, steps = Pitched(queries, 0, self.width), (q.strides[INNER], q.strides[QUERY])
        copy_matrix(into, q, start, steps, (inner, self.count), self.lanes, inner)
        scale = emit.constant(self.problem.scale, self.dtype)
        if self.problem.scale != 1:
            self._multiply(queries, inner, [scale] * self.vectors)

    def _start(self, operand: Operand) -> Expr:
        """Return the index at which the batch of this block begins in an operand."""
        return operand.at("".join(self.where), *self.where.values())

    def _begin(self) -> None:
        """Initialize maxima, sums and columns."""
        if self.is_one_block:
            return
        zero = emit.constant(0, self.dtype)
        emit.fill(self.columns, 0, self.size[COLUMN] * self.width, zero)
        emit.fill(self.sums, 0, self.width, zero)
        emit.fill(self.largest, 0, self.width, emit.constant(LOWEST[self.dtype], self.dtype))

    # ------------------------------------------------------------ scores

    def _scores(self, key: Expr, count: Expr) -> None:
        """Write scores[key][query]."""
        inner, tile = self.size[INNER], self.plan.key_tile
        rows, start, (apart, step) = self._rows(self.kernel.k, INNER, (key, count))
        is_whole = isinstance(count, int) and count % tile == 0
        b = Matrix(self.queries, lambda d: d * self.width)
        for i in emit.loop(emit.ceil_div(count, tile)):
            first = emit.let(i * tile)
            numbers = [first + o for o in range(tile)]
            if not is_whole:  # the last key is repeated
                numbers = [emit.least(number, count - 1) for number in numbers]
            starts = [emit.opaque_base(start + number * apart) for number in numbers]
            a = Matrix(rows, lambda o, d, starts=starts: starts[o] + d * step)
            offsets = [(first + o) * self.width for o in range(tile)]
            c = RegisterTile(self.scores, offsets, self.vectors, self.lanes)
            add_products((inner,), a, b, c, fresh=True)

    def _rows(
        self, operand: Operand, letter: str, keys: tuple[Expr, Expr]
    ) -> tuple[Array, Expr, tuple[Expr, Expr]]:
        """Return rows of keys or values, as stored or copied: the array, their first index, and the
        distances of rows and of elements along `letter`.
        """
        (first, count), plan = keys, self.plan
        steps = operand.strides[KEY], operand.strides[letter]
        start = emit.opaque_base(self._start(operand) + first * steps[0])
        if not (plan.copies_k if letter == INNER else plan.copies_v):
            return operand, start, steps
        elements = self.size[letter]
        pitch = -(-elements // self.lanes) * self.lanes
        copied = emit.scratch(plan.keys * pitch, self.dtype)
        shape = (count, elements)
        copy_matrix(Pitched(copied, 0, pitch), operand, start, steps, shape, self.lanes, plan.keys)
        return copied, 0, (pitch, 1)

    # ------------------------------------------------------------ masks

    def _mask(self, key: Expr, count: Expr) -> None:
        """Apply masks to scores."""
        if not (self.kernel.masks or self.problem.causal):
            return
        block = QueryBlock(self.where, self.first, self.count, self.vectors, self.lanes)
        apply = masks_of(self.kernel, block, key, count)
        for n in emit.loop(count):
            for v, at in enumerate(self._vectors(n)):
                emit.store(self.scores, at, apply(emit.let(self.scores[at]), n, v))

    # ------------------------------------------------------------ softmax

    def _softmax(self, count: Expr) -> None:
        """Replace scores by exponentials, and rescale the sums and columns of earlier keys."""
        lowest, zero = (
            emit.broadcast(emit.constant(number, self.dtype), self.lanes)
            for number in (LOWEST[self.dtype], 0)
        )
        largest = self._reduced(count, emit.most, lowest, lambda score, _: score)
        if not self.is_one_block:
            before = [emit.let(self.largest[at]) for at in self._vectors()]
            largest = [emit.let(emit.most(*pair)) for pair in zip(before, largest)]
            factors = [
                emit.let(exp_below_zero(emit.let(old - new), self.dtype, self.lanes))
                for old, new in zip(before, largest)
            ]
            self._multiply(self.columns, self.size[COLUMN], factors)
            self._multiply(self.sums, 1, factors)
        if self.problem.sums or not self.is_one_block:
            self._store(self.largest, largest)

        def weight(score: Expr, v: int) -> Expr:
            difference = emit.let(score - largest[v])
            return exp_below_zero(difference, self.dtype, self.lanes)

        sums = self._reduced(count, lambda a, b: a + b, zero, weight, stores=True)
        for at, value in zip(self._vectors(), sums):
            emit.store(self.sums, at, value if self.is_one_block else self.sums[at] + value)

    def _store(self, array: Array, values: Sequence[Expr]) -> None:
        """Write a value for each vector of queries."""
        for at, value in zip(self._vectors(), values):
            emit.store(array, at, value)

    def _vectors(self, row: Expr = 0) -> list[Expr]:
        """Return the indices of the vectors of a row."""
        return [
            emit.lanes_of(row * self.width + v * self.lanes, self.lanes)
            for v in range(self.vectors)
        ]

    def _reduced(
        self,
        count: Expr,
        combine: Callable[[Expr, Expr], Expr],
        start: Expr,
        value: Callable[[Expr, int], Expr],
        *,
        stores: bool = False,
    ) -> list[Expr]:
        """Return ``value(score, v)`` of all scores, combined, for each vector of queries; with
        `stores` the values replace the scores.
        """
        registers = emit.registers(self.vectors, self.lanes, self.dtype)
        for register, index in registers:
            emit.store(register, index, start)
        for n in emit.loop(count):
            for v, (at, (register, index)) in enumerate(zip(self._vectors(n), registers)):
                result = emit.let(value(emit.let(self.scores[at]), v))
                if stores:
                    emit.store(self.scores, at, result)
                emit.store(register, index, combine(register[index], result))
        return [emit.let(register[index]) for register, index in registers]

    def _multiply(self, array: Array, rows: Expr, factors: Sequence[Expr]) -> None:
        """Multiply rows of an array by a vector for each vector of queries."""
        for i in emit.loop(rows):
            for at, factor in zip(self._vectors(i), factors):
                emit.store(array, at, array[at] * factor)

    # ------------------------------------------------------------ values

    def _values(self, key: Expr, count: Expr) -> None:
        """Add values times exponentials to the columns."""
        rows, start, (apart, step) = self._rows(self.kernel.v, COLUMN, (key, count))
        b = Matrix(self.scores, lambda n: n * self.width, self.width)
        for first, size in emit.tiles(self.size[COLUMN], self.plan.column_tile):
            begin = emit.opaque_base(start + first * step)
            a = Matrix(rows, lambda o, n, begin=begin: begin + n * apart + o * step, apart)
            offsets = [(first + o) * self.width for o in range(size)]
            c = RegisterTile(self.columns, offsets, self.vectors, self.lanes)
            add_products((count,), a, b, c, fresh=self.is_one_block)

    def _write(self) -> None:
        """Write columns divided by sums."""
        columns = self.size[COLUMN]
        sums = [emit.let(self.sums[at]) for at in self._vectors()]
        factors = [inverse(total, self.problem, self.lanes) for total in sums]
        self._multiply(self.columns, columns, factors)
        pitch = -(-columns // self.lanes) * self.lanes
        rows = emit.scratch(self.width * pitch, self.dtype)
        copy_matrix(
            Pitched(rows, 0, pitch), self.columns, 0, (1, self.width), (self.count, columns),
            self.lanes, self.width,
        )  # fmt: skip
        for m in emit.loop(self.count):
            where = {**self.where, QUERY: self.first + m}
            write_row(self.kernel, where, rows, m * pitch, self.lanes)
        if self.problem.sums:
            self._write_sums()

    def _write_sums(self) -> None:
        """Write the logarithm of the sum of the exponentials of each query's scores."""
        sums = self.kernel.named["sums"]
        start = emit.opaque_base(self._start(sums) + self.first * sums.strides[QUERY])
        for m in emit.loop(self.count):
            log = emit.let(emit.function("log", emit.let(self.sums[m])))
            emit.store(sums, start + m * sums.strides[QUERY], self.largest[m] + log)
