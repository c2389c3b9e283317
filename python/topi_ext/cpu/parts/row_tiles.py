# SPDX-License-Identifier: Apache-2.0
"""The register tiles of a row of positions, whose lanes run along it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .. import emit
from ..emit import Expr


class RowTiles(NamedTuple):
    """How a row is divided into tiles.

    Attributes
    ----------
    length : int or expression
        Elements of all tiles together: an integer where the row's length is known.
    vectors, lanes : int
        Of a whole tile.
    whole, rest : int or expression
        Of a row of unknown length, whole tiles, and small ones for what is left.
    small : int
        Vectors of a small tile.
    """

    length: Expr
    vectors: int
    lanes: int
    whole: Expr = 0
    rest: Expr = 0
    small: int = 0

    @classmethod
    def of_length(cls, length: int, vectors: int, lanes: int) -> RowTiles:
        """Those of a row of known length, of which the last may have fewer vectors."""
        return cls(-(-length // lanes) * lanes, vectors, lanes)

    @classmethod
    def emitted(cls, length: Expr, vectors: int, small: int, lanes: int) -> RowTiles:
        """Those of a row of unknown length, counted at run time."""
        present = emit.opaque_value(emit.ceil_div(length, lanes))
        rest: Expr = 0
        if small == vectors:
            whole = emit.opaque_value(emit.ceil_div(present, vectors))
        else:
            whole = emit.opaque_value(emit.quotient(present, vectors))
            left = present - whole * vectors
            rest = emit.opaque_value(emit.ceil_div(left, small))
        tiled = whole * vectors + rest * small
        return cls(emit.opaque_value(tiled * lanes), vectors, lanes, whole, rest, small)

    def over(self, tile: Callable[[Expr, int], None]) -> None:
        """``tile(start, vectors)`` for all of them; of a row of unknown length what is left goes by
        small ones."""
        lanes, vectors = self.lanes, self.vectors
        if isinstance(self.length, int):
            emit.tiles(self.length // lanes, vectors, lambda v, size: tile(v * lanes, size))
            return
        width, small = vectors * lanes, self.small * lanes
        # TVM would put where a tile is into every index.
        emit.loop(self.whole, lambda i: tile(emit.opaque_value(i * width), vectors))
        rest = self.whole * width
        emit.loop(self.rest, lambda i: tile(emit.opaque_value(rest + i * small), self.small))
