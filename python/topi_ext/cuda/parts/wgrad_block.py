# SPDX-License-Identifier: Apache-2.0
"""A block's part of a weight gradient, and addresses of the operands of a position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, Protocol

from ...spec.conv import DATA, TAPS, Convolution
from .. import emit
from ..emit import Expr, Operand, both, flat, narrow, opaque_value, quotient, store, unravel
from ..plan.tiles import Tile
from .gather_rows import opaque_bool
from .output_tile import Threads


class Column(NamedTuple):
    """A column of the product: a tap, and a channel of x in its group."""

    inside: Expr
    taps: tuple[Expr, ...]
    channel: Expr


@dataclass(frozen=True)
class WgradBlock:
    """The weights of a block, and the share of the positions that it sums.

    Attributes
    ----------
    problem : Convolution
    group : Expr
    split : Expr
        Share of the positions.
    first_row, first_column : Expr
        First channel of y, and first of taps x channels of x, of the tile in a group.
    first, steps : Expr
        First position and number of steps of the share.
    x_sizes, y_sizes : tuple of Expr
        Sizes along the four axes.
    """

    problem: Convolution
    group: Expr
    split: Expr
    first_row: Expr
    first_column: Expr
    first: Expr
    steps: Expr
    x_sizes: tuple[Expr, ...]
    y_sizes: tuple[Expr, ...]

    @classmethod
    def emitted(cls, problem: Convolution, tile: Tile, block: Expr) -> WgradBlock:
        """Return the work of block number `block` of :func:`wgrad_grid`."""
        groups, rows, columns = _digits(problem, tile)
        digits = unravel(block, (groups, tile.splits, rows, columns))
        group, split, row, column = map(opaque_value, digits)
        return cls.of_share(problem, tile, split, group, (row, column))

    @classmethod
    def of_share(
        cls,
        problem: Convolution,
        tile: Tile,
        split: Expr,
        group: Expr,
        at: tuple[Expr, Expr] = (0, 0),
    ) -> WgradBlock:
        """Return the tile at a row and a column of tiles, for a share of the positions."""
        sizes = _opaque(map(narrow, problem.y_sizes))
        steps = opaque_value(quotient(prod(sizes) + (tile.depth - 1), tile.depth))
        each = opaque_value(quotient(steps + (tile.splits - 1), tile.splits))
        first = opaque_value(split * each) if tile.splits > 1 else 0
        count = emit.most(0, emit.least(each, steps - first))
        return cls(
            problem,
            opaque_value(group),
            split,
            opaque_value(at[0] * tile.rows),
            opaque_value(at[1] * tile.columns),
            opaque_value(first * tile.depth),
            opaque_value(count),
            _opaque(map(narrow, problem.x_sizes)),
            sizes,
        )

    def column(self, number: Expr) -> Column:
        """Return column `number` of the tile."""
        g = self.problem.geometry
        whole = opaque_value(self.first_column + number)
        if taps_inner(self.problem):
            channel, tap = unravel(whole, (g.c_per_group, g.taps))
        else:
            tap, channel = unravel(whole, (g.taps, g.c_per_group))
        taps = _opaque(unravel(tap, g.kernel))
        return Column(opaque_bool(whole < g.taps * g.c_per_group), taps, opaque_value(channel))

    def position(self, number: Expr) -> Position:
        """Return position `number` of y, counted from the share's first."""
        whole = opaque_value(self.first + number)
        inside = opaque_bool(whole < prod(self.y_sizes))
        return Position(inside, _opaque(unravel(whole, self.y_sizes)))

    def y_start(self, y: Operand, position: Position) -> Expr:
        """Return the index of channel 0 of the group in y."""
        channel = flat(self.group) * self.problem.geometry.k_per_group
        index = y.at(DATA, *map(flat, position.at)) + channel * emit.along(y, "C")
        return opaque_value(index)

    def x_read(self, x: Operand, position: Position, column: Column) -> tuple[Expr, Expr]:
        """Return whether a column's tap meets data at a position, and its index in x."""
        g = self.problem.geometry
        image, *at = position.at
        inside = both(position.inside, column.inside)
        channel = flat(self.group) * g.c_per_group + flat(column.channel)
        index = flat(image) * emit.along(x, "N") + channel * emit.along(x, "C")
        axes = zip(at, column.taps, self.problem.geometry.accesses(transposed=False), DATA[1:])
        for (j, tap, access, letter), size in zip(axes, self.x_sizes[1:]):
            where = j * access.stride + tap * access.dilation - access.pad_before
            where = opaque_value(where)
            known = isinstance(where, int) and isinstance(size, int)
            inside = both(inside, *([0 <= where < size] if known else [where >= 0, where < size]))
            index = index + flat(where) * emit.along(x, letter)
        return inside, index

    def weight(self, out: Operand, row: Expr, column: Column) -> Expr:
        """Return the index of a weight of a channel of y and a column."""
        g = self.problem.geometry
        channel = flat(self.group) * g.k_per_group + flat(row)
        return out.at("OI" + TAPS, channel, flat(column.channel), *map(flat, column.taps))


class Position(NamedTuple):
    """A position of y: whether it exists, and its indices along the four axes."""

    inside: Expr
    at: tuple[Expr, ...]


def taps_inner(problem: Convolution) -> bool:
    """Return whether taps vary fastest among columns, as they do in memory, so that neighbouring
    threads write neighbours; if channels of x are neighbours, these are read so instead.
    """
    return not problem.layouts.x.endswith("C") and problem.layouts.w[-1] in TAPS


def wgrad_grid(problem: Convolution, tile: Tile) -> int:
    """Return the number of blocks that compute `problem`, each with this tile."""
    return prod(_digits(problem, tile)) * tile.splits


def _digits(problem: Convolution, tile: Tile) -> tuple[int, int, int]:
    g = problem.geometry
    rows, columns = -(-g.k_per_group // tile.rows), -(-g.taps * g.c_per_group // tile.columns)
    return g.groups, rows, columns


def _opaque(values: Iterable[Expr]) -> tuple[Expr, ...]:
    return tuple(map(opaque_value, values))


@dataclass(frozen=True)
class Copies:
    """The elements of ``[depth][size]`` that a thread copies: some places, each at some positions.

    Neighbouring threads copy neighbours in memory: places, which are channels, or positions.
    """

    places: tuple[Expr, ...]
    positions: tuple[Expr, ...]
    is_even: bool

    @classmethod
    def of(cls, threads: Threads, size: int, depth: int, places_first: bool) -> Copies:
        """Divide the copies: one place at several positions if places are neighbours, otherwise
        several places at one position.
        """
        count = max(1, size * depth // threads.count)
        fast, slow = (size, depth) if places_first else (depth, size)
        first, second = emit.unravel(threads.number, (0, fast))
        first, second = opaque_value(first), opaque_value(second)
        several = tuple(first + number * (slow // count) for number in range(count))
        is_even = size * depth % threads.count == 0
        one = (second,)
        return cls(one, several, is_even) if places_first else cls(several, one, is_even)

    def taken(self, depth: int) -> list[tuple[Expr, Expr]]:
        """Return positions, and whether the thread has them: with few elements, some have none."""
        return [(k, self.is_even or k < depth) for k in self.positions]

    def pairs(self) -> list[tuple[int, int]]:
        """Return the numbers of a position and a place, for all elements."""
        return [(k, i) for k in range(len(self.positions)) for i in range(len(self.places))]


class Weights(Protocol):
    """The sums of a tile that a thread has."""

    @property
    def own_rows(self) -> list[Expr]:
        """Rows of the thread's sums in the tile."""

    @property
    def own_columns(self) -> list[Expr]:
        """Columns of the thread's sums in the tile."""

    def sum_of(self, i: int, j: int) -> Expr:
        """Return the sum of the thread's row `i` and column `j`."""


def write_weights(
    block: WgradBlock, tile: Tile, sums: Weights, out: Operand, *, adds: Expr = False
) -> None:
    """Write a thread's sums to their weights: of the result, or of the share in a workspace.

    `adds`: whether they are added to the present values.
    """
    problem, limit = block.problem, block.problem.geometry.k_per_group
    share = flat(block.split) * out.strides["S"] if "S" in out.strides else 0
    columns = [block.column(number) for number in sums.own_columns]
    for i, row in enumerate(sums.own_rows):
        channel = opaque_value(block.first_row + row)
        for j, column in enumerate(columns):
            inside = both(column.inside, limit % tile.rows == 0 or channel < limit)
            for _ in emit.only_if(inside):
                at = block.weight(out, channel, column) + share
                value = sums.sum_of(i, j)
                if not isinstance(adds, bool):
                    value = value + emit.load_if(adds, out, at, out.dtype)
                store(out, at, emit.cast(value, problem.acc_dtype, out.dtype))
