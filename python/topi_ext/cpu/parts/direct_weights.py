# SPDX-License-Identifier: Apache-2.0
"""Packed weights of the direct kernels: their layout and their packing.

::

    packed[group][block][combination][phase][step of input channels][tap][output channels]

A block are the output channels of a register tile, so that what is broadcast lies together, in the
order in which it is used; a combination is a group of phases for each axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from ...emit.arguments import Packed, tap_number, weight_index
from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..plan.direct import DirectPlan
from .block_weights import BlockWeights
from .phase_groups import EitherGroup, PhaseGroups, PhaseIndex


class Steps(NamedTuple):
    """The steps in which input channels are summed, and what each takes.

    Attributes
    ----------
    number : int
        Steps of all input channels of a group.
    planes, panel_dtype
        Planes of the panel for each step and slot, and the dtype of its elements.
    weights, packed_dtype
        Packed weights for each step, tap and block of output channels, and their dtype.
    """

    number: int
    planes: int
    panel_dtype: str
    weights: int
    packed_dtype: str


class DirectWeights:
    """The packed weights of one kernel.

    A kernel of the same loop nest may override the steps, and how they are packed.

    Parameters
    ----------
    weight : Operand, optional
        The weights as the user stores them; not needed to locate packed weights.

    Attributes
    ----------
    steps : Steps
    groups : PhaseGroups
    blocks : int
        Blocks of output channels of a group.
    elements, block_elements : int
        Number of packed weights, and of those of a block.
    """

    def __init__(self, problem: Convolution, plan: DirectPlan, weight: Operand | None = None):
        self.problem, self.plan, self._operand = problem, plan, weight
        self.dtype = problem.acc_dtype
        self.steps = self._steps()
        self.groups = PhaseGroups(problem, plan)
        self.blocks = -(-problem.out_channels // plan.channels)
        self.block_elements = self.steps.number * problem.geometry.taps * self.steps.weights
        self.elements = problem.geometry.groups * self.blocks * self.block_elements

    def _steps(self) -> Steps:
        """Return the steps: one input channel each."""
        return Steps(self.problem.in_channels, 1, self.dtype, self.plan.channels, self.dtype)

    @property
    def packed(self) -> Packed:
        """Size and dtype of the packed weights."""
        return Packed(self.elements, self.steps.packed_dtype)

    @property
    def weight(self) -> Operand:
        """The weight, as stored or packed; not of an emitter that only describes packed weights."""
        assert self._operand is not None
        return self._operand

    # ------------------------------------------------------------ where they are

    def offset_of(self, block: Expr, phase: PhaseIndex) -> Expr:
        """Return the offset of the packed weights of one phase of a block, counted through all
        groups."""
        for axis, group in enumerate(phase.groups):
            if isinstance(group, EitherGroup):
                return self._offset_of_either(block, phase, axis, group)
        before = 0
        combinations = self.groups.combinations
        for other in combinations[: combinations.index(tuple(phase.groups))]:
            before += prod(group.phases * group.taps for group in other)
        number: Expr = 0
        for group, index in zip(*phase):
            number = number * group.phases + index
        unit = self.steps.number * self.steps.weights
        return block * self.block_elements + before * unit + number * (prod(phase.taps) * unit)

    def _offset_of_either(
        self, block: Expr, phase: PhaseIndex, axis: int, either: EitherGroup
    ) -> Expr:
        """Return the same offset for a phase that is in one of two groups along this axis."""
        one, other = either.groups
        number = phase.numbers[axis]
        offsets = []
        for group, in_group in ((other, number - one.phases), (one, number)):
            groups, numbers = list(phase.groups), list(phase.numbers)
            groups[axis], numbers[axis] = group, in_group
            offsets.append(self.offset_of(block, PhaseIndex(groups, numbers)))
        return emit.let(emit.choose(number < one.phases, lambda: offsets[1], offsets[0]))

    def step_offset(self, phase: PhaseIndex, step: Expr, taps: Sequence[Expr]) -> Expr:
        """Return the offset of a step and tap in the packed weights of their phase."""
        for group, tap in zip(phase.groups, taps):
            step = step * group.taps + tap
        return step * self.steps.weights

    # ------------------------------------------------------------ how they are packed

    def pack(self, packed: Array) -> None:
        """Write all weights to `packed`."""
        groups = self.problem.geometry.groups
        with emit.tasks(groups * self.blocks, self.plan.parallel) as task:
            group, block = emit.unravel(task, (groups, self.blocks))
            copied = self._copied_weights()
            if copied:
                self._pack_copied(copied, packed, group, block)
            else:
                for into, step, taps in self._in_order(task, 0, self.steps.number):
                    for o in range(self.plan.channels):
                        out_channel = block * self.plan.channels + o
                        weight = self._weight(group, step, out_channel, taps)
                        emit.store(packed, into + o, weight)

    def _copied_weights(self) -> BlockWeights | None:
        """Return a copy of some weights of a block, where packing is faster by way of it."""
        problem, plan = self.problem, self.plan
        count = plan.copied_channels(problem)
        as_stored = self.steps.packed_dtype == self.dtype and self.weight.dtype == problem.dtypes[1]
        if not (count and as_stored):
            return None
        return BlockWeights(problem, self.weight, plan.channels, self.blocks, count, plan.lanes)

    def _pack_copied(self, copied: BlockWeights, packed: Array, group: Expr, block: Expr) -> None:
        """Pack by way of that copy, which holds some input channels at a time."""
        problem, copy = self.problem, emit.scratch(copied.elements, self.dtype)

        for number in emit.loop(-(-problem.in_channels // copied.count)):
            first = emit.let(emit.least(number * copied.count, problem.in_channels - copied.count))
            copied.copy(copy, group, block, first)
            all_blocks = group * self.blocks + block
            for into, step, taps in self._in_order(all_blocks, first, copied.count):
                row = tap_number(problem, taps) * copied.pitch + (step - first) * copied.channels
                for o in range(self.plan.channels):
                    emit.store(packed, into + o, copy[row + o])

    def _in_order(
        self, block: Expr, first: Expr, count: Expr
    ) -> Iterator[tuple[Expr, Expr, list[Expr]]]:
        """Emit ``for into, step, taps in ...``: loops over `count` steps from `first` on, all
        phases and their taps, in the order in which weights are packed.

        `into` is the offset of the weights of all output channels of a block.
        """
        for i in emit.loop(count):
            for phase in self.groups.phases():
                for taps in emit.grid(*phase.taps):
                    numbers = self.groups.tap_numbers(phase, taps)
                    into = self.offset_of(block, phase)
                    yield into + self.step_offset(phase, first + i, taps), first + i, numbers

    def _weight(self, group: Expr, step: Expr, out_channel: Expr, taps: Sequence[Expr]) -> Expr:
        """Return the weight of an output channel for one step and tap; zero behind the last output
        channel."""
        inside: Expr = True
        if self.problem.out_channels % self.plan.channels:
            inside = out_channel < self.problem.out_channels
        return emit.choose(
            inside,
            lambda: self._present_weight(group, step, out_channel, taps),
            emit.constant(0, self.steps.packed_dtype),
        )

    def _present_weight(
        self, group: Expr, step: Expr, out_channel: Expr, taps: Sequence[Expr]
    ) -> Expr:
        """Return the weight of an output channel that exists."""
        index = weight_index(self.problem, self.weight, group, step, out_channel, taps)
        return self.weight.load(index, self.dtype)
