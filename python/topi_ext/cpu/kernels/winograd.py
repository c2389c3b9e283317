# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` with fewer products than a direct sum has.

Outputs are computed in tiles of two along an axis, or of four along a row, by the minimal
filtering algorithms of :mod:`topi_ext.filtering`: inputs and taps are combined by additions, each
point of a tile is a sum over input channels of one product, and the points are combined to outputs
by additions::

    for each part of the output channels:
        combine the taps                                                  -> combined
        parallel (batch, group, depth, height, width block, split of the part):
            for each phase along depth and height:
                for each phase along the row:
                    for each input channel, each row of tiles:
                        combine its inputs                                -> inputs
                    for some blocks of `channels` output channels:
                        for each `vectors` vectors of tiles:
                            for each point, each block:
                                sums[channels][vectors] = combined * inputs -> points
                            combine the points                            -> held
                interleave the outputs of phases and tiles                -> out
    where an output was infinite or NaN: compute all of them directly

Threads may share the parts, and some splits of their positions, instead of blocks of positions.
Taps then are combined by the thread that reads them, so that no other core has to give up a line.
Those of one slice of the kernel may be held at a time (`by_slice`): what the rows of a phase need.
If a task has several parts, all positions are one block, whose inputs it combines once::

    parallel (group, `per_task` parts of the output channels, share of the blocks of positions):
        for each slice of the kernel, or all of them at once:
            where there are several parts: combine all inputs             -> inputs
            for each part:
                combine the taps                                          -> combined
                for each block, each phase of the slice: inputs, points, outputs, as above

Each output depends on its own window alone, but an infinity in it may come out as NaN, and a huge
value overflow, where a direct sum would not: hence the last line, which other data never reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

from ...emit.arguments import Packed, conv_arguments, copied_weight, packed_weight, stored_weight
from ...filtering import Filter
from ...problem import Problem
from .. import emit
from ..emit import ATTRIBUTES, Array, Expr, Operand
from ..parts.nonfinite import NonFiniteCheck
from ..parts.outer_product import add_products
from ..parts.output_rows import Result
from ..parts.panel import fitted_block, fitted_splits
from ..parts.winograd_inputs import WinogradInputs
from ..parts.winograd_sums import combined_along
from ..parts.winograd_weights import WinogradWeights
from ..plan.winograd import WinogradPlan
from ..plan.winograd_rows import Pair
from . import direct


def build(problem: Problem, plan: WinogradPlan) -> Any:
    """The PrimFunc ``(data, weight, *operands of the epilogue, out)``, scheduled by `plan`."""
    with emit.kernel(ATTRIBUTES) as made:
        packed = packed_weights(problem, plan) if is_prepacked(problem, plan) else None
        with emit.body(*conv_arguments(problem, packed)) as operands:
            emit_body(problem, plan, operands)
    return made[0]


def emit_body(problem: Problem, plan: WinogradPlan, operands: Sequence[Operand]) -> None:
    """What that PrimFunc does, with its arguments as `operands`."""
    data, weight, *extra, out = operands
    # Not zero where the outputs have to be computed directly.
    directly = emit.scratch(1, "int64")
    one = _Winograd(problem, plan, weight, data, out, extra)
    emit.store(directly, 0, emit.choose(one.pays(), lambda: emit.wide(0), emit.wide(1)))
    emit.when(directly[0] < 1, lambda: one.emit(directly))
    if problem.prepacked:
        weight = copied_weight(problem, weight, one.taps.elements)
        dtypes = problem.dtypes[0], weight.dtype, problem.dtypes[2]
        problem = replace(problem, dtypes=dtypes, prepacked=False)
    operands = [data, weight, *extra, out]
    emit.when(directly[0] > 0, lambda: direct.emit_body(problem, plan.direct, operands))


def is_prepacked(problem: Problem, plan: WinogradPlan) -> bool:
    """Whether the kernel wants its weights as :func:`build_packing` writes them."""
    return problem.prepacked


def build_packing(problem: Problem, plan: WinogradPlan) -> Any:
    """The PrimFunc ``(weight, packed)`` that packs weights for the kernel of the same plan.

    Behind the combined taps it copies the weights as they are, for data that is not finite.
    """
    with emit.kernel(ATTRIBUTES) as made:
        arguments = stored_weight(problem), packed_weight(packed_weights(problem, plan))
        with emit.body(*arguments) as (weight, packed):
            taps = WinogradWeights(problem, plan, weight)
            taps.combine(packed)
            emit.loop(
                problem.weights,
                lambda i: emit.store(packed, taps.elements + i, weight.load(i, packed.dtype)),
            )
    return made[0]


def packed_weights(problem: Problem, plan: WinogradPlan) -> Packed:
    """What the packed weights are."""
    return Packed(WinogradWeights(problem, plan).elements + problem.weights, problem.acc_dtype)


class _Winograd:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Problem,
        plan: WinogradPlan,
        weight: Operand,
        data: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        self.problem, self.plan = problem, plan
        self.weight, self.data, self.out, self.extra = weight, data, out, extra
        self.dtype = problem.acc_dtype
        self.taps = WinogradWeights(problem, plan, weight)
        self.rows, self.row_phases = self.taps.rows, self.taps.row_phases
        self.filters = self.rows.filters
        self.tile = [filters[0].tile for filters in self.filters]
        self.in_steps = [filters[0].in_step * filters[0].tile for filters in self.filters]
        self.out_steps = [filters[0].out_step for filters in self.filters]
        self.width = plan.vectors * plan.lanes
        self.block_width = plan.channels * self.width
        # Of the phases of a row.
        self.outputs = prod(self.tile) * self.out_steps[-1]
        self.room, self.pitch, self.depth = prod(plan.block), plan.pitch, plan.depth(problem)

    def pays(self) -> Expr:
        """Whether there are enough positions to pay for combining the taps."""
        if self.problem.is_static:
            return True
        return prod(self.problem.positions) >= self.plan.least

    def _block_positions(self) -> list[Expr]:
        """Choose the blocks, and say how many there are along the four axes."""
        problem, plan = self.problem, self.plan
        tiles = plan.tiles(problem)
        self.channel_splits: Expr = plan.channel_splits
        if problem.is_static:
            self.block = plan.block
        else:
            tiles = [emit.opaque_value(emit.most(count, 1)) for count in tiles]
            blocks = -(-plan.tasks // (problem.geometry.groups * self.taps.part_blocks))
            self.block = fitted_block(plan.block, tiles, plan.lanes, plan.position_splits or blocks)
        self.positions = emit.opaque_value(prod(self.block))
        self.rounds = emit.opaque_value(emit.ceil_div(self.positions, self.width))
        counts = [emit.opaque_value(emit.ceil_div(p, b)) for p, b in zip(tiles, self.block)]
        if not problem.is_static and not plan.position_splits:
            tasks = emit.opaque_value(prod(counts, start=problem.geometry.groups))
            self.channel_splits = fitted_splits(tasks, plan.tasks, self.taps.part_blocks)
        self.per_split = emit.opaque_value(
            emit.ceil_div(self.taps.part_blocks, self.channel_splits)
        )
        return counts

    def emit(self, directly: Array) -> None:
        """The whole kernel; it sets `directly` if something that it makes is infinite or NaN."""
        plan = self.plan
        counts = self._block_positions()
        streamed = plan.lanes if plan.streamed else 0
        self.result = Result(self.problem, self.out, self.extra, streamed)
        with self.result.kernel():
            self._all_parts(counts, directly)

    def _all_parts(self, counts: Sequence[Expr], directly: Array) -> None:
        plan = self.plan
        if plan.position_splits:
            tasks = -(-plan.channel_parts // plan.per_task)
            extents = (self.problem.geometry.groups, tasks, plan.position_splits)
            with emit.tasks(prod(extents), plan.parallel) as task:
                group, number, share = map(emit.let, emit.unravel(task, extents))
                self._some_parts(counts, group, number, share, directly)
        else:
            emit.loop(
                plan.channel_parts, lambda number: self._parallel_part(counts, number, directly)
            )

    def _hold_taps(self, combine: Callable[[Array], None]) -> None:
        """The combined taps of a part: as they come packed, or made by `combine`."""
        self.combined: Array = self.weight
        if not self.problem.prepacked:
            self.combined = emit.scratch(self.taps.elements, self.dtype)
            combine(self.combined)

    def _some_parts(
        self, counts: Sequence[int], group: Expr, number: Expr, share: Expr, directly: Array
    ) -> None:
        """A share of some parts of the output channels, by one thread."""
        plan = self.plan
        self.inputs = self._inputs()

        def part(slice_: Expr | None, i: Expr) -> None:
            first = emit.let((number * plan.per_task + i) * self.taps.part_blocks)
            self._hold_taps(
                lambda held: emit.loop(
                    self.taps.chunks,
                    lambda chunk: self.taps.combine_chunk(held, group, first, chunk, slice_),
                )
            )

            def block(number: Expr) -> None:
                numbers = [emit.let(i) for i in emit.unravel(number, counts)]
                self._task(numbers, group, first, 0, slice_, directly)

            emit.share_of(prod(counts), plan.position_splits, share, block)

        def present(slice_: Expr | None, i: Expr) -> None:
            is_even = plan.channel_parts % plan.per_task == 0
            inside = True if is_even else number * plan.per_task + i < plan.channel_parts
            emit.when(inside, lambda: part(slice_, i))

        def of_slice(slice_: Expr | None) -> None:
            if plan.inputs_first:
                self._combine_inputs(group, slice_)
            emit.loop(plan.per_task, partial(present, slice_))

        if plan.by_slice:
            emit.loop(len(self.rows.slices), of_slice)
        else:
            of_slice(None)

    def _parallel_part(self, counts: Sequence[Expr], number: Expr, directly: Array) -> None:
        """One part of the output channels, by all threads."""
        first = emit.let(number * self.taps.part_blocks)
        self._hold_taps(lambda held: self.taps.combine(held, first))
        extents = (counts[0], self.problem.geometry.groups, *counts[1:], self.channel_splits)
        with emit.tasks(emit.opaque_value(prod(extents)), self.plan.parallel) as task:
            number_of = emit.let if self.problem.is_static else emit.opaque_value
            digits = emit.unravel(task, extents)
            image, group, depth, height, width, split = map(number_of, digits)
            self.inputs = self._inputs()
            self._task((image, depth, height, width), group, first, split, None, directly)

    # ------------------------------------------------------------ one task

    def _task(
        self,
        numbers: Sequence[Expr],
        group: Expr,
        first_block: Expr,
        split: Expr,
        slice_: Expr | None,
        directly: Array,
    ) -> None:
        """The outputs of one block of tiles and of one split of a part: of one slice, or of all."""
        plan = self.plan
        self.first = [i * b for i, b in zip(numbers, self.block)]
        most = max(prod(len(f.points) for f in filters) for filters in product(*self.filters))
        most_blocks = self.per_split if isinstance(self.per_split, int) else self.taps.part_blocks
        self.points = emit.scratch(most * plan.pass_blocks * self.block_width, self.dtype)
        self.held = emit.scratch(
            most_blocks * plan.channels * self.outputs * self.pitch, self.dtype
        )
        self.finite = NonFiniteCheck(self.dtype, plan.lanes)
        first = emit.let(split * self.per_split)
        present = emit.least(self.taps.part_blocks, self.taps.blocks - first_block) - first
        count = emit.let(emit.most(emit.least(present, self.per_split), 0))

        def of_phase(filters: Sequence[Filter], phases: Sequence[Expr], row: Expr) -> None:
            numbers = [
                emit.table([f.first_taps.index(first) for _, _, first in f.phases])(i)
                for f, i in zip(filters, phases)
            ]

            def one_pass(chunk: Expr, i: Expr) -> None:
                start = emit.let(i * plan.pass_blocks)
                part = emit.let(emit.most(emit.least(count - start, plan.pass_blocks), 0))
                place = self.taps.block_held(group, first_block, first + start)
                taps = self.taps.offset_of(place, filters, numbers)
                taps = emit.let(taps + chunk * self.taps.chunk_elements)
                emit.loop(
                    self.rounds,
                    lambda r: self._round(filters, phases, row, taps, start, part, r),
                )

            def one_chunk(chunk: Expr) -> None:
                if not plan.inputs_first:
                    self._combine_rows(group, filters, phases, row, chunk)
                passes = emit.ceil_div(self.per_split, plan.pass_blocks)
                emit.loop(passes, partial(one_pass, chunk))

            if plan.chunks > 1:
                self._clear(filters, phases, count)
            emit.loop(plan.chunks, one_chunk)

        def copy_out(row_phase: Expr) -> None:
            offsets = self.row_phases.offsets(row_phase)
            emit.loop(
                count * plan.channels,
                lambda o: self._copy_out(group, first_block + first, o, offsets),
            )

        with self.result.task(self.block[-1] * self.tile[-1] * self.out_steps[-1]):
            self._over_phases(slice_, of_phase, copy_out)
        self.finite.report(directly)

    # ------------------------------------------------------------ inputs

    def _inputs(self) -> Array:
        """Room for rows of combined inputs, with zeros behind the last tile."""
        rows = self.rows.inputs_held
        made = emit.scratch(rows * self.pitch, self.dtype)
        tail, zero = self.pitch - self.positions, emit.constant(0, self.dtype)
        emit.loop(rows, lambda i: emit.fill(made, i * self.pitch + self.positions, tail, zero))
        return made

    def _over_phases(
        self,
        slice_: Expr | None,
        of_phase: Callable[[Sequence[Filter], Sequence[Expr], Expr], None],
        then: Callable[[Expr], None] = lambda _: None,
    ) -> None:
        """``of_phase(filters, its numbers in them, its first row of inputs)`` for the phases of a
        slice, or of all, and ``then(phase)`` after those of a phase of rows."""

        def of_slice(slice_: Expr) -> None:
            before: Expr = 0
            if self.plan.inputs_first:
                before = emit.let(emit.table(self.rows.first_inputs)(slice_))

            def of_rows(row_phase: Expr, number: Expr) -> None:
                def along_row(filters: Sequence[Filter], first: int, i: Expr) -> None:
                    phases, row = [*self.row_phases.numbers(row_phase), i], 0
                    if self.plan.inputs_first:
                        each = self.rows.of_phase(filters)
                        of_phase_of_rows = self.rows.inputs_before((filters[0], filters[1]))[-1]
                        row = emit.let(before + number * of_phase_of_rows + first + i * each)
                    of_phase(filters, phases, row)

                def of_pair(pair: Pair) -> None:
                    for last, first in zip(self.filters[2], self.rows.inputs_before(pair)):
                        emit.loop(len(last.phases), partial(along_row, (*pair, last), first))

                self.row_phases.of_pair(slice_, of_pair)
                then(row_phase)

            self.row_phases.over_phases(slice_, of_rows)

        if slice_ is None:
            emit.loop(len(self.rows.slices), of_slice)
        else:
            of_slice(slice_)

    def _combine_inputs(self, group: Expr, slice_: Expr | None) -> None:
        """Those of all positions, which are one block, for one slice of the kernel or for all."""
        self.first: Sequence[Expr] = [0] * len(self.block)
        self._over_phases(slice_, partial(self._combine_rows, group))

    def _combine_rows(
        self,
        group: Expr,
        filters: Sequence[Filter],
        phases: Sequence[Expr],
        first_row: Expr,
        chunk: Expr = 0,
    ) -> None:
        """inputs[term][input channel][tile] of one phase and one chunk, from this row on."""
        combined = WinogradInputs(
            self.problem, self.data, self.first, self.block, self.room, self.pitch, self.plan.lanes
        )
        first_rows = list(self.taps.rows_of(filters).values())
        tiles = combined.rows_into(self.inputs, first_rows, group, filters, phases)
        first = chunk * self.depth
        emit.loop(self.depth, lambda c: tiles(first + c, first_row + c))

    # ------------------------------------------------------------ products

    def _round(
        self,
        filters: Sequence[Filter],
        phases: Sequence[Expr],
        row: Expr,
        taps: Expr,
        first: Expr,
        count: Expr,
        number: Expr,
    ) -> None:
        """The outputs of some vectors of tiles, of `count` blocks of channels."""
        plan = self.plan
        counts = [prod(map(len, points)) for points in product(*(f.points for f in filters))]
        # A phase may lack the first terms along depth, where terms are a loop.
        loops, lack = filters[0].loops, emit.table(filters[0].missing)(phases[0])
        terms_of = emit.table([count // loops for count in counts])
        start_of = emit.table(self.rows.starts(filters)[:-1])

        def point(p: Expr) -> None:
            each = terms_of(p)
            terms = (loops - lack) * each
            start = emit.let(start_of(p) + lack * each * self.depth)

            def block(b: Expr) -> None:
                weights = emit.let(taps + b * self.taps.block_elements + start * plan.channels)
                into = emit.let((p * plan.pass_blocks + b) * self.block_width)
                add_products(
                    (terms * self.depth,),
                    self.combined,
                    lambda o, i: weights + i * plan.channels + o,
                    self.inputs,
                    lambda i: (row + start + i) * self.pitch + number * self.width,
                    self.points,
                    [into + o * self.width for o in range(plan.channels)],
                    plan.vectors,
                    plan.lanes,
                    fresh=True,
                )

            emit.loop(count, block)

        emit.loop(len(counts), point)
        before = first * (plan.channels * self.outputs * self.pitch)
        place = emit.let(before + self._place_of(filters, phases) + number * self.width)
        emit.loop(count * plan.channels, lambda o: self._combine_points(filters, o, place))

    def _place_of(self, filters: Sequence[Filter], phases: Sequence[Expr]) -> Expr:
        """Where the outputs of a phase are, of those of all phases of a row."""
        phase = emit.table([offset for offset, _, _ in filters[2].phases])(phases[2])
        return phase * (prod(self.tile) * self.pitch)

    def _clear(self, filters: Sequence[Filter], phases: Sequence[Expr], blocks: Expr) -> None:
        """Zeros for the outputs of one phase, of some blocks of channels."""
        place, lanes = emit.let(self._place_of(filters, phases)), self.plan.lanes
        zeros = emit.broadcast(emit.constant(0, self.dtype), lanes)

        def vector(o: Expr, v: Expr) -> None:
            at = emit.lanes_of(place + o * self.outputs * self.pitch + v * lanes, lanes)
            emit.store(self.held, at, zeros)

        emit.nest((blocks * self.plan.channels, prod(self.tile) * self.pitch // lanes), vector)

    def _combine_points(self, filters: Sequence[Filter], o: Expr, place: Expr) -> None:
        """held[output channel][phase of the row][outputs of the tile][tile]."""
        plan, lanes = self.plan, self.plan.lanes
        extents = [len(f.points) for f in filters]
        distance = plan.pass_blocks * self.block_width

        def vector(v: Expr) -> None:
            values = {
                at: emit.let(
                    self.points[emit.lanes_of(n * distance + o * self.width + v * lanes, lanes)]
                )
                for n, at in enumerate(product(*map(range, extents)))
            }
            for axis in (2, 1, 0):
                values = combined_along(values, axis, filters[axis].outputs, self.dtype, lanes)
            for n, at in enumerate(product(*map(range, self.tile))):
                into = place + (o * self.outputs + n) * self.pitch + v * lanes
                index, value = emit.lanes_of(into, lanes), values[at]
                if plan.chunks > 1:
                    value = emit.let(self.held[index] + value)
                emit.store(self.held, index, value)
                self.finite.show(value)

        emit.loop(plan.vectors, vector)

    # ------------------------------------------------------------ output

    def _copy_out(self, group: Expr, first: Expr, o: Expr, offsets: Sequence[Expr]) -> None:
        """Interleave phases and tiles of one output channel into its rows of one phase."""
        problem, plan = self.problem, self.plan
        sizes, steps = problem.out_sizes, (1, *self.out_steps)
        tiles = (1, *self.tile)
        origin = [f * t * s for f, t, s in zip(self.first, tiles, steps)]
        extent = [b * t * s for b, t, s in zip(self.block, tiles, steps)]
        number_of = emit.let if problem.is_static else emit.opaque_value
        present = [number_of(emit.least(e, size - a)) for e, size, a in zip(extent, sizes, origin)]
        number = first * plan.channels + o
        inside: Expr = True
        if problem.out_channels % plan.channels:
            inside = number < problem.out_channels
        step, last = steps[-1], tiles[-1]
        offsets = (0, *offsets)
        rows = [
            number_of(emit.quotient(count - offset + (s - 1), s))
            for count, offset, s in zip(present, offsets, steps)
        ]

        def row(*numbers: Expr) -> None:
            output: Expr = 0
            flat: Expr = 0
            for n, b, t in zip(numbers, self.block, tiles):
                output = output * t + emit.let(n % t)
                flat = flat * b + emit.let(n // t)
            outer = [a + n * s + offset for a, n, s, offset in zip(origin, numbers, steps, offsets)]
            all_channels = group * problem.out_channels + number
            written = self.result.row(all_channels, [*outer, origin[-1]])
            # Planes of the outputs of a tile along the row, those of each of its phases together.
            plane = output * last
            source = emit.opaque_base(
                (o * self.outputs + plane) * self.pitch + flat * self.block[-1]
            )

            def element(q: Expr, u: Expr) -> None:
                plane = u % step * prod(tiles) + u // step
                written.put(q * (step * last) + u, self.held[source + (plane * self.pitch + q)])

            def whole(q: Expr) -> None:
                if step * last <= 8:
                    for u in range(step * last):
                        element(q, u)
                else:
                    emit.loop(step * last, lambda u: element(q, u))

            count = emit.quotient(present[-1], step * last)
            emit.loop(count, whole)
            emit.loop(present[-1] % (step * last), lambda u: element(count, u))
            written.end(present[-1])

        emit.when(inside, lambda: emit.nest(rows, row))
