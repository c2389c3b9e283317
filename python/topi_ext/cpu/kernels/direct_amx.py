# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` of bfloat16 for processors with AMX.

The loop nest of :mod:`topi_ext.kernels.gather`, with pairs of input channels in its panel and
tiles in the place of vectors::

    if Linux grants the matrix unit:
        parallel (batch, group, depth, height, width block, split of output channels):
            for each chunk of input channels:
                pack the input window of the block, channels in pairs        -> panel
                for each block of output channels, each phase, each tile of positions:
                    for each step of 32 input channels, for each tap of the phase:
                        sums[2][2] += weights[16, 32] @ panel[32, 16 positions]
                                                                             -> held
            for each output row: interleave its phases                       -> out
    else:
        the kernel of gather.py, in float32

A tap is an offset in the panel here too: the unit loads rows from any address.  Channels that
are missing in a last step, or in a last tile of output channels, are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

from ...emit.arguments import (
    Packed,
    as_stored,
    conv_arguments,
    packed_weight,
    stored_sizes,
    stored_weight,
    tap_number,
    weight_index,
)
from ...gather import TapGroup
from ...problem import TAPS, Problem
from .. import emit
from ..emit import ATTRIBUTES, Array, Expr
from ..isa import amx
from ..isa.dot_bf16 import PAIR, Halves, Pairs, pair
from ..parts.pack_panel import pack
from ..plan.direct_amx import TILE, DirectAmxPlan
from . import direct
from .direct import Direct, Steps, Sums

WIDTH = 2 * TILE
"""Input channels of a step."""

_CHUNK = TILE // 2
"""Output channels whose weights are packed at a time, so that they stay in the first cache."""


def build(problem: Problem, plan: DirectAmxPlan) -> Any:
    """The PrimFunc ``(data, weight, *operands of the epilogue, out)``, scheduled by `plan`."""
    with emit.kernel(ATTRIBUTES) as made:
        packed = packed_weights(problem, plan) if problem.prepacked else None
        with emit.body(*conv_arguments(problem, packed)) as operands:
            data, weight, *extra, out = operands
            ours = DirectAmx(problem, plan.gather, weight, data, out, extra)

            def refused() -> None:
                raw = weight
                if problem.prepacked:
                    order, sizes = stored_sizes(problem)
                    raw = Halves(weight, ours.packed_elements, order, sizes)
                unpacked = replace(problem, prepacked=False)
                direct.emit_body(unpacked, plan.refused, [data, raw, *extra, out])

            emit.when(amx.is_granted(), ours.emit, refused)
    return made[0]


def is_prepacked(problem: Problem, plan: DirectAmxPlan) -> bool:
    """Whether the kernel wants its weights as :func:`build_packing` writes them."""
    return problem.prepacked


def build_packing(problem: Problem, plan: DirectAmxPlan) -> Any:
    """The PrimFunc ``(weight, packed)`` that packs weights for the kernel of the same plan.

    Behind the tiles it copies the weights as they are, for where the matrix unit is refused.
    """
    with emit.kernel(ATTRIBUTES) as made:
        arguments = stored_weight(problem), packed_weight(packed_weights(problem, plan))
        with emit.body(*arguments) as (weight, packed):
            ours = DirectAmx(problem, plan.gather, weight)
            ours.pack_weights(packed)

            def copy(i: Expr) -> None:
                last = emit.least(2 * i + 1, problem.weights - 1)
                both = pair(weight[2 * i], weight[last])
                emit.store(packed, ours.packed_elements + i, both)

            emit.loop(-(-problem.weights // 2), copy)
    return made[0]


def packed_weights(problem: Problem, plan: DirectAmxPlan) -> Packed:
    """What the packed weights are."""
    tiles = DirectAmx(problem, plan.gather).packed_elements
    return Packed(tiles + -(-problem.weights // 2), PAIR)


class DirectAmx(Direct):
    """One kernel while it is being emitted.

    Registers: sums first, row by row of the register tile, then its weights, then its data.
    """

    @property
    def high(self) -> int:
        """Tiles of output channels in the register tile."""
        return self.plan.channels // TILE

    def _steps(self) -> Steps:
        """As many pairs at a time as a tile has rows for."""
        number = -(-self.problem.in_channels // WIDTH)
        return Steps(number, TILE, PAIR, self.plan.channels * TILE, PAIR)

    def pack_weights(self, packed: Array) -> None:
        """Rows of output channels, each with its input channels in pairs; zero beyond the last.

        packed[group][block][combination][phases][step][taps][channels][pairs of input channels]
        """
        all_taps = self.problem.geometry.taps
        lines = _CHUNK * all_taps // TILE + 1
        pitch = (lines + 1 - lines % 2) * TILE
        extents = self.problem.geometry.groups, self.blocks, self.steps.number
        with emit.tasks(prod(extents), self.plan.parallel) as task:
            group, block, step = emit.unravel(task, extents)
            raw = emit.scratch(TILE * pitch, PAIR)

            def chunk(i: Expr) -> None:
                first = emit.let(i * _CHUNK)
                self._copy_weights(raw, pitch, group, block * self.plan.channels + first, step)

                def row(combination: Sequence[TapGroup], *numbers: Expr) -> None:
                    phases, taps, o = numbers[:3], numbers[3:6], numbers[6]
                    into = self._weights_of(group * self.blocks + block, combination, phases)
                    into = into + self._weight_step(combination, step, taps)
                    into = emit.opaque_base(into + (first + o) * TILE)
                    number = tap_number(self.problem, self.tap_numbers(combination, phases, taps))
                    source = emit.opaque_base(o * all_taps + number)
                    emit.loop(TILE, lambda p: emit.store(packed, into + p, raw[source + p * pitch]))

                for combination in self.combinations:
                    phases = (tap_group.phases for tap_group in combination)
                    taps = (tap_group.taps for tap_group in combination)
                    emit.nest((*phases, *taps, _CHUNK), partial(row, combination))

            emit.loop(self.plan.channels // _CHUNK, chunk)

    def _copy_weights(self, raw: Array, pitch: int, group: Expr, first: Expr, step: Expr) -> None:
        """raw[pair][output channels][tap] of a step, read in the order in which it is stored.

        Beyond the last output channel the last is copied again; what is made of it is dropped.
        """
        problem, number = self.problem, self.problem.in_channels // 2
        present = emit.let(emit.least(TILE, number - step * TILE)) if number % TILE else TILE
        source, result = ("O", "I") if problem.transposed else ("I", "O")
        taps = dict(zip(TAPS, problem.geometry.kernel))
        extents = {source: present, result: _CHUNK, **taps}

        def element(at: dict[str, Expr]) -> None:
            place = [at[letter] for letter in TAPS]
            out_channel = first + at[result]
            if problem.out_channels % self.plan.channels:
                out_channel = emit.least(out_channel, problem.out_channels - 1)
            channel = 2 * (step * TILE + at[source])
            index = weight_index(problem, self.weight, group, channel, out_channel, place)
            both = pair(self.weight[index], self.weight[index + self.weight.strides[source]])
            into = at[source] * pitch + at[result] * problem.geometry.taps
            emit.store(raw, into + tap_number(self.problem, place), both)

        as_stored(self.weight, extents, element)
        if number % TILE:
            zero = emit.constant(0, PAIR)
            emit.fill(raw, present * pitch, (TILE - present) * pitch, zero)

    def _task(self, group: Expr, split: Expr) -> None:
        """With the unit's registers."""
        amx.configure()
        super()._task(group, split)
        amx.release()

    def _sums(self, o: int, v: int) -> int:
        return o * self.plan.vectors + v

    def _weights(self, o: int) -> int:
        return self.high * self.plan.vectors + o

    def _data(self, v: int) -> int:
        return self.high * (self.plan.vectors + 1) + v

    def _pack_data(self, panel: Array, group: Expr, first: Expr, count: Expr) -> None:
        """Fill the panel with pairs; what a last step has too few of is zero."""
        number = self.problem.in_channels // 2
        first, wanted = first * TILE, count * TILE
        present = emit.let(emit.least(wanted, number - first))
        start = group * number + first
        sizes = self.problem.in_sizes
        pack(self.panel, panel, Pairs(self.data), start, present, self.first, sizes)
        if number % TILE:
            plane = self.panel.slots * self.panel.pitch
            zero = emit.constant(0, PAIR)
            emit.fill(panel, present * plane, (wanted - present) * plane + self.panel.lanes, zero)

    def _tile(
        self,
        sums: Sums,
        combination: Sequence[TapGroup],
        phases: Sequence[Expr],
        start: Expr,
        vectors: int,
    ) -> None:
        """sums[rows][positions] += weights @ panel, over input channels and taps."""
        number, data_of = self._phase(combination, phases)
        apart = self.phases * self.row
        block = sums.group * self.blocks + sums.block
        weights = emit.let(
            self._weights_of(block, combination, phases)
            + self._weight_step(combination, sums.first, [0] * 3)
        )

        def place(o: int, v: int) -> Expr:
            return sums.place + o * TILE * apart + number * self.row + start + v * TILE

        def each(do: Callable[[int, int], None]) -> None:
            for o, v in product(range(self.high), range(vectors)):
                do(o, v)

        def begin(o: int, v: int) -> None:
            if sums.fresh:
                amx.zero(self._sums(o, v))
            else:
                amx.load(self._sums(o, v), sums.held, place(o, v), apart)

        def step(i: Expr, taps: Sequence[Expr]) -> None:
            at = weights + self._weight_step(combination, i, taps)
            x = data_of(i * TILE, taps) + start
            for o in range(self.high):
                amx.load(self._weights(o), self.packed, at + o * TILE * TILE, TILE)
            plane = self.panel.slots * self.panel.pitch
            for v in range(vectors):
                amx.load(self._data(v), sums.panel, x + v * TILE, plane)
            each(lambda o, v: amx.add_product(self._sums(o, v), self._weights(o), self._data(v)))

        each(begin)
        self._over_taps(sums.count, combination, step)
        each(lambda o, v: amx.store(self._sums(o, v), sums.held, place(o, v), apart))
