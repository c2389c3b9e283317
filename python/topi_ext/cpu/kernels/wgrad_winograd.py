# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_weight_grad`` with fewer products than a direct sum has.

The algorithms of :mod:`topi_ext.spec.minimal_filtering` are trilinear: what computes some outputs
of a sum from transformed inputs and transformed filters also computes the gradient of its taps,
from transformed inputs and transformed outputs::

    y[e]   = sum over points, terms:  outputs[e][point] * (inputs of the term) * (taps of the term)
    dw[t]  = sum over points, terms:  taps[term][t] * (inputs of the term) * (outputs of the point)

Lanes run over the channels of y, values of x are broadcast, and the sum runs over tiles::

    for each group, each part of the channels of x:
        for each phase, each block of tiles:
            parallel (vector of channels of y, row of tiles):
                transpose the outputs of a row, combine them                  -> rows[point]
            parallel (block of channels of x):
                for each channel of x, each row of tiles: combine its inputs  -> inputs[term]
                for each term:
                    for each tile of vectors, each `c_tile` channels of x:
                        accumulators[c_tile][vectors] += inputs * rows        -> acc[term]
        parallel (block of channels of x):
            combine the sums of the terms, transpose the weights back         -> out
    where a weight was infinite or NaN: compute all of them directly

Each term is a matrix product: M are channels of x, N channels of y, K tiles.  Left, `inputs`
``[term][channel of x][tile]``, each value broadcast; right, `rows` ``[point][tile of vectors][tile]
[lanes]``.

A single block needs its sums only until they are combined: the last two loops then are one.

With many blocks each thread may take some, with sums of its own, so that no line of one core is
written again by another::

    for each group, each part of the channels of x:
        parallel (share of the phases and blocks of tiles):
            for each of them:
                transpose the outputs, combine them                           -> rows[point]
                for each block of channels of x: as above                     -> acc[share][term]
        parallel (block of channels of x):
            add up the shares, combine the sums of the terms, transpose       -> out
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from ...spec.conv import DATA, Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.panel import fitted_block
from ..parts.transpose import Pitched, Runs, transpose
from ..plan.wgrad_winograd import WgradWinogradPlan
from ..winograd.inputs import TilePhase, WinogradInputs
from ..winograd.nonfinite import NonFiniteCheck
from ..winograd.transform import transformed_along
from .wgrad_channels import Column, write_transposed
from .wgrad_positions import emit_body as emit_directly


def emit_body(problem: Convolution, plan: WgradWinogradPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc whose arguments are `operands`."""
    # Not zero where the weights have to be computed directly.
    directly = emit.scratch(1, "int64")
    emit.store(directly, 0, emit.wide(0))
    for _ in emit.only_if(directly[0] < 1):
        tiles = _Tiles.emitted(problem, plan)
        _WgradWinograd(problem, plan, tiles, directly, *operands).emit()
    for _ in emit.only_if(directly[0] > 0):
        emit_directly(problem, plan.direct, operands)


class _Tiles(NamedTuple):
    """The tiles of a block.

    Attributes
    ----------
    block : sequence
        Along the four axes: the planned block; of symbolic sizes one that fits into its room.
    number : int or expression
        All of them.
    """

    block: Sequence[Expr]
    number: Expr

    @classmethod
    def emitted(cls, problem: Convolution, plan: WgradWinogradPlan) -> _Tiles:
        """Return the blocks of a problem."""
        block: Sequence[Expr] = plan.block
        if not problem.is_static:
            tiles = [emit.opaque_value(emit.most(count, 1)) for count in plan.tiles(problem)]
            block = fitted_block(plan.block, tiles, plan.lanes, plan.position_splits)
        return cls(block, emit.opaque_value(prod(block)))


class _Pass(NamedTuple):
    """One phase and one block of tiles.

    Attributes
    ----------
    rows : Array
        Room for its combined outputs.
    acc : Array, optional
        ``[channel of x][term][channel of y]``; None where they are needed for this pass only.
    group : Expr
    phase : TilePhase
    first : sequence
        The first tile along the four axes.
    """

    rows: Array
    acc: Array | None
    group: Expr
    phase: TilePhase
    first: Sequence[Expr]


class _WgradWinograd:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Convolution,
        plan: WgradWinogradPlan,
        tiles: _Tiles,
        directly: Array,
        x: Operand,
        y: Operand,
        out: Operand,
    ):
        self.problem, self.plan, self.tiles, self.directly = problem, plan, tiles, directly
        self.x, self.y, self.out = x, y, out
        self.dtype = problem.acc_dtype
        # An access from x to y has one kind of phases.
        self.filters = [filters[0] for filters in plan.filters(problem)]
        self.vectors = -(-problem.geometry.k_per_group // plan.lanes)
        self.row = self.vectors * plan.lanes
        # Tiles of a block that there is room for.
        self.room = prod(plan.block)
        self.points = list(product(*(range(len(f.points)) for f in self.filters)))
        self.terms = prod(len(f.terms) for f in self.filters)
        is_static = problem.is_static
        self.is_single = is_static and plan.position_splits == 1 and plan.passes(problem) == 1
        # One vector more, so that the sums of channels are not a power of two apart.
        self.acc_pitch = self.terms * self.row + plan.lanes

    def emit(self) -> None:
        """Emit the whole kernel."""
        plan, groups = self.plan, self.problem.geometry.groups
        if plan.position_splits > 1:
            for group, part in emit.grid(groups, plan.channel_parts):
                self._shared_part(group, part)
        else:
            rows = self._rows()
            for group, part in emit.grid(groups, plan.channel_parts):
                self._part(rows, group, part)

    def _rows(self) -> Array:
        """Return room for the combined outputs of a block of tiles."""
        return emit.scratch(len(self.points) * self.room * self.row, self.dtype)

    @property
    def _blocks(self) -> int:
        """Blocks of channels of x in a part."""
        return -(
            -self.problem.geometry.c_per_group // (self.plan.c_block * self.plan.channel_parts)
        )

    def _extents(self) -> list[Expr]:
        """Return how many phases there are, and how many blocks of tiles."""
        tiles = zip(self.plan.tiles(self.problem), self.tiles.block)
        blocks = (emit.opaque_value(emit.ceil_div(count, size)) for count, size in tiles)
        return [*(len(f.phases) for f in self.filters), *blocks]

    def _block(self, part: Expr, number: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Yield the first channel of a block of channels of x and where its accumulators begin.

        The last of several parts may lack the block: then the branch is not taken.
        """
        channels, c_block = self.problem.geometry.c_per_group, self.plan.c_block
        offset = emit.let(number * c_block)
        first_c = emit.let(part * (self._blocks * c_block) + offset)
        is_even = channels == self.plan.channel_parts * self._blocks * c_block
        for _ in emit.only_if(True if is_even else first_c < channels):
            yield first_c, emit.let(offset * self.acc_pitch)

    def _parallel_blocks(self, part: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Emit a parallel loop over the blocks of a part, as :meth:`_block` yields them."""
        with emit.tasks(self._blocks, self.plan.parallel) as number:
            yield from self._block(part, number)

    def _clear(self, acc: Array, start: Expr, blocks: int) -> None:
        count = blocks * self.plan.c_block * self.acc_pitch
        emit.fill(acc, start, count, emit.constant(0, self.dtype))

    def _part(self, rows: Array, group: Expr, part: Expr) -> None:
        """Compute the weights of one part of the channels of x."""
        plan, block = self.plan, self.tiles.block
        acc: Array | None = None
        if not self.is_single:
            acc = emit.scratch(self._blocks * plan.c_block * self.acc_pitch, self.dtype)
            for _, start in self._parallel_blocks(part):
                self._clear(acc, start, 1)
        for numbers in emit.grid(*self._extents()):
            pass_ = self._pass(rows, acc, group, numbers)
            extents = (self.vectors, *block[:3])
            count = emit.opaque_value(self.vectors * prod(block[:3]))
            with emit.tasks(count, plan.parallel) as task:
                self._combine_outputs(pass_, *map(emit.let, emit.unravel(task, extents)))
            for first_c, start in self._parallel_blocks(part):
                self._task(pass_, first_c, start)
        if acc is not None:
            for first_c, start in self._parallel_blocks(part):
                self._write(acc, group, first_c, start)

    def _pass(self, rows: Array, acc: Array | None, group: Expr, numbers: Sequence[Expr]) -> _Pass:
        """Return the pass over the phase and the block of tiles with these numbers."""
        first = [n * b for n, b in zip(numbers[3:], self.tiles.block)]
        return _Pass(rows, acc, group, TilePhase(self.filters, numbers[:3]), first)

    def _shared_part(self, group: Expr, part: Expr) -> None:
        """Compute one part with phases and blocks of tiles divided among the threads."""
        plan = self.plan
        size = self._blocks * plan.c_block * self.acc_pitch
        acc = emit.scratch(plan.position_splits * size, self.dtype)
        extents = self._extents()
        passes = emit.opaque_value(prod(extents))
        with emit.tasks(plan.position_splits, plan.parallel) as share:
            first, rows = emit.let(share * size), self._rows()
            self._clear(acc, first, self._blocks)
            for number in emit.share_of(passes, plan.position_splits, share):
                numbers = [emit.let(i) for i in emit.unravel(number, extents)]
                pass_ = self._pass(rows, acc, group, numbers)
                for vector, *row in emit.grid(self.vectors, *self.tiles.block[:3]):
                    self._combine_outputs(pass_, vector, *row)
                for b in emit.loop(self._blocks):
                    for first_c, start in self._block(part, b):
                        self._task(pass_, first_c, emit.let(first + start))
        for first_c, start in self._parallel_blocks(part):
            for i in emit.loop(plan.c_block * self.acc_pitch):
                total = acc[start + i]
                for number in range(1, plan.position_splits):
                    total = total + acc[start + (number * size) + i]
                emit.store(acc, start + i, total)
            self._write(acc, group, first_c, start)

    # ------------------------------------------------------------ outputs

    def _combine_outputs(self, pass_: _Pass, vector: Expr, *numbers: Expr) -> None:
        """Write rows[point][tile of vectors][tile][lanes] of one row of tiles and one vector."""
        lanes, block, tile = self.plan.lanes, self.tiles.block, self.plan.tile
        line = block[3] * tile[2]
        longest = line if self.problem.is_static else self.room * tile[2]
        transposed = emit.scratch(tile[0] * tile[1] * longest * lanes, self.dtype)
        self._transpose_outputs(pass_, vector, numbers, transposed)
        vectors = [self._tile_of(v) for v in range(self.vectors)]
        start_of, count_of, number_of = (emit.table([v[i] for v in vectors]) for i in range(3))
        into = emit.let(start_of(vector) * (self.room * lanes) + number_of(vector) * lanes)
        step = emit.let(count_of(vector) * lanes)
        flat = emit.let(((numbers[0] * block[1] + numbers[1]) * block[2] + numbers[2]) * block[3])
        for q in emit.loop(block[3]):
            values = {}
            for e in product(*map(range, tile)):
                position = (e[0] * tile[1] + e[1]) * line + q * tile[2] + e[2]
                values[e] = emit.let(transposed[emit.lanes_of(position * lanes, lanes)])
            for axis, f in enumerate(self.filters):
                of_point = [
                    [(e, c) for e, output in enumerate(f.outputs) for p, c in output if p == point]
                    for point in range(len(f.points))
                ]
                values = transformed_along(values, axis, of_point, self.dtype, lanes)
            for number, point in enumerate(self.points):
                row = into + number * (self.room * self.row) + (flat + q) * step
                emit.store(pass_.rows, emit.lanes_of(row, lanes), values[point])

    def _transpose_outputs(
        self, pass_: _Pass, vector: Expr, numbers: Sequence[Expr], transposed: Array
    ) -> None:
        """Write transposed[depth in the tile][height in the tile][position of the row][lanes]."""
        problem, lanes, tile, first = self.problem, self.plan.lanes, self.plan.tile, pass_.first
        channels, sizes = problem.geometry.k_per_group, problem.y_sizes
        line = self.tiles.block[3] * tile[2]
        zeros = emit.broadcast(emit.constant(0, self.dtype), lanes)
        steps = [f.out_step for f in self.filters]
        offsets = [
            emit.table([offset for offset, _, _ in f.phases])(number)
            for f, number in zip(*pass_.phase)
        ]
        image = emit.let(first[0] + numbers[0])
        # Of the row's positions of this phase, how many exist.
        start = emit.let(first[3] * tile[2])
        existing = emit.quotient(sizes[3] - offsets[2] + (steps[2] - 1), steps[2])
        positions = emit.let(emit.least(emit.most(existing - start, 0), line))
        first_k = emit.let(vector * lanes)
        count = emit.clamped_extent(first_k, channels, lanes)
        for e in emit.grid(*tile[:2]):
            depth, height = (
                emit.let(
                    ((first[axis + 1] + numbers[axis + 1]) * tile[axis] + e[axis]) * steps[axis]
                    + offsets[axis]
                )
                for axis in (0, 1)
            )
            into = (e[0] * tile[1] + e[1]) * line * lanes
            for u in emit.loop(line):
                emit.store(transposed, emit.lanes_of(into + u * lanes, lanes), zeros)
            inside = emit.both(image < sizes[0], depth < sizes[1], height < sizes[2])
            for _ in emit.only_if(inside):
                where = (image, depth, height, start * steps[2] + offsets[2])
                k = pass_.group * channels + first_k
                origin = emit.opaque_base(self.y.at("C" + DATA, k, *where))
                step = self.y.strides[DATA[-1]] * steps[2]
                runs = Runs(self.y, origin, step, count, positions, line, self.y.strides["C"])
                transpose(Pitched(transposed, into, lanes), runs, lanes)

    def _tile_of(self, vector: int) -> tuple[int, int, int]:
        """Return the first vector of the tile that holds it, their number, and which it is."""
        first = vector // self.plan.vectors * self.plan.vectors
        return first, min(self.plan.vectors, self.vectors - first), vector - first

    # ------------------------------------------------------------ products

    def _task(self, pass_: _Pass, first_c: Expr, start: Expr) -> None:
        """Add one block of tiles to the sums of one block of channels of x, from `start` on."""
        problem, plan = self.problem, self.plan
        count = emit.clamped_extent(first_c, problem.geometry.c_per_group, plan.c_block)
        inputs = emit.scratch(self.terms * plan.rows * plan.pitch, self.dtype)
        combined = WinogradInputs(
            problem, self.x, pass_.first, self.tiles.block, self.room, plan.pitch, plan.lanes
        )
        first_rows = [t * plan.rows for t in range(self.terms)]
        channels = combined.rows_into(inputs, first_rows, pass_.group, pass_.phase)
        for c in emit.loop(count):
            channels.combine(emit.let(first_c + c), c)
        if pass_.acc is not None:
            self._products(pass_.rows, inputs, pass_.acc, start, count)
        else:
            acc = emit.scratch(plan.c_block * self.acc_pitch, self.dtype)
            self._products(pass_.rows, inputs, acc, 0, count)
            self._write(acc, pass_.group, first_c, 0)

    def _products(self, rows: Array, inputs: Array, acc: Array, start: Expr, count: Expr) -> None:
        """Add to acc[channel of x][term][channel of y], from `start` on."""
        plan, lanes = self.plan, self.plan.lanes
        numbers = [
            [point for point, terms in enumerate(f.points) for _ in terms] for f in self.filters
        ]
        point_of = emit.table([self.points.index(at) for at in product(*numbers)])
        for term in emit.loop(self.terms):
            point = emit.let(point_of(term))
            for vector, vectors in emit.tiles(self.vectors, plan.vectors):
                for c, cs in emit.tiles_then_ones(count, plan.c_tile):
                    row = emit.let(point * (self.room * self.row) + vector * (self.room * lanes))
                    values = emit.let((term * plan.rows + c) * plan.pitch)
                    into = emit.let(start + c * self.acc_pitch + term * self.row + vector * lanes)
                    places = [into + o * self.acc_pitch for o in range(cs)]
                    tile = RegisterTile(acc, places, vectors, lanes)
                    self._add_products((inputs, values), (rows, row), tile)

    def _add_products(
        self, inputs: tuple[Array, Expr], rows: tuple[Array, Expr], tile: RegisterTile
    ) -> None:
        """Add the products of inputs and rows, which begin at these indices, over all tiles."""
        pitch = self.plan.pitch
        add_products(
            (self.tiles.number,),
            Matrix(inputs[0], lambda o, i: inputs[1] + o * pitch + i),
            Matrix(rows[0], lambda i: rows[1] + i * (tile.vectors * tile.lanes)),
            tile,
            fresh=self.is_single,
        )

    # ------------------------------------------------------------ weights

    def _write(self, acc: Array, group: Expr, first_c: Expr, start: Expr) -> None:
        """Combine the sums of terms to weights, and transpose them back, a vector at a time."""
        g, lanes = self.problem.geometry, self.plan.lanes
        count = emit.clamped_extent(first_c, g.c_per_group, self.plan.c_block)
        finite = NonFiniteCheck.emitted(self.dtype, lanes)
        transposed = emit.scratch(g.taps * lanes, self.dtype)
        depth = self.filters[0]
        axes = list(enumerate(self.filters))[1 if depth.is_direct else 0 :]
        term_numbers = list(product(*(range(len(f.terms)) for _, f in axes)))
        tap_numbers = list(product(*(range(g.kernel[axis]) for axis, _ in axes)))
        tap_of = emit.table([term.taps[0][0] for term in depth.terms])
        for c, v in emit.grid(count, self.vectors):
            first = emit.let(start + c * self.acc_pitch + v * lanes)
            for number in emit.loop(depth.loops):  # all terms, or those with this one along depth
                row = emit.let(first + number * (len(term_numbers) * self.row))
                values = {
                    at: emit.let(acc[emit.lanes_of(row + t * self.row, lanes)])
                    for t, at in enumerate(term_numbers)
                }
                for number_of_axis, (axis, f) in enumerate(axes):
                    of_tap = [
                        [(t, a) for t, term in enumerate(f.terms) for i, a in term.taps if i == tap]
                        for tap in range(g.kernel[axis])
                    ]
                    values = transformed_along(values, number_of_axis, of_tap, self.dtype, lanes)
                into = emit.let(tap_of(number) * len(tap_numbers)) if depth.is_direct else 0
                for tap, at in enumerate(tap_numbers):
                    emit.store(transposed, emit.lanes_of((into + tap) * lanes, lanes), values[at])
                    finite.show(values[at])
            first_k = emit.let(v * lanes)
            k_count = emit.clamped_extent(first_k, g.k_per_group, lanes)
            k = group * g.k_per_group + first_k
            column = Column(transposed, lanes, k_count)
            write_transposed(self.problem, self.out, column, k, first_c + c)
        finite.report(self.directly)
