# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` of int8 and uint8 for processors with AMX.

As :mod:`topi_ext.cpu.kernels.direct_amx` with four input channels, instead of two, in 32 bits
of a tile.  There are products for each sign of both, so data are as they are stored.  Weights are
less their zero point; what that of data adds is the same for all positions of a phase, since
padding stands for it too, and sums begin without it::

    tile of sums = -zero point * sum of the weights of each row's output channel and phase

These tiles are packed behind the weights.  The matrix product is that of the direct kernel: M,
output channels, in rows of a tile; N, positions of one phase, in its columns; K, input channels by
fours, and taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...emit.arguments import Packed, stored_sizes
from ...spec.conv import Convolution
from .. import emit, kernels
from ..emit import Array, Expr, Operand
from ..isa import amx
from ..isa.dot_int8 import LANE, Bytes, Channels, Lanes, joined, repeated, total
from ..parts.pack_panel import Source, pack
from ..parts.phase_groups import SPATIAL, PhaseIndex
from ..plan.direct_amx import TILE
from ..plan.direct_amx_int8 import TILE_DOTS, DirectAmxInt8Plan
from .direct import Reduction, Task
from .direct_amx import AmxWeights, DirectAmx


def emit_body(problem: Convolution, plan: DirectAmxInt8Plan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    data, weight, *extra, out = operands
    weights = ByteWeights(problem, plan, weight)
    for is_granted in emit.sides(amx.is_granted()):
        if is_granted:
            DirectAmxInt8(problem, plan, weights, data, out, extra).emit()
        else:
            raw = weight
            if problem.prepacked:
                raw = Bytes(weight, weights.elements, problem.dtypes[1], *stored_sizes(problem))
                raw.zero = problem.zero_points[1]
            unpacked, arguments = replace(problem, prepacked=False), [data, raw, *extra, out]
            kernels.emit_body(unpacked, plan.refused, arguments)


def packed_weights(problem: Convolution, plan: DirectAmxInt8Plan) -> Packed:
    """Return size and dtype of the packed weights: tiles, followed by the weights in their stored
    order, for the kernel that runs if the matrix unit is not available.
    """
    return Packed(ByteWeights(problem, plan).elements + -(-problem.weights // 4), LANE)


def pack_weights(
    problem: Convolution, plan: DirectAmxInt8Plan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of the weights."""
    weights = ByteWeights(problem, plan, weight)
    weights.pack(packed)
    for i in emit.loop(-(-problem.weights // 4)):
        indices = [emit.least(4 * i + k, problem.weights - 1) for k in range(4)]
        four = joined([emit.cast(weight[index], weight.dtype, LANE) for index in indices], 4)
        emit.store(packed, weights.elements + i, four)


class ByteWeights(AmxWeights):
    """Weights in tiles, four input channels in 32 bits.

    Attributes
    ----------
    dot : Dot
        The instruction.
    zero : int
        The zero point of data.
    firsts, rows : int
        Where packed weights end, and rows ``[phase][output channel]`` of initial sums of each
        block, which are tiles behind the weights.  There are none where the zero point is zero.
    """

    size = 4

    def __init__(
        self, problem: Convolution, plan: DirectAmxInt8Plan, weight: Operand | None = None
    ):
        super().__init__(problem, plan.gather, weight)
        self.dot, self.zero = TILE_DOTS[plan.dot], problem.zero_points[0]
        self.firsts = self.elements
        self.rows = self.plan.channels * prod(gather.out_step for gather in problem.accesses)
        if self.zero:
            self.elements += problem.geometry.groups * self.blocks * self.rows * TILE

    def pack(self, packed: Array) -> None:
        """Write all weights to `packed`, and behind them the initial sums."""
        super().pack(packed)
        if self.zero:
            with emit.tasks(self.problem.geometry.groups * self.blocks, self.plan.parallel) as task:
                for phase in self.groups.phases():
                    self._pack_firsts(packed, task, phase)

    def _pack_firsts(self, packed: Array, block: Expr, phase: PhaseIndex) -> None:
        """Write the initial sums of a phase of a block: rows of one number."""
        number: Expr = 0
        for axis, group, which in zip(SPATIAL, *phase):
            gather = self.problem.accesses[axis]
            number = number * gather.out_step + gather.phase_of(group.first_tap + which)
        number, weights = emit.let(number), self.offset_of(block, phase)
        for o in emit.loop(self.plan.channels):
            row = emit.let(self.first_of(block, number, o))
            emit.fill(packed, row, TILE, emit.constant(0, LANE))
            for step, *taps, lane in emit.grid(self.steps.number, *phase.taps, TILE):
                four = packed[weights + self.step_offset(phase, step, taps) + o * TILE + lane]
                less = total(four, self.dot) * emit.constant(self.zero, LANE)
                emit.store(packed, row, packed[row] - less)
            first = emit.let(packed[row])
            emit.fill(packed, row, TILE, first)

    def first_of(self, block: Expr, phase: Expr, channel: Expr) -> Expr:
        """Return where the row of initial sums is, of a block counted through all groups."""
        return self.firsts + (block * self.rows + phase * self.plan.channels + channel) * TILE

    def _joined(self, index: Expr, step: Expr, channel: Expr) -> Expr:
        """Return four weights; those of channels that do not exist are zero."""
        channels = self.problem.in_channels

        def weight(i: int) -> Expr:
            is_there = channel + i < channels if i >= channels % 4 > 0 else True
            zero = emit.constant(0, LANE)
            return emit.choose(is_there, lambda: self.weight.load(index + i * step, LANE), zero)

        return joined([weight(i) for i in range(4)], 4)


class DirectAmxInt8(DirectAmx):
    """The emitter of one kernel."""

    weights: ByteWeights

    def __init__(
        self,
        problem: Convolution,
        plan: DirectAmxInt8Plan,
        weights: ByteWeights,
        data: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        super().__init__(problem, plan, weights, data, out, extra)
        self.product = plan.dot

    def _pack_data(self, task: Task, panel: Array, first: Expr, count: Expr) -> None:
        """Fill the panel with four channels in 32 bits; channels that the last step lacks have any
        value, since their weights are zero."""
        channels, number = self.problem.in_channels, first * TILE
        whole, rest = divmod(channels, 4)
        base = task.group * channels * self.data.strides["C"]

        def planes(lane: Expr, lanes: Expr, plane: Expr, present: int) -> None:
            operand = Lanes(self.weights.dot, Channels(self.data, base, present))
            padding = repeated(self.weights.zero)
            source = Source(operand, lane, lanes, self.problem.in_sizes, plane, padding)
            pack(task.blocking.panel, panel, source, task.first)

        full = emit.let(emit.least(count * TILE, whole - number))
        planes(number, full, 0, 4)
        if rest:
            for _ in emit.only_if(number + count * TILE > whole):
                planes(whole, 1, full, rest)

    def _begin_sums(self, task: Task, acc: Array) -> None:
        """Write the initial sums of all blocks of a task."""
        length, weights = task.blocking.tiles.length, self.weights
        if not weights.zero:
            return
        for block, start in self._blocks_of(task):
            for o, phase in emit.grid(self.plan.channels, self.phases):
                first = weights.first_of(task.group * weights.blocks + block, phase, o)
                row = emit.opaque_base(start + (o * self.phases + phase) * length)
                emit.fill(acc, row, length, emit.let(task.weights[first]))

    def _begin_tile(self, tile: int, reduction: Reduction, phase: Expr, high: int) -> None:
        """Load the initial sums from where they are packed."""
        weights, task = self.weights, reduction.task
        if not weights.zero:
            super()._begin_tile(tile, reduction, phase, high)
            return
        block = task.group * weights.blocks + reduction.block
        amx.load(tile, task.weights, weights.first_of(block, phase, high * TILE), TILE)
