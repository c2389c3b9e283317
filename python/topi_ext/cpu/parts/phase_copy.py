# SPDX-License-Identifier: Apache-2.0
"""Copy-out: interleave the phases of a block of positions into rows of the result.

::

    for each output channel, each of its rows that exist:
        for each position, each phase along the row: accumulator, epilogue    -> out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...spec.axis_access import AxisAccess
from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr
from ..plan.direct import DirectPlan
from ..plan.window import Window
from .output_rows import Rows
from .panel import FittedWindow

MOST_LOOKED_UP = 64
"""The most phases of which a kernel writes a table."""

MOST_WRITTEN_OUT = 4
"""The most phases along a row whose elements are written out, one after the other."""

HasTaps = Callable[[Expr], Expr]
"""Returns whether a phase along an axis has a tap."""


@dataclass(frozen=True)
class PhaseCopy:
    """The copy of one block of positions.

    Attributes
    ----------
    problem, plan
        The problem, and the plan with its output channels and lanes.
    window : Window or FittedWindow
        Its positions.
    rows : Rows
        The rows to write by.
    first : sequence
        The first position along the four axes.
    pitch : int or expression
        Distance of two phases among the accumulators.
    """

    problem: Convolution
    plan: DirectPlan
    window: Window | FittedWindow
    rows: Rows
    first: Sequence[Expr]
    pitch: Expr

    @property
    def _steps(self) -> list[int]:
        return [access.out_step for access in self.problem.accesses]

    @property
    def _origin(self) -> list[Expr]:
        """The first output of the block along the four axes."""
        return [f * s for f, s in zip(self.first, self._steps)]

    @property
    def _present(self) -> list[Expr]:
        """Outputs of the block that exist along the four axes."""
        extent = (b * s for b, s in zip(self.window.block, self._steps))
        bounds = zip(extent, self.problem.out_sizes, self._origin)
        return [emit.least(e, size - o) for e, size, o in bounds]

    def block(self, group: Expr, block: Expr, acc: Array, start: Expr) -> None:
        """Write a block of output channels, whose accumulators ``[channel][phase][position]`` begin
        at ``acc[start]``."""
        problem, channels = self.problem, self.plan.channels
        # Of axes with phases that have no taps, whether a phase has some.
        filled = {
            axis: _has_taps(access)
            for axis, access in enumerate(problem.accesses[:-1])
            if access.has_empty_phase
        }

        for o in emit.loop(channels):
            number = block * channels + o
            all_channels = group * problem.out_channels + number
            inside: Expr = True
            if problem.out_channels % channels:
                inside = number < problem.out_channels
            for _ in emit.only_if(inside):
                for outer in emit.grid(*self._present[:-1]):
                    self._row(all_channels, outer, acc, (start, o), filled)

    def _row(
        self,
        channel: Expr,
        outer: Sequence[Expr],
        acc: Array,
        at: tuple[Expr, Expr],
        filled: dict[int, HasTaps],
    ) -> None:
        """Write the row of a channel at index `outer` along the other axes, from the block's first
        on.

        `at` is where the accumulators of the block begin, and the number of the channel in it.
        """
        (start, phase), steps, present = at, self._steps, self._present[-1]
        flat: Expr = 0
        offsets = [emit.let(u % s) for u, s in zip(outer, steps)]
        for u, s, offset, step in zip(outer, steps, offsets, self.window.steps):
            phase, flat = phase * s + offset, flat + emit.let(u // s) * step
        where = [a + u for a, u in zip(self._origin, (*outer, 0))]
        row = self.rows.row(channel, where)
        factor = steps[-1]
        source = emit.opaque_base(start + phase * factor * self.pitch + flat)

        zero = emit.constant(0, self.problem.acc_dtype)
        has_taps = emit.both(*(is_filled(offsets[a]) for a, is_filled in filled.items()))
        for is_summed in emit.sides(has_taps):
            if not is_summed:
                for i in emit.loop(present):
                    row.put(i, zero)
            elif factor == 1 and not self.problem.is_static:
                # LLVM would take the row for a long one.
                row.put_all(0, acc, source, present, self.plan.lanes)
            else:
                counts = present // factor, present % factor
                for i, q, a in row.interleaved(factor, counts, MOST_WRITTEN_OUT):
                    row.put(i, acc[source + (a * self.pitch + q)])
        row.end(present)


def _has_taps(access: AxisAccess) -> HasTaps:
    """Return whether a phase has a tap: looked up in a table, or computed where phases are many."""
    if access.out_step > MOST_LOOKED_UP:
        return lambda phase: access.first_tap_of(phase) < access.kernel
    phases = range(access.out_step)
    has_taps = emit.table([int(access.first_tap_of(phase) < access.kernel) for phase in phases])
    return lambda phase: has_taps(phase) > 0
