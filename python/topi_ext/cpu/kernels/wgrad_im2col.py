# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_weight_grad`` for few positions: lanes run over the weights.

With few positions there is nothing to sum over and the weights are the work, so x is spread into
one row of columns (channel, tap) for each position, as the weights lie in memory::

    parallel (group, block of channels of x, split of the channels of y):
        for each chunk of `images` images:
            for each position: x at every tap of every channel of the block   -> columns
            for each tile of `k_tile` channels of y:
                pack their values, position by position                       -> values
                for each tile of `vectors` vectors of columns:
                    for each position:
                        accumulators[k_tile][vectors] += values * columns     -> acc
        write the rows of weights                                             -> out

Of the matrix product, M are channels of y, N channels of x and taps, K positions.  Left, `values`
``[position][channel of y]``, each broadcast; right, `columns` ``[position][channel of x][tap]``:
those of im2col.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from ...problem import DATA, TAPS, Problem
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.im2col import copy_column
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.pack_panel import Source
from ..parts.splits import Splits
from ..plan.wgrad_im2col import WgradIm2colPlan


def kernel_of(problem: Problem, plan: WgradIm2colPlan, operands: Sequence[Operand]) -> WgradIm2col:
    """The kernel with the arguments of the PrimFunc as `operands`."""
    return WgradIm2col(problem, plan, _Sizes.emitted(problem, plan), *operands)


class _Sizes(NamedTuple):
    """Sizes of a chunk of images; of symbolic sizes, where all are one chunk, known at run time.

    Attributes
    ----------
    axes : list
        Of y along the four axes.
    positions : int or expression
        Positions of a chunk.
    """

    axes: Sequence[Expr]
    positions: Expr

    @classmethod
    def emitted(cls, problem: Problem, plan: WgradIm2colPlan) -> _Sizes:
        """Those of a problem."""
        images = plan.images if problem.is_static else problem.n
        axes = [emit.opaque_value(size) for size in (images, *problem.geometry.y_size)]
        return cls(axes, emit.opaque_value(prod(axes)))


class WgradIm2col:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Problem,
        plan: WgradIm2colPlan,
        sizes: _Sizes,
        x: Operand,
        y: Operand,
        out: Operand,
    ):
        self.problem, self.plan, self.sizes = problem, plan, sizes
        self.x, self.y, self.out = x, y, out
        self.dtype = problem.acc_dtype
        # Of symbolic sizes all images are one chunk.
        self.images, self.chunks = problem.n, 1
        if problem.is_static:
            self.images, self.chunks = plan.images, problem.n // plan.images
        self.room = sizes.positions if problem.is_static else plan.room
        self.vectors = plan.row_vectors(problem.geometry)
        self.row = self.vectors * plan.lanes
        # Whole tiles whose rows lie in memory as the columns do need no intermediate copy.
        self.direct = (
            out.is_run("I" + TAPS) and out.dtype == self.dtype and plan.is_whole(problem.geometry)
        )

    def fits(self) -> Expr:
        """Whether there is room for all positions."""
        return self.sizes.positions <= self.plan.room

    def emit(self) -> None:
        """The whole kernel."""
        geometry, plan = self.problem.geometry, self.plan
        blocks = -(-geometry.c_per_group // plan.c_block)
        tiles = -(-geometry.k_per_group // plan.k_tile)
        splits = Splits(tiles, plan.channel_splits, -(-tiles // plan.channel_splits))
        extents = (geometry.groups, blocks, plan.channel_splits)
        many = self.chunks > 1
        with emit.tasks(prod(extents), plan.parallel) as task:
            group, block, split = map(emit.let, emit.unravel(task, extents))
            first_c = block * plan.c_block
            count = emit.clamped_extent(first_c, geometry.c_per_group, plan.c_block)
            columns = emit.scratch(self.room * self.row, self.dtype)
            values = emit.scratch(self.room * plan.k_tile, self.dtype)
            if not self.direct:
                tiles_held = splits.per_split if many else 1
                acc = emit.scratch(tiles_held * plan.k_tile * self.row, self.dtype)

            def over_tiles(step: Callable[[Expr, Expr], None]) -> None:
                """``step(number in the split, first channel of y in its group)``."""
                splits.over_blocks(split, lambda number, i: step(i, number * plan.k_tile))

            def rows_of(i: Expr, first_k: Expr) -> tuple[Array, list[Expr]]:
                if self.direct:
                    k = group * geometry.k_per_group + first_k
                    return self.out, [self.out.at("OI", k + o, first_c) for o in range(plan.k_tile)]
                first = i * plan.k_tile if many else 0
                return acc, [(first + o) * self.row for o in range(plan.k_tile)]

            def clear(i: Expr, first_k: Expr) -> None:
                into, rows = rows_of(i, first_k)
                for row in rows:
                    emit.fill(into, row, self.row, emit.constant(0, self.dtype))

            def write(i: Expr, first_k: Expr) -> None:
                k, present = group * geometry.k_per_group + first_k, geometry.k_per_group - first_k
                self._write(acc, rows_of(i, first_k)[1][0], k, present, first_c, count)

            def chunk(number: Expr) -> None:
                image = number * self.images
                self._spread(columns, image, group * geometry.c_per_group + first_c, count)

                def tile(i: Expr, first_k: Expr) -> None:
                    self._values(values, image, group, first_k)
                    self._products(values, columns, *rows_of(i, first_k), fresh=not many)
                    if not (many or self.direct):
                        write(i, first_k)

                over_tiles(tile)

            if many:
                over_tiles(clear)
            emit.loop(self.chunks, chunk)
            if many and not self.direct:
                over_tiles(write)

    def _spread(self, columns: Array, image: Expr, channel: Expr, count: Expr) -> None:
        """columns[position][channel][taps]: x where the tap meets the position, or zero."""
        source = Source(self.x, channel, count, self.problem.x_sizes)

        def one(*numbers: Expr) -> None:
            index: Expr = 0
            for number, size in zip(numbers, self.sizes.axes):
                index = index * size + number
            first, *others = numbers
            at = emit.opaque_base(index * self.row)
            position = image + first, *others
            copy_column(self.problem, source, columns, at, position, self.plan.lanes)

        # Columns that no weight reads are computed and dropped: they only have to be numbers.
        emit.fill(columns, 0, self.sizes.positions * self.row, emit.constant(0, self.dtype))
        emit.nest(self.sizes.axes, one)

    def _values(self, values: Array, image: Expr, group: Expr, first_k: Expr) -> None:
        """values[position][k_tile] of y; channels beyond the last repeat it."""
        geometry, k_tile = self.problem.geometry, self.plan.k_tile

        def element(o: Expr, inner: Expr, *rest: Expr) -> None:
            k = first_k + o
            if geometry.k_per_group % k_tile:
                k = emit.least(k, geometry.k_per_group - 1)
            index = inner
            for p, size in zip(rest, self.sizes.axes[1:]):
                index = index * size + p
            k = group * geometry.k_per_group + k
            source = self.y.at("C" + DATA, k, image + inner, *rest)
            emit.store(values, index * k_tile + o, self.y.load(source, self.dtype))

        emit.nest((k_tile, *self.sizes.axes), element)

    def _products(
        self, values: Array, columns: Array, into: Array, rows: Sequence[Expr], *, fresh: bool
    ) -> None:
        """into[rows[o]][column] (+)= sum over positions of values * columns."""
        plan = self.plan
        lanes = plan.lanes

        def tile(vector: Expr, vectors: int) -> None:
            start = vector * lanes
            places = [row + start for row in rows]
            add_products(
                (self.sizes.positions,),
                Matrix(values, lambda o, p: p * plan.k_tile + o),
                Matrix(columns, lambda p: p * self.row + start),
                RegisterTile(into, places, vectors, lanes),
                fresh=fresh,
            )

        emit.tiles(self.vectors, plan.vectors, tile)

    def _write(
        self, acc: Array, place: Expr, k: Expr, present: Expr, first_c: Expr, count: Expr
    ) -> None:
        """The rows of one tile, in one run where the weights lie in memory as the columns do."""
        geometry = self.problem.geometry

        def row(o: Expr) -> None:
            def element(c: Expr, *taps: Expr) -> None:
                column = c
                for r, size in zip(taps, geometry.kernel):
                    column = column * size + r
                into = self.out.at("OI" + TAPS, k + o, first_c + c, *taps)
                emit.store(self.out, into, acc.load(place + o * self.row + column, self.out.dtype))

            def run(i: Expr) -> None:
                into = self.out.at("OI", k + o, first_c) + i
                emit.store(self.out, into, acc.load(place + o * self.row + i, self.out.dtype))

            if self.out.is_run("I" + TAPS):
                emit.loop(count * geometry.taps, run)
            else:
                emit.nest((count, *geometry.kernel), element)

        whole = geometry.k_per_group % self.plan.k_tile == 0
        emit.loop(
            self.plan.k_tile, lambda o: emit.when(True if whole else o < present, lambda: row(o))
        )
