# SPDX-License-Identifier: Apache-2.0
"""Parts that the attention kernels share: operands, masks of scores, and rows of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

from ...emit.post_ops import RowEpilogue
from ...spec.attention import ADD, BOTTOM_RIGHT, COLUMN, HIDE, KEY, MULTIPLY, QUERY, Attention, Mask
from .. import emit
from ..emit import Array, Expr, Operand
from .copies import copy
from .transpose import Pitched, copy_matrix

LOWEST = {"float32": -3.4028234663852886e38, "float64": -1.7976931348623157e308}
"""Initial value of the largest score: finite, so that minus infinity minus it is minus infinity."""


class AttentionOperands(NamedTuple):
    """Data that all tasks of a kernel share: problem, plan, sizes by letter, and operands.

    Attributes
    ----------
    others : sequence of Operand
        Operands of the epilogue.
    named : dict of str to Operand
        All operands and results by the names of the problem's arguments.
    """

    problem: Attention
    plan: Any
    size: dict[str, Expr]
    q: Operand
    k: Operand
    v: Operand
    masks: Sequence[Operand]
    others: Sequence[Operand]
    named: dict[str, Operand]

    @classmethod
    def of(cls, problem: Attention, plan: Any, operands: Sequence[Operand]) -> AttentionOperands:
        """Return the data for the arguments of the problem."""
        size = {a: emit.opaque_value(size) for a, size in problem.sizes}
        named = {
            argument.name: _viewed(operand, argument.order, size)
            for operand, argument in zip(operands, problem.arguments())
        }
        masks, others = (
            [operand for name, operand in named.items() if name.startswith(prefix)]
            for prefix in ("mask", "operand")
        )
        return cls(problem, plan, size, named["q"], named["k"], named["v"], masks, others, named)

    @property
    def out(self) -> Operand:
        """The result of attention."""
        return self.named["out"]

    @property
    def diagonal(self) -> Expr:
        """The last key that query 0 reads, in causal attention."""
        if self.problem.causal != BOTTOM_RIGHT:
            return 0
        keys, queries = self.size[KEY], self.size[QUERY]
        return emit.most(keys - queries, queries - keys)

    def keys_before(self, query: Expr) -> Expr:
        """Return the number of keys that some of the queries before `query` read."""
        keys = self.size[KEY]
        if not self.problem.causal:
            return keys
        return emit.opaque_value(emit.least(keys, query + self.diagonal))


def _viewed(operand: Operand, letters: str, size: dict[str, Expr]) -> Operand:
    """Return the operand with these letters, and strides that are computed once."""
    view = Operand(operand.buffer, operand.dtype, letters, [size[a] for a in letters])
    view.strides = {a: emit.opaque_value(step) for a, step in view.strides.items()}
    return view


class QueryBlock(NamedTuple):
    """Queries that have a lane each.

    Attributes
    ----------
    where : dict
        Index along the letters of the batch.
    first, count : Expr
        First query and number of queries.
    vectors, lanes : int
        Number of vectors of queries, and their lanes.
    """

    where: dict[str, Expr]
    first: Expr
    count: Expr
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Queries that the vectors can hold."""
        return self.vectors * self.lanes

    def start(self, operand: Operand) -> Expr:
        """Return the index at which the batch of this block begins in an operand."""
        return operand.at("".join(self.where), *self.where.values())


def masks_of(
    kernel: AttentionOperands, block: QueryBlock, key: Expr, count: Expr
) -> Callable[[Expr, Expr, int], Expr]:
    """Return ``apply(value, n, v)``: vector `v` of the scores of key ``key + n`` with all masks.

    Masks of `count` keys are copied to a row of queries for each key.
    """
    problem, shape = kernel.problem, (block.lanes, kernel.problem.acc_dtype)
    masks = [_mask_values(kernel, mask, block, (key, count)) for mask in kernel.masks]

    def apply(value: Expr, n: Expr, v: int) -> Expr:
        for stated, mask in zip(problem.masks, masks):
            value = emit.let(masked(value, stated, mask(n, v), shape))
        return _hidden(kernel, block, value, key + n, v) if problem.causal else value

    return apply


def _mask_values(
    kernel: AttentionOperands, mask: Operand, block: QueryBlock, keys: tuple[Expr, Expr]
) -> Callable[[Expr, int], Expr]:
    """Return ``value(n, v)``: the vector of a mask for a key and some queries."""
    (key, count), width, lanes = keys, block.width, block.lanes
    dtype, most = kernel.problem.acc_dtype, kernel.plan.keys
    step, apart = (mask.strides.get(letter, 0) for letter in (KEY, QUERY))
    start = emit.opaque_base(block.start(mask) + key * step + block.first * apart)
    if QUERY not in mask.strides:
        return lambda n, _: emit.broadcast(
            emit.via_memory(mask.load(start + n * step, dtype), dtype), lanes
        )
    copied = emit.scratch(most * width, dtype)
    copy_matrix(
        Pitched(copied, 0, width), mask, start, (step, apart), (count, block.count), lanes, most
    )
    return lambda n, v: copied[emit.lanes_of(n * width + v * lanes, lanes)]


def _hidden(kernel: AttentionOperands, block: QueryBlock, value: Expr, key: Expr, v: int) -> Expr:
    """Return the scores of a key, minus infinity for queries that it is hidden from."""
    dtype, lanes = kernel.problem.acc_dtype, block.lanes
    lowest = emit.broadcast(emit.constant(-inf, dtype), lanes)
    lane = emit.wide(key - block.first - kernel.diagonal - v * lanes).astype("int32")
    lane = emit.broadcast(emit.let(lane), lanes)
    return emit.select(emit.lane_numbers(lanes) < lane, lowest, value)


def masked(value: Expr, stated: Mask, mask: Expr, shape: tuple[int, str]) -> Expr:
    """Return a vector of scores with a vector of a mask applied; `shape`: its lanes and dtype."""
    lanes, dtype = shape
    if stated.op in (ADD, MULTIPLY):
        return value + mask if stated.op == ADD else value * mask
    zero, fill = (
        emit.broadcast(emit.constant(number, dtype), lanes) for number in (0, stated.fill)
    )
    values = (fill, value) if stated.op == HIDE else (value, fill)
    return emit.select(mask != zero, *values)


def inverse(total: Expr, problem: Attention, lanes: int) -> Expr:
    """Return the factor for columns whose weights have the sum `total`; a vector if lanes > 1."""
    zero, one = (
        emit.constant(number, problem.acc_dtype)
        if lanes == 1
        else emit.broadcast(emit.constant(number, problem.acc_dtype), lanes)
        for number in (0, 1)
    )
    factor = emit.let(one / total)
    return emit.let(emit.select(total == zero, zero, factor)) if problem.zeros_empty else factor


def write_row(
    kernel: AttentionOperands, where: dict[str, Expr], rows: Array, source: Expr, lanes: int
) -> None:
    """Write the columns of one query, at `where`, with the post-ops applied."""
    out, problem = kernel.out, kernel.problem
    step, columns, dtype = out.strides[COLUMN], kernel.size[COLUMN], problem.acc_dtype
    where = {**where, COLUMN: 0}
    into = emit.opaque_base(out.at("".join(where), *where.values()))
    source = emit.opaque_base(source)
    if problem.epilogue or step != 1:
        epilogue = RowEpilogue.along(problem.epilogue, dtype, kernel.others, where, COLUMN)
        for e in emit.loop(columns):
            value = epilogue(rows[source + e], e)
            emit.store(out, into + e * step, emit.cast(value, dtype, out.dtype))
    else:
        copy(out, into, rows, source, columns, lanes)
