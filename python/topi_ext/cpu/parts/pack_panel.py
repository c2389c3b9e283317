# SPDX-License-Identifier: Apache-2.0
"""Packing: fill a panel with the window of a block, resolving padding, layout, stride and dtype.

::

    for each channel, each residue of the position:
        for each row of the plane: zeros, every `step`-th element of a row of the data, zeros

Rows of symbolic length are copied by vectors into a plane of zeros.  Neighbouring residues read
neighbouring elements, so such rows of all residues are dealt out of vectors that are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ...spec.conv import DATA
from .. import emit
from ..emit import Array, Expr, Operand
from ..plan.vectors import MOST_STEP
from ..plan.window import Window
from .copies import are_near, copy, deal
from .panel import Panel


class Source(NamedTuple):
    """The channels of an operand that are packed.

    Attributes
    ----------
    operand : Operand
    channel, channels : Expr
        The first of them, of all channels, and how many.
    sizes : sequence
        Sizes along the four axes.
    plane : Expr
        The number of the first of them in the panel.
    padding : int
        The value outside of the data.
    """

    operand: Operand
    channel: Expr
    channels: Expr
    sizes: Sequence[Expr]
    plane: Expr = 0
    padding: int = 0


def pack(
    panel: Panel,
    into: Array,
    source: Source,
    first: Sequence[Expr],
    valid: Sequence[Expr] | None = None,
) -> None:
    """Fill `into` with the window of the block whose first positions are `first`.

    Parameters
    ----------
    valid : sequence, optional
        How many positions of the block exist along each axis; the halo behind them is zero
        instead of data.
    """
    packing = _Packing(panel, into, source, first, valid)
    *outer, in_row = (access.slots for access in panel.accesses)
    channels = source.channels
    if isinstance(panel.window, Window):
        for channel, *slots in emit.grid(channels, *outer, in_row):
            packing.known_rows(packing.plane(channel, *slots))
    else:
        for outer_slots in emit.grid(*outer):
            if packing.is_dealt:
                packing.dealt_rows(channels, outer_slots)
            else:
                packing.present_rows(channels, outer_slots)
    end = panel.elements(source.plane + channels) - panel.lanes
    emit.fill(into, end, panel.lanes, packing.zero)


class _Plane(NamedTuple):
    """One plane of a panel: where it is, and which part of it is data.

    Attributes
    ----------
    base : Expr
        Its first element.
    begins, limits : list
        Along the four axes, the first position inside of the source, and the first behind it.
    source_of, row_of : callable
        Where a row is there, and in the panel, by its index along the other axes and a column.
    """

    base: Expr
    begins: list[Expr]
    limits: list[Expr]
    source_of: Callable[[Sequence[Expr], Expr], Expr]
    row_of: Callable[[Sequence[Expr], Expr], Expr]


class _Packing:
    """The packing of one panel."""

    def __init__(
        self,
        panel: Panel,
        into: Array,
        source: Source,
        first: Sequence[Expr],
        valid: Sequence[Expr] | None,
    ):
        self.panel, self.into, self.first, self.valid = panel, into, first, valid
        self.source, self.channel, self.sizes = source.operand, source.channel, source.sizes
        self.first_plane = source.plane
        self.extent, self.zero = panel.window.extent, emit.constant(source.padding, into.dtype)
        self.last = panel.accesses[-1]
        self.step = self.source.strides[DATA[-1]] * self.last.in_step

    @property
    def is_dealt(self) -> bool:
        """Return whether planes of all residues along a row are filled together."""
        same = self.source.dtype == self.into.dtype
        several = 1 < self.last.slots <= self.last.in_step <= MOST_STEP
        return are_near(self.source.strides[DATA[-1]], 1) and same and several

    def plane(self, channel: Expr, *slots: Expr) -> _Plane:
        """Return the plane of a channel, counted from the first that is packed, and of a slot along
        each axis."""
        accesses = self.panel.accesses
        base = self.panel.plane(self.first_plane + channel, slots)
        residues = [access.residue_of(slot) for access, slot in zip(accesses, slots)]
        starts = [j + access.first_shift for j, access in zip(self.first, accesses)]
        begins = [
            -(residue // access.in_step) - start
            for residue, access, start in zip(residues, accesses, starts)
        ]
        limits = [
            (size - 1 - residue) // access.in_step + 1 - start
            for size, residue, access, start in zip(self.sizes, residues, accesses, starts)
        ]
        if self.valid is not None:
            limits = [emit.least(limit, count) for limit, count in zip(limits, self.valid)]

        def source_of(outer: Sequence[Expr], column: Expr) -> Expr:
            where = [
                (start + e) * access.in_step + residue
                for start, e, access, residue in zip(starts, (*outer, column), accesses, residues)
            ]
            return emit.opaque_base(self.source.at("C" + DATA, self.channel + channel, *where))

        def row_of(outer: Sequence[Expr], column: Expr) -> Expr:
            steps = zip((*outer, column), self.panel.window.steps)
            return emit.opaque_base(base + sum(e * step for e, step in steps))

        return _Plane(base, begins, limits, source_of, row_of)

    # ------------------------------------------------------------ sizes that are known

    def known_rows(self, plane: _Plane) -> None:
        """Fill a plane row by row: zeros, data, zeros."""
        extent = self.extent
        low = emit.let(emit.least(emit.most(plane.begins[-1], 0), extent[-1]))
        high = emit.let(emit.least(emit.most(plane.limits[-1], low), extent[-1]))
        for outer in emit.grid(*extent[:-1]):
            row = plane.row_of(outer, 0)
            inside = emit.both(
                *(e >= begin for begin, e in zip(plane.begins, outer)),
                *(e < limit for limit, e in zip(plane.limits, outer)),
            )
            for has_data in emit.sides(inside):
                if has_data:
                    origin = plane.source_of(outer, low)
                    emit.fill(self.into, row, low, self.zero)
                    for e in emit.loop(high - low):
                        value = self.source.load(origin + e * self.step, self.into.dtype)
                        emit.store(self.into, row + low + e, value)
                    emit.fill(self.into, row + high, extent[-1] - high, self.zero)
                else:
                    emit.fill(self.into, row, extent[-1], self.zero)
        elements = self.panel.window.elements
        emit.fill(self.into, plane.base + elements, self.panel.pitch - elements, self.zero)

    # ------------------------------------------------------------ sizes known when it runs

    def present_rows(self, channels: Expr, outer: Sequence[Expr]) -> None:
        """Fill the planes of all channels at these outer slots: zeros first, then data.

        LLVM does not know that rows are short, and its loops for long ones cost more than what they
        copy.  What is the same for all channels is computed before the loop over them, since LLVM
        would compute it for each.
        """
        present = self._present(self.plane(0, *outer, 0), range(len(outer)))
        for channel, slot in emit.grid(channels, self.last.slots):
            plane = self.plane(channel, *outer, slot)
            self._clear(plane)
            ((low, high),) = self._present(plane, (-1,))
            count = emit.let(high - low)
            for where in _rows(present):
                row, origin = plane.row_of(where, low), plane.source_of(where, low)
                copy(self.into, row, self.source, origin, count, self.panel.lanes, self.step)

    def dealt_rows(self, channels: Expr, outer: Sequence[Expr]) -> None:
        """Fill the same planes, those of all residues along a row together.

        All of them begin alike, and the last one has the fewest elements: so many of each are read
        together, and one more of some.
        """
        slots = sorted(range(self.last.slots), key=self.last.residue_of)
        residues = [self.last.residue_of(slot) - self.last.residue_of(slots[0]) for slot in slots]
        firsts = [self.plane(0, *outer, slot) for slot in slots]
        present = self._present(firsts[0], range(len(outer)))
        ends = [self._present(plane, (-1,))[0] for plane in firsts]
        low = ends[0][0]
        count = emit.let(emit.most(ends[-1][1] - low, 0))
        has_more = [emit.let(high - low > count) for _, high in ends]

        for channel in emit.loop(channels):
            planes = [self.plane(channel, *outer, slot) for slot in slots]
            for plane in planes:
                self._clear(plane)
            for where in _rows(present):
                rows = {r: plane.row_of(where, low) for r, plane in zip(residues, planes)}
                origin, step = planes[0].source_of(where, low), self.last.in_step
                deal(self.into, rows, self.source, origin, count, step, self.panel.lanes)
            for plane, more in zip(planes, has_more):
                for _ in emit.only_if(more):
                    for where in _rows(present):
                        origin = plane.source_of(where, low + count)
                        value = self.source.load(origin, self.into.dtype)
                        emit.store(self.into, plane.row_of(where, low + count), value)

    def _clear(self, plane: _Plane) -> None:
        """Fill a plane with zeros."""
        lanes, start = self.panel.lanes, emit.opaque_base(plane.base)
        zeros = emit.broadcast(self.zero, lanes)
        for v in emit.loop(emit.quotient(self.panel.pitch, lanes)):
            emit.store(self.into, emit.lanes_of(start + v * lanes, lanes), zeros)

    def _present(self, plane: _Plane, axes: Iterable[int]) -> list[tuple[Expr, Expr]]:
        """Return the first position of a plane that has data, and the first behind it, along some
        axes."""

        def within(bound: Expr, axis: int) -> Expr:
            return emit.let(emit.least(emit.most(bound, 0), self.extent[axis]))

        return [(within(plane.begins[a], a), within(plane.limits[a], a)) for a in axes]


def _rows(present: Sequence[tuple[Expr, Expr]]) -> Iterator[list[Expr]]:
    """Emit ``for where in _rows(present)``: loops over the rows of a plane that have data; `where`
    is the index of a row along the outer axes."""
    counts = [emit.let(high - low) for low, high in present]
    for numbers in emit.grid(*counts):
        yield [low + e for (low, _), e in zip(present, numbers)]
