# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` of int8 and uint8, by products within lanes.

The loop nest of :mod:`topi_ext.cpu.kernels.direct`, with some input channels in each lane of its
panel and in each of its weights, as many as one instruction multiplies and adds::

    for each lane of input channels, for each tap of the phase:
        accumulators[channels][vectors] += sum over its channels of weight * data

Weights are less their zero point, and so are data in pairs of 16 bits.  Data of 8 bits are not:
what their zero point `z` adds to a sum is the same everywhere, since padding stands for it too, and
each sum begins without it::

    accumulator = -z * sum of the weights of its output channel and phase

That also serves data of the other sign, by an offset of 128.  These numbers are packed behind the
weights.  Where the number of input channels is no multiple of those of a lane, weights of what is
missing are zero.

The matrix product is that of the direct kernel, with input channels by twos or fours along K, in
both operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from ...emit.arguments import Packed, weight_index
from ...problem import Problem
from .. import emit
from ..emit import Array, Expr, Operand
from ..isa import dot_int8
from ..isa.dot_int8 import LANE, Channels, Lanes, joined
from ..parts.direct_weights import DirectWeights, Steps
from ..parts.pack_panel import Source, pack
from ..parts.phase_groups import SPATIAL, PhaseIndex
from ..plan.direct_dot_int8 import DOTS, DirectDotInt8Plan, zero_of
from .direct import Direct, OverBlocks, Task


def emit_body(problem: Problem, plan: DirectDotInt8Plan, operands: Sequence[Operand]) -> None:
    """What the PrimFunc does, with its arguments as `operands`."""
    data, weight, *extra, out = operands
    weights = LaneWeights(problem, plan, weight)
    with dot_int8.instruction(weights.dot, plan.gather.lanes):
        DirectDotInt8(problem, plan, weights, data, out, extra).emit()


def packed_weights(problem: Problem, plan: DirectDotInt8Plan) -> Packed:
    """What the packed weights are."""
    return LaneWeights(problem, plan).packed


def pack_weights(
    problem: Problem, plan: DirectDotInt8Plan, weight: Operand, packed: Operand
) -> None:
    """Pack them."""
    LaneWeights(problem, plan, weight).pack(packed)


class LaneWeights(DirectWeights):
    """Weights in lanes of input channels.

    Attributes
    ----------
    dot : Dot
        The instruction.
    zero : int
        The zero point that data in the panel have.
    firsts, rows : int
        Where packed weights end; behind them is what sums begin with, of each block so many: one
        for an output channel and phase.  Nothing where these are zero.
    """

    def __init__(self, problem: Problem, plan: DirectDotInt8Plan, weight: Operand | None = None):
        self.dot = DOTS[plan.dot]
        super().__init__(problem, plan.gather, weight)
        self.zero, self.firsts = zero_of(problem, self.dot), self.elements
        self.rows = self.plan.channels * prod(gather.out_step for gather in problem.gathers)
        if self.zero:
            self.elements += problem.geometry.groups * self.blocks * self.rows

    def pack(self, packed: Array) -> None:
        """Write all of them to `packed`, and behind them what sums begin with."""
        super().pack(packed)
        if self.zero:
            with emit.tasks(self.problem.geometry.groups * self.blocks, self.plan.parallel) as task:
                emit.fill(packed, self.firsts + task * self.rows, self.rows, emit.constant(0, LANE))
                for kind in self.groups.kinds:
                    self.groups.over_phases(kind, partial(self._pack_firsts, packed, task))

    def _pack_firsts(self, packed: Array, block: Expr, phase: PhaseIndex) -> None:
        """Of a phase, or of all along a row."""
        gathers = [self.problem.gathers[axis] for axis in SPATIAL]
        numbers = [
            emit.let(gather.phase_of(group.first_tap + number))
            for gather, group, number in zip(gathers, *phase)
        ]
        weights = self.offset_of(block, phase)
        counts = (self.steps.number, *phase.taps[:-1])

        def of_row(row_tap: Expr, in_row: Expr, *outer: Expr) -> None:
            number: Expr = 0
            for gather, offset in zip(gathers, (*numbers[:-1], in_row)):
                number = number * gather.out_step + offset
            first = self.firsts + block * self.rows + number
            lanes = weights + self.step_offset(phase, outer[0], (*outer[1:], row_tap))

            def channel(o: Expr) -> None:
                into = first + o * (self.rows // self.plan.channels)
                less = dot_int8.total(packed[lanes + o], self.dot) * emit.constant(self.zero, LANE)
                emit.store(packed, into, packed[into] - less)

            emit.loop(self.plan.channels, channel)

        if self.plan.all_phases:
            for tap in range(gathers[-1].kernel):
                emit.nest(counts, partial(of_row, tap, gathers[-1].phase_of(tap)))
        else:
            emit.loop(
                phase.taps[-1], lambda tap: emit.nest(counts, partial(of_row, tap, numbers[-1]))
            )

    def _steps(self) -> Steps:
        """A lane of input channels at a time."""
        number = -(-self.problem.in_channels // self.dot.size)
        return Steps(number, 1, LANE, self.plan.channels, LANE)

    def _present_weight(
        self, group: Expr, step: Expr, out_channel: Expr, taps: Sequence[Expr]
    ) -> Expr:
        size, channels = self.dot.size, self.problem.in_channels

        def weight(i: int) -> Expr:
            channel = step * size + i
            index = weight_index(self.problem, self.weight, group, channel, out_channel, taps)
            is_there = channel < channels if i >= channels % size > 0 else True
            zero = emit.constant(0, LANE)
            return emit.choose(is_there, lambda: self.weight.load(index, LANE), zero)

        return joined([weight(i) for i in range(size)], size)


class DirectDotInt8(Direct):
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Problem,
        plan: DirectDotInt8Plan,
        weights: LaneWeights,
        data: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        super().__init__(problem, plan.gather, weights, data, out, extra)
        self.lanes, self.dot = weights, weights.dot

    def _pack_data(self, task: Task, panel: Array, first: Expr, count: Expr) -> None:
        """Fill the panel with lanes; what a group's last has too few of is zero."""
        size, channels = self.dot.size, self.problem.in_channels
        whole, rest = divmod(channels, size)
        base = task.group * channels * self.data.strides["C"]

        def planes(channel: Expr, number: Expr, plane: Expr, present: int) -> None:
            operand = Lanes(self.dot, Channels(self.data, base, present))
            padding = dot_int8.repeated(self.lanes.zero)
            source = Source(operand, channel, number, self.problem.in_sizes, plane, padding)
            pack(task.blocking.panel, panel, source, task.first)

        if not rest:
            planes(first, count, 0, size)
            return
        full = emit.let(emit.least(count, whole - first))
        planes(first, full, 0, size)
        last = first + count > whole
        emit.when(last, lambda: planes(whole, 1, full, rest))

    def _begin_sums(self, task: Task, acc: Array, over_blocks: OverBlocks) -> None:
        """Write what sums begin with."""
        length = task.blocking.tiles.length

        def of_block(block: Expr, place: Expr) -> None:
            def row(number: Expr) -> None:
                value = emit.let(self._first_sum(task, block, number))
                emit.fill(acc, emit.opaque_base(place + number * length), length, value)

            emit.loop(self.lanes.rows, row)

        if self.lanes.zero:
            over_blocks(of_block)

    def _first_sum(self, task: Task, block: Expr, row: Expr) -> Expr:
        """What sums of a block begin with: those of a row, ``[output channel][phase]``."""
        weights = self.lanes
        if not weights.zero:
            return emit.constant(0, LANE)
        block = task.group * weights.blocks + block
        return task.weights[weights.firsts + block * weights.rows + row]

    def _add(self, acc: Expr, weight: Expr, row: Expr) -> Expr:
        return dot_int8.add_products(self.dot, self.plan.lanes, acc, weight, row)
