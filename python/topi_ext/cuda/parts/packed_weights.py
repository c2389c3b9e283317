# SPDX-License-Identifier: Apache-2.0
"""Weights in the order in which a tile reads them.

``packed[group][tap][input channel][output channel]``, the channels of a group filled up with zeros
to whole tiles: the rows of a step are contiguous, and readers need no bounds check.  Some kernels
read `run` input channels of an output channel at once; then these are the innermost axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...emit.arguments import Packed, weight_index
from ...spec.conv import Convolution
from .. import emit
from ..emit import Expr, Operand, flat, launch, pick, store, unravel
from ..plan.tiles import Tile

THREADS = 256


@dataclass(frozen=True)
class PackedShape:
    """Sizes of packed weights.

    Attributes
    ----------
    groups, taps, rows, columns : int
        Sizes of the axes; rows and columns include the zeros.
    word : int
        Input channels of an element: one, or the four bytes of a 32-bit integer.
    run : int
        Input channels that are neighbours.
    """

    groups: int
    taps: int
    rows: int
    columns: int
    word: int = 1
    run: int = 1

    @classmethod
    def of(cls, problem: Convolution, tile: Tile, word: int = 1, run: int = 1) -> PackedShape:
        """Return the sizes of the weights that a tile reads."""
        rows = -(-problem.in_channels // tile.depth) * tile.depth // word
        columns = -(-problem.out_channels // tile.columns) * tile.columns
        return cls(problem.geometry.groups, problem.geometry.taps, rows, columns, word, run)

    @property
    def extents(self) -> tuple[int, ...]:
        """Sizes of all axes."""
        return (self.groups, self.taps, self.rows // self.run, self.columns, self.run)

    def dtype(self, problem: Convolution) -> str:
        """Return the dtype of an element."""
        return problem.dtypes[1] if self.word == 1 else "int32"

    @property
    def elements(self) -> int:
        """Number of all elements."""
        return self.groups * self.taps * self.rows * self.columns

    def at(self, group: Expr, tap: Expr, row: Expr, column: Expr) -> Expr:
        """Return the index of a weight, or of a run's first, whose rows are counted by runs."""
        rows = (group * self.taps + tap) * (self.rows // self.run) + row
        return (rows * self.columns + column) * self.run


def packed_of(problem: Convolution, shape: PackedShape) -> Packed:
    """Return the form of packed weights, as a kernel reads them."""
    return Packed(shape.elements, shape.dtype(problem))


def packed_first(problem: Convolution, shape: PackedShape, weight: Operand) -> Operand:
    """Pack the weights by a kernel that is launched before those that read them; return them."""
    packed = emit.workspace_of(shape.elements, shape.dtype(problem))
    with launch(-(-shape.elements // THREADS), THREADS) as (block, thread):
        number = emit.opaque_value(block * THREADS + thread)
        inside = True if shape.elements % THREADS == 0 else number < shape.elements
        for _ in emit.only_if(inside):
            at = [emit.opaque_value(digit) for digit in unravel(number, shape.extents)]
            store(packed, number, _element_at(problem, shape, weight, at))
    return Operand(packed.buffer, packed.dtype, "", ())


def pack_weights(
    problem: Convolution, shape: PackedShape, weight: Operand, packed: Operand
) -> None:
    """Pack the weights by loops, which TVM runs while it compiles."""
    for at in emit.grid(*shape.extents):
        store(packed, shape.at(*at[:4]) + at[4], _element_at(problem, shape, weight, at))


def _element_at(
    problem: Convolution, shape: PackedShape, weight: Operand, at: Sequence[Expr]
) -> Expr:
    """Return the element that is packed at an index: a weight, or four as one word."""
    group, tap, row, column, behind = at
    if shape.word == 1:
        place = (group, tap, row * shape.run + behind, column)
        return _weight_at(problem, shape, weight, place)
    made: Expr = 0
    for number in range(shape.word):
        value = _weight_at(problem, shape, weight, (group, tap, row * shape.word + number, column))
        byte = emit.cast(value, weight.dtype, "int32") & emit.constant(255, "int32")
        made = made + (byte << (8 * number))
    return made


def _weight_at(
    problem: Convolution, shape: PackedShape, weight: Operand, at: Sequence[Expr]
) -> Expr:
    """Return a weight, or zero outside of the weights."""
    group, tap, row, column = at
    inside = emit.both(
        shape.rows * shape.word == problem.in_channels or row < problem.in_channels,
        shape.columns == problem.out_channels or column < problem.out_channels,
    )
    taps = unravel(tap, problem.geometry.kernel)
    index = weight_index(problem, weight, flat(group), row, column, taps)
    return pick(inside, lambda: weight[index], emit.constant(0, weight.dtype))
