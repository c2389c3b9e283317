# SPDX-License-Identifier: Apache-2.0
"""The register tile of kernels that are matrix products: a sum of outer products.

::

    for each o of the tile, each vector v:      accumulators[o][v] = 0, or what was there
    for each term i:
        accumulators[o][v] += value[o](i) * row(i)[v]
    for each o of the tile, each vector v:      store accumulators[o][v]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from .. import emit
from ..emit import Array, Expr


def add_products(
    terms: Sequence[Expr],
    values: Array,
    value_at: Callable[..., Expr],
    rows: Array,
    row_at: Callable[..., Expr],
    into: Array,
    places: Sequence[Expr],
    vectors: int,
    lanes: int,
    *,
    fresh: bool,
    steps: tuple[Expr, Expr] | None = None,
    ahead: Callable[..., None] | None = None,
) -> None:
    """Compute ``into[places[o] + l] (+)= sum_i values[value_at(o, *i)] * rows[row_at(*i) + l]``.

    Parameters
    ----------
    terms : sequence
        Extents of the loops of the sum, the last index running fastest.
    values, value_at
        One value for each row o of the result.
    rows, row_at
        Where the ``vectors * lanes`` elements of a row begin.
    into, places
        Where each row of the result goes.
    fresh : bool
        Whether the sum starts from zero instead of from what `into` holds.
    steps : tuple of int, optional
        How far neighbouring terms of the last loop are apart, in `values` and in `rows`.  With
        them, indices that hold sizes known only at run time are computed once for each such loop.
    ahead : callable, optional
        ``ahead(*i)`` emits, for each term, what asks for memory to be read later; no `steps` then.
    """
    tile = list(product(range(len(places)), range(vectors)))
    sums = dict(zip(tile, emit.registers(len(tile), lanes, into.dtype)))
    zero = emit.broadcast(emit.constant(0, into.dtype), lanes)
    for (o, v), (register, index) in sums.items():
        at = emit.lanes_of(places[o] + v * lanes, lanes)
        emit.store(register, index, zero if fresh else into[at])

    def add(value_of: Callable[[int], Expr], start: Expr) -> None:
        row = [emit.let(rows[emit.lanes_of(start + v * lanes, lanes)]) for v in range(vectors)]
        for o in range(len(places)):
            value = emit.let(values[value_of(o)])
            for v in range(vectors):
                register, index = sums[o, v]
                product_ = emit.broadcast(value, lanes) * row[v]
                emit.store(register, index, register[index] + product_)

    def term(*i: Expr) -> None:
        if ahead:
            ahead(*i)
        add(lambda o: value_at(o, *i), row_at(*i))

    def run(*outer: Expr) -> None:
        starts = [emit.opaque_value(value_at(o, *outer, 0)) for o in range(len(places))]
        start = emit.opaque_value(row_at(*outer, 0))
        emit.loop(
            terms[-1], lambda i: add(lambda o: starts[o] + i * steps[0], start + i * steps[1])
        )

    if steps is None:
        emit.nest(terms, term)
    else:
        emit.nest(terms[:-1], run)
    for (o, v), (register, index) in sums.items():
        emit.store(into, emit.lanes_of(places[o] + v * lanes, lanes), register[index])
