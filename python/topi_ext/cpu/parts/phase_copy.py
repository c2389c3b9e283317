# SPDX-License-Identifier: Apache-2.0
"""Copying accumulators out: phases of a block of positions, interleaved into rows of the result.

::

    for each output channel, each of its rows that exist:
        for each position, each phase along the row: accumulator, epilogue    -> out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...gather import Gather
from ...problem import Problem
from .. import emit
from ..emit import Array, Expr
from ..plan.direct import DirectPlan
from ..plan.window import Window
from .output_rows import Rows
from .panel import FittedWindow

MOST_LOOKED_UP = 64
"""Phases of which a kernel writes a table."""

MOST_WRITTEN_OUT = 4
"""Phases along a row whose elements are written out, one after the other."""

HasTaps = Callable[[Expr], Expr]
"""Whether a phase along an axis has a tap."""


@dataclass(frozen=True)
class PhaseCopy:
    """The copy of one block of positions.

    Attributes
    ----------
    problem, plan
        Whose output channels and lanes are copied.
    window : Window or FittedWindow
        Its positions.
    rows : Rows
        By which it is written.
    first : sequence
        The first position along the four axes.
    pitch : int or expression
        Distance of two phases among the accumulators.
    """

    problem: Problem
    plan: DirectPlan
    window: Window | FittedWindow
    rows: Rows
    first: Sequence[Expr]
    pitch: Expr

    @property
    def _steps(self) -> list[int]:
        return [gather.out_step for gather in self.problem.gathers]

    @property
    def _origin(self) -> list[Expr]:
        """The first output along the four axes."""
        return [f * s for f, s in zip(self.first, self._steps)]

    @property
    def _present(self) -> list[Expr]:
        """How many outputs of the block exist along them."""
        extent = (b * s for b, s in zip(self.window.block, self._steps))
        bounds = zip(extent, self.problem.out_sizes, self._origin)
        return [emit.least(e, size - o) for e, size, o in bounds]

    def block(self, group: Expr, block: Expr, acc: Array, place: Expr) -> None:
        """One block of output channels, whose accumulators ``[channel][phase][position]`` begin at
        `place`."""
        problem, channels = self.problem, self.plan.channels
        # Of axes with phases that have no taps, whether a phase has some.
        filled = {
            axis: _has_taps(gather)
            for axis, gather in enumerate(problem.gathers[:-1])
            if gather.has_empty_phase
        }

        def channel(o: Expr) -> None:
            number = block * channels + o
            all_channels = group * problem.out_channels + number

            def row(*outer: Expr) -> None:
                self._row(all_channels, outer, acc, (place, o), filled)

            inside: Expr = True
            if problem.out_channels % channels:
                inside = number < problem.out_channels
            emit.when(inside, lambda: emit.nest(self._present[:-1], row))

        emit.loop(channels, channel)

    def _row(
        self,
        channel: Expr,
        outer: Sequence[Expr],
        acc: Array,
        at: tuple[Expr, Expr],
        filled: dict[int, HasTaps],
    ) -> None:
        """The row of a channel at `outer` along the other axes, counted from the block's first.

        `at` is where the accumulators of the block begin, and the number of the channel in it.
        """
        (place, phase), steps, present = at, self._steps, self._present[-1]
        flat: Expr = 0
        offsets = [emit.let(u % s) for u, s in zip(outer, steps)]
        for u, s, offset, step in zip(outer, steps, offsets, self.window.steps):
            phase, flat = phase * s + offset, flat + emit.let(u // s) * step
        where = [a + u for a, u in zip(self._origin, (*outer, 0))]
        row = self.rows.row(channel, where)
        factor = steps[-1]
        source = emit.opaque_base(place + phase * factor * self.pitch + flat)

        def interleave() -> None:
            if factor == 1 and not self.problem.is_static:
                # LLVM would take the row for a long one.
                row.put_all(0, acc, source, present, self.plan.lanes)
                return
            row.put_interleaved(
                factor,
                (present // factor, present % factor),
                lambda q, a: acc[source + (a * self.pitch + q)],
                MOST_WRITTEN_OUT,
            )

        zero = emit.constant(0, self.problem.acc_dtype)
        has_taps = emit.both(*(is_filled(offsets[a]) for a, is_filled in filled.items()))
        emit.when(has_taps, interleave, lambda: emit.loop(present, lambda i: row.put(i, zero)))
        row.end(present)


def _has_taps(gather: Gather) -> HasTaps:
    """Whether a phase meets a tap: looked up, or of many phases computed."""
    if gather.out_step > MOST_LOOKED_UP:
        return lambda phase: gather.first_tap_of(phase) < gather.kernel
    phases = range(gather.out_step)
    found = emit.table([int(gather.first_tap_of(phase) < gather.kernel) for phase in phases])
    return lambda phase: found(phase) > 0
