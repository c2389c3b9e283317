# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_transpose`` for small images: a matrix product, then a scatter of its rows.

With few positions, vectors of positions would be mostly padding and packed weights would be read
about once.  So lanes run over the weights as they lie in memory, and each position gives one row
of columns (channel, tap), which are added up where they overlap::

    parallel (block of images, group, block of channels of x):
        for each K-block of `k_block` channels of y:
            copy a row of weights (channel of x, tap) for each              -> weights
            for each tile of `m_tile` positions:
                pack their values, channel by channel                       -> values
            for each tile of `vectors` vectors, each tile of positions:
                for each channel of y:
                    prefetch weights of the next K-block
                    accumulators[m_tile][vectors] += values * weights       -> columns
        for each image, each channel of x:
            for each position, each tap: image += column    (one position's may be the image)
            cut the padding off                                             -> out

In the matrix product, M are positions, N channels of x and taps, K channels of y.  Left, `values`
``[tile of positions][channel of y][position]``, each broadcast; right, `weights` ``[tile of
vectors][channel of y][lanes]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

from ...spec.conv import DATA, TAPS, Convolution
from ...spec.dtypes import byte_width
from .. import emit
from ..emit import Array, Expr, Operand
from ..machine import CACHE_LINE
from ..parts.copies import copy
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.output_rows import Result, Rows
from ..plan.gemm_col2im import GemmCol2imPlan


def kernel_of(
    problem: Convolution, plan: GemmCol2imPlan, operands: Sequence[Operand]
) -> GemmCol2im:
    """Return the emitter of the kernel, with the arguments of the PrimFunc as `operands`."""
    y, weight, *extra, out = operands
    sizes = _Sizes.emitted(problem, plan)
    return GemmCol2im(problem, plan, sizes, y, weight, Result(problem, out, extra))


class _Sizes(NamedTuple):
    """Sizes of an image; of symbolic sizes known at run time.

    Attributes
    ----------
    y : list
        Sizes of y along depth, height and width, at least 1 so that they can be divided by.
    positions : int or expression
        Positions of y.
    extent : list
        Sizes of x with its padding.
    elements : int or expression
        Elements of a channel of x with its padding.
    """

    y: Sequence[Expr]
    positions: Expr
    extent: Sequence[Expr]
    elements: Expr

    @classmethod
    def emitted(cls, problem: Convolution, plan: GemmCol2imPlan) -> _Sizes:
        """Return the sizes of a problem."""
        geometry = problem.geometry
        y = [emit.opaque_value(emit.most(size, 1)) for size in geometry.y_size]
        positions = emit.opaque_value(prod(y))
        extent = [emit.opaque_value(e) for e in plan.extents(geometry, emit.most)]
        return cls(y, positions, extent, emit.opaque_value(prod(extent)))


class _Task(NamedTuple):
    """One task, and its arrays.

    Attributes
    ----------
    image, images : Expr
        The first of its images, and how many.
    positions : Expr
        Positions of all of them.
    weights, values, columns : Array
    """

    image: Expr
    images: Expr
    positions: Expr
    weights: Array
    values: Array
    columns: Array


class GemmCol2im:
    """The emitter of one kernel."""

    def __init__(
        self,
        problem: Convolution,
        plan: GemmCol2imPlan,
        sizes: _Sizes,
        y: Operand,
        weight: Operand,
        result: Result,
    ):
        self.problem, self.plan, self.sizes = problem, plan, sizes
        self.y, self.weight, self.rows = y, weight, Rows(result)
        self.dtype = problem.acc_dtype
        geometry = problem.geometry
        self.vectors = plan.row_vectors(geometry)
        self.row, self.pitch = self.vectors * plan.lanes, plan.pitch(geometry)
        self.is_run = problem.weights_are_runs
        # Negative padding in front moves the image away from the edge of its scratch.
        self.shift = [max(0, -pad) for pad in geometry.pad_before]

    def fits(self) -> Expr:
        """Return whether there is room for an image."""
        sizes = self.sizes
        return emit.both(sizes.positions <= self.plan.positions, sizes.elements <= self.plan.held)

    def emit(self) -> None:
        """Emit the whole kernel."""
        problem, geometry, plan = self.problem, self.problem.geometry, self.plan
        blocks = -(-geometry.c_per_group // plan.c_block)
        images = self._images_of_task()
        extents = (emit.ceil_div(problem.n, images), geometry.groups, blocks)
        with emit.tasks(prod(extents), plan.parallel) as task:
            number_of = emit.let if problem.is_static else emit.opaque_value
            number, group, block = map(number_of, emit.unravel(task, extents))
            image = number * images
            present = images
            if not problem.is_static:
                present = emit.opaque_value(emit.least(images, problem.n - image))
            positions = emit.opaque_value(present * self.sizes.positions)
            room = -(-plan.positions // plan.m_tile) * plan.m_tile
            first_c = block * plan.c_block
            count = emit.clamped_extent(first_c, geometry.c_per_group, plan.c_block)
            weights = emit.scratch(plan.k_block * self.row, self.dtype)
            values = emit.scratch(room * plan.k_block, self.dtype)
            columns = emit.scratch(room * self.pitch, self.dtype)
            # Sums of lanes after the last weight are dropped, but the lanes must be finite.
            zero = emit.constant(0, self.dtype)
            emit.fill(weights, 0, plan.k_block * self.row, zero)
            images_of_task = _Task(image, present, positions, weights, values, columns)
            self._columns(images_of_task, group, first_c, count)
            self._col2im(images_of_task, group * geometry.c_per_group + first_c, count)

    def _images_of_task(self) -> Expr:
        """Return as many images as there is room for, so that tasks have equally many."""
        n, plan = self.problem.n, self.plan
        if self.problem.is_static:
            return plan.images
        most = emit.opaque_value(emit.quotient(plan.positions, self.sizes.positions))
        tasks = emit.opaque_value(emit.ceil_div(emit.most(n, 1), most))
        return emit.opaque_value(emit.ceil_div(emit.most(n, 1), tasks))

    def _columns(self, task: _Task, group: Expr, first_c: Expr, count: Expr) -> None:
        """columns[position][channel of x, tap] of `count` channels of x, one K-block of the
        channels of y after the other."""
        geometry, plan = self.problem.geometry, self.plan
        full, rest = divmod(geometry.k_per_group, plan.k_block)
        first_k = group * geometry.k_per_group
        for number, depth, fresh in _k_blocks(full, rest, plan.k_block):
            first = first_k + number * plan.k_block
            self._copy_weights(task, (first, depth), (first_c, count))
            self._pack_values(task, first, depth)
            following = emit.least(first + depth, first_k + (geometry.k_per_group - depth))
            next_weights = emit.let(self.weight.at("OI", following, first_c))
            self._products(task, depth, next_weights, fresh)

    # ------------------------------------------------------------ operands

    def _copy_weights(self, task: _Task, of_y: tuple[Expr, int], of_x: tuple[Expr, Expr]) -> None:
        """Copy weights[tile of vectors][channel of y][lanes], in their order in memory; `of_y` and
        `of_x` are the first channel and how many."""
        (first_k, depth), (first_c, count) = of_y, of_x
        geometry, lanes = self.problem.geometry, self.plan.lanes
        whole = geometry.c_per_group % self.plan.c_block == 0
        line = self.weight if self.is_run else emit.scratch(self.row, self.dtype)
        for k in emit.loop(depth):
            if self.is_run:
                start = emit.opaque_base(self.weight.at("OI", first_k + k, first_c))
            else:
                start = 0
                for c, *taps in emit.grid(count, *geometry.kernel):
                    column = c
                    for r, size in zip(taps, geometry.kernel):
                        column = column * size + r
                    index = self.weight.at("OI" + TAPS, first_k + k, first_c + c, *taps)
                    emit.store(line, column, self.weight.load(index, self.dtype))
            for first, vectors in emit.tiles(self.vectors, self.plan.vectors):
                into = emit.opaque_base((first * depth + k * vectors) * lanes)
                present: Expr = vectors * lanes
                if not (whole and self.plan.c_block * geometry.taps == self.row):
                    left = count * geometry.taps - first * lanes
                    present = emit.least(present, emit.most(left, 0))
                copy(task.weights, into, line, start + first * lanes, present, lanes)

    def _pack_values(self, task: _Task, first_k: Expr, depth: int) -> None:
        """Pack values[tile of positions][channel of y][position]; behind the last position, the
        last again.

        Channels are the outer loop.  The positions of a channel are neighbours in memory, or near;
        those of the next channel may be so far away that few of them stay in the first cache.
        """
        step, tile = self.y.strides["C"], self.plan.m_tile
        if not self._has_neighbours(task):
            for first, size in emit.tiles_or_ones(task.positions, tile):
                self._pack_positions(task, first_k, depth, first, size)
            return
        whole = task.positions // tile
        for i in emit.loop(whole):
            first = i * tile
            source = emit.opaque_base(self._position_at(task, first_k, first))
            into = emit.opaque_base(first * depth)
            for k, o in emit.grid(depth, tile):
                value = self.y.load(source + (k * step + o), self.dtype)
                emit.store(task.values, into + (k * tile + o), value)
        if task.positions % tile:
            self._pack_positions(task, first_k, depth, whole * tile, tile)

    def _pack_positions(
        self, task: _Task, first_k: Expr, depth: int, first: Expr, size: int
    ) -> None:
        """Pack the values of a tile of `size` positions that may be anywhere in memory."""
        numbers = [first + o for o in range(size)]
        if self.problem.is_static and task.positions % size:
            numbers = [emit.least(number, task.positions - 1) for number in numbers]
        sources = [self._position_at(task, first_k, number) for number in numbers]
        for k in emit.loop(depth):
            for o, source in enumerate(sources):
                value = self.y.load(source + k * self.y.strides["C"], self.dtype)
                emit.store(task.values, first * depth + (k * size + o), value)

    def _position_at(self, task: _Task, channel: Expr, number: Expr) -> Expr:
        """Return where in y the position of this number of a task is."""
        inner, *rest = emit.unravel(emit.let(number), (task.images, *self.sizes.y))
        return emit.let(self.y.at("C" + DATA, channel, task.image + inner, *rest))

    def _has_neighbours(self, task: _Task) -> bool:
        """Return whether the positions of a whole tile are known to be neighbours in memory."""
        if not self.problem.is_static or not self.y.is_run(DATA[1:]):
            return False
        return bool(task.images == 1 or self.sizes.positions % self.plan.m_tile == 0)

    # ------------------------------------------------------------ arithmetic

    def _products(self, task: _Task, depth: int, next_weights: Expr, fresh: bool) -> None:
        """columns[position][channel of x, tap] (+)= sum over channels of y of values * weights.

        The weights of the next K-block begin at `next_weights`.
        """
        lanes = self.plan.lanes
        lines = self.plan.ahead if self.is_run else 0
        line = CACHE_LINE // byte_width(self.weight.dtype)

        def prefetch(first: Expr, position: Expr, k: Expr) -> None:
            """Prefetch the cache lines of the next weights that belong to a tile of positions;
            tiles behind the last line prefetch for the next vectors."""
            first_line = emit.quotient(position, self.plan.m_tile) * lines
            start = next_weights + k * self.weight.strides["O"] + first * lanes
            for i in range(lines):
                emit.prefetch(self.weight, start + (first_line + i) * line)

        for first, vectors in emit.tiles(self.vectors, self.plan.vectors):
            for position, size in emit.tiles_or_ones(task.positions, self.plan.m_tile):
                start = position * self.pitch + first * lanes
                offsets = [start + o * self.pitch for o in range(size)]
                add_products(
                    (depth,),
                    Matrix(task.values, partial(_value_at, position * depth, size)),
                    Matrix(task.weights, partial(_weights_at, first * depth, vectors, lanes)),
                    RegisterTile(task.columns, offsets, vectors, lanes),
                    fresh=fresh,
                    # For single positions the test would take longer than the products.
                    prefetch=partial(prefetch, first, position) if lines and size > 1 else None,
                )

    def _col2im(self, task: _Task, channel: Expr, count: Expr) -> None:
        """Add up the columns of `count` channels where they overlap, and cut the padding off."""
        is_image = self._columns_are_images()
        image = task.columns if is_image is True else emit.scratch(self.plan.held, self.dtype)
        for inner, c in emit.grid(task.images, count):
            columns = inner * self.pitch + c * self.problem.geometry.taps
            number = task.image + inner
            for columns_are_image in emit.sides(is_image):
                if columns_are_image:
                    self._write(task.columns, columns, channel + c, number)
                else:
                    self._add_up(task, image, inner, c)
                    self._write(image, 0, channel + c, number)

    def _add_up(self, task: _Task, image: Array, inner: Expr, c: Expr) -> None:
        """Sum image[depth][height][width] of one channel, padding included."""
        geometry, sizes = self.problem.geometry, self.sizes
        emit.fill(image, 0, sizes.elements, emit.constant(0, self.dtype))
        for position in emit.grid(*sizes.y):
            steps = zip(position, geometry.stride, self.shift)
            corner = emit.opaque_base(_flat([p * s + shift for p, s, shift in steps], sizes.extent))
            row = inner * sizes.positions + _flat(position, sizes.y)
            columns = emit.opaque_base(row * self.pitch + c * geometry.taps)
            for r in emit.grid(*geometry.kernel):
                reach = [i * dilation for i, dilation in zip(r, geometry.dilation)]
                into = corner + _flat(reach, sizes.extent)
                column = task.columns[columns + _flat(r, geometry.kernel)]
                emit.store(image, into, image[into] + column)

    def _write(self, image: Array, first: Expr, channel: Expr, number: Expr) -> None:
        """Write the image of a channel, from ``image[first]`` on, to image `number` of x."""
        sizes, axes = self.problem.x_sizes[1:], self._run_axes()
        for outer in emit.grid(*sizes[:-axes]):
            where = [*outer, *[0] * axes]
            before = zip(where, self.problem.geometry.pad_before, self.shift)
            corner = _flat([i + p + s for i, p, s in before], self.sizes.extent)
            source = emit.opaque_base(first + corner)
            row = self.rows.row(channel, (number, *where))
            for i in emit.loop(prod(sizes[-axes:])):
                row.put(i, image[source + i])

    def _columns_are_images(self) -> Expr:
        """Return whether images of y have one position, whose columns are an image of x.

        With more positions the code would be larger than a kernel.
        """
        if self.problem.is_static:
            return self.plan.held == 0
        geometry = self.problem.geometry
        same = [e <= taps for e, taps in zip(self.sizes.extent, geometry.kernel)]
        return emit.both(prod(geometry.y_size) > 0, *same)

    def _run_axes(self) -> int:
        """Return how many of the last axes of an image are one run, here and in the result: at
        least its rows, or more where they have no padding to cut off."""
        sizes, out = self.problem.x_sizes[1:], self.rows.result.out
        axes, is_known = 1, self.problem.is_static
        varies = {letter for step in self.problem.epilogue for letter in step.varies}
        while is_known and axes < len(sizes) and self.sizes.extent[-axes:] == list(sizes[-axes:]):
            letters = DATA[-axes - 1 :]
            if varies & set(letters) or not out.is_run(letters):
                break
            axes += 1
        return axes


def _flat(where: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """Return the number of an element of an array of these sizes."""
    index: Expr = 0
    for i, size in zip(where, sizes):
        index = index * size + i
    return index


def _k_blocks(full: int, rest: int, size: int) -> Iterator[tuple[Expr, int, bool]]:
    """Emit ``for number, depth, fresh in _k_blocks(full, rest, size)``: the first K-block, which
    starts the sums, a loop over the other full ones, and the last one, of `rest` channels."""
    yield 0, size if full else rest, True
    for i in emit.loop(full - 1):
        yield i + 1, size, False
    if full and rest:
        yield full, rest, False


def _value_at(start: Expr, size: int, o: int, k: Expr) -> Expr:
    """Return the index of a value of a tile of `size` positions."""
    return start + k * size + o


def _weights_at(start: Expr, vectors: int, lanes: int, k: Expr) -> Expr:
    """Return the index of the row of weights of a tile of vectors."""
    return (start + k * vectors) * lanes
