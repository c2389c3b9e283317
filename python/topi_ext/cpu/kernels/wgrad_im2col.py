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

In the matrix product, M are channels of y, N channels of x and taps, K positions.  Left, `values`
``[position][channel of y]``, each broadcast; right, `columns` ``[position][channel of x][tap]``:
those of im2col.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from ...spec.conv import DATA, TAPS, Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.im2col import copy_column
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.pack_panel import Source
from ..parts.splits import Splits
from ..plan.wgrad_im2col import WgradIm2colPlan


def kernel_of(
    problem: Convolution, plan: WgradIm2colPlan, operands: Sequence[Operand]
) -> WgradIm2col:
    """Return the kernel with the arguments of the PrimFunc as `operands`."""
    return WgradIm2col(problem, plan, _Sizes.emitted(problem, plan), *operands)


class _Sizes(NamedTuple):
    """Sizes of a chunk of images; of symbolic sizes, where all are one chunk, known at run time.

    Attributes
    ----------
    axes : list
        Sizes of y along the four axes.
    positions : int or expression
        Positions of a chunk.
    """

    axes: Sequence[Expr]
    positions: Expr

    @classmethod
    def emitted(cls, problem: Convolution, plan: WgradIm2colPlan) -> _Sizes:
        """Return the sizes of a problem."""
        images = plan.images if problem.is_static else problem.n
        axes = [emit.opaque_value(size) for size in (images, *problem.geometry.y_size)]
        return cls(axes, emit.opaque_value(prod(axes)))


class _Share(NamedTuple):
    """The weights that a task computes.

    Attributes
    ----------
    splits : Splits
        Splits of the tiles of channels of y.
    split, group : Expr
    first_c, count : Expr
        The first channel of x, and how many.
    acc : Array
        Sums, or the result where they are written to it at once.
    """

    splits: Splits
    split: Expr
    group: Expr
    first_c: Expr
    count: Expr
    acc: Array


class _Tile(NamedTuple):
    """A tile of channels of y: the first in its group, and where the rows of sums begin."""

    first_k: Expr
    array: Array
    rows: Sequence[Expr]


class WgradIm2col:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Convolution,
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
        """Return whether there is room for all positions."""
        return self.sizes.positions <= self.plan.room

    def emit(self) -> None:
        """Emit the whole kernel."""
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
            acc: Array = self.out
            if not self.direct:
                tiles_held = splits.per_split if many else 1
                acc = emit.scratch(tiles_held * plan.k_tile * self.row, self.dtype)
            share = _Share(splits, split, group, first_c, count, acc)
            if many:
                for tile in self._tiles(share):
                    for row in tile.rows:
                        emit.fill(tile.array, row, self.row, emit.constant(0, self.dtype))
            for number in emit.loop(self.chunks):
                image = number * self.images
                self._spread(columns, image, group * geometry.c_per_group + first_c, count)
                for tile in self._tiles(share):
                    self._values(values, image, group, tile.first_k)
                    self._products(values, columns, tile, fresh=not many)
                    if not (many or self.direct):
                        self._write(share, tile)
            if many and not self.direct:
                for tile in self._tiles(share):
                    self._write(share, tile)

    def _tiles(self, share: _Share) -> Iterator[_Tile]:
        """Emit a loop over the tiles of channels of y that a task computes."""
        plan, many = self.plan, self.chunks > 1
        for number, i in share.splits.blocks_of(share.split):
            first_k = number * plan.k_tile
            if self.direct:
                k = share.group * self.problem.geometry.k_per_group + first_k
                rows = [self.out.at("OI", k + o, share.first_c) for o in range(plan.k_tile)]
            else:
                first = i * plan.k_tile if many else 0
                rows = [(first + o) * self.row for o in range(plan.k_tile)]
            yield _Tile(first_k, share.acc, rows)

    def _spread(self, columns: Array, image: Expr, channel: Expr, count: Expr) -> None:
        """Write columns[position][channel][taps]: x where the tap meets the position, or zero."""
        source = Source(self.x, channel, count, self.problem.x_sizes)
        # Columns that no weight reads are computed and dropped: they only have to be numbers.
        emit.fill(columns, 0, self.sizes.positions * self.row, emit.constant(0, self.dtype))
        for first, *others in emit.grid(*self.sizes.axes):
            index = first
            for number, size in zip(others, self.sizes.axes[1:]):
                index = index * size + number
            start = emit.opaque_base(index * self.row)
            position = image + first, *others
            copy_column(self.problem, source, columns, start, position, self.plan.lanes)

    def _values(self, values: Array, image: Expr, group: Expr, first_k: Expr) -> None:
        """Write values[position][k_tile] of y; channels beyond the last repeat it."""
        geometry, k_tile = self.problem.geometry, self.plan.k_tile
        for o, inner, *rest in emit.grid(k_tile, *self.sizes.axes):
            k = first_k + o
            if geometry.k_per_group % k_tile:
                k = emit.least(k, geometry.k_per_group - 1)
            index = inner
            for p, size in zip(rest, self.sizes.axes[1:]):
                index = index * size + p
            k = group * geometry.k_per_group + k
            source = self.y.at("C" + DATA, k, image + inner, *rest)
            emit.store(values, index * k_tile + o, self.y.load(source, self.dtype))

    def _products(self, values: Array, columns: Array, tile: _Tile, *, fresh: bool) -> None:
        """Compute tile[o][column] (+)= sum over positions of values * columns."""
        k_tile, lanes = self.plan.k_tile, self.plan.lanes
        for vector, vectors in emit.tiles(self.vectors, self.plan.vectors):
            start = vector * lanes
            add_products(
                (self.sizes.positions,),
                Matrix(values, lambda o, p: p * k_tile + o),
                Matrix(columns, lambda p, start=start: p * self.row + start),
                RegisterTile(tile.array, [row + start for row in tile.rows], vectors, lanes),
                fresh=fresh,
            )

    def _write(self, share: _Share, tile: _Tile) -> None:
        """Write the rows of one tile, in one run where weights lie in memory as the columns do."""
        geometry, first_c = self.problem.geometry, share.first_c
        k = share.group * geometry.k_per_group + tile.first_k
        present = geometry.k_per_group - tile.first_k
        is_whole = geometry.k_per_group % self.plan.k_tile == 0
        for o in emit.loop(self.plan.k_tile):
            source = tile.rows[0] + o * self.row
            for _ in emit.only_if(True if is_whole else o < present):
                if self.out.is_run("I" + TAPS):
                    for i in emit.loop(share.count * geometry.taps):
                        into = self.out.at("OI", k + o, first_c) + i
                        emit.store(self.out, into, tile.array.load(source + i, self.out.dtype))
                else:
                    for c, *taps in emit.grid(share.count, *geometry.kernel):
                        column = c
                        for r, size in zip(taps, geometry.kernel):
                            column = column * size + r
                        into = self.out.at("OI" + TAPS, k + o, first_c + c, *taps)
                        value = tile.array.load(source + column, self.out.dtype)
                        emit.store(self.out, into, value)
