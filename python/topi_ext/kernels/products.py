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
    """
    tile = list(product(range(len(places)), range(vectors)))
    sums = dict(zip(tile, emit.registers(len(tile), lanes, into.dtype)))
    zero = emit.broadcast(emit.constant(0, into.dtype), lanes)
    for (o, v), (register, index) in sums.items():
        at = emit.lanes_of(places[o] + v * lanes, lanes)
        emit.store(register, index, zero if fresh else into[at])

    def term(*i: Expr) -> None:
        for (o, v), (register, index) in sums.items():
            value = emit.broadcast(values[value_at(o, *i)], lanes)
            row = rows[emit.lanes_of(row_at(*i) + v * lanes, lanes)]
            emit.store(register, index, register[index] + value * row)

    emit.nest(terms, term)
    for (o, v), (register, index) in sums.items():
        emit.store(into, emit.lanes_of(places[o] + v * lanes, lanes), register[index])
