# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` of bfloat16, int8 and uint8 for processors with
AMX.

The loop nest of :mod:`topi_ext.cpu.kernels.direct`, with pairs of input channels in its panel, or
four of bytes, and tiles instead of vectors::

    if Linux grants the matrix unit:
        parallel (batch, group, depth, height, width block, split of output channels):
            for each K-block of input channels:
                pack the input window of the block, channels in pairs        -> panel
                for each block of output channels, each phase, each tile of positions:
                    for each step of 32 input channels, for each tap of the phase:
                        accumulators[2][2] += weights[16, 32] @ panel[32, 16 positions]
                                                                             -> acc
            for each output row: interleave its phases                       -> out
    else:
        the kernel of direct.py or direct_dot.py

With `tiles_first` the loop over tiles of positions encloses that over blocks of output channels:
the part of the panel that a tile reads stays in the first cache for all blocks.

A tap is an offset in the panel here too: the unit loads rows from any address.  Channels that
are missing in a last step, or in a last tile of output channels, are zero.

There are products of bytes for each sign of both, so data are as they are stored.  Weights are less
their zero point; what that of data adds is the same for all positions of a phase, since padding
stands for it too, and sums begin without it::

    tile of sums = -zero point * sum of the weights of each row's output channel and phase

These tiles are packed behind the weights.

The matrix product is that of the direct kernel: M, output channels, in rows of a tile; N, positions
of one phase, in its columns; K, input channels by twos or fours, and taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

from ...emit.arguments import Packed, as_stored, stored_sizes, tap_number, weight_index
from ...spec.conv import TAPS, Convolution
from .. import emit, kernels
from ..emit import Array, Expr, Operand
from ..isa import amx
from ..isa.dot_bf16 import PAIR, Halves, Pairs, pair
from ..isa.dot_int8 import LANE, Bytes, Channels, Lanes, joined, repeated, total
from ..parts.direct_weights import DirectWeights, Steps
from ..parts.pack_panel import Source, pack
from ..parts.phase_groups import SPATIAL, PhaseIndex
from ..plan.direct_amx import TILE, DirectAmxPlan
from ..products import TILE_DOTS
from .direct import Direct, KBlock, Reduction, Task

_PACKED_CHANNELS = TILE // 2
"""Output channels whose weights are packed at a time, so that they stay in the first cache."""


def emit_body(problem: Convolution, plan: DirectAmxPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    data, weight, *extra, out = operands
    weights = AmxWeights(problem, plan, weight)
    for is_granted in emit.sides(amx.is_granted()):
        if is_granted:
            DirectAmx(problem, plan, weights, data, out, extra).emit()
        else:
            arguments = [data, weights.stored() if problem.prepacked else weight, *extra, out]
            kernels.emit_body(replace(problem, prepacked=False), plan.refused, arguments)


def packed_weights(problem: Convolution, plan: DirectAmxPlan) -> Packed:
    """Return size and dtype of the packed weights: tiles, followed by the weights in their stored
    order, for the kernel that runs if the matrix unit is not available.
    """
    weights = AmxWeights(problem, plan)
    return Packed(weights.elements + -(-problem.weights // weights.dot.size), PAIR)


def pack_weights(
    problem: Convolution, plan: DirectAmxPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of the weights."""
    weights = AmxWeights(problem, plan, weight)
    weights.pack(packed)
    weights.pack_stored(packed)


class AmxWeights(DirectWeights):
    """Weights in tiles: rows of output channels, each with its input channels in pairs, or with
    four of them in 32 bits.

    Attributes
    ----------
    dot : Product
        The instruction.
    zero : int
        The zero point of data.
    firsts, rows : int
        Where packed weights end, and rows ``[phase][output channel]`` of initial sums of each
        block, which are tiles behind the weights.  There are none where the zero point is zero.
    """

    def __init__(self, problem: Convolution, plan: DirectAmxPlan, weight: Operand | None = None):
        self.dot, self.zero = TILE_DOTS[plan.dot], problem.zero_points[0]
        super().__init__(problem, plan.nest, weight)
        self.firsts = self.elements
        self.rows = self.plan.channels * prod(access.out_step for access in problem.accesses)
        if self.zero:
            self.elements += problem.geometry.groups * self.blocks * self.rows * TILE

    def _steps(self) -> Steps:
        """Return the steps: as many pairs as a tile has rows."""
        number = -(-self.problem.in_channels // (self.dot.size * TILE))
        return Steps(number, TILE, PAIR, self.plan.channels * TILE, PAIR)

    def pack(self, packed: Array) -> None:
        """Write all weights to `packed`, and behind them the initial sums."""
        self._pack_tiles(packed)
        if self.zero:
            with emit.tasks(self.problem.geometry.groups * self.blocks, self.plan.parallel) as task:
                for phase in self.groups.phases():
                    self._pack_firsts(packed, task, phase)

    def _pack_tiles(self, packed: Array) -> None:
        """Write rows of output channels, each with its input channels in pairs; zero behind the
        last.

        packed[group][block][combination][phases][step][taps][channels][pairs of input channels]
        """
        all_taps = self.problem.geometry.taps
        lines = _PACKED_CHANNELS * all_taps // TILE + 1
        pitch = (lines + 1 - lines % 2) * TILE
        extents = self.problem.geometry.groups, self.blocks, self.steps.number
        with emit.tasks(prod(extents), self.plan.parallel) as task:
            group, block, step = emit.unravel(task, extents)
            raw = emit.scratch(TILE * pitch, PAIR)
            for i in emit.loop(self.plan.channels // _PACKED_CHANNELS):
                first = emit.let(i * _PACKED_CHANNELS)
                self._copy_weights(raw, pitch, group, block * self.plan.channels + first, step)
                for phase, taps, o in self._rows_of_block():
                    into = self.offset_of(group * self.blocks + block, phase)
                    into = into + self.step_offset(phase, step, taps)
                    into = emit.opaque_base(into + (first + o) * TILE)
                    number = tap_number(self.problem, self.groups.tap_numbers(phase, taps))
                    source = emit.opaque_base(o * all_taps + number)
                    for p in emit.loop(TILE):
                        emit.store(packed, into + p, raw[source + p * pitch])

    def _rows_of_block(self) -> Iterator[tuple[PhaseIndex, Sequence[Expr], Expr]]:
        """Emit ``for phase, taps, channel in ...``: loops over all phases, their taps, and the
        output channels that are packed at a time."""
        for combination in self.groups.combinations:
            phases = (tap_group.phases for tap_group in combination)
            taps = (tap_group.taps for tap_group in combination)
            for numbers in emit.grid(*phases, *taps, _PACKED_CHANNELS):
                yield PhaseIndex(combination, numbers[:3]), numbers[3:6], numbers[6]

    def _copy_weights(self, raw: Array, pitch: int, group: Expr, first: Expr, step: Expr) -> None:
        """Copy ``raw[pair][output channels][tap]`` of a step, in the order in which it is stored.

        Behind the last output channel the last one is copied again; its sums are dropped.
        """
        problem, number = self.problem, -(-self.problem.in_channels // self.dot.size)
        present = emit.let(emit.least(TILE, number - step * TILE)) if number % TILE else TILE
        source, result = ("O", "I") if problem.transposed else ("I", "O")
        taps = dict(zip(TAPS, problem.geometry.kernel))
        extents = {source: present, result: _PACKED_CHANNELS, **taps}
        for at in as_stored(self.weight, extents):
            tap = [at[letter] for letter in TAPS]
            out_channel = first + at[result]
            if problem.out_channels % self.plan.channels:
                out_channel = emit.least(out_channel, problem.out_channels - 1)
            channel = self.dot.size * (step * TILE + at[source])
            index = weight_index(problem, self.weight, group, channel, out_channel, tap)
            element = self._joined(index, self.weight.strides[source], channel)
            into = at[source] * pitch + at[result] * problem.geometry.taps
            emit.store(raw, into + tap_number(self.problem, tap), element)
        if number % TILE:
            zero = emit.constant(0, PAIR)
            emit.fill(raw, present * pitch, (TILE - present) * pitch, zero)

    def _pack_firsts(self, packed: Array, block: Expr, phase: PhaseIndex) -> None:
        """Write the initial sums of a phase of a block: rows of one number."""
        number: Expr = 0
        for axis, group, which in zip(SPATIAL, *phase):
            access = self.problem.accesses[axis]
            number = number * access.out_step + access.phase_of(group.first_tap + which)
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
        """Return the weights of input channels from `channel` on in 32 bits, the first of which is
        at `index`; of integers those of channels that do not exist are zero."""
        if self.dot.is_float:
            return pair(self.weight[index], self.weight[index + step])
        channels = self.problem.in_channels

        def weight(i: int) -> Expr:
            is_there = channel + i < channels if i >= channels % 4 > 0 else True
            zero = emit.constant(0, LANE)
            return emit.choose(is_there, lambda: self.weight.load(index + i * step, LANE), zero)

        return joined([weight(i) for i in range(4)], 4)

    # ------------------------------------------------------------ as they are stored

    def pack_stored(self, packed: Array) -> None:
        """Write the weights in their stored order behind all others."""
        size, weight, last = self.dot.size, self.weight, self.problem.weights - 1
        for i in emit.loop(-(-self.problem.weights // size)):
            indices = [emit.least(size * i + k, last) for k in range(size)]
            if self.dot.is_float:
                together = pair(weight[size * i], weight[indices[1]])
            else:
                numbers = [emit.cast(weight[index], weight.dtype, LANE) for index in indices]
                together = joined(numbers, size)
            emit.store(packed, self.elements + i, together)

    def stored(self) -> Operand:
        """Return those of packed weights."""
        sizes = stored_sizes(self.problem)
        if self.dot.is_float:
            return Halves(self.weight, self.elements, *sizes)
        found = Bytes(self.weight, self.elements, self.problem.dtypes[1], *sizes)
        found.zero = self.problem.zero_points[1]
        return found


class DirectAmx(Direct):
    """The emitter of one kernel."""

    weights: AmxWeights

    def __init__(
        self,
        problem: Convolution,
        plan: DirectAmxPlan,
        weights: AmxWeights,
        data: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        super().__init__(problem, plan.nest, weights, data, out, extra)
        self.tiles_first = plan.tiles_first
        self.holds_all = self.holds_all or plan.tiles_first

    def _task(self, task: Task) -> None:
        """Emit one task, between the configuration and the release of the matrix unit."""
        amx.configure()
        super()._task(task)
        amx.release()

    def _products(self, task: Task, k_block: KBlock, acc: Array) -> None:
        """Sum every block and tile over a K-block; with `tiles_first`, tiles are the outer loop."""
        if not self.tiles_first:
            super()._products(task, k_block, acc)
            return
        for position, vectors in task.blocking.tiles.tiles():
            for block, start in self._blocks_of(task):
                for phase in self.groups.phases():
                    reduction = Reduction(task, k_block, block, acc, start)
                    self._tile(reduction, phase, position, vectors)

    def _pack_data(self, task: Task, panel: Array, first: Expr, count: Expr) -> None:
        """Fill the panel with input channels in 32 bits."""
        pack_them = self._pack_pairs if self.weights.dot.is_float else self._pack_bytes
        pack_them(task, panel, first, count)

    def _pack_pairs(self, task: Task, panel: Array, first: Expr, count: Expr) -> None:
        """Fill the panel with pairs; pairs that the last step lacks are zero."""
        number, layout = self.problem.in_channels // 2, task.blocking.panel
        first, planes = first * TILE, count * TILE
        present = emit.let(emit.least(planes, number - first))
        start = task.group * number + first
        source = Source(Pairs(self.data), start, present, self.problem.in_sizes)
        pack(layout, panel, source, task.first)
        if number % TILE:
            plane = layout.slots * layout.pitch
            zero = emit.constant(0, PAIR)
            emit.fill(panel, present * plane, (planes - present) * plane + layout.lanes, zero)

    def _pack_bytes(self, task: Task, panel: Array, first: Expr, count: Expr) -> None:
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

    def _tile(self, reduction: Reduction, phase: PhaseIndex, position: Expr, vectors: int) -> None:
        """accumulators[rows][positions] += weights @ panel, over input channels and taps."""
        task, layout, k_block = reduction.task, self.weights, reduction.k_block
        blocking = task.blocking
        number, data_at = self._data_at(task, phase)
        pitch = self.phases * blocking.tiles.length
        block = task.group * layout.blocks + reduction.block
        weights = emit.let(
            layout.offset_of(block, phase) + layout.step_offset(phase, k_block.first, [0] * 3)
        )
        registers = _Registers(self.plan.channels // TILE, self.plan.vectors)
        tile = []
        for o, v in product(range(registers.high), range(vectors)):
            row = reduction.start + o * TILE * pitch + number * blocking.tiles.length
            tile.append((o, v, row + position + v * TILE))
        for o, v, sums in tile:
            if k_block.fresh:
                self._begin_tile(registers.acc(o, v), reduction, number, o)
            else:
                amx.load(registers.acc(o, v), reduction.acc, sums, pitch)
        prefetch_at = self._prefetch(reduction, phase, position)
        for step, taps in self.groups.taps(k_block.steps, phase):
            if prefetch_at:
                prefetch_at(step, taps)
            at = weights + layout.step_offset(phase, step, taps)
            x = data_at(step * TILE, taps) + position
            for o in range(registers.high):
                amx.load(registers.weights(o), task.weights, at + o * TILE * TILE, TILE)
            plane = blocking.panel.slots * blocking.panel.pitch
            for v in range(vectors):
                amx.load(registers.data(v), k_block.panel, x + v * TILE, plane)
            for o, v, _ in tile:
                factors = registers.weights(o), registers.data(v)
                amx.add_product(registers.acc(o, v), *factors, self.weights.dot.name)
        for o, v, sums in tile:
            amx.store(registers.acc(o, v), reduction.acc, sums, pitch)

    def _begin_tile(self, tile: int, reduction: Reduction, phase: Expr, high: int) -> None:
        """Write the initial sums of tile `high` of the output channels of a block to a register,
        from where they are packed."""
        weights, task = self.weights, reduction.task
        if not weights.zero:
            amx.zero(tile)
            return
        block = task.group * weights.blocks + reduction.block
        amx.load(tile, task.weights, weights.first_of(block, phase, high * TILE), TILE)


class _Registers(NamedTuple):
    """The unit's registers: accumulators first, row by row of the register tile, then its weights,
    then its data.

    Attributes
    ----------
    high, wide : int
        Tiles of output channels and of positions in the register tile.
    """

    high: int
    wide: int

    def acc(self, o: int, v: int) -> int:
        return o * self.wide + v

    def weights(self, o: int) -> int:
        return self.high * self.wide + o

    def data(self, v: int) -> int:
        return self.high * (self.wide + 1) + v
