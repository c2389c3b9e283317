# SPDX-License-Identifier: Apache-2.0
"""A block's part of a convolution: positions of one phase, channels of one group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ...spec.axis_access import AxisAccess
from ...spec.conv import Convolution
from .. import emit
from ..emit import Expr, narrow, opaque_value, quotient, remainder, unravel
from ..plan.tiles import Tile


class AxisPhase(NamedTuple):
    """One axis of a phase.

    Attributes
    ----------
    offset : Expr
        Position j of the phase is output position ``out_step * j + offset``.
    taps : Expr
        Number of taps that the phase meets, which may be 0.
    first_tap : Expr
        The smallest of these taps; the others follow at distances of ``tap_step``.
    start : Expr
        The input position that position 0 reads for that tap.
    """

    offset: Expr
    taps: Expr
    first_tap: Expr
    start: Expr

    @classmethod
    def emitted(cls, access: AxisAccess, turn: Expr) -> AxisPhase:
        """Emit phase number `turn` of an axis, counted from those with the most taps."""
        if not access.transposed:
            return cls(0, access.kernel, 0, -access.pad_before)
        step = access.tap_step
        rest, first = quotient(turn, step), remainder(turn, step)
        offset = opaque_value((access.phase_of(first) + rest) % access.stride)
        count = emit.most(0, quotient(access.kernel + (step - 1) - first, step))
        # There are others only if tap_step < stride: phases that dilation leaves out.
        taps = opaque_value(emit.pick(rest == 0, lambda: count, emit.constant(0, "int32")))
        return cls(offset, taps, opaque_value(first), opaque_value(access.shift_of(offset, first)))


@dataclass(frozen=True)
class GatherBlock:
    """Sums that a block of threads computes, and the products that it adds.

    Attributes
    ----------
    group, split : Expr
        Group of channels, and share of a split sum.
    first_row, first_column : Expr
        First position of the phase, and first output channel of the group, of the tile.
    axes : tuple of AxisPhase
        Phases along depth, height and width.
    positions : tuple of Expr
        Numbers of positions of the phase along the four axes.
    in_sizes, out_sizes : tuple of Expr
        Sizes of data and result along the four axes.
    """

    group: Expr
    split: Expr
    first_row: Expr
    first_column: Expr
    axes: tuple[AxisPhase, ...]
    positions: tuple[Expr, ...]
    in_sizes: tuple[Expr, ...]
    out_sizes: tuple[Expr, ...]

    @classmethod
    def emitted(cls, problem: Convolution, tile: Tile, block: Expr) -> GatherBlock:
        """Emit the work of block number `block` of :func:`blocks_of`.

        Blocks of one group, phase and share of the sum that read the same positions follow each
        other.
        """
        positions = _opaque(map(narrow, problem.positions))
        # At least one, also for an empty batch: block numbers are divided by it.
        rows = opaque_value(emit.most(1, emit.ceil_div(prod(positions), tile.rows)))
        columns = -(-problem.out_channels // tile.columns)
        digits = (*_turns(problem), problem.geometry.groups, tile.splits, rows, columns)
        *turns, group, split, row, column = unravel(block, digits)
        axes = tuple(map(AxisPhase.emitted, problem.accesses[1:], turns))
        return cls(
            opaque_value(group),
            opaque_value(split),
            opaque_value(row * tile.rows),
            opaque_value(column * tile.columns),
            axes,
            positions,
            _opaque(map(narrow, problem.in_sizes)),
            _opaque(map(narrow, problem.out_sizes)),
        )

    @property
    def total(self) -> Expr:
        """Positions of the phase."""
        return prod(self.positions)

    def position(self, row: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        """Return whether `row` of the tile is a position, and its indices along the four axes."""
        number = opaque_value(self.first_row + row)
        return number < self.total, _opaque(unravel(number, self.positions))


def blocks_of(problem: Convolution, tile: Tile) -> Expr:
    """Return the number of blocks that compute `problem`, each with this tile."""
    rows = emit.ceil_div(prod(problem.positions), tile.rows)
    columns = -(-problem.out_channels // tile.columns)
    return rows * (columns * prod(_turns(problem)) * problem.geometry.groups * tile.splits)


def _turns(problem: Convolution) -> list[int]:
    return [access.out_step for access in problem.accesses[1:]]


def _opaque(values: Iterable[Expr]) -> tuple[Expr, ...]:
    return tuple(map(opaque_value, values))
