# SPDX-License-Identifier: Apache-2.0
"""The register tiles of a row of positions, whose lanes run along it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .. import emit
from ..emit import Expr


class RowTiles(NamedTuple):
    """The division of a row into tiles.

    Attributes
    ----------
    length : int or expression
        Elements of all tiles together: an integer where the row's length is known.
    vectors, lanes : int
        Vectors of a whole tile, and elements of a vector.
    whole, rest : int or expression
        Whole tiles of a row of unknown length, and the small ones after them.
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
        """Return the tiles of a row of known length; the last one may have fewer vectors."""
        return cls(-(-length // lanes) * lanes, vectors, lanes)

    @classmethod
    def emitted(cls, length: Expr, vectors: int, small: int, lanes: int) -> RowTiles:
        """Return the tiles of a row of unknown length, counted at run time."""
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

    def tiles(self) -> Iterator[tuple[Expr, int]]:
        """Emit ``for start, vectors in row_tiles.tiles()``: a loop over the whole tiles, then one
        over what is left: a narrower tile, or small ones where the row's length is unknown."""
        lanes, vectors = self.lanes, self.vectors
        if isinstance(self.length, int):
            for v, size in emit.tiles(self.length // lanes, vectors):
                yield v * lanes, size
            return
        width, small = vectors * lanes, self.small * lanes
        # TVM would put where a tile is into every index.
        for i in emit.loop(self.whole):
            yield emit.opaque_value(i * width), vectors
        rest = self.whole * width
        for i in emit.loop(self.rest):
            yield emit.opaque_value(rest + i * small), self.small
