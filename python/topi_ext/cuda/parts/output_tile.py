# SPDX-License-Identifier: Apache-2.0
"""Writes of a tile's sums by way of shared memory: neighbouring threads write neighbours.

::

    starts[position of the tile] = index of the position's channel 0, or -1 outside of the result
    for slices of the columns:
        barrier; every thread writes its sums of the slice to shared memory; barrier
        for elements of the slice, in the order of memory: epilogue, store
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

from ...emit.post_ops import RowEpilogue
from ...spec.conv import DATA, Convolution
from .. import emit
from ..emit import Array, Expr, Operand, along, both, flat, opaque_value, shared, store
from ..plan.tiles import LAST_PAD, PAD, Tile
from .gather_block import GatherBlock


class Fragment(Protocol):
    """The sums of a tile that a thread has."""

    @property
    def slices(self) -> int:
        """Number of slices of the columns."""

    @property
    def width(self) -> int:
        """Number of columns of a slice."""

    def keep(self, part: int, held: Array, strides: tuple[int, int]) -> None:
        """Write the thread's sums of a slice, of `width` columns, to ``held[row, column]``."""

    def column(self, part: int, number: Expr) -> Expr:
        """Return the column of the tile that is column `number` of a slice."""


@dataclass(frozen=True)
class Threads:
    """Number of this thread in its block, and number of threads of the block."""

    number: Expr
    count: int


class ExtraOperand(NamedTuple):
    """An operand of the epilogue.

    Attributes
    ----------
    operand : Operand
    varies : str
        Axes along which it varies, without the channels.
    alike : bool
        Whether it has the layout of the result.
    channel_stride : Expr
        Stride of its channels; zero if it does not vary along them.
    """

    operand: Operand
    varies: str
    alike: bool
    channel_stride: Expr


@dataclass(frozen=True)
class OutputTile:
    """Destination of the sums of a block.

    Attributes
    ----------
    problem : Convolution
        The problem; without its epilogue if shares of split sums are written.
    block : GatherBlock
    tile : Tile
    threads : Threads
    result : Operand
        The result; for a split sum, all shares, each stored as the result is.
    extra : sequence of Operand
        Operands of the epilogue.
    share : Expr
        Index of the share's first element.
    """

    problem: Convolution
    block: GatherBlock
    tile: Tile
    threads: Threads
    result: Operand
    extra: Sequence[Operand]
    share: Expr = 0

    @classmethod
    def of(
        cls,
        problem: Convolution,
        block: GatherBlock,
        tile: Tile,
        threads: Threads,
        results: tuple[Operand | None, Sequence[Operand], Operand],
    ) -> OutputTile:
        """Return the destination for ``(shares, operands of the epilogue, result)``: the share of
        the block if there are `shares`, otherwise the result.
        """
        shares, extra, out = results
        if shares is None:
            return cls(problem, block, tile, threads, out, extra)
        share = flat(block.split) * shares.strides["S"]
        return cls(replace(problem, epilogue=()), block, tile, threads, shares, (), share)

    def write(self, fragment: Fragment, held: Array, *, is_free: bool) -> None:
        """Write all sums of the block by way of `held`, whose size the plan states.

        `is_free`: whether no thread may still read the earlier contents of `held`.
        """
        starts = self._starts()
        is_channels_last = along(self.result, "C") == 1
        strides = (fragment.width + LAST_PAD, 1) if is_channels_last else (1, self.tile.rows + PAD)
        for part in range(fragment.slices):
            if part or not is_free:
                emit.barrier()
            fragment.keep(part, held, strides)
            emit.barrier()
            for turn in emit.unrolled(self.tile.rows * fragment.width // self.threads.count):
                number = self.threads.number + turn * self.threads.count
                if is_channels_last:
                    row, column = emit.unravel(number, (self.tile.rows, fragment.width))
                else:
                    column, row = emit.unravel(number, (fragment.width, self.tile.rows))
                row, column = opaque_value(row), opaque_value(column)
                channel = opaque_value(self.block.first_column + fragment.column(part, column))
                self._store(row, channel, held[row * strides[0] + column * strides[1]], starts)

    @cached_property
    def _operands(self) -> list[ExtraOperand]:
        """Return the operands of the epilogue."""
        steps = (step for step in self.problem.epilogue if step.order)
        order = list(self.result.strides)
        found = []
        for step, operand in zip(steps, self.extra):
            varies = "".join(letter for letter in step.varies if letter != "C")
            alike = list(operand.strides) == order and set(step.varies) == set(order)
            alike = alike and self.result.is_whole
            stride = along(operand, "C") if "C" in step.varies else 0
            found.append(ExtraOperand(operand, varies, alike, stride))
        return found

    def _starts(self) -> list[Array]:
        """Write tables with the index of channel 0 of each row of the tile.

        The first table is of the result, with -1 outside of it.  The others are of operands of the
        epilogue that vary along positions and have another layout than the result.
        """
        others = [one for one in self._operands if one.varies and not one.alike]
        starts = [shared(self.tile.rows, "int64") for _ in range(1 + len(others))]
        is_even = self.tile.rows % self.threads.count == 0
        for turn in emit.unrolled(-(-self.tile.rows // self.threads.count)):
            row = opaque_value(self.threads.number + turn * self.threads.count)
            for _ in emit.only_if(is_even or row < self.tile.rows):
                inside, at = self._place(row)
                store(starts[0], row, self._start(inside, at))
                for table, extra in zip(starts[1:], others):
                    where = (flat(at[DATA.index(letter)]) for letter in extra.varies)
                    store(table, row, emit.wide(extra.operand.at(extra.varies, *where)))
        return starts

    def _start(self, inside: Expr, at: Sequence[Expr]) -> Expr:
        """Return the index of channel 0 of a position in the result; -1 outside of it."""
        start = self.result.at(DATA, *map(flat, at)) + flat(self.share)
        group = self.block.group * self.problem.out_channels
        start = emit.wide(start + flat(group) * along(self.result, "C"))
        return emit.pick(inside, lambda: start, emit.constant(-1, "int64"))

    def _place(self, row: Expr) -> tuple[Expr, list[Expr]]:
        """Return whether a row of the tile is in the result, and its indices along four axes."""
        inside, (image, *positions) = self.block.position(row)
        at, sizes = [image], self.block.out_sizes[1:]
        for position, axis, access, size in zip(
            positions, self.block.axes, self.problem.accesses[1:], sizes
        ):
            where = opaque_value(position * access.out_step + axis.offset)
            whole = access.out_step == 1 or (isinstance(size, int) and size % access.out_step == 0)
            inside = both(inside, whole or where < size)
            at.append(where)
        return inside, at

    def _store(self, row: Expr, channel: Expr, value: Expr, starts: Sequence[Array]) -> None:
        """Apply the epilogue to one sum and store the result."""
        problem, result = self.problem, self.result
        start = opaque_value(starts[0][row])
        is_whole = problem.out_channels % self.tile.columns == 0
        own = iter(starts[1:])
        for _ in emit.only_if(both(start >= 0, is_whole or channel < problem.out_channels)):
            sources = []
            for extra in self._operands:
                first = start if extra.alike else next(own)[row] if extra.varies else 0
                in_all = channel + self.block.group * problem.out_channels
                numbered = channel if extra.alike else in_all
                sources.append((extra.operand, first + flat(numbered) * extra.channel_stride, 0))
            epilogue = RowEpilogue(problem.epilogue, problem.acc_dtype, sources, emit.via_register)
            index = start + flat(channel) * along(result, "C")
            value = emit.cast(epilogue(value, 0), problem.finished_dtype, result.dtype)
            store(result, index, value)
