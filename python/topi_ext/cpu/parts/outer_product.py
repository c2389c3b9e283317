# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of matrix products: a register tile that sums outer products.

::

    for each row m of the tile, each vector v:      accumulators[m][v] = 0, or what was there
    for each term k:
        accumulators[m][v] += broadcast(a[m, k]) * b[k, v]
    for each row m of the tile, each vector v:      store accumulators[m][v]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from .. import emit
from ..emit import Array, Expr

MultiplyAdd = Callable[[Expr, Expr, Expr], Expr]
"""Function of vectors of sums, of one repeated number, and of numbers: ``sums + a * b``."""


class Matrix(NamedTuple):
    """An operand of the product.

    Attributes
    ----------
    array : Array
    at : callable
        For `a`, ``at(m, *k)``: the index of its element.  For `b`, ``at(*k)``: the index of the
        first of the ``vectors * lanes`` elements of its row.
    step : int or expression, optional
        Distance of neighbouring terms of the last loop.  Where both operands have one,
        indices that hold sizes known only at run time are computed once for each such loop.
    """

    array: Array
    at: Callable[..., Expr]
    step: Expr = None


class RegisterTile(NamedTuple):
    """The result of the product, which registers hold while it is summed.

    Attributes
    ----------
    array : Array
    offsets : sequence
        Where each row begins in the array.
    vectors, lanes : int
        Vectors of a row, and elements of a vector.
    """

    array: Array
    offsets: Sequence[Expr]
    vectors: int
    lanes: int


def add_products(
    terms: Sequence[Expr],
    a: Matrix,
    b: Matrix,
    c: RegisterTile,
    *,
    fresh: bool,
    prefetch: Callable[..., None] | None = None,
    multiply_add: MultiplyAdd | None = None,
) -> None:
    """Compute ``c.array[c.offsets[m] + l] (+)= sum_k a.array[a.at(m, *k)] * b.array[b.at(*k) +
    l]``.

    Parameters
    ----------
    terms : sequence
        Extents of the loops of the sum, the last index running fastest.
    fresh : bool
        Whether the sum starts from zero instead of from what `c` holds.
    prefetch : callable, optional
        ``prefetch(*k)`` emits the prefetches of each term; operands have no steps then.
    multiply_add : callable, optional
        ``multiply_add(sums, a, b)`` of vectors, in place of ``sums + a * b``.
    """
    multiply_add = multiply_add or _multiply_add
    lanes, rows = c.lanes, range(len(c.offsets))
    tile = list(product(rows, range(c.vectors)))
    accumulators = dict(zip(tile, emit.registers(len(tile), lanes, c.array.dtype)))
    zero = emit.broadcast(emit.constant(0, c.array.dtype), lanes)
    for (m, v), (register, index) in accumulators.items():
        at = emit.lanes_of(c.offsets[m] + v * lanes, lanes)
        emit.store(register, index, zero if fresh else c.array[at])
    for indices, start in _terms(terms, a, b, len(rows), prefetch):
        row = [emit.let(b.array[emit.lanes_of(start + v * lanes, lanes)]) for v in range(c.vectors)]
        for m in rows:
            value = emit.let(a.array[indices[m]])
            for v in range(c.vectors):
                register, index = accumulators[m, v]
                sums = multiply_add(register[index], emit.broadcast(value, lanes), row[v])
                emit.store(register, index, sums)
    for (m, v), (register, index) in accumulators.items():
        emit.store(c.array, emit.lanes_of(c.offsets[m] + v * lanes, lanes), register[index])


def _multiply_add(sums: Expr, a: Expr, b: Expr) -> Expr:
    return sums + a * b


def _terms(
    terms: Sequence[Expr], a: Matrix, b: Matrix, rows: int, prefetch: Callable[..., None] | None
) -> Iterator[tuple[list[Expr], Expr]]:
    """Emit the loops of the sum; yield where the elements of `a` are, one for each of `rows`, and
    where the row of `b` begins."""
    if a.step is None or b.step is None:
        for k in emit.grid(*terms):
            if prefetch:
                prefetch(*k)
            yield [a.at(m, *k) for m in range(rows)], b.at(*k)
        return
    for outer in emit.grid(*terms[:-1]):
        starts = [emit.opaque_value(a.at(m, *outer, 0)) for m in range(rows)]
        start = emit.opaque_value(b.at(*outer, 0))
        for k in emit.loop(terms[-1]):
            yield [first + k * a.step for first in starts], start + k * b.step
