# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention, which computes scores again, block by block.

::

    parallel (batch that keys and values have):
        dk[key][d] = dv[key][e] = 0, for all keys
        for each of the batch that shares them, each block of `width` queries:
            transpose and scale its rows of q, transpose those of dy    -> q[d][width], dy[e][width]
            shares[width] = sum of dy * y
            for each block of `keys` keys:
                weights[key][width] = k * q,  changes[key][width] = v * dy
                weights = exp(masked weights - sums)
                changes = weights * (changes - shares) * scale
                dv[key][e] += weights * dy,  dk[key][d] += changes * q
                dq[d][width] += k * changes
            dq, transposed                                              -> result
        dk, dv                                                          -> results

Five matrix products.  Queries have the lanes of three of them, as in :mod:`.attention`: M is
queries; N is keys, keys and d; K is d, e and keys.  d and e have the lanes of the other two: M is
keys, N is e and d, K is queries.

The algorithm is that of Dao, *FlashAttention-2*, 2023, section 3.1, with both loops exchanged: one
task computes all gradients of a head, so no two threads add to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, prod
from typing import NamedTuple

from ...emit.post_ops import exp_below_zero
from ...spec.attention import COLUMN, INNER, KEY, QUERY
from ...spec.attention_grad import AttentionGrad
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.attention import AttentionOperands, QueryBlock, masks_of
from ..parts.copies import copy
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.transpose import Pitched, copy_matrix
from ..plan.attention_grad import AttentionGradPlan

_EMPTY = 1e30
"""Logarithm of the sum of a query that reads no key: its weights are zero."""


def emit_body(problem: AttentionGrad, plan: AttentionGradPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of ``(q, k, v, *masks, y, dy, sums, dq, dk, dv)``."""
    kernel = AttentionOperands.of(problem, plan, operands)
    own = [a for a in problem.outer if a in problem.own]
    shared = [a for a in problem.outer if a not in problem.own]
    extents = [kernel.size[a] for a in own]
    with emit.tasks(prod(extents), plan.parallel) as number:
        digits = emit.unravel(number, extents) if own else ()
        where = dict(zip(own, map(emit.opaque_value, digits)))
        keys = _Keys(kernel, where)
        for index in emit.grid(*(kernel.size[a] for a in shared)):
            _emit_queries(keys, {**where, **dict(zip(shared, index))})
        keys.write()


def _emit_queries(keys: _Keys, where: dict[str, Expr]) -> None:
    """Emit all blocks of queries of a head: whole ones, then the rest."""
    plan, queries = keys.plan, keys.kernel.size[QUERY]
    full = emit.opaque_value(emit.quotient(queries, plan.width))
    for number in emit.loop(full):
        first = emit.let(number * plan.width)
        _emit_block(keys, QueryBlock(where, first, plan.width, plan.vectors, plan.lanes))
    done = full * plan.width
    if isinstance(queries, int):
        for _ in emit.only_if(done < queries):
            rest = queries - done
            vectors = -(-rest // plan.lanes)
            _emit_block(keys, QueryBlock(where, done, rest, vectors, plan.lanes))
        return
    for number in emit.loop(emit.ceil_div(queries - done, plan.lanes)):
        first = emit.let(done + number * plan.lanes)
        count = emit.clamped_extent(first, queries, plan.lanes)
        _emit_block(keys, QueryBlock(where, first, count, 1, plan.lanes))


class _Rows(NamedTuple):
    """Rows of elements, as stored or copied: row `i` begins at ``start + i * apart``."""

    array: Array
    start: Expr
    apart: Expr
    step: Expr = 1

    def at(self, row: Expr) -> Expr:
        """Return the index at which a row begins."""
        return self.start + row * self.apart


def _rows(
    kernel: AttentionOperands,
    name: str,
    letters: tuple[str, str],
    start: Expr,
    counts: tuple[Expr, Expr],
) -> _Rows:
    """Return rows of an operand, copied if the plan says so; behind its last element, a copied row
    is zero.

    `counts` are the number of rows and its maximum, which is no variable of the kernel's body.
    """
    count, most = counts
    operand, plan, dtype = kernel.named[name], kernel.plan, kernel.problem.acc_dtype
    steps = operand.strides[letters[0]], operand.strides[letters[1]]
    start = emit.opaque_base(start)
    if name not in plan.copies:
        return _Rows(operand, start, *steps)
    elements, lanes = kernel.size[letters[1]], plan.lanes_of(letters[1])
    pitch = -(-elements // lanes) * lanes
    copied = emit.scratch(most * pitch, dtype)
    if pitch != elements:
        emit.fill(copied, 0, count * pitch, emit.constant(0, dtype))
    copy_matrix(Pitched(copied, 0, pitch), operand, start, steps, (count, elements), lanes, most)
    return _Rows(copied, 0, pitch)


class _Side(NamedTuple):
    """Keys or values, and their gradients, which are summed over all queries.

    Attributes
    ----------
    letter : str
        That of the elements of a row.
    rows : _Rows
        The keys or values.
    sums : _Rows
        Their gradients, in rows of whole vectors.
    """

    letter: str
    rows: _Rows
    sums: _Rows


class _Keys:
    """The emitter of the keys and values of a task, and of their gradients."""

    def __init__(self, kernel: AttentionOperands, where: dict[str, Expr]):
        self.kernel, self.plan, self.dtype = kernel, kernel.plan, kernel.problem.acc_dtype
        self.where = where
        self.k, self.v = self._side("k", INNER), self._side("v", COLUMN)

    def _side(self, name: str, letter: str) -> _Side:
        """Return keys or values, with gradients of zero."""
        keys, lanes = self.kernel.problem.size[KEY], self.plan.lanes_of(letter)
        pitch = -(-self.kernel.size[letter] // lanes) * lanes
        sums = emit.scratch(keys * pitch, self.dtype)
        emit.fill(sums, 0, keys * pitch, emit.constant(0, self.dtype))
        start = self.kernel.named[name].at("".join(self.where), *self.where.values())
        rows = _rows(self.kernel, name, (KEY, letter), start, (self.kernel.size[KEY], keys))
        return _Side(letter, rows, _Rows(sums, 0, pitch))

    def write(self) -> None:
        """Write both gradients."""
        for name, side in (("dk", self.k), ("dv", self.v)):
            start = self.kernel.named[name].at("".join(self.where), *self.where.values())
            letters = KEY, side.letter
            _write(self.kernel, name, letters, start, side.sums, self.kernel.size[KEY])


def _write(
    kernel: AttentionOperands,
    name: str,
    letters: tuple[str, str],
    start: Expr,
    rows: _Rows,
    count: Expr,
) -> None:
    """Write rows to a result, whose first row begins at `start`."""
    out, elements = kernel.named[name], kernel.size[letters[1]]
    apart, step = out.strides[letters[0]], out.strides[letters[1]]
    for i in emit.loop(count):
        into = emit.opaque_base(start + i * apart)
        source = emit.opaque_base(rows.at(i))
        if step == 1:
            copy(out, into, rows.array, source, elements, kernel.plan.lanes_of(letters[1]))
        else:
            for e in emit.loop(elements):
                value = emit.cast(rows.array[source + e], rows.array.dtype, out.dtype)
                emit.store(out, into + e * step, value)


def _emit_block(keys: _Keys, block: QueryBlock) -> None:
    """Emit a block of queries."""
    size, tile = keys.kernel.size, keys.plan.key_tile
    inner, columns, scores = size[INNER], size[COLUMN], -(-keys.plan.keys // tile) * tile
    rows = inner, columns, 1, 1, scores, scores, inner
    _Block(keys, block, [emit.scratch(each * block.width, keys.dtype) for each in rows]).emit()


class _Block:
    """The emitter of a block of queries.

    Attributes
    ----------
    q, dy : Array
        Rows of the head size and of columns, with a lane for each query; q is scaled.
    shares, logs : Array
        The sum of dy * y, and the logarithm of the sum of exponentials, of each query.
    weights, changes : Array
        Rows of keys: scores, then weights, and the gradients of both.
    dq : Array
        The gradient of the queries, as `q`.
    """

    def __init__(self, keys: _Keys, block: QueryBlock, arrays: Sequence[Array]):
        self.keys, self.kernel, self.plan, self.block = keys, keys.kernel, keys.plan, block
        self.problem, self.size, self.dtype = keys.kernel.problem, keys.kernel.size, keys.dtype
        self.width, self.vectors, self.lanes = block.width, block.vectors, block.lanes
        self.q, self.dy, self.shares, self.logs, self.weights, self.changes, self.dq = arrays

    def emit(self) -> None:
        """Emit the whole block."""
        plan, kernel, block = self.plan, self.kernel, self.block
        self._turn(self.q, "q", INNER, self.problem.scale)
        self._turn(self.dy, "dy", COLUMN)
        self._begin()
        counts = block.count, block.width
        q = _rows(kernel, "q", (QUERY, INNER), self._start("q"), counts)
        dy = _rows(kernel, "dy", (QUERY, COLUMN), self._start("dy"), counts)
        k, v = self.keys.k, self.keys.v
        keys = kernel.keys_before(block.first + block.count)
        for number in emit.loop(emit.ceil_div(keys, plan.keys)):
            key = emit.let(number * plan.keys)
            count = emit.clamped_extent(key, keys, plan.keys)
            self._products(self.weights, k, self.q, (key, count))
            self._products(self.changes, v, self.dy, (key, count))
            self._softmax(key, count)
            self._add_to_keys(v, self.weights, dy, (key, count))
            self._add_to_keys(k, self.changes, q, (key, count))
            self._add_to_queries(key, count)
        self._write()

    def _start(self, name: str) -> Expr:
        """Return the index of the first query of the block in an operand."""
        operand = self.kernel.named[name]
        return self.block.start(operand) + self.block.first * operand.strides[QUERY]

    def _vectors(self, row: Expr = 0) -> list[Expr]:
        """Return the indices of the vectors of a row."""
        return [
            emit.lanes_of(row * self.width + v * self.lanes, self.lanes)
            for v in range(self.vectors)
        ]

    # ------------------------------------------------------------ queries

    def _turn(self, into: Array, name: str, letter: str, factor: float = 1.0) -> None:
        """Copy rows of an operand, transposed and multiplied by a number."""
        operand, elements, count = self.kernel.named[name], self.size[letter], self.block.count
        if not (isinstance(count, int) and count == self.width):
            emit.fill(into, 0, elements * self.width, emit.constant(0, self.dtype))
        steps = operand.strides[letter], operand.strides[QUERY]
        start, rows = emit.opaque_base(self._start(name)), Pitched(into, 0, self.width)
        copy_matrix(rows, operand, start, steps, (elements, count), self.lanes, elements)
        if factor != 1:
            number = emit.broadcast(emit.constant(factor, self.dtype), self.lanes)
            for i in emit.loop(elements):
                for at in self._vectors(i):
                    emit.store(into, at, into[at] * number)

    def _begin(self) -> None:
        """Sum the products of dy and y, and copy the logarithms."""
        columns, zero = self.size[COLUMN], emit.constant(0, self.dtype)
        emit.fill(self.dq, 0, self.size[INNER] * self.width, zero)
        y = emit.scratch(columns * self.width, self.dtype)
        self._turn(y, "y", COLUMN)
        registers = emit.registers(self.vectors, self.lanes, self.dtype)
        for register, index in registers:
            emit.store(register, index, emit.broadcast(zero, self.lanes))
        for e in emit.loop(columns):
            for at, (register, index) in zip(self._vectors(e), registers):
                emit.store(register, index, register[index] + y[at] * self.dy[at])
        for at, (register, index) in zip(self._vectors(), registers):
            emit.store(self.shares, at, register[index])
        emit.fill(self.logs, 0, self.width, zero)
        sums = self.kernel.named["sums"]
        start, step = emit.opaque_base(self._start("sums")), sums.strides[QUERY]
        lowest, empty = (emit.constant(number, self.dtype) for number in (-inf, _EMPTY))
        for m in emit.loop(self.block.count):
            log = emit.let(sums[start + m * step])
            emit.store(self.logs, m, emit.select(log == lowest, empty, log))

    def _write(self) -> None:
        """Write the gradient of the queries."""
        lanes, elements = self.plan.inner_lanes, self.size[INNER]
        pitch = -(-elements // lanes) * lanes
        rows, count = emit.scratch(self.width * pitch, self.dtype), self.block.count
        into, steps = Pitched(rows, 0, pitch), (1, self.width)
        copy_matrix(into, self.dq, 0, steps, (count, elements), lanes, self.width)
        letters = QUERY, INNER
        _write(self.kernel, "dq", letters, self._start("dq"), _Rows(rows, 0, pitch), count)

    # ------------------------------------------------------------ a block of keys

    def _tiles(self, count: Expr, tile: int) -> Iterator[tuple[list[Expr], Expr]]:
        """Emit a loop over tiles of rows; yield the numbers of a tile's rows, and of its first."""
        is_whole = isinstance(count, int) and count % tile == 0
        for i in emit.loop(emit.ceil_div(count, tile)):
            first = emit.let(i * tile)
            numbers = [first + o for o in range(tile)]
            if not is_whole:  # the last row is repeated, from the same sums
                numbers = [emit.opaque_base(emit.least(number, count - 1)) for number in numbers]
            yield numbers, first

    def _products(self, into: Array, side: _Side, queries: Array, keys: tuple[Expr, Expr]) -> None:
        """Write into[key][query] = sum of rows[key][d] * queries[d][query]."""
        (key, count), rows, tile = keys, side.rows, self.plan.key_tile
        b = Matrix(queries, lambda d: d * self.width)
        for numbers, first in self._tiles(count, tile):
            starts = [emit.opaque_base(rows.at(key + number)) for number in numbers]
            a = Matrix(rows.array, lambda o, d, starts=starts: starts[o] + d * rows.step)
            offsets = [(first + o) * self.width for o in range(tile)]
            c = RegisterTile(into, offsets, self.vectors, self.lanes)
            add_products((self.size[side.letter],), a, b, c, fresh=True)

    def _softmax(self, key: Expr, count: Expr) -> None:
        """Replace scores by weights, and the gradients of weights by those of scores."""
        scale = emit.broadcast(emit.constant(self.problem.scale, self.dtype), self.lanes)
        apply = masks_of(self.kernel, self.block, key, count)
        logs, shares = (
            [emit.let(array[at]) for at in self._vectors()] for array in (self.logs, self.shares)
        )
        for n in emit.loop(count):
            for v, at in enumerate(self._vectors(n)):
                score = apply(emit.let(self.weights[at]), n, v)
                difference = emit.let(score - logs[v])
                weight = emit.let(exp_below_zero(difference, self.dtype, self.lanes))
                emit.store(self.weights, at, weight)
                emit.store(self.changes, at, weight * (self.changes[at] - shares[v]) * scale)

    def _add_to_keys(
        self, side: _Side, factors: Array, rows: _Rows, keys: tuple[Expr, Expr]
    ) -> None:
        """Add sums[key][e] += sum of factors[key][query] * rows[query][e]."""
        (key, count), sums = keys, side.sums
        lanes, most, tile = self.plan.tile_of(side.letter)
        for number, vectors in emit.tiles(sums.apart // lanes, most):
            offset = emit.let(number * lanes)
            b = Matrix(rows.array, lambda m, offset=offset: rows.at(m) + offset, rows.apart)
            for numbers, _ in self._tiles(count, tile):
                starts = [emit.opaque_base(number * self.width) for number in numbers]
                a = Matrix(factors, lambda o, m, starts=starts: starts[o] + m, 1)
                offsets = [emit.opaque_base(sums.at(key + number) + offset) for number in numbers]
                c = RegisterTile(sums.array, offsets, vectors, lanes)
                add_products((self.block.count,), a, b, c, fresh=False)

    def _add_to_queries(self, key: Expr, count: Expr) -> None:
        """Add dq[d][query] += sum of k[key][d] * changes[key][query]."""
        rows = self.keys.k.rows
        b = Matrix(self.changes, lambda n: n * self.width, self.width)
        start = emit.opaque_base(rows.at(key))
        for first, size in emit.tiles(self.size[INNER], self.plan.inner_tile):
            begin = emit.opaque_base(start + first * rows.step)
            a = Matrix(
                rows.array,
                lambda o, n, begin=begin: begin + n * rows.apart + o * rows.step,
                rows.apart,
            )
            offsets = [(first + o) * self.width for o in range(size)]
            c = RegisterTile(self.dq, offsets, self.vectors, self.lanes)
            add_products((count,), a, b, c, fresh=False)
