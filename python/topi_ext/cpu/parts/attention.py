# SPDX-License-Identifier: Apache-2.0
"""Parts that the attention kernels share: operands, masks of scores, and rows of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...emit.post_ops import RowEpilogue
from ...spec.attention import ADD, BOTTOM_RIGHT, COLUMN, HIDE, KEY, MULTIPLY, QUERY, Attention, Mask
from .. import emit
from ..emit import Array, Expr, Operand
from .copies import copy

LOWEST = {"float32": -3.4028234663852886e38, "float64": -1.7976931348623157e308}
"""Initial value of the largest score: finite, so that minus infinity minus it is minus infinity."""


class AttentionOperands(NamedTuple):
    """Data that all tasks of a kernel share: problem, plan, sizes by letter, and operands."""

    problem: Attention
    plan: Any
    size: dict[str, Expr]
    q: Operand
    k: Operand
    v: Operand
    masks: Sequence[Operand]
    others: Sequence[Operand]
    out: Operand

    @classmethod
    def of(cls, problem: Attention, plan: Any, operands: Sequence[Operand]) -> AttentionOperands:
        """Return the data for ``(q, k, v, *masks, *operands of the epilogue, out)``."""
        size = {a: emit.opaque_value(size) for a, size in problem.sizes}
        q, k, v, *others, out = (
            _viewed(operand, argument.order, size)
            for operand, argument in zip(operands, problem.arguments())
        )
        count = len(problem.masks)
        return cls(problem, plan, size, q, k, v, others[:count], others[count:], out)

    @property
    def diagonal(self) -> Expr:
        """The last key that query 0 reads, in causal attention."""
        ends = self.problem.causal == BOTTOM_RIGHT
        return self.size[KEY] - self.size[QUERY] if ends else 0

    def keys_before(self, query: Expr) -> Expr:
        """Return the number of keys that some of the queries before `query` read."""
        keys = self.size[KEY]
        if not self.problem.causal:
            return keys
        return emit.opaque_value(emit.most(emit.least(keys, query + self.diagonal), 0))


def _viewed(operand: Operand, letters: str, size: dict[str, Expr]) -> Operand:
    """Return the operand with these letters, and strides that are computed once."""
    view = Operand(operand.buffer, operand.dtype, letters, [size[a] for a in letters])
    view.strides = {a: emit.opaque_value(step) for a, step in view.strides.items()}
    return view


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
