# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of kernels that are matrix products: a register tile that sums outer products.

::

    for each row m of the tile, each vector v:      accumulators[m][v] = 0, or what was there
    for each term k:
        accumulators[m][v] += broadcast(a[m, k]) * b[k, v]
    for each row m of the tile, each vector v:      store accumulators[m][v]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from .. import emit
from ..emit import Array, Expr


class Matrix(NamedTuple):
    """An operand of the product.

    Attributes
    ----------
    array : Array
    at : callable
        Of `a`, ``at(m, *k)``: where its element is in the array.  Of `b`, ``at(*k)``: where the
        ``vectors * lanes`` elements of its row begin.
    step : int or expression, optional
        How far neighbouring terms of the last loop are apart.  Where both operands have one,
        indices that hold sizes known only at run time are computed once for each such loop.
    """

    array: Array
    at: Callable[..., Expr]
    step: Expr = None


class RegisterTile(NamedTuple):
    """The result of the product, which is held in registers.

    Attributes
    ----------
    array : Array
    places : sequence
        Where each of its rows begins there.
    vectors, lanes : int
        What a row has.
    """

    array: Array
    places: Sequence[Expr]
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
) -> None:
    """Compute ``c.array[c.places[m] + l] (+)= sum_k a.array[a.at(m, *k)] * b.array[b.at(*k) + l]``.

    Parameters
    ----------
    terms : sequence
        Extents of the loops of the sum, the last index running fastest.
    fresh : bool
        Whether the sum starts from zero instead of from what `c` holds.
    prefetch : callable, optional
        ``prefetch(*k)`` emits, for each term, what asks for memory to be read later; operands have
        no steps then.
    """
    lanes = c.lanes
    tile = list(product(range(len(c.places)), range(c.vectors)))
    accumulators = dict(zip(tile, emit.registers(len(tile), lanes, c.array.dtype)))
    zero = emit.broadcast(emit.constant(0, c.array.dtype), lanes)
    for (m, v), (register, index) in accumulators.items():
        at = emit.lanes_of(c.places[m] + v * lanes, lanes)
        emit.store(register, index, zero if fresh else c.array[at])

    def add(value_at: Callable[[int], Expr], start: Expr) -> None:
        row = [emit.let(b.array[emit.lanes_of(start + v * lanes, lanes)]) for v in range(c.vectors)]
        for m in range(len(c.places)):
            value = emit.let(a.array[value_at(m)])
            for v in range(c.vectors):
                register, index = accumulators[m, v]
                product_ = emit.broadcast(value, lanes) * row[v]
                emit.store(register, index, register[index] + product_)

    def term(*k: Expr) -> None:
        if prefetch:
            prefetch(*k)
        add(lambda m: a.at(m, *k), b.at(*k))

    def run(*outer: Expr) -> None:
        starts = [emit.opaque_value(a.at(m, *outer, 0)) for m in range(len(c.places))]
        start = emit.opaque_value(b.at(*outer, 0))
        emit.loop(terms[-1], lambda k: add(lambda m: starts[m] + k * a.step, start + k * b.step))

    if a.step is None or b.step is None:
        emit.nest(terms, term)
    else:
        emit.nest(terms[:-1], run)
    for (m, v), (register, index) in accumulators.items():
        emit.store(c.array, emit.lanes_of(c.places[m] + v * lanes, lanes), register[index])
