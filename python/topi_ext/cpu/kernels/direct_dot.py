# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` of bfloat16, int8 and uint8, by products within
lanes.

The loop nest of :mod:`topi_ext.cpu.kernels.direct`, with some input channels in each lane of its
panel and in each of its weights, as many as one instruction multiplies and adds::

    for each lane of input channels, for each tap of the phase:
        accumulators[channels][vectors] += sum over its channels of weight * data

Of bfloat16 these are pairs: one instruction multiplies twice as many numbers as of float32.

Integer weights are less their zero point, and so are data in pairs of 16 bits.  Data of 8 bits are
not: what their zero point `z` adds to a sum is the same everywhere, since padding stands for it
too, and each sum begins without it::

    accumulator = -z * sum of the weights of its output channel and phase

This also serves data of the other signedness, by an offset of 128.  These numbers are packed behind
the weights.  Where the number of input channels is no multiple of those of a lane, weights of what
is missing are zero.

The matrix product is that of the direct kernel, with input channels by twos or fours along K, in
both operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...emit.arguments import Packed, weight_index
from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..isa import dot_bf16, dot_int8
from ..isa.dot_bf16 import Pairs, pair
from ..isa.dot_int8 import LANE, Channels, Lanes, joined
from ..parts.direct_weights import DirectWeights, Steps
from ..parts.pack_panel import Source, pack
from ..parts.phase_groups import SPATIAL, PhaseIndex
from ..plan.direct_dot import DirectDotPlan
from ..products import DOTS
from .direct import Direct, Task


def emit_body(problem: Convolution, plan: DirectDotPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    data, weight, *extra, out = operands
    weights = LaneWeights(problem, plan, weight)
    if weights.dot.is_float:
        data, instruction = Pairs(data), dot_bf16.instruction()
    else:
        instruction = dot_int8.instruction(weights.dot, plan.nest.lanes)
    with instruction:
        DirectDot(problem, plan, weights, data, out, extra).emit()


def packed_weights(problem: Convolution, plan: DirectDotPlan) -> Packed:
    """Return size and dtype of the packed weights."""
    return LaneWeights(problem, plan).packed


def pack_weights(
    problem: Convolution, plan: DirectDotPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of the weights."""
    LaneWeights(problem, plan, weight).pack(packed)


class LaneWeights(DirectWeights):
    """Weights in lanes of input channels.

    Attributes
    ----------
    dot : Product
        The instruction.
    zero : int
        The zero point that data in the panel have.
    firsts, rows : int
        Where packed weights end, and initial sums of each block behind them: one for each output
        channel and phase.  There are none where all are zero.
    """

    def __init__(self, problem: Convolution, plan: DirectDotPlan, weight: Operand | None = None):
        self.dot = DOTS[plan.dot]
        super().__init__(problem, plan.nest, weight)
        self.zero, self.firsts = self.dot.zero_of(problem), self.elements
        self.rows = self.plan.channels * prod(access.out_step for access in problem.accesses)
        if self.zero:
            self.elements += problem.geometry.groups * self.blocks * self.rows

    def pack(self, packed: Array) -> None:
        """Write all weights to `packed`, and behind them the initial sums."""
        super().pack(packed)
        if self.zero:
            with emit.tasks(self.problem.geometry.groups * self.blocks, self.plan.parallel) as task:
                emit.fill(packed, self.firsts + task * self.rows, self.rows, emit.constant(0, LANE))
                for phase in self.groups.phases():
                    self._pack_firsts(packed, task, phase)

    def _pack_firsts(self, packed: Array, block: Expr, phase: PhaseIndex) -> None:
        """Write the initial sums of a phase of a block, or of all phases along a row."""
        accesses = [self.problem.accesses[axis] for axis in SPATIAL]
        numbers = [
            emit.let(access.phase_of(group.first_tap + number))
            for access, group, number in zip(accesses, *phase)
        ]
        weights = self.offset_of(block, phase)
        in_row, last = self.plan.all_phases, accesses[-1]
        for tap in range(last.kernel) if in_row else emit.loop(phase.taps[-1]):
            for step, *outer in emit.grid(self.steps.number, *phase.taps[:-1]):
                number: Expr = 0
                row_phase = last.phase_of(tap) if in_row else numbers[-1]
                for access, offset in zip(accesses, (*numbers[:-1], row_phase)):
                    number = number * access.out_step + offset
                first = self.firsts + block * self.rows + number
                lanes = weights + self.step_offset(phase, step, (*outer, tap))
                for o in emit.loop(self.plan.channels):
                    into = first + o * (self.rows // self.plan.channels)
                    total = dot_int8.total(packed[lanes + o], self.dot)
                    less = total * emit.constant(self.zero, LANE)
                    emit.store(packed, into, packed[into] - less)

    def _steps(self) -> Steps:
        """Return the steps: one lane of input channels each."""
        number = -(-self.problem.in_channels // self.dot.size)
        return Steps(number, 1, LANE, self.plan.channels, LANE)

    def _present_weight(
        self, group: Expr, step: Expr, out_channel: Expr, taps: Sequence[Expr]
    ) -> Expr:
        problem, size, channels = self.problem, self.dot.size, self.problem.in_channels

        def index_of(channel: Expr) -> Expr:
            return weight_index(problem, self.weight, group, channel, out_channel, taps)

        def weight(i: int) -> Expr:
            index = index_of(step * size + i)
            is_there = step * size + i < channels if i >= channels % size > 0 else True
            zero = emit.constant(0, LANE)
            return emit.choose(is_there, lambda: self.weight.load(index, LANE), zero)

        if self.dot.is_float:
            return pair(*(self.weight[index_of(size * step + i)] for i in range(size)))
        return joined([weight(i) for i in range(size)], size)


class DirectDot(Direct):
    """The emitter of one kernel."""

    def __init__(
        self,
        problem: Convolution,
        plan: DirectDotPlan,
        weights: LaneWeights,
        data: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        super().__init__(problem, plan.nest, weights, data, out, extra)
        self.lanes, self.dot = weights, weights.dot

    def _pack_data(self, task: Task, panel: Array, first: Expr, count: Expr) -> None:
        """Fill the panel with lanes; channels that the last lane of a group lacks are zero."""
        if self.dot.is_float:
            super()._pack_data(task, panel, first, count)
            return
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
        for _ in emit.only_if(first + count > whole):
            planes(whole, 1, full, rest)

    def _begin_sums(self, task: Task, acc: Array) -> None:
        """Write the initial sums of all blocks of a task."""
        length = task.blocking.tiles.length
        if not self.lanes.zero:
            return
        for block, start in self._blocks_of(task):
            for row in emit.loop(self.lanes.rows):
                value = emit.let(self._first_sum(task, block, row))
                emit.fill(acc, emit.opaque_base(start + row * length), length, value)

    def _first_sum(self, task: Task, block: Expr, row: Expr) -> Expr:
        """Return the initial sum of a row ``[output channel][phase]`` of a block."""
        weights = self.lanes
        if not weights.zero:
            return super()._first_sum(task, block, row)
        block = task.group * weights.blocks + block
        return task.weights[weights.firsts + block * weights.rows + row]

    def _add(self, acc: Expr, weight: Expr, row: Expr) -> Expr:
        if self.dot.is_float:
            return dot_bf16.add_products(acc, weight, row)
        return dot_int8.add_products(self.dot, self.plan.lanes, acc, weight, row)
