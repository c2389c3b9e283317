# SPDX-License-Identifier: Apache-2.0
"""Panels: the input window of one block of positions, padded and split by residue.

A panel holds, for each channel and each residue of the input position modulo the step, the window
as one flat plane::

    panel[(channel * slots + slot) * pitch + ((e0*E1 + e1)*E2 + e2)*E3 + e3]

so that a tap is a constant offset, the lanes of a vector are neighbours in memory whatever the
stride, and padding, layout and dtype are handled once, by packing (:mod:`.pack_panel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ...spec.axis_access import AxisAccess
from ...spec.conv import Convolution
from .. import emit
from ..emit import Expr
from ..plan.vectors import odd_vectors
from ..plan.window import Window


class FittedWindow(NamedTuple):
    """A window of symbolic sizes, whose block is chosen at run time.

    Attributes
    ----------
    room : Window
        The window that was planned for assumed sizes: this one has at most as many elements.
    block, extent : tuple
        Positions along the four axes, and the inputs that they reach.
    steps : tuple
        Elements from one position to the next, along the four axes.
    elements, length : Expr
        Elements of a plane, and from the first position to the last.
    plane_pitch : Expr
        Distance of two planes.
    """

    room: Window
    block: tuple[Expr, ...]
    extent: tuple[Expr, ...]
    steps: tuple[Expr, ...]
    elements: Expr
    length: Expr
    plane_pitch: Expr

    @classmethod
    def emitted(
        cls,
        room: Window,
        positions: Sequence[Expr],
        accesses: Sequence[AxisAccess],
        lanes: int,
        blocks: Expr = 1,
    ) -> FittedWindow:
        """Return a window of as many whole rows, planes and images as the planned one has room for,
        so that all blocks have equally many.

        Parameters
        ----------
        positions : sequence
            Positions per phase, along the four axes.
        accesses, lanes
            As of :class:`Panel`.
        blocks : int or symbolic
            The number of blocks, if images, planes and rows can be divided into so many.
        """
        extents = _block_extents(positions, blocks)
        halo = [access.last_shift - access.first_shift for access in accesses]
        most = room.elements // prod(1 + reach for reach in halo[:-1]) - halo[-1]
        width = _equal_block(positions[-1], emit.least(most, positions[-1]))
        block: list[Expr] = [1, 1, 1, width]
        inner: Expr = emit.opaque_value(width + halo[-1])
        is_whole: Expr = width == positions[-1]
        for axis in (2, 1, 0):
            around = prod(1 + reach for reach in halo[:axis])
            most = emit.most(
                emit.quotient(room.elements, emit.opaque_value(inner * around)) - halo[axis], 1
            )
            count = _equal_block(positions[axis], emit.least(most, extents[axis]))
            count = emit.opaque_value(_one_unless(is_whole, count))
            block[axis] = count
            inner = emit.opaque_value(inner * (count + halo[axis]))
            is_whole = emit.both(is_whole, count == positions[axis])
        extent = tuple(b + reach for b, reach in zip(block, halo))
        steps: list[Expr] = [1]
        for size in extent[:0:-1]:
            steps.insert(0, emit.opaque_value(steps[0] * size))
        span = sum((b - 1) * step for b, step in zip(block, steps)) + 1
        length = emit.opaque_value(span)
        vectors = emit.opaque_value(emit.ceil_div(inner, lanes))
        pitch = emit.opaque_value(odd_vectors(vectors) * lanes)
        return cls(room, tuple(block), extent, tuple(steps), inner, length, pitch)

    def pitch(self, _: int) -> Expr:
        """Return the distance of two planes: whole vectors, and never a power of two of cache
        lines."""
        return self.plane_pitch

    def most_pitch(self, lanes: int) -> int:
        """Return what has to be allocated for a plane: no window that fits has a larger pitch."""
        return (-(-self.room.elements // lanes) + 1) * lanes


def fitted_block(
    room: Sequence[int], tiles: Sequence[Expr], lanes: int, blocks: int
) -> tuple[Expr, ...]:
    """Return the block of a :class:`FittedWindow` without a halo, of `tiles` along the four
    axes."""
    dense = (AxisAccess(False, 1, 1, 1, 0),) * 4
    return FittedWindow.emitted(Window.of(room, dense), tiles, dense, lanes, blocks).block


def fitted_splits(tasks: Expr, target: int, most: Expr) -> Expr:
    """Return into how many splits each of `tasks` is divided, at most `most`, so that there are
    `target` tasks.

    These are two for each thread.  If all threads have equally many, one for each is enough, since
    every split packs the same data.
    """
    threads = max(1, target // 2)
    uneven = emit.remainder(tasks, threads) * emit.remainder(emit.wide(threads), tasks)
    enough = emit.opaque_value(emit.choose(uneven > 0, lambda: target, threads))
    return emit.opaque_value(emit.least(emit.opaque_value(emit.ceil_div(enough, tasks)), most))


def window_of(
    problem: Convolution,
    planned: Window,
    accesses: Sequence[AxisAccess],
    lanes: int,
    blocks: Expr = 1,
) -> Window | FittedWindow:
    """Return the planned window if sizes are known, else one that fits into it."""
    if problem.is_static:
        return planned
    positions = [emit.opaque_value(emit.most(p, 1)) for p in problem.positions]  # may be empty
    return FittedWindow.emitted(planned, positions, accesses, lanes, blocks)


def _block_extents(positions: Sequence[Expr], blocks: Expr) -> list[Expr]:
    """Return images, planes and rows of a block of which there are `blocks`."""
    extents, left = [], blocks if isinstance(blocks, int) and blocks == 1 else emit.wide(blocks)
    for count in positions[:-1]:
        along = emit.opaque_value(emit.least(count, left))
        extents.append(emit.opaque_value(emit.ceil_div(count, along)))
        left = emit.opaque_value(emit.ceil_div(left, along))
    return extents


def _one_unless(condition: Expr, value: Expr) -> Expr:
    """Return `value` where the condition holds, else 1."""
    return emit.choose(condition, lambda: value, 1)


def _equal_block(size: Expr, most: Expr) -> Expr:
    """Return the smallest block of which no more are needed than of blocks of `most`."""
    blocks = emit.opaque_value(emit.ceil_div(size, emit.opaque_value(most)))
    return emit.opaque_value(emit.ceil_div(size, blocks))


@dataclass(frozen=True)
class Panel:
    """The layout of a panel.

    Attributes
    ----------
    accesses : tuple of AxisAccess
        How the operand is read, along the four axes.
    window : Window
        Extents of a plane.
    lanes : int
        Elements per vector.
    """

    accesses: tuple[AxisAccess, ...]
    window: Window | FittedWindow
    lanes: int

    @property
    def pitch(self) -> Expr:
        """Elements from plane to plane."""
        return self.window.pitch(self.lanes)

    @property
    def slots(self) -> int:
        """Planes of one channel."""
        return prod(access.slots for access in self.accesses)

    def elements(self, channels: Expr) -> Expr:
        """Return the size of the panel; it has one vector more, since the last tile may read past
        the last plane."""
        return channels * self.slots * self.pitch + self.lanes

    def room(self, channels: int) -> int:
        """Return the most that :meth:`elements` can be."""
        return channels * self.slots * self.window.most_pitch(self.lanes) + self.lanes

    def plane(self, channel: Expr, slots: Sequence[Expr]) -> Expr:
        """Return the offset of a plane."""
        index = channel
        for access, slot in zip(self.accesses, slots):
            index = index * access.slots + slot
        return index * self.pitch

    def shifted(self, shifts: Sequence[Expr]) -> Expr:
        """Return the offset in a plane of the first position of the block, read with `shifts`."""
        return sum(
            (shift - access.first_shift) * step
            for shift, access, step in zip(shifts, self.accesses, self.window.steps)
        )
