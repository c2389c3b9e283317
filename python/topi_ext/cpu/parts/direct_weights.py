# SPDX-License-Identifier: Apache-2.0
"""Packed weights of the direct kernels: where they are, and how they are packed.

::

    packed[group][block][combination][phase][step of input channels][tap][output channels]

A block are the output channels of a register tile, so that what is broadcast lies together, in the
order in which it is used; a combination is a group of phases for each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

from ...emit.arguments import Packed, tap_number, weight_index
from ...gather import TapGroup
from ...problem import Problem
from .. import emit
from ..emit import Array, Expr, Operand
from ..plan.direct import DirectPlan
from .block_weights import BlockWeights
from .phase_groups import EitherGroup, PhaseGroups, PhaseIndex


class Steps(NamedTuple):
    """How input channels are summed: in how many steps, and what each takes.

    Attributes
    ----------
    number : int
        Steps of all input channels of a group.
    planes, panel_dtype
        Planes of the panel for each step and slot, and what it consists of.
    weights, packed_dtype
        Packed weights for each step, tap and block of output channels, and what they consist of.
    """

    number: int
    planes: int
    panel_dtype: str
    weights: int
    packed_dtype: str


class DirectWeights:
    """The weights of one kernel.

    Another kernel of the same loop nest may take other steps, and its own way to pack them.

    Parameters
    ----------
    weight : Operand, optional
        As the user stores them; what is only asked where packed ones are needs none.

    Attributes
    ----------
    steps : Steps
    groups : PhaseGroups
    blocks : int
        Blocks of output channels of a group.
    elements : int
        Number of packed weights.
    """

    def __init__(self, problem: Problem, plan: DirectPlan, weight: Operand | None = None):
        self.problem, self.plan, self.weight = problem, plan, weight
        self.dtype = problem.acc_dtype
        self.steps = self._steps()
        self.groups = PhaseGroups(problem, plan)
        self.blocks = -(-problem.out_channels // plan.channels)
        self._block_elements = self.steps.number * problem.geometry.taps * self.steps.weights
        self.elements = problem.geometry.groups * self.blocks * self._block_elements

    def _steps(self) -> Steps:
        """One input channel at a time."""
        return Steps(self.problem.in_channels, 1, self.dtype, self.plan.channels, self.dtype)

    @property
    def packed(self) -> Packed:
        """What the packed weights are."""
        return Packed(self.elements, self.steps.packed_dtype)

    # ------------------------------------------------------------ where they are

    def offset_of(self, block: Expr, phase: PhaseIndex) -> Expr:
        """Offset of the packed weights of one phase, of a block of all groups."""
        for axis, group in enumerate(phase.groups):
            if isinstance(group, EitherGroup):
                return self._offset_of_either(block, phase, axis)
        before = 0
        combinations = self.groups.combinations
        for other in combinations[: combinations.index(tuple(phase.groups))]:
            before += prod(group.phases * group.taps for group in other)
        number: Expr = 0
        for group, index in zip(*phase):
            number = number * group.phases + index
        unit = self.steps.number * self.steps.weights
        return block * self._block_elements + before * unit + number * (prod(phase.taps) * unit)

    def _offset_of_either(self, block: Expr, phase: PhaseIndex, axis: int) -> Expr:
        """The same of a phase that is one of two groups' along this axis."""
        one, other = phase.groups[axis].groups

        def of_group(group: TapGroup, number: Expr) -> Expr:
            groups, numbers = list(phase.groups), list(phase.numbers)
            groups[axis], numbers[axis] = group, number
            return self.offset_of(block, PhaseIndex(groups, numbers))

        number = phase.numbers[axis]
        offset = emit.choose(
            number < one.phases,
            lambda: of_group(one, number),
            of_group(other, number - one.phases),
        )
        return emit.let(offset)

    def step_offset(self, phase: PhaseIndex, step: Expr, taps: Sequence[Expr]) -> Expr:
        """Offset of a step and tap in the packed weights of their phase."""
        for group, tap in zip(phase.groups, taps):
            step = step * group.taps + tap
        return step * self.steps.weights

    # ------------------------------------------------------------ how they are packed

    def pack(self, packed: Array) -> None:
        """Write all of them to `packed`."""
        groups = self.problem.geometry.groups
        with emit.tasks(groups * self.blocks, self.plan.parallel) as task:
            group, block = emit.unravel(task, (groups, self.blocks))
            copied = self._copied_weights()
            if copied:
                self._pack_copied(copied, packed, group, block)
            else:
                weights = partial(self._weights_of, group, block)
                self._pack_steps(packed, task, (0, self.steps.number), weights)

    def _copied_weights(self) -> BlockWeights | None:
        """A copy of some of a block's weights, where packing is faster by way of it."""
        problem, plan = self.problem, self.plan
        count = plan.copied_channels(problem)
        as_stored = self.steps.packed_dtype == self.dtype and self.weight.dtype == problem.dtypes[1]
        if not (count and as_stored):
            return None
        return BlockWeights(problem, self.weight, plan.channels, self.blocks, count, plan.lanes)

    def _pack_copied(self, copied: BlockWeights, packed: Array, group: Expr, block: Expr) -> None:
        """By way of that copy, which is made of some input channels at a time."""
        problem, copy = self.problem, emit.scratch(copied.elements, self.dtype)

        def chunk(number: Expr) -> None:
            first = emit.let(emit.least(number * copied.count, problem.in_channels - copied.count))
            copied.copy(copy, group, block, first)

            def weights(step: Expr, taps: Sequence[Expr]) -> Callable[[int], Expr]:
                row = tap_number(problem, taps) * copied.pitch + (step - first) * copied.channels
                return lambda o: copy[row + o]

            all_blocks = group * self.blocks + block
            self._pack_steps(packed, all_blocks, (first, copied.count), weights)

        emit.loop(-(-problem.in_channels // copied.count), chunk)

    def _pack_steps(
        self,
        packed: Array,
        block: Expr,
        steps: tuple[Expr, int],
        weights: Callable[[Expr, Sequence[Expr]], Callable[[int], Expr]],
    ) -> None:
        """``weights(step, taps)(output channel)`` of a block, for the first of `steps` and so many
        from it on."""
        first, count = steps

        def element(i: Expr, phase: PhaseIndex, *taps: Expr) -> None:
            numbers = self.groups.tap_numbers(phase, taps)
            into = self.offset_of(block, phase)
            into = into + self.step_offset(phase, first + i, taps)
            weight = weights(first + i, numbers)
            for o in range(self.plan.channels):
                emit.store(packed, into + o, weight(o))

        def of_phase(i: Expr, phase: PhaseIndex) -> None:
            emit.nest(phase.taps, partial(element, i, phase))

        def of_step(i: Expr) -> None:
            for kind in self.groups.kinds:
                self.groups.over_phases(kind, partial(of_phase, i))

        emit.loop(count, of_step)

    def _weights_of(
        self, group: Expr, block: Expr, step: Expr, taps: Sequence[Expr]
    ) -> Callable[[int], Expr]:
        """What one step multiplies by, by output channel: zero beyond the last one."""

        def weight(o: int) -> Expr:
            out_channel = block * self.plan.channels + o
            inside: Expr = True
            if self.problem.out_channels % self.plan.channels:
                inside = out_channel < self.problem.out_channels
            return emit.choose(
                inside,
                lambda: self._present_weight(group, step, out_channel, taps),
                emit.constant(0, self.steps.packed_dtype),
            )

        return weight

    def _present_weight(
        self, group: Expr, step: Expr, out_channel: Expr, taps: Sequence[Expr]
    ) -> Expr:
        index = weight_index(self.problem, self.weight, group, step, out_channel, taps)
        return self.weight.load(index, self.dtype)
