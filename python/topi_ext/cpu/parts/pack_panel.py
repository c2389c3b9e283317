# SPDX-License-Identifier: Apache-2.0
"""Packing: filling a panel with the window of a block, where padding, layout, stride and dtype end.

::

    for each channel, each residue of the position:
        for each row of the plane: zeros, every `step`-th element of a row of the data, zeros

Rows of symbolic length are copied by vectors into a plane of zeros.  What neighbouring residues
read lies side by side, so such rows of all residues are dealt out of vectors that are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from ...problem import DATA
from .. import emit
from ..emit import Array, Expr, Operand
from ..plan.vectors import MOST_STEP
from ..plan.window import Window
from .copies import are_near, copy, deal
from .panel import Panel


class Source(NamedTuple):
    """What is packed: some channels of an operand.

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
        What lies outside.
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
    *outer, in_row = (gather.slots for gather in panel.gathers)
    channels = source.channels
    if isinstance(panel.window, Window):
        emit.nest((channels, *outer, in_row), packing.known_rows)
    else:
        rows = packing.dealt_rows if packing.is_dealt else packing.present_rows
        emit.nest(outer, lambda *slots: emit.loop(channels, rows(*slots)))
    end = panel.elements(source.plane + channels) - panel.lanes
    emit.fill(into, end, panel.lanes, packing.zero)


class _Plane(NamedTuple):
    """One plane of a panel: where it is, and what of it is data.

    Attributes
    ----------
    base : Expr
        Its first element.
    begins, limits : list
        Along the four axes, the first position inside of the source, and the first behind it.
    source_of, row_of : callable
        Where a row is there, and in the panel, by its place along the other axes and a column.
    """

    base: Expr
    begins: list[Expr]
    limits: list[Expr]
    source_of: Callable[[Sequence[Expr], Expr], Expr]
    row_of: Callable[[Sequence[Expr], Expr], Expr]


class _Packing:
    """One panel while it is filled."""

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
        self.last = panel.gathers[-1]
        self.step = self.source.strides[DATA[-1]] * self.last.in_step

    @property
    def is_dealt(self) -> bool:
        """Whether planes of all residues along a row are filled together."""
        same = self.source.dtype == self.into.dtype
        several = 1 < self.last.slots <= self.last.in_step <= MOST_STEP
        return are_near(self.source.strides[DATA[-1]], 1) and same and several

    def plane(self, channel: Expr, *slots: Expr) -> _Plane:
        """That of a channel, from the first that is packed, and of a slot along each axis."""
        gathers = self.panel.gathers
        base = self.panel.plane(self.first_plane + channel, slots)
        residues = [gather.residue_of(slot) for gather, slot in zip(gathers, slots)]
        starts = [j + gather.first_shift for j, gather in zip(self.first, gathers)]
        begins = [
            -(residue // gather.in_step) - start
            for residue, gather, start in zip(residues, gathers, starts)
        ]
        limits = [
            (size - 1 - residue) // gather.in_step + 1 - start
            for size, residue, gather, start in zip(self.sizes, residues, gathers, starts)
        ]
        if self.valid is not None:
            limits = [emit.least(limit, count) for limit, count in zip(limits, self.valid)]

        def source_of(outer: Sequence[Expr], column: Expr) -> Expr:
            where = [
                (start + e) * gather.in_step + residue
                for start, e, gather, residue in zip(starts, (*outer, column), gathers, residues)
            ]
            return emit.opaque_base(self.source.at("C" + DATA, self.channel + channel, *where))

        def row_of(outer: Sequence[Expr], column: Expr) -> Expr:
            places = zip((*outer, column), self.panel.window.steps)
            return emit.opaque_base(base + sum(e * step for e, step in places))

        return _Plane(base, begins, limits, source_of, row_of)

    # ------------------------------------------------------------ sizes that are known

    def known_rows(self, *number: Expr) -> None:
        """A plane, row by row: zeros, data, zeros."""
        plane, extent = self.plane(*number), self.extent
        low = emit.let(emit.least(emit.most(plane.begins[-1], 0), extent[-1]))
        high = emit.let(emit.least(emit.most(plane.limits[-1], low), extent[-1]))

        def row(*outer: Expr) -> None:
            flat = plane.row_of(outer, 0)

            def data() -> None:
                origin = plane.source_of(outer, low)
                emit.fill(self.into, flat, low, self.zero)
                self._copy_by_ones(flat + low, origin, high - low)
                emit.fill(self.into, flat + high, extent[-1] - high, self.zero)

            inside = emit.both(
                *(e >= begin for begin, e in zip(plane.begins, outer)),
                *(e < limit for limit, e in zip(plane.limits, outer)),
            )
            emit.when(inside, data, lambda: emit.fill(self.into, flat, extent[-1], self.zero))

        emit.nest(extent[:-1], row)
        elements = self.panel.window.elements
        emit.fill(self.into, plane.base + elements, self.panel.pitch - elements, self.zero)

    def _copy_by_ones(self, flat: Expr, origin: Expr, count: Expr) -> None:
        def one(e: Expr) -> None:
            value = self.source.load(origin + e * self.step, self.into.dtype)
            emit.store(self.into, flat + e, value)

        emit.loop(count, one)

    # ------------------------------------------------------------ sizes known when it runs

    def present_rows(self, *outer: Expr) -> Callable[[Expr], None]:
        """Of a channel, all planes: zeros first, then data.  LLVM does not know that rows are
        short, and its loops for long ones cost more than what they copy.

        What is the same for all channels is computed before they are counted: LLVM would do so for
        each.
        """
        present = self._present(self.plane(0, *outer, 0), range(len(outer)))

        def plane(channel: Expr, slot: Expr) -> None:
            plane = self.plane(channel, *outer, slot)
            self._clear(plane)
            ((low, high),) = self._present(plane, (-1,))
            self._copy_rows(plane, present, low, emit.let(high - low))

        return lambda channel: emit.loop(self.last.slots, partial(plane, channel))

    def dealt_rows(self, *outer: Expr) -> Callable[[Expr], None]:
        """The same of the planes of all residues along a row.  All begin alike, and the last one
        has the fewest elements: so many of each are read together, and one more of some."""
        slots = sorted(range(self.last.slots), key=self.last.residue_of)
        residues = [self.last.residue_of(slot) - self.last.residue_of(slots[0]) for slot in slots]
        firsts = [self.plane(0, *outer, slot) for slot in slots]
        present = self._present(firsts[0], range(len(outer)))
        ends = [self._present(plane, (-1,))[0] for plane in firsts]
        low = ends[0][0]
        count = emit.let(emit.most(ends[-1][1] - low, 0))
        has_more = [emit.let(high - low > count) for _, high in ends]

        def channel(number: Expr) -> None:
            planes = [self.plane(number, *outer, slot) for slot in slots]
            for plane in planes:
                self._clear(plane)

            def row(place: Sequence[Expr]) -> None:
                rows = {r: plane.row_of(place, low) for r, plane in zip(residues, planes)}
                origin, step = planes[0].source_of(place, low), self.last.in_step
                deal(self.into, rows, self.source, origin, count, step, self.panel.lanes)

            self._over_rows(present, row)
            for plane, more in zip(planes, has_more):
                one = partial(self._copy_column, plane, low + count)
                emit.when(more, partial(self._over_rows, present, one))

        return channel

    def _clear(self, plane: _Plane) -> None:
        lanes, start = self.panel.lanes, emit.opaque_base(plane.base)
        zeros = emit.broadcast(self.zero, lanes)
        emit.loop(
            emit.quotient(self.panel.pitch, lanes),
            lambda v: emit.store(self.into, emit.lanes_of(start + v * lanes, lanes), zeros),
        )

    def _present(self, plane: _Plane, axes: Iterable[int]) -> list[tuple[Expr, Expr]]:
        """Along some axes, from where on a plane has data, and up to where."""

        def within(bound: Expr, axis: int) -> Expr:
            return emit.let(emit.least(emit.most(bound, 0), self.extent[axis]))

        return [(within(plane.begins[a], a), within(plane.limits[a], a)) for a in axes]

    def _over_rows(
        self, present: Sequence[tuple[Expr, Expr]], step: Callable[[Sequence[Expr]], None]
    ) -> None:
        """``step(place along the other axes)`` for the rows that have data."""
        counts = [emit.let(high - low) for low, high in present]
        emit.nest(counts, lambda *i: step([low + e for (low, _), e in zip(present, i)]))

    def _copy_column(self, plane: _Plane, column: Expr, place: Sequence[Expr]) -> None:
        """One element of a row."""
        value = self.source.load(plane.source_of(place, column), self.into.dtype)
        emit.store(self.into, plane.row_of(place, column), value)

    def _copy_rows(
        self, plane: _Plane, present: Sequence[tuple[Expr, Expr]], low: Expr, count: Expr
    ) -> None:
        """`count` columns from `low` on."""

        def row(place: Sequence[Expr]) -> None:
            flat, origin = plane.row_of(place, low), plane.source_of(place, low)
            copy(self.into, flat, self.source, origin, count, self.panel.lanes, self.step)

        self._over_rows(present, row)
