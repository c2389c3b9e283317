# SPDX-License-Identifier: Apache-2.0
"""The register tile of kernels that are matrix products: a sum of outer products.

::

    for each o of the tile, each vector v:      accumulators[o][v] = 0, or what was there
    for i in depth:
        accumulators[o][v] += values[i][o] * rows[i][v]
    for each o of the tile, each vector v:      store accumulators[o][v]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from .. import emit
from ..emit import Array, Expr


def add_products(
    depth: Expr,
    values: Array,
    first_value: Expr,
    rows: Array,
    first_row: Expr,
    row_step: Expr,
    into: Array,
    places: Sequence[Expr],
    vectors: int,
    lanes: int,
    *,
    fresh: bool,
) -> None:
    """Compute ``into[places[o] + l] (+)= sum_i values[i, o] * rows[i, l]`` for one register tile.

    Parameters
    ----------
    depth : int or expression
        Number of terms.
    values, first_value
        ``values[i, o]`` is element ``first_value + i * len(places) + o``.
    rows, first_row, row_step
        ``rows[i, l]`` is element ``first_row + i * row_step + l``, for l below ``vectors * lanes``.
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

    def term(i: Expr) -> None:
        for (o, v), (register, index) in sums.items():
            value = emit.broadcast(values[first_value + i * len(places) + o], lanes)
            row = rows[emit.lanes_of(first_row + i * row_step + v * lanes, lanes)]
            emit.store(register, index, register[index] + value * row)

    emit.loop(depth, term)
    for (o, v), (register, index) in sums.items():
        emit.store(into, emit.lanes_of(places[o] + v * lanes, lanes), register[index])
