# SPDX-License-Identifier: Apache-2.0
"""Packing: the input window of one block of positions, padded and split by residue.

A panel holds, for each channel and each residue of the input position modulo the step, the window
as one flat plane::

    panel[(channel * slots + slot) * pitch + ((e0*E1 + e1)*E2 + e2)*E3 + e3]

so that a tap is a constant offset, the lanes of a vector are neighbours in memory whatever the
stride, and padding, layout and dtype are dealt with once, here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .. import emit
from ..emit import Array, Expr, Operand
from ..geometry import Gather
from ..plan.plans import Window
from ..plan.problem import Problem
from . import DATA
from .copies import copy


class FittedWindow:
    """A window whose block is chosen when the kernel runs, for sizes that are known only then.

    As many whole rows, planes and images as the planned window has room for, in equal parts.

    Parameters
    ----------
    room : Window
        What was planned for nominal sizes: this one has at most as many elements.
    positions : sequence
        Positions per phase, along the four axes.
    gathers, lanes
        As of :class:`Panel`.
    blocks : int
        How many there should be, if images, planes and rows can be divided into so many.
    """

    def __init__(
        self,
        room: Window,
        positions: Sequence[Expr],
        gathers: Sequence[Gather],
        lanes: int,
        blocks: int = 1,
    ):
        share, wanted = [], emit.wide(blocks) if blocks > 1 else blocks
        for count in positions[:-1]:
            parts = emit.chosen(emit.least(count, wanted))
            share.append(emit.chosen(emit.ceil_div(count, parts)))
            wanted = emit.chosen(emit.ceil_div(wanted, parts))
        halo = [gather.last_shift - gather.first_shift for gather in gathers]
        most = room.elements // prod(1 + reach for reach in halo[:-1]) - halo[-1]
        width = _equal_part(positions[-1], emit.least(most, positions[-1]))
        block: list[Expr] = [1, 1, 1, width]
        inner: Expr = emit.chosen(width + halo[-1])
        is_whole: Expr = width == positions[-1]
        for axis in (2, 1, 0):
            around = prod(1 + reach for reach in halo[:axis])
            most = emit.most(
                emit.quotient(room.elements, emit.chosen(inner * around)) - halo[axis], 1
            )
            count = _equal_part(positions[axis], emit.least(most, share[axis]))
            count = emit.chosen(emit.choose(is_whole, lambda count=count: count, 1))
            block[axis] = count
            inner = emit.chosen(inner * (count + halo[axis]))
            is_whole = emit.both(is_whole, count == positions[axis])
        self.block = tuple(block)
        self.extent = tuple(b + reach for b, reach in zip(block, halo))
        steps: list[Expr] = [1]
        for extent in self.extent[:0:-1]:
            steps.append(emit.chosen(steps[-1] * extent))
        self.steps = tuple(reversed(steps))
        self.elements = inner
        self.length = emit.chosen(sum((b - 1) * step for b, step in zip(block, self.steps)) + 1)
        vectors = emit.chosen(emit.ceil_div(inner, lanes))
        self._pitch = emit.chosen((vectors + 1 - vectors % 2) * lanes)
        self._room = room

    def pitch(self, _: int) -> Expr:
        """Distance of two planes: whole vectors, and never a power of two of cache lines."""
        return self._pitch

    def most_pitch(self, lanes: int) -> int:
        """What has to be allocated for a plane: no window that fits has a larger pitch."""
        return (-(-self._room.elements // lanes) + 1) * lanes


def fitted_block(
    room: Sequence[int], tiles: Sequence[Expr], lanes: int, blocks: int
) -> tuple[Expr, ...]:
    """The block of a :class:`FittedWindow` of what has no halo, `tiles` along the four axes."""
    dense = (Gather(False, 1, 1, 1, 0),) * 4
    return FittedWindow(Window.of(room, dense), tiles, dense, lanes, blocks).block


def window_of(
    problem: Problem, planned: Window, gathers: Sequence[Gather], lanes: int, blocks: int = 1
) -> Window | FittedWindow:
    """The planned window where sizes are known, else one that fits into it."""
    if problem.is_static:
        return planned
    positions = [emit.chosen(emit.most(p, 1)) for p in problem.positions]  # may be empty
    return FittedWindow(planned, positions, gathers, lanes, blocks)


def _equal_part(size: Expr, most: Expr) -> Expr:
    """The smallest part of which no more are needed than of parts of `most`."""
    parts = emit.chosen(emit.ceil_div(size, emit.chosen(most)))
    return emit.chosen(emit.ceil_div(size, parts))


@dataclass(frozen=True)
class Panel:
    """Where things are in a panel.

    Attributes
    ----------
    gathers : tuple of Gather
        How the operand is read, along the four axes.
    window : Window
        Extents of a plane.
    lanes : int
        Elements per vector.
    """

    gathers: tuple[Gather, ...]
    window: Window | FittedWindow
    lanes: int

    @property
    def pitch(self) -> Expr:
        """Elements from plane to plane."""
        return self.window.pitch(self.lanes)

    @property
    def slots(self) -> int:
        """Planes of one channel."""
        return prod(gather.slots for gather in self.gathers)

    def elements(self, channels: Expr) -> Expr:
        """Size of the panel; one vector more, since the last tile may read past the last plane."""
        return channels * self.slots * self.pitch + self.lanes

    def room(self, channels: int) -> int:
        """The most that :meth:`elements` can be."""
        return channels * self.slots * self.window.most_pitch(self.lanes) + self.lanes

    def number(self, channel: Expr, slots: Sequence[Expr]) -> Expr:
        """The number of a plane."""
        index = channel
        for gather, slot in zip(self.gathers, slots):
            index = index * gather.slots + slot
        return index

    def plane(self, channel: Expr, slots: Sequence[Expr]) -> Expr:
        """Offset of a plane."""
        return self.number(channel, slots) * self.pitch

    def shifted(self, shifts: Sequence[Expr]) -> Expr:
        """Offset in a plane of the first position of the block, read with `shifts`."""
        return sum(
            (shift - gather.first_shift) * step
            for shift, gather, step in zip(shifts, self.gathers, self.window.steps)
        )


def pack(
    panel: Panel,
    into: Array,
    source: Operand,
    channel: Expr,
    channels: int,
    first: Sequence[Expr],
    sizes: Sequence[Expr],
    valid: Sequence[Expr] | None = None,
) -> None:
    """Fill `into` with the window of the block whose first positions are `first`.

    Parameters
    ----------
    channel, channels
        First channel of `source`, and how many.
    sizes : sequence
        Sizes of `source` along the four axes; what lies outside is zero.
    valid : sequence, optional
        How many positions of the block exist along each axis; the halo behind them is zero
        instead of data.
    """
    gathers, extent = panel.gathers, panel.window.extent
    zero = emit.constant(0, into.dtype)
    step = source.strides[DATA[-1]] * gathers[-1].in_step
    is_near = source.strides[DATA[-1]] == 1

    def plane(c: Expr, *slots: Expr) -> None:
        base = panel.plane(c, slots)
        residues = [gather.residue_of(slot) for gather, slot in zip(gathers, slots)]
        starts = [j + gather.first_shift for j, gather in zip(first, gathers)]
        # The first position inside of `source`, and the first behind it.
        begins = [
            -(residue // gather.in_step) - start
            for residue, gather, start in zip(residues, gathers, starts)
        ]
        limits = [
            (size - 1 - residue) // gather.in_step + 1 - start
            for size, residue, gather, start in zip(sizes, residues, gathers, starts)
        ]
        if valid is not None:
            limits = [emit.least(limit, count) for limit, count in zip(limits, valid)]

        def row_of(outer: Sequence[Expr], column: Expr = 0) -> Expr:
            """Where a row of the plane is, from `column` on."""
            places = zip((*outer, column), panel.window.steps)
            return emit.origin(base + sum(e * step for e, step in places))

        def source_of(outer: Sequence[Expr], column: Expr) -> Expr:
            """Where its data is."""
            where = [
                (start + e) * gather.in_step + residue
                for start, e, gather, residue in zip(starts, (*outer, column), gathers, residues)
            ]
            return emit.origin(source.at("C" + DATA, channel + c, *where))

        def copy_by_ones(flat: Expr, origin: Expr, count: Expr) -> None:
            emit.loop(
                count,
                lambda e: emit.store(into, flat + e, source.load(origin + e * step, into.dtype)),
            )

        def copy_by_vectors(flat: Expr, origin: Expr, count: Expr) -> None:
            copy(into, flat, source, origin, count, panel.lanes, step)

        def all_rows() -> None:
            low = emit.let(emit.least(emit.most(begins[-1], 0), extent[-1]))
            high = emit.let(emit.least(emit.most(limits[-1], low), extent[-1]))

            def row(*outer: Expr) -> None:
                flat = row_of(outer)

                def fill() -> None:
                    origin = source_of(outer, low)
                    emit.fill(into, flat, low, zero)
                    copy_by_ones(flat + low, origin, high - low)
                    emit.fill(into, flat + high, extent[-1] - high, zero)

                inside = emit.both(
                    *(e >= begin for begin, e in zip(begins, outer)),
                    *(e < limit for limit, e in zip(limits, outer)),
                )
                emit.when(inside, fill, lambda: emit.fill(into, flat, extent[-1], zero))

            emit.nest(extent[:-1], row)
            tail = panel.pitch - panel.window.elements
            emit.fill(into, base + panel.window.elements, tail, zero)

        def present_rows() -> None:
            """Zeros first, then data: LLVM does not know that rows are short, and its loops for
            long ones cost more than what they copy."""
            lanes = panel.lanes
            zeros, start = emit.broadcast(zero, lanes), emit.origin(base)
            emit.loop(
                emit.quotient(panel.pitch, lanes),
                lambda v: emit.store(into, emit.lanes_of(start + v * lanes, lanes), zeros),
            )
            low, high = (
                [emit.let(emit.least(emit.most(b, 0), e)) for b, e in zip(bounds, extent)]
                for bounds in (begins, limits)
            )
            count = emit.let(high[-1] - low[-1])

            def row(*numbers: Expr) -> None:
                outer = [a + i for a, i in zip(low, numbers)]
                flat, origin = row_of(outer, low[-1]), source_of(outer, low[-1])
                (copy_by_vectors if is_near else copy_by_ones)(flat, origin, count)

            emit.nest([emit.let(b - a) for a, b in zip(low[:-1], high[:-1])], row)

        if isinstance(panel.window, Window):
            all_rows()
        else:
            present_rows()

    emit.nest((channels, *(gather.slots for gather in gathers)), plane)
    emit.fill(into, panel.elements(channels) - panel.lanes, panel.lanes, zero)
