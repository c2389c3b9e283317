# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` with fewer products than a direct sum has.

Outputs are computed in tiles of two along an axis, or of four along a row, by the minimal
filtering algorithms of :mod:`topi_ext.spec.minimal_filtering`: inputs and filters are transformed
by additions, each point of a tile is a sum over input channels of one product, and the points are
transformed to outputs by additions::

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
                                accumulators[channels][vectors]
                                    = combined * inputs                   -> points
                            combine the points                            -> acc
                interleave the outputs of phases and tiles                -> out
    where an output was infinite or NaN: compute all of them directly

Each point of a tile is a matrix product: M are output channels, N tiles, K terms of the point and
input channels.  Left, `combined` ``[block][point][term][input channel][channels]``, each broadcast;
right, `inputs` ``[point][term][input channel][tile]``.

Threads may share the parts, and some splits of their positions, instead of blocks of positions.
Taps then are combined by the thread that reads them, so that no other core has to give up a line.
The rows of one slice of the kernel may be held at a time (`by_slice`): what the rows of a phase
need. If a task has several parts, all positions are one block, whose inputs it combines once::

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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

from ...emit.arguments import Packed, copied_weight
from ...spec.conv import Convolution
from ...spec.minimal_filtering import Filter
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts import prefetch
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.output_rows import Result, Rows
from ..parts.panel import fitted_block, fitted_splits
from ..parts.splits import Splits
from ..plan.winograd import WinogradPlan
from ..winograd.inputs import TilePhase, WinogradInputs
from ..winograd.nonfinite import NonFiniteCheck
from ..winograd.transform import transformed_along
from ..winograd.weights import WinogradWeights
from . import direct

MOST_WRITTEN_OUT = 8
"""Outputs along a row, of a tile and all phases, that are written out one after the other."""


def emit_body(problem: Convolution, plan: WinogradPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc whose arguments are `operands`."""
    data, weight, *extra, out = operands
    # Not zero where the outputs have to be computed directly.
    directly = emit.scratch(1, "int64")
    winograd = _Winograd(problem, plan, weight, data, out, extra)
    emit.store(directly, 0, emit.choose(winograd.pays(), lambda: emit.wide(0), emit.wide(1)))
    for _ in emit.only_if(directly[0] < 1):
        winograd.emit(directly)
    if problem.prepacked:
        weight = copied_weight(problem, weight, winograd.taps.elements)
        dtypes = problem.dtypes[0], weight.dtype, problem.dtypes[2]
        problem = replace(problem, dtypes=dtypes, prepacked=False)
    for _ in emit.only_if(directly[0] > 0):
        direct.emit_body(problem, plan.direct, [data, weight, *extra, out])


def packed_weights(problem: Convolution, plan: WinogradPlan) -> Packed:
    """Return the form of packed weights: combined taps, then the original weights, which are read
    when data is not finite."""
    return Packed(WinogradWeights(problem, plan).elements + problem.weights, problem.acc_dtype)


def pack_weights(
    problem: Convolution, plan: WinogradPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of weights."""
    taps = WinogradWeights(problem, plan, weight)
    taps.combine(packed)
    for i in emit.loop(problem.weights):
        emit.store(packed, taps.elements + i, weight.load(i, packed.dtype))


class _Blocking(NamedTuple):
    """Division of tiles and output channels into blocks; chosen at run time for symbolic sizes.

    Attributes
    ----------
    block : sequence
        Tiles of a block along the four axes.
    counts : list
        Blocks along these axes.
    positions, rounds : int or expression
        Tiles of a block, and register tiles of `vectors` vectors of them.
    splits : Splits
        Splits of the output channels of a part.
    """

    block: Sequence[Expr]
    counts: Sequence[Expr]
    positions: Expr
    rounds: Expr
    splits: Splits


class _Part(NamedTuple):
    """A part of the output channels of a group, and what it is computed from.

    Attributes
    ----------
    blocking : _Blocking
    combined : Array
        Its combined taps.
    inputs : Array
        Room for combined inputs.
    group, first_block : Expr
        The group, and the part's first block of output channels in it.
    slice_ : Expr, optional
        The slice of the kernel, if one is held at a time.
    """

    blocking: _Blocking
    combined: Array
    inputs: Array
    group: Expr
    first_block: Expr
    slice_: Expr | None = None


class _Task(NamedTuple):
    """One block of tiles and one split of a part.

    Attributes
    ----------
    part : _Part
    rows : Rows
        Rows of the result that it writes.
    first : sequence
        The first tile along the four axes.
    first_block, blocks : Expr
        Blocks of output channels: the first of the split, from that of the part, and how many.
    points, acc : Array
        Points of the tiles of a pass; outputs ``[output channel][phase of the row][output of the
        tile][tile]``.
    finite : NonFiniteCheck
        Check of the outputs.
    """

    part: _Part
    rows: Rows
    first: Sequence[Expr]
    first_block: Expr
    blocks: Expr
    points: Array
    acc: Array
    finite: NonFiniteCheck


class _Pass(NamedTuple):
    """Some blocks of output channels of a task, of one phase.

    Attributes
    ----------
    phase : TilePhase
    row : Expr
        Its first row of combined inputs.
    taps : Expr
        Where the combined taps of its first block begin.
    first, blocks : Expr
        The block, counted from the first of the task, and the number of blocks.
    """

    phase: TilePhase
    row: Expr
    taps: Expr
    first: Expr
    blocks: Expr


class _RowPhase(NamedTuple):
    """A phase along depth and height, and where its inputs are combined.

    Attributes
    ----------
    number : Expr
        Number among all these phases.
    slice_ : Expr
        The slice of the kernel that it needs.
    first_inputs : Expr
        First row of inputs of the slice, if those of all positions are combined first.
    number_in_slice : Expr
    """

    number: Expr
    slice_: Expr
    first_inputs: Expr
    number_in_slice: Expr


class _Winograd:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Convolution,
        plan: WinogradPlan,
        weight: Operand,
        data: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        self.problem, self.plan, self.weight, self.data = problem, plan, weight, data
        self.prefetches = problem.prepacked and prefetch.pays(
            packed_weights(problem, plan), prod(plan.tiles(problem)), plan.vectors * plan.lanes
        )
        self.dtype = problem.acc_dtype
        self.result = Result(problem, out, extra, plan.lanes if plan.streamed else 0)
        self.taps = WinogradWeights(problem, plan, weight)
        self.rows, self.row_phases = self.taps.rows, self.taps.row_phases
        self.filters = self.rows.filters
        self.tile = [filters[0].tile for filters in self.filters]
        self.out_steps = [filters[0].out_step for filters in self.filters]
        self.width = plan.vectors * plan.lanes
        self.block_width = plan.channels * self.width
        # Of the phases of a row.
        self.outputs = prod(self.tile) * self.out_steps[-1]
        self.room, self.pitch, self.depth = prod(plan.block), plan.pitch, plan.depth(problem)

    def pays(self) -> Expr:
        """Return whether there are enough positions to pay for combining the taps."""
        if self.problem.is_static:
            return True
        return prod(self.problem.positions) >= self.plan.least

    def _blocking(self) -> _Blocking:
        """Choose the blocks."""
        problem, plan, part_blocks = self.problem, self.plan, self.taps.part_blocks
        tiles: Sequence[Expr] = plan.tiles(problem)
        splits: Expr = plan.channel_splits
        block: Sequence[Expr] = plan.block
        if not problem.is_static:
            tiles = [emit.opaque_value(emit.most(count, 1)) for count in tiles]
            blocks = -(-plan.tasks // (problem.geometry.groups * part_blocks))
            block = fitted_block(plan.block, tiles, plan.lanes, plan.position_splits or blocks)
        positions = emit.opaque_value(prod(block))
        rounds = emit.opaque_value(emit.ceil_div(positions, self.width))
        counts = [emit.opaque_value(emit.ceil_div(p, b)) for p, b in zip(tiles, block)]
        if not problem.is_static and not plan.position_splits:
            tasks = emit.opaque_value(prod(counts, start=problem.geometry.groups))
            splits = fitted_splits(tasks, plan.tasks, part_blocks)
        per_split = emit.opaque_value(emit.ceil_div(part_blocks, splits))
        return _Blocking(block, counts, positions, rounds, Splits(part_blocks, splits, per_split))

    def emit(self, directly: Array) -> None:
        """Emit the whole kernel; it sets `directly` if a result is infinite or NaN."""
        plan, blocking = self.plan, self._blocking()
        with self.result.kernel():
            if not plan.position_splits:
                for number in emit.loop(plan.channel_parts):
                    self._parallel_part(blocking, number, directly)
            else:
                tasks = -(-plan.channel_parts // plan.per_task)
                extents = (self.problem.geometry.groups, tasks, plan.position_splits)
                with emit.tasks(prod(extents), plan.parallel) as task:
                    group, number, share = map(emit.let, emit.unravel(task, extents))
                    self._some_parts(blocking, directly, group, number, share)

    def _some_parts(
        self, blocking: _Blocking, directly: Array, group: Expr, task: Expr, share: Expr
    ) -> None:
        """Compute the parts of the output channels of one task, for a share of the positions."""
        inputs = self._inputs(blocking)
        for slice_ in emit.loop(len(self.rows.slices)) if self.plan.by_slice else (None,):
            if self.plan.inputs_first:
                # Those of all positions, which are one block.
                combined = self._combined_inputs(blocking, [0] * len(blocking.block))
                for rows in self._row_phases(slice_):
                    for phase, row in self._phases(rows):
                        self._combine_rows(combined, inputs, group, phase, row)
            for number in self._parts_of_task(task):
                part = self._part(blocking, inputs, group, number, slice_)
                counts = blocking.counts
                for block in emit.share_of(prod(counts), self.plan.position_splits, share):
                    numbers = [emit.let(i) for i in emit.unravel(block, counts)]
                    self._task(part, numbers, 0, directly)

    def _parts_of_task(self, task: Expr) -> Iterator[Expr]:
        """Emit a loop over the parts of the output channels that one task computes."""
        plan = self.plan
        is_even = plan.channel_parts % plan.per_task == 0
        for i in emit.loop(plan.per_task):
            number = task * plan.per_task + i
            for _ in emit.only_if(True if is_even else number < plan.channel_parts):
                yield number

    def _part(
        self, blocking: _Blocking, inputs: Array, group: Expr, number: Expr, slice_: Expr | None
    ) -> _Part:
        """Return part `number` of the output channels, whose taps this thread combines."""
        first = emit.let(number * self.taps.part_blocks)
        combined = self._room_for_taps()
        if not self.problem.prepacked:
            for chunk in emit.loop(self.taps.chunks):
                self.taps.combine_chunk(combined, group, first, chunk, slice_)
        return _Part(blocking, combined, inputs, group, first, slice_)

    def _room_for_taps(self) -> Array:
        """Return memory for the combined taps of a part, or the packed weights that hold them."""
        if self.problem.prepacked:
            return self.weight
        return emit.scratch(self.taps.elements, self.dtype)

    def _parallel_part(self, blocking: _Blocking, number: Expr, directly: Array) -> None:
        """Compute one part of the output channels with all threads."""
        first, counts = emit.let(number * self.taps.part_blocks), blocking.counts
        combined = self._room_for_taps()
        if not self.problem.prepacked:
            self.taps.combine(combined, first)
        groups = self.problem.geometry.groups
        extents = (counts[0], groups, *counts[1:], blocking.splits.number)
        with emit.tasks(emit.opaque_value(prod(extents)), self.plan.parallel) as task:
            number_of = emit.let if self.problem.is_static else emit.opaque_value
            digits = emit.unravel(task, extents)
            image, group, depth, height, width, split = map(number_of, digits)
            part = _Part(blocking, combined, self._inputs(blocking), group, first)
            self._task(part, (image, depth, height, width), split, directly)

    # ------------------------------------------------------------ one task

    def _task(self, part: _Part, numbers: Sequence[Expr], split: Expr, directly: Array) -> None:
        """Compute one block of tiles, for one split of a part: of one slice, or of all."""
        plan, blocking = self.plan, part.blocking
        per_split, block = blocking.splits.per_split, blocking.block
        most = max(prod(len(f.points) for f in filters) for filters in product(*self.filters))
        most_blocks = per_split if isinstance(per_split, int) else self.taps.part_blocks
        points = emit.scratch(most * plan.pass_blocks * self.block_width, self.dtype)
        acc_room = most_blocks * plan.channels * self.outputs * self.pitch
        acc = emit.scratch(acc_room, self.dtype)
        finite = NonFiniteCheck.emitted(self.dtype, plan.lanes)
        first = emit.let(split * per_split)
        present = emit.least(self.taps.part_blocks, self.taps.blocks - part.first_block) - first
        blocks = emit.let(emit.most(emit.least(present, per_split), 0))
        with self.result.task(block[-1] * self.tile[-1] * self.out_steps[-1]) as rows:
            corner = [i * b for i, b in zip(numbers, block)]
            task = _Task(part, rows, corner, first, blocks, points, acc, finite)
            for row_phase in self._row_phases(part.slice_):
                for phase, row in self._phases(row_phase):
                    self._phase(task, phase, row)
                offsets = self.row_phases.offsets(row_phase.number)
                for o in emit.loop(blocks * plan.channels):
                    self._copy_out(task, o, offsets)
        finite.report(directly)

    def _phase(self, task: _Task, phase: TilePhase, row: Expr) -> None:
        """Compute one phase, whose inputs are combined from this row on."""
        plan, part = self.plan, task.part
        numbers = [
            emit.table([f.first_taps.index(first) for _, _, first in f.phases])(i)
            for f, i in zip(*phase)
        ]
        if plan.chunks > 1:
            self._clear(task, phase)
        for chunk in emit.loop(plan.chunks):
            if not plan.inputs_first:
                combined = self._combined_inputs(part.blocking, task.first)
                self._combine_rows(combined, part.inputs, part.group, phase, row, chunk)
            passes = emit.ceil_div(part.blocking.splits.per_split, plan.pass_blocks)
            for i in emit.loop(passes):
                start = emit.let(i * plan.pass_blocks)
                blocks = emit.let(emit.most(emit.least(task.blocks - start, plan.pass_blocks), 0))
                number = task.first_block + start
                number = self.taps.block_held(part.group, part.first_block, number)
                taps = self.taps.offset_of(number, phase.filters, numbers)
                taps = emit.let(taps + chunk * self.taps.chunk_elements)
                for round_ in emit.loop(part.blocking.rounds):
                    self._round(task, _Pass(phase, row, taps, start, blocks), round_)

    # ------------------------------------------------------------ inputs

    def _inputs(self, blocking: _Blocking) -> Array:
        """Return room for rows of combined inputs, with zeros behind the last tile."""
        rows, positions = self.rows.inputs_held, blocking.positions
        inputs = emit.scratch(rows * self.pitch, self.dtype)
        tail, zero = self.pitch - positions, emit.constant(0, self.dtype)
        for i in emit.loop(rows):
            emit.fill(inputs, i * self.pitch + positions, tail, zero)
        return inputs

    def _row_phases(self, slice_: Expr | None) -> Iterator[_RowPhase]:
        """Emit loops over the phases along depth and height of a slice, or of all slices."""
        for s in emit.loop(len(self.rows.slices)) if slice_ is None else (slice_,):
            first: Expr = 0
            if self.plan.inputs_first:
                first = emit.let(emit.table(self.rows.first_inputs)(s))
            for number, i in self.row_phases.of_slice(s):
                yield _RowPhase(number, s, first, i)

    def _phases(self, rows: _RowPhase) -> Iterator[tuple[TilePhase, Expr]]:
        """Emit loops over the phases along the row, each with its first row of inputs."""
        for pair in self.row_phases.pairs(rows.slice_):
            *before, each_of_rows = self.rows.inputs_before(pair)
            for last, start in zip(self.filters[2], before):
                filters = (*pair, last)
                for i in emit.loop(len(last.phases)):
                    phases, row = [*self.row_phases.numbers(rows.number), i], 0
                    if self.plan.inputs_first:
                        each = self.rows.of_phase(filters)
                        row = rows.first_inputs + rows.number_in_slice * each_of_rows
                        row = emit.let(row + start + i * each)
                    yield TilePhase(filters, phases), row

    def _combined_inputs(self, blocking: _Blocking, first: Sequence[Expr]) -> WinogradInputs:
        """Return the inputs of the block whose first tile is `first`."""
        return WinogradInputs(
            self.problem, self.data, first, blocking.block, self.room, self.pitch, self.plan.lanes
        )

    def _combine_rows(
        self,
        combined: WinogradInputs,
        into: Array,
        group: Expr,
        phase: TilePhase,
        first_row: Expr,
        chunk: Expr = 0,
    ) -> None:
        """Write inputs[term][input channel][tile] of one phase and one chunk, from this row on."""
        first_rows = list(self.taps.rows_of(phase.filters).values())
        inputs = combined.rows_into(into, first_rows, group, phase)
        first = chunk * self.depth
        for c in emit.loop(self.depth):
            inputs.combine(first + c, first_row + c)

    # ------------------------------------------------------------ products

    def _round(self, task: _Task, pass_: _Pass, number: Expr) -> None:
        """Compute some vectors of tiles, for the blocks of channels of a pass."""
        plan, filters = self.plan, pass_.phase.filters
        counts = [prod(map(len, points)) for points in product(*(f.points for f in filters))]
        # A phase may lack the first terms along depth, where terms are a loop.
        loops, lack = filters[0].loops, emit.table(filters[0].missing)(pass_.phase.numbers[0])
        terms_of = emit.table([count // loops for count in counts])
        start_of = emit.table(self.rows.starts(filters)[:-1])
        for p in emit.loop(len(counts)):
            each = terms_of(p)
            terms = (loops - lack) * each
            start = emit.let(start_of(p) + lack * each * self.depth)
            for b in emit.loop(pass_.blocks):
                point = (p * plan.pass_blocks + b) * self.block_width
                self._products(task, pass_, (number, b, start), terms, point)
        before = pass_.first * (plan.channels * self.outputs * self.pitch)
        offset = emit.let(before + self._offset_of(pass_.phase) + number * self.width)
        for o in emit.loop(pass_.blocks * plan.channels):
            self._combine_points(task, filters, o, offset)

    def _products(
        self,
        task: _Task,
        pass_: _Pass,
        numbers: tuple[Expr, Expr, Expr],
        terms: Expr,
        point: Expr,
    ) -> None:
        """Sum up one point of some vectors of tiles, for one block of channels.

        `numbers` are the round, the block and the first row of the point; the sums go to `point`.
        """
        plan, (round_, block, start) = self.plan, numbers
        weights = emit.let(pass_.taps + block * self.taps.block_elements + start * plan.channels)
        into = emit.let(point)
        combined, count = task.part.combined, terms * self.depth

        def ahead(i: Expr) -> None:
            """Prefetch what the next point reads at this term."""
            emit.prefetch(combined, weights + (count + i) * plan.channels, cache=2)

        add_products(
            (count,),
            Matrix(combined, lambda o, i: weights + i * plan.channels + o),
            Matrix(
                task.part.inputs,
                lambda i: (pass_.row + start + i) * self.pitch + round_ * self.width,
            ),
            RegisterTile(
                task.points,
                [into + o * self.width for o in range(plan.channels)],
                plan.vectors,
                plan.lanes,
            ),
            fresh=True,
            prefetch=ahead if self.prefetches else None,
        )

    def _offset_of(self, phase: TilePhase) -> Expr:
        """Return where the outputs of a phase are, among those of all phases of a row."""
        offset = emit.table([offset for offset, _, _ in phase.filters[2].phases])(phase.numbers[2])
        return offset * (prod(self.tile) * self.pitch)

    def _clear(self, task: _Task, phase: TilePhase) -> None:
        """Write zeros to the outputs of one phase."""
        offset, lanes = emit.let(self._offset_of(phase)), self.plan.lanes
        zeros = emit.broadcast(emit.constant(0, self.dtype), lanes)
        vectors = prod(self.tile) * self.pitch // lanes
        for o, v in emit.grid(task.blocks * self.plan.channels, vectors):
            index = emit.lanes_of(offset + o * self.outputs * self.pitch + v * lanes, lanes)
            emit.store(task.acc, index, zeros)

    def _combine_points(
        self, task: _Task, filters: Sequence[Filter], o: Expr, offset: Expr
    ) -> None:
        """Write acc[output channel][phase of the row][outputs of the tile][tile]."""
        plan, lanes = self.plan, self.plan.lanes
        extents = [len(f.points) for f in filters]
        distance = plan.pass_blocks * self.block_width
        for v in emit.loop(plan.vectors):
            values = {
                at: emit.let(
                    task.points[emit.lanes_of(n * distance + o * self.width + v * lanes, lanes)]
                )
                for n, at in enumerate(product(*map(range, extents)))
            }
            for axis in (2, 1, 0):
                values = transformed_along(values, axis, filters[axis].outputs, self.dtype, lanes)
            for n, at in enumerate(product(*map(range, self.tile))):
                into = offset + (o * self.outputs + n) * self.pitch + v * lanes
                index, value = emit.lanes_of(into, lanes), values[at]
                if plan.chunks > 1:
                    value = emit.let(task.acc[index] + value)
                emit.store(task.acc, index, value)
                task.finite.show(value)

    # ------------------------------------------------------------ output

    def _copy_out(self, task: _Task, o: Expr, offsets: Sequence[Expr]) -> None:
        """Interleave the phases and tiles of one output channel in its rows of one phase."""
        problem, plan, part = self.problem, self.plan, task.part
        block, steps, tiles = part.blocking.block, (1, *self.out_steps), (1, *self.tile)
        origin = [f * t * s for f, t, s in zip(task.first, tiles, steps)]
        extent = [b * t * s for b, t, s in zip(block, tiles, steps)]
        number_of = emit.let if problem.is_static else emit.opaque_value
        bounds = zip(extent, problem.out_sizes, origin)
        present = [number_of(emit.least(e, size - a)) for e, size, a in bounds]
        number = (part.first_block + task.first_block) * plan.channels + o
        inside: Expr = True
        if problem.out_channels % plan.channels:
            inside = number < problem.out_channels
        offsets = (0, *offsets)
        rows = [
            number_of(emit.quotient(count - offset + (s - 1), s))
            for count, offset, s in zip(present, offsets, steps)
        ]
        step, last = steps[-1], tiles[-1]
        counts = emit.quotient(present[-1], step * last), present[-1] % (step * last)
        for _ in emit.only_if(inside):
            for numbers in emit.grid(*rows):
                output: Expr = 0
                flat: Expr = 0
                for n, b, t in zip(numbers, block, tiles):
                    output = output * t + emit.let(n % t)
                    flat = flat * b + emit.let(n // t)
                outer = [a + n * s + e for a, n, s, e in zip(origin, numbers, steps, offsets)]
                all_channels = part.group * problem.out_channels + number
                row = task.rows.row(all_channels, [*outer, origin[-1]])
                # Planes of a tile's outputs along the row, those of each of its phases together.
                plane = o * self.outputs + output * last
                source = emit.opaque_base(plane * self.pitch + flat * block[-1])
                for i, q, u in row.interleaved(step * last, counts, MOST_WRITTEN_OUT):
                    plane = u % step * prod(tiles) + u // step
                    row.put(i, task.acc[source + (plane * self.pitch + q)])
                row.end(present[-1])
