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
from typing import NamedTuple

from ...emit.arguments import Packed, copied_weight
from ...filtering import Filter
from ...problem import Problem
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.nonfinite import NonFiniteCheck
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.output_rows import Result, Rows
from ..parts.panel import fitted_block, fitted_splits
from ..parts.splits import Splits
from ..parts.winograd_inputs import TilePhase, WinogradInputs
from ..parts.winograd_transform import transformed_along
from ..parts.winograd_weights import WinogradWeights
from ..plan.winograd import WinogradPlan
from ..plan.winograd_rows import Pair
from . import direct

MOST_WRITTEN_OUT = 8
"""Outputs along a row, of a tile and all phases, that are written out one after the other."""


def emit_body(problem: Problem, plan: WinogradPlan, operands: Sequence[Operand]) -> None:
    """What the PrimFunc does, with its arguments as `operands`."""
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


def packed_weights(problem: Problem, plan: WinogradPlan) -> Packed:
    """What the packed weights are: combined taps, and behind them the weights as they are, for data
    that is not finite."""
    return Packed(WinogradWeights(problem, plan).elements + problem.weights, problem.acc_dtype)


def pack_weights(problem: Problem, plan: WinogradPlan, weight: Operand, packed: Operand) -> None:
    """Pack them."""
    taps = WinogradWeights(problem, plan, weight)
    taps.combine(packed)
    emit.loop(
        problem.weights,
        lambda i: emit.store(packed, taps.elements + i, weight.load(i, packed.dtype)),
    )


class _Blocking(NamedTuple):
    """How tiles and output channels are divided; of symbolic sizes chosen at run time.

    Attributes
    ----------
    block : sequence
        Tiles of a block along the four axes.
    counts : list
        Blocks along these axes.
    positions, rounds : int or expression
        Tiles of a block, and register tiles of `vectors` vectors of them.
    splits : Splits
        Of the output channels of a part.
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
        By which it writes.
    first : sequence
        The first tile along the four axes.
    first_block, blocks : Expr
        Blocks of output channels: the first of the split, from that of the part, and how many.
    points, acc : Array
        Points of the tiles of a pass; outputs ``[output channel][phase of the row][output of the
        tile][tile]``.
    finite : NonFiniteCheck
        That of the outputs.
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
        That block, from the first of the task, and how many.
    """

    phase: TilePhase
    row: Expr
    taps: Expr
    first: Expr
    blocks: Expr


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
        self.problem, self.plan, self.weight, self.data = problem, plan, weight, data
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
        """Whether there are enough positions to pay for combining the taps."""
        if self.problem.is_static:
            return True
        return prod(self.problem.positions) >= self.plan.least

    def _blocking(self) -> _Blocking:
        """Choose the blocks."""
        problem, plan, part_blocks = self.problem, self.plan, self.taps.part_blocks
        tiles = plan.tiles(problem)
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
        """The whole kernel; it sets `directly` if something that it makes is infinite or NaN."""
        plan, blocking = self.plan, self._blocking()
        with self.result.kernel():
            if not plan.position_splits:
                emit.loop(
                    plan.channel_parts,
                    lambda number: self._parallel_part(blocking, number, directly),
                )
                return
            tasks = -(-plan.channel_parts // plan.per_task)
            extents = (self.problem.geometry.groups, tasks, plan.position_splits)
            with emit.tasks(prod(extents), plan.parallel) as task:
                place = map(emit.let, emit.unravel(task, extents))
                self._some_parts(blocking, directly, *place)

    def _combined_taps(self, combine: Callable[[Array], None]) -> Array:
        """The combined taps of a part: as they come packed, or made by `combine`."""
        if self.problem.prepacked:
            return self.weight
        combined = emit.scratch(self.taps.elements, self.dtype)
        combine(combined)
        return combined

    def _some_parts(
        self, blocking: _Blocking, directly: Array, group: Expr, number: Expr, share: Expr
    ) -> None:
        """A share of some parts of the output channels, by one thread."""
        plan, counts = self.plan, blocking.counts
        inputs = self._inputs(blocking)

        def of_part(slice_: Expr | None, i: Expr) -> None:
            first = emit.let((number * plan.per_task + i) * self.taps.part_blocks)
            combined = self._combined_taps(
                lambda into: emit.loop(
                    self.taps.chunks,
                    lambda chunk: self.taps.combine_chunk(into, group, first, chunk, slice_),
                )
            )
            part = _Part(blocking, combined, inputs, group, first, slice_)

            def block(number: Expr) -> None:
                numbers = [emit.let(i) for i in emit.unravel(number, counts)]
                self._task(part, numbers, 0, directly)

            emit.share_of(prod(counts), plan.position_splits, share, block)

        def present(slice_: Expr | None, i: Expr) -> None:
            is_even = plan.channel_parts % plan.per_task == 0
            inside = True if is_even else number * plan.per_task + i < plan.channel_parts
            emit.when(inside, lambda: of_part(slice_, i))

        def of_slice(slice_: Expr | None) -> None:
            if plan.inputs_first:
                # Those of all positions, which are one block.
                combined = self._combined_inputs(blocking, [0] * len(blocking.block))
                self._over_phases(slice_, partial(self._combine_rows, combined, inputs, group))
            emit.loop(plan.per_task, partial(present, slice_))

        if plan.by_slice:
            emit.loop(len(self.rows.slices), of_slice)
        else:
            of_slice(None)

    def _parallel_part(self, blocking: _Blocking, number: Expr, directly: Array) -> None:
        """One part of the output channels, by all threads."""
        first, counts = emit.let(number * self.taps.part_blocks), blocking.counts
        combined = self._combined_taps(lambda into: self.taps.combine(into, first))
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
        """The outputs of one block of tiles and of one split of a part: of one slice, or of all."""
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
            place = [i * b for i, b in zip(numbers, block)]
            task = _Task(part, rows, place, first, blocks, points, acc, finite)

            def copy_out(row_phase: Expr) -> None:
                offsets = self.row_phases.offsets(row_phase)
                emit.loop(blocks * plan.channels, lambda o: self._copy_out(task, o, offsets))

            self._over_phases(part.slice_, partial(self._phase, task), copy_out)
        finite.report(directly)

    def _phase(self, task: _Task, phase: TilePhase, row: Expr) -> None:
        """The outputs of one phase, whose inputs are combined from this row on."""
        plan, part, first = self.plan, task.part, task.first_block
        numbers = [
            emit.table([f.first_taps.index(first) for _, _, first in f.phases])(i)
            for f, i in zip(*phase)
        ]

        def one_pass(chunk: Expr, i: Expr) -> None:
            start = emit.let(i * plan.pass_blocks)
            blocks = emit.let(emit.most(emit.least(task.blocks - start, plan.pass_blocks), 0))
            place = self.taps.block_held(part.group, part.first_block, first + start)
            taps = self.taps.offset_of(place, phase.filters, numbers)
            taps = emit.let(taps + chunk * self.taps.chunk_elements)
            one = _Pass(phase, row, taps, start, blocks)
            emit.loop(part.blocking.rounds, partial(self._round, task, one))

        def one_chunk(chunk: Expr) -> None:
            if not plan.inputs_first:
                combined = self._combined_inputs(part.blocking, task.first)
                self._combine_rows(combined, part.inputs, part.group, phase, row, chunk)
            passes = emit.ceil_div(part.blocking.splits.per_split, plan.pass_blocks)
            emit.loop(passes, partial(one_pass, chunk))

        if plan.chunks > 1:
            self._clear(task, phase)
        emit.loop(plan.chunks, one_chunk)

    # ------------------------------------------------------------ inputs

    def _inputs(self, blocking: _Blocking) -> Array:
        """Room for rows of combined inputs, with zeros behind the last tile."""
        rows, positions = self.rows.inputs_held, blocking.positions
        made = emit.scratch(rows * self.pitch, self.dtype)
        tail, zero = self.pitch - positions, emit.constant(0, self.dtype)
        emit.loop(rows, lambda i: emit.fill(made, i * self.pitch + positions, tail, zero))
        return made

    def _over_phases(
        self,
        slice_: Expr | None,
        of_phase: Callable[[TilePhase, Expr], None],
        then: Callable[[Expr], None] = lambda _: None,
    ) -> None:
        """``of_phase(phase, its first row of inputs)`` for the phases of a slice, or of all, and
        ``then(phase)`` after those of a phase of rows."""

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
                    of_phase(TilePhase(filters, phases), row)

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

    def _combined_inputs(self, blocking: _Blocking, first: Sequence[Expr]) -> WinogradInputs:
        """The inputs of the block whose first tile is `first`."""
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
        """inputs[term][input channel][tile] of one phase and one chunk, from this row on."""
        first_rows = list(self.taps.rows_of(phase.filters).values())
        tiles = combined.rows_into(into, first_rows, group, phase)
        first = chunk * self.depth
        emit.loop(self.depth, lambda c: tiles(first + c, first_row + c))

    # ------------------------------------------------------------ products

    def _round(self, task: _Task, one: _Pass, number: Expr) -> None:
        """The outputs of some vectors of tiles, of the blocks of channels of a pass."""
        plan, filters = self.plan, one.phase.filters
        counts = [prod(map(len, points)) for points in product(*(f.points for f in filters))]
        # A phase may lack the first terms along depth, where terms are a loop.
        loops, lack = filters[0].loops, emit.table(filters[0].missing)(one.phase.numbers[0])
        terms_of = emit.table([count // loops for count in counts])
        start_of = emit.table(self.rows.starts(filters)[:-1])

        def point(p: Expr) -> None:
            each = terms_of(p)
            terms = (loops - lack) * each
            start = emit.let(start_of(p) + lack * each * self.depth)

            def block(b: Expr) -> None:
                weights = emit.let(one.taps + b * self.taps.block_elements + start * plan.channels)
                into = emit.let((p * plan.pass_blocks + b) * self.block_width)
                places = [into + o * self.width for o in range(plan.channels)]
                add_products(
                    (terms * self.depth,),
                    Matrix(task.part.combined, lambda o, i: weights + i * plan.channels + o),
                    Matrix(
                        task.part.inputs,
                        lambda i: (one.row + start + i) * self.pitch + number * self.width,
                    ),
                    RegisterTile(task.points, places, plan.vectors, plan.lanes),
                    fresh=True,
                )

            emit.loop(one.blocks, block)

        emit.loop(len(counts), point)
        before = one.first * (plan.channels * self.outputs * self.pitch)
        place = emit.let(before + self._place_of(one.phase) + number * self.width)
        emit.loop(
            one.blocks * plan.channels, lambda o: self._combine_points(task, filters, o, place)
        )

    def _place_of(self, phase: TilePhase) -> Expr:
        """Where the outputs of a phase are, of those of all phases of a row."""
        offset = emit.table([offset for offset, _, _ in phase.filters[2].phases])(phase.numbers[2])
        return offset * (prod(self.tile) * self.pitch)

    def _clear(self, task: _Task, phase: TilePhase) -> None:
        """Zeros for the outputs of one phase."""
        place, lanes = emit.let(self._place_of(phase)), self.plan.lanes
        zeros = emit.broadcast(emit.constant(0, self.dtype), lanes)

        def vector(o: Expr, v: Expr) -> None:
            at = emit.lanes_of(place + o * self.outputs * self.pitch + v * lanes, lanes)
            emit.store(task.acc, at, zeros)

        vectors = prod(self.tile) * self.pitch // lanes
        emit.nest((task.blocks * self.plan.channels, vectors), vector)

    def _combine_points(self, task: _Task, filters: Sequence[Filter], o: Expr, place: Expr) -> None:
        """acc[output channel][phase of the row][outputs of the tile][tile]."""
        plan, lanes = self.plan, self.plan.lanes
        extents = [len(f.points) for f in filters]
        distance = plan.pass_blocks * self.block_width

        def vector(v: Expr) -> None:
            values = {
                at: emit.let(
                    task.points[emit.lanes_of(n * distance + o * self.width + v * lanes, lanes)]
                )
                for n, at in enumerate(product(*map(range, extents)))
            }
            for axis in (2, 1, 0):
                values = transformed_along(values, axis, filters[axis].outputs, self.dtype, lanes)
            for n, at in enumerate(product(*map(range, self.tile))):
                into = place + (o * self.outputs + n) * self.pitch + v * lanes
                index, value = emit.lanes_of(into, lanes), values[at]
                if plan.chunks > 1:
                    value = emit.let(task.acc[index] + value)
                emit.store(task.acc, index, value)
                task.finite.show(value)

        emit.loop(plan.vectors, vector)

    # ------------------------------------------------------------ output

    def _copy_out(self, task: _Task, o: Expr, offsets: Sequence[Expr]) -> None:
        """Interleave phases and tiles of one output channel into its rows of one phase."""
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

        def row(*numbers: Expr) -> None:
            output: Expr = 0
            flat: Expr = 0
            for n, b, t in zip(numbers, block, tiles):
                output = output * t + emit.let(n % t)
                flat = flat * b + emit.let(n // t)
            outer = [a + n * s + offset for a, n, s, offset in zip(origin, numbers, steps, offsets)]
            all_channels = part.group * problem.out_channels + number
            written = task.rows.row(all_channels, [*outer, origin[-1]])
            # Planes of the outputs of a tile along the row, those of each of its phases together.
            plane = output * last
            source = emit.opaque_base((o * self.outputs + plane) * self.pitch + flat * block[-1])

            def value_of(q: Expr, u: Expr) -> Expr:
                plane = u % step * prod(tiles) + u // step
                return task.acc[source + (plane * self.pitch + q)]

            written.put_interleaved(step * last, counts, value_of, MOST_WRITTEN_OUT)
            written.end(present[-1])

        emit.when(inside, lambda: emit.nest(rows, row))
