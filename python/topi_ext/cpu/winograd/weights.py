# SPDX-License-Identifier: Apache-2.0
"""Transformed filters of :mod:`topi_ext.cpu.kernels.winograd`.

::

    combined[group][block][chunk][kinds of phases][first taps][point][term][input channel][channels]

A block are `channels` output channels; the rows of a point are its terms and the input channels of
a chunk.  Held are those of all phases, or of one slice of the kernel after the other, if each
thread combines the taps that it needs.  For some input channels of a block at a time::

    for each input channel, output channel, tap, in the order in which they are stored:
        copy a weight, or a square of them                                -> raw
    for each phase with taps of its own, for each vector of (input channel, channels):
        for each combination of its terms:
            add and subtract vectors of raw                               -> combined
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

from ...emit.arguments import tap_number
from ...spec.conv import Convolution
from ...spec.minimal_filtering import Filter
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.block_weights import BlockWeights
from ..plan.winograd import WinogradPlan
from ..plan.winograd_rows import COMBINED, WinogradRows
from .row_phases import RowPhases
from .transform import transformed_along


class _Copy(NamedTuple):
    """The weights of some input channels of a block, and what they are combined to.

    Attributes
    ----------
    raw : Array
        ``[tap][input channel][channels]``, taps `pitch` apart.
    pitch : int
    combined : Array
    """

    raw: Array
    pitch: int
    combined: Array


class _Phase(NamedTuple):
    """The phases with one first tap, and where their combined taps go.

    Attributes
    ----------
    filters : sequence of Filter
    firsts : sequence
        The first tap along the three axes.
    into : Expr
        Where the combined taps begin.
    taps_along_depth : callable
        The tap along depth of a term, where terms along depth are a loop.
    """

    filters: Sequence[Filter]
    firsts: Sequence[Expr]
    into: Expr
    taps_along_depth: Callable[[Expr], Expr]


class WinogradWeights:
    """Location and computation of the transformed filters of a kernel.

    Attributes
    ----------
    rows : WinogradRows
        How they are laid out.
    row_phases : RowPhases
        The phases along depth and height.
    blocks, part_blocks : int
        Blocks of output channels, of a group and of one part of it.
    held_blocks, held_groups : int
        How many blocks of a group are held at a time, and of how many groups.
    chunks : int
        Into how many the input channels are divided while taps are combined.
    chunk_elements, block_elements : int
        Combined taps of a chunk of the plan, and of a block, that are held at a time.
    """

    def __init__(self, problem: Convolution, plan: WinogradPlan, weight: Operand | None = None):
        self.problem, self.plan, self._operand = problem, plan, weight
        self.dtype = problem.acc_dtype
        self.rows = WinogradRows(problem, plan)
        self.row_phases = RowPhases(self.rows.slices)
        self.blocks = -(-problem.out_channels // plan.channels)
        self.part_blocks = -(-self.blocks // plan.channel_parts)
        each_task = plan.position_splits > 0 and not problem.prepacked
        self.held_blocks = self.blocks if problem.prepacked else self.part_blocks
        self.held_groups = 1 if each_task else problem.geometry.groups
        self.chunk = min(plan.depth(problem), COMBINED)
        self.chunks = -(-problem.in_channels // self.chunk)
        self.chunk_elements = self.rows.taps_held * plan.channels
        self.block_elements = plan.chunks * self.chunk_elements

    @property
    def weight(self) -> Operand:
        """The weight, as stored or packed; not of an emitter that only describes packed weights."""
        assert self._operand is not None
        return self._operand

    # ------------------------------------------------------------ where they are

    def rows_of(self, filters: Sequence[Filter]) -> dict[tuple[int, ...], int]:
        """For each product of terms its first row.

        Rows are ordered [point][term][input channel].
        """
        numbers = [list(range(len(f.terms))) for f in filters]
        by_point = []
        for f, left in zip(filters, numbers):
            by_point.append([[left.pop(0) for _ in terms] for terms in f.points])
        rows = {}
        for start, points in zip(self.rows.starts(filters), product(*by_point)):
            for number, terms in enumerate(product(*points)):
                rows[terms] = start + number * self.plan.depth(self.problem)
        return dict(sorted(rows.items()))

    @property
    def elements(self) -> int:
        """Number of combined taps that are held at a time."""
        return self.held_groups * self.held_blocks * self.block_elements

    def offset_of(self, block: Expr, filters: Sequence[Filter], numbers: Sequence[Expr]) -> Expr:
        """Return the offset of the combined taps of the phases with these first taps."""
        depth, height, last = filters
        before = self.rows.taps_before((depth, height))[self.rows.filters[2].index(last)]
        number = numbers[2]
        if not self.rows.taps_by_slice:
            # Of all phases those that are computed alike lie together.
            before, number = self._phases_before(filters), 0
            for f, i in zip(filters, numbers):
                number = number * len(f.first_taps) + i
        rows = number * self.rows.of_phase(filters) + before
        return block * self.block_elements + rows * self.plan.channels

    def _phases_before(self, filters: Sequence[Filter]) -> int:
        """Return the rows of all phases of the kinds before this one."""
        kinds = list(product(*self.rows.filters))
        before = kinds[: kinds.index(tuple(filters))]
        return sum(
            self.rows.of_phase(kind) * prod(len(f.first_taps) for f in kind) for kind in before
        )

    def block_held(self, group: Expr, first_block: Expr, number: Expr) -> Expr:
        """Return the position of a block, of the part that begins with `first_block`, among those
        in memory.
        """
        group = group if self.held_groups > 1 else 0
        number = number + first_block if self.problem.prepacked else number
        return group * self.held_blocks + number

    # ------------------------------------------------------------ how they are computed

    def combine(self, combined: Array, first_block: Expr = 0) -> None:
        """Combine the taps of all groups, for the blocks of one part."""
        extents = (self.problem.geometry.groups, self.chunks)
        with emit.tasks(prod(extents), self.plan.parallel) as task:
            group, number = emit.unravel(task, extents)
            self.combine_chunk(combined, group, first_block, number)

    def combine_chunk(
        self,
        combined: Array,
        group: Expr,
        first_block: Expr,
        number: Expr,
        slice_: Expr | None = None,
    ) -> None:
        """Combine the taps of one group and of chunk `number` of its input channels.

        The last chunk overlaps the one before it.  With a `slice_`, only the taps of that slice of
        the kernel are combined.
        """
        problem, plan, lanes = self.problem, self.plan, self.plan.lanes
        blocks = plan.channel_parts * self.part_blocks
        copied = BlockWeights(problem, self.weight, plan.channels, blocks, self.chunk, lanes)
        first = emit.let(emit.least(number * self.chunk, problem.in_channels - self.chunk))
        copy = _Copy(emit.scratch(copied.elements, self.dtype), copied.pitch, combined)

        for b in emit.loop(self.held_blocks):
            # All taps, also of one slice: they share cache lines.
            copied.copy(copy.raw, group, first_block + b, first)
            start = self.block_held(group, first_block, b) * self.block_elements
            chunk, channel = 0, first
            if plan.chunks > 1:
                chunk, channel = emit.unravel(first, (plan.chunks, plan.depth(problem)))
            start = start + (chunk * self.chunk_elements + channel * plan.channels)
            if self.rows.taps_by_slice:
                self._combine_slice(copy, start, slice_)
            else:
                for s in emit.loop(len(self.rows.slices)):
                    self._combine_slice(copy, start, s)

    def _combine_slice(self, copy: _Copy, start: Expr, slice_: Expr) -> None:
        """Combine the taps of one slice of the kernel."""
        for pair in self.row_phases.pairs(slice_):
            outer = self.row_phases.first_taps(slice_)
            for last in self.rows.filters[2]:
                for number in emit.loop(len(last.first_taps)):
                    self._combine_phase(copy, start, (*pair, last), (*outer, number))

    def _combine_phase(
        self,
        copy: _Copy,
        start: Expr,
        filters: Sequence[Filter],
        numbers: Sequence[Expr],
    ) -> None:
        """Combine the taps of the phases with one first tap, for the input channels of a copy.

        `numbers` are those of the first tap along the axes; the result begins at `start`.
        """
        lanes = self.plan.lanes
        run = self.chunk * self.plan.channels
        firsts = [emit.table(f.first_taps)(i) for f, i in zip(filters, numbers)]
        into = emit.opaque_base(start + self.offset_of(0, filters, numbers))
        depth = filters[0]
        phase = _Phase(filters, firsts, into, emit.table([term.taps[0][0] for term in depth.terms]))
        rest, lack = run % lanes, emit.table(depth.missing_taps)(numbers[0])
        terms = depth.loops - lack
        for t, i in emit.grid(terms, run // lanes):
            self._combine_vector(copy, phase, lack + t, i * lanes, lanes)
        for t, i in emit.grid(terms, rest):
            self._combine_vector(copy, phase, lack + t, run - rest + i, 1)

    def _combine_vector(
        self, copy: _Copy, phase: _Phase, term: Expr, offset: Expr, lanes: int
    ) -> None:
        """Combine the taps of `lanes` weights: all terms, or those with this one along depth."""
        filters, depth = phase.filters, phase.filters[0]
        rows = self.rows_of(filters)
        if depth.is_direct:
            filters = (replace(depth, points=(depth.points[0][:1],)), *filters[1:])
        values = {}
        for taps in product(*(f.taps for f in filters)):
            numbers = [first + tap for first, tap in zip(phase.firsts, taps)]
            if depth.is_direct:
                numbers[0] = phase.firsts[0] + phase.taps_along_depth(term)
            source = tap_number(self.problem, numbers) * copy.pitch + offset
            values[taps] = emit.let(copy.raw[_index(source, lanes)])
        for terms, value in self._combine_taps(values, filters, lanes).items():
            row = rows[terms]
            if depth.loops > 1:
                deeper = (1, *terms[1:])
                row = row + term * (rows[deeper] - row)
            into = phase.into + row * self.plan.channels + offset
            emit.store(copy.combined, _index(into, lanes), value)

    def _combine_taps(
        self, taps: dict[tuple[int, ...], Expr], filters: Sequence[Filter], lanes: int
    ) -> dict[tuple[int, ...], Expr]:
        """Return the combinations of `taps`, by the numbers of the terms along the axes."""
        values = taps
        for axis, f in enumerate(filters):
            # Taps along this axis become numbers of terms.
            addends = [term.taps for term in f.terms]
            values = transformed_along(values, axis, addends, self.dtype, lanes)
        return values


def _index(start: Expr, lanes: int) -> Expr:
    """Return the index of one element, or of a vector."""
    return start if lanes == 1 else emit.lanes_of(start, lanes)
