# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` of bfloat16 for processors with AMX.

The loop nest of :mod:`topi_ext.cpu.kernels.direct`, with pairs of input channels in its panel and
tiles instead of vectors::

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
        the kernel of direct.py, in float32

With `tiles_first` the loop over tiles of positions encloses that over blocks of output channels:
the part of the panel that a tile reads stays in the first cache for all blocks.

A tap is an offset in the panel here too: the unit loads rows from any address.  Channels that
are missing in a last step, or in a last tile of output channels, are zero.

The matrix product is that of the direct kernel: M, output channels, in rows of a tile; N, positions
of one phase, in its columns; K, pairs of input channels, and taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple, Protocol

from ...emit.arguments import Packed, as_stored, stored_sizes, tap_number, weight_index
from ...spec.conv import TAPS, Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..isa import amx
from ..isa.dot_bf16 import PAIR, Halves, Pairs, pair
from ..parts.direct_weights import DirectWeights, Steps
from ..parts.pack_panel import Source, pack
from ..parts.phase_groups import PhaseIndex
from ..plan.direct import DirectPlan
from ..plan.direct_amx import TILE, DirectAmxPlan
from . import direct
from .direct import Direct, KBlock, Reduction, Task

_PACKED_CHANNELS = TILE // 2
"""Output channels whose weights are packed at a time, so that they stay in the first cache."""


def emit_body(problem: Convolution, plan: DirectAmxPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    data, weight, *extra, out = operands
    weights = AmxWeights(problem, plan.gather, weight)
    for is_granted in emit.sides(amx.is_granted()):
        if is_granted:
            DirectAmx(problem, plan, weights, data, out, extra).emit()
        else:
            raw = weight
            if problem.prepacked:
                raw = Halves(weight, weights.elements, *stored_sizes(problem))
            unpacked = replace(problem, prepacked=False)
            direct.emit_body(unpacked, plan.refused, [data, raw, *extra, out])


def packed_weights(problem: Convolution, plan: DirectAmxPlan) -> Packed:
    """Return size and dtype of the packed weights: tiles, followed by the weights in their stored
    order, for the kernel that runs if the matrix unit is not available.
    """
    tiles = AmxWeights(problem, plan.gather).elements
    return Packed(tiles + -(-problem.weights // 2), PAIR)


def pack_weights(
    problem: Convolution, plan: DirectAmxPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of the weights."""
    weights = AmxWeights(problem, plan.gather, weight)
    weights.pack(packed)
    for i in emit.loop(-(-problem.weights // 2)):
        last = emit.least(2 * i + 1, problem.weights - 1)
        both = pair(weight[2 * i], weight[last])
        emit.store(packed, weights.elements + i, both)


class TilePlan(Protocol):
    """The fields of plans of kernels over tiles."""

    @property
    def gather(self) -> DirectPlan: ...

    @property
    def tiles_first(self) -> bool: ...


class AmxWeights(DirectWeights):
    """Weights in tiles: rows of output channels, each with its input channels in pairs, or with
    more of them in 32 bits.

    Attributes
    ----------
    size : int
        Input channels in 32 bits.
    """

    size = 2

    def _steps(self) -> Steps:
        """Return the steps: as many pairs as a tile has rows."""
        number = -(-self.problem.in_channels // (self.size * TILE))
        return Steps(number, TILE, PAIR, self.plan.channels * TILE, PAIR)

    def pack(self, packed: Array) -> None:
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
        problem, number = self.problem, -(-self.problem.in_channels // self.size)
        present = emit.let(emit.least(TILE, number - step * TILE)) if number % TILE else TILE
        source, result = ("O", "I") if problem.transposed else ("I", "O")
        taps = dict(zip(TAPS, problem.geometry.kernel))
        extents = {source: present, result: _PACKED_CHANNELS, **taps}
        for at in as_stored(self.weight, extents):
            tap = [at[letter] for letter in TAPS]
            out_channel = first + at[result]
            if problem.out_channels % self.plan.channels:
                out_channel = emit.least(out_channel, problem.out_channels - 1)
            channel = self.size * (step * TILE + at[source])
            index = weight_index(problem, self.weight, group, channel, out_channel, tap)
            element = self._joined(index, self.weight.strides[source], channel)
            into = at[source] * pitch + at[result] * problem.geometry.taps
            emit.store(raw, into + tap_number(self.problem, tap), element)
        if number % TILE:
            zero = emit.constant(0, PAIR)
            emit.fill(raw, present * pitch, (TILE - present) * pitch, zero)

    def _joined(self, index: Expr, step: Expr, channel: Expr) -> Expr:
        """Return the weights of input channels from `channel` on in 32 bits; the first is at
        `index`."""
        return pair(self.weight[index], self.weight[index + step])


class DirectAmx(Direct):
    """The emitter of one kernel.

    Attributes
    ----------
    product : str
        The instruction that multiplies tiles.
    """

    product = "tdpbf16ps"

    def __init__(
        self,
        problem: Convolution,
        plan: TilePlan,
        weights: AmxWeights,
        data: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        super().__init__(problem, plan.gather, weights, data, out, extra)
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
                amx.add_product(registers.acc(o, v), *factors, self.product)
        for o, v, sums in tile:
            amx.store(registers.acc(o, v), reduction.acc, sums, pitch)

    def _begin_tile(self, tile: int, _: Reduction, phase: Expr, high: int) -> None:
        """Write the initial sums of tile `high` of the output channels of a block to a register:
        they are zero."""
        amx.zero(tile)


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
