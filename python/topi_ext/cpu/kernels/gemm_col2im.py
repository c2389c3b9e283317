# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_transpose`` for small images: a matrix product, then a scatter of its rows.

With few positions, vectors of positions would be mostly padding and packed weights would be read
about once.  So lanes run over the weights as they lie in memory, and each position gives one row
of columns (channel, tap), which are added up where they overlap::

    parallel (block of images, group, block of channels of x):
        for each chunk of `k_block` channels of y:
            copy a row of weights (channel of x, tap) for each              -> weights
            for each tile of `m_tile` positions:
                pack their values, channel by channel                       -> values
            for each tile of `vectors` vectors, each tile of positions:
                for each channel of y:
                    prefetch weights of the next chunk
                    accumulators[m_tile][vectors] += values * weights       -> columns
        for each image, each channel of x:
            for each position, each tap: image += column    (one position's may be the image)
            cut the padding off                                             -> out

Of the matrix product, M are positions, N channels of x and taps, K channels of y.  Left, `values`
``[tile of positions][channel of y][position]``, each broadcast; right, `weights` ``[tile of
vectors][channel of y][lanes]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

from ...dtypes import byte_width
from ...problem import DATA, TAPS, Problem
from .. import emit
from ..emit import Array, Expr, Operand
from ..machine import CACHE_LINE
from ..parts.copies import copy
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.output_rows import Result, Rows
from ..plan.gemm_col2im import Col2imPlan


def kernel_of(problem: Problem, plan: Col2imPlan, operands: Sequence[Operand]) -> GemmCol2im:
    """The kernel with the arguments of the PrimFunc as `operands`."""
    y, weight, *extra, out = operands
    sizes = _Sizes.emitted(problem, plan)
    return GemmCol2im(problem, plan, sizes, y, weight, Result(problem, out, extra))


class _Sizes(NamedTuple):
    """Sizes of an image; of symbolic sizes known at run time.

    Attributes
    ----------
    y : list
        Of y along depth, height and width, at least 1: nothing is divided by zero.
    positions : int or expression
        Its positions.
    extent : list
        Of x with its padding.
    elements : int or expression
        Of x with its padding, for one channel.
    """

    y: Sequence[Expr]
    positions: Expr
    extent: Sequence[Expr]
    elements: Expr

    @classmethod
    def emitted(cls, problem: Problem, plan: Col2imPlan) -> _Sizes:
        """Those of a problem."""
        geometry = problem.geometry
        y = [emit.opaque_value(emit.most(size, 1)) for size in geometry.y_size]
        positions = emit.opaque_value(prod(y))
        extent = [emit.opaque_value(e) for e in plan.extents(geometry, emit.most)]
        return cls(y, positions, extent, emit.opaque_value(prod(extent)))


class _Task(NamedTuple):
    """One task, and what it holds.

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
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Problem,
        plan: Col2imPlan,
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
        """Whether there is room for an image."""
        sizes = self.sizes
        return emit.both(sizes.positions <= self.plan.positions, sizes.elements <= self.plan.held)

    def emit(self) -> None:
        """The whole kernel."""
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
            # Lanes beyond the last weight are computed and dropped: they only have to be numbers.
            zero = emit.constant(0, self.dtype)
            emit.fill(weights, 0, plan.k_block * self.row, zero)
            one = _Task(image, present, positions, weights, values, columns)
            self._columns(one, group, first_c, count)
            self._col2im(one, group * geometry.c_per_group + first_c, count)

    def _images_of_task(self) -> Expr:
        """As many images as there is room for, in equal parts."""
        n, plan = self.problem.n, self.plan
        if self.problem.is_static:
            return plan.images
        most = emit.opaque_value(emit.quotient(plan.positions, self.sizes.positions))
        parts = emit.opaque_value(emit.ceil_div(emit.most(n, 1), most))
        return emit.opaque_value(emit.ceil_div(emit.most(n, 1), parts))

    def _columns(self, task: _Task, group: Expr, first_c: Expr, count: Expr) -> None:
        """columns[position][channel of x, tap] of `count` channels of x, chunk by chunk of those of
        y."""
        geometry, plan = self.problem.geometry, self.plan
        full, rest = divmod(geometry.k_per_group, plan.k_block)
        first_k = group * geometry.k_per_group

        def chunk(number: Expr, depth: int, *, fresh: bool) -> None:
            first = first_k + number * plan.k_block
            self._copy_weights(task, (first, depth), (first_c, count))
            self._pack_values(task, first, depth)
            following = emit.least(first + depth, first_k + (geometry.k_per_group - depth))
            place = emit.let(self.weight.at("OI", following, first_c))
            self._products(task, depth, place, fresh)

        # The first chunk starts the sums, the others go on.
        chunk(0, plan.k_block if full else rest, fresh=True)
        emit.loop(full - 1, lambda i: chunk(i + 1, plan.k_block, fresh=False))
        if full and rest:
            chunk(full, rest, fresh=False)

    # ------------------------------------------------------------ operands

    def _copy_weights(self, task: _Task, of_y: tuple[Expr, int], of_x: tuple[Expr, Expr]) -> None:
        """weights[tile of vectors][channel of y][lanes], in their order in memory; of channels of y
        and of x, each the first and how many."""
        (first_k, depth), (first_c, count) = of_y, of_x
        geometry, lanes = self.problem.geometry, self.plan.lanes
        whole = geometry.c_per_group % self.plan.c_block == 0
        line = self.weight if self.is_run else emit.scratch(self.row, self.dtype)

        def weights_of(k: Expr) -> None:
            if self.is_run:
                start = emit.opaque_base(self.weight.at("OI", first_k + k, first_c))
            else:
                start = 0
                emit.nest(
                    (count, *geometry.kernel), lambda c, *taps: gathered(first_k + k, c, *taps)
                )

            def tile(first: Expr, vectors: int) -> None:
                into = emit.opaque_base((first * depth + k * vectors) * lanes)
                present: Expr = vectors * lanes
                if not (whole and self.plan.c_block * geometry.taps == self.row):
                    left = count * geometry.taps - first * lanes
                    present = emit.least(present, emit.most(left, 0))
                copy(task.weights, into, line, start + first * lanes, present, lanes)

            emit.tiles(self.vectors, self.plan.vectors, tile)

        def gathered(k: Expr, c: Expr, *taps: Expr) -> None:
            column = c
            for r, size in zip(taps, geometry.kernel):
                column = column * size + r
            value = self.weight.load(self.weight.at("OI" + TAPS, k, first_c + c, *taps), self.dtype)
            emit.store(line, column, value)

        emit.loop(depth, weights_of)

    def _pack_values(self, task: _Task, first_k: Expr, depth: int) -> None:
        """values[tile of positions][channel of y][position]; beyond the last, the last again.

        Channel by channel: positions are neighbours in memory, or near; a channel's may be so far
        from the next one's that few of them stay in the first cache.
        """
        step, tile = self.y.strides["C"], self.plan.m_tile

        def place(number: Expr) -> Expr:
            inner, *rest = emit.unravel(emit.let(number), (task.images, *self.sizes.y))
            return emit.let(self.y.at("C" + DATA, first_k, task.image + inner, *rest))

        def put(into: Expr, source: Expr) -> None:
            emit.store(task.values, into, self.y.load(source, self.dtype))

        def neighbours(first: Expr) -> None:
            source, into = emit.opaque_base(place(first)), emit.opaque_base(first * depth)
            emit.nest(
                (depth, tile), lambda k, o: put(into + (k * tile + o), source + (k * step + o))
            )

        def any_positions(first: Expr, size: int) -> None:
            numbers = [first + o for o in range(size)]
            if self.problem.is_static and task.positions % size:
                numbers = [emit.least(number, task.positions - 1) for number in numbers]
            sources = [place(number) for number in numbers]

            def channel(k: Expr) -> None:
                for o, source in enumerate(sources):
                    put(first * depth + (k * size + o), source + k * step)

            emit.loop(depth, channel)

        if not self._has_neighbours(task):
            emit.tiles_or_ones(task.positions, tile, any_positions)
            return
        whole = task.positions // tile
        emit.loop(whole, lambda i: neighbours(i * tile))
        if task.positions % tile:
            any_positions(whole * tile, tile)

    def _has_neighbours(self, task: _Task) -> bool:
        """Whether the positions of a whole tile are known to be neighbours in memory."""
        if not self.problem.is_static or not self.y.is_run(DATA[1:]):
            return False
        return task.images == 1 or self.sizes.positions % self.plan.m_tile == 0

    # ------------------------------------------------------------ arithmetic

    def _products(self, task: _Task, depth: int, following: Expr, fresh: bool) -> None:
        """columns[position][channel of x, tap] (+)= sum over channels of y of values * weights.

        At `following` begin the weights of the next chunk.
        """
        lanes = self.plan.lanes
        lines = self.plan.ahead if self.is_run else 0
        line = CACHE_LINE // byte_width(self.weight.dtype)

        def prefetch(first: Expr, position: Expr, k: Expr) -> None:
            """Each tile of positions asks for its share of what these vectors need next; tiles that
            are more than there are lines, for what the next vectors need."""
            share = emit.quotient(position, self.plan.m_tile) * lines
            place = following + k * self.weight.strides["O"] + first * lanes
            for i in range(lines):
                emit.prefetch(self.weight, place + (share + i) * line)

        def tile(first: Expr, vectors: int, position: Expr, size: int) -> None:
            start = position * self.pitch + first * lanes
            places = [start + o * self.pitch for o in range(size)]
            add_products(
                (depth,),
                Matrix(task.values, lambda o, k: position * depth + k * size + o),
                Matrix(task.weights, lambda k: (first * depth + k * vectors) * lanes),
                RegisterTile(task.columns, places, vectors, lanes),
                fresh=fresh,
                # Single positions would take longer to ask than to multiply.
                prefetch=partial(prefetch, first, position) if lines and size > 1 else None,
            )

        emit.tiles(
            self.vectors,
            self.plan.vectors,
            lambda first, vectors: emit.tiles_or_ones(
                task.positions, self.plan.m_tile, partial(tile, first, vectors)
            ),
        )

    def _col2im(self, task: _Task, channel: Expr, count: Expr) -> None:
        """Add up the columns of `count` channels where they overlap, and cut the padding off."""
        is_image = self._columns_are_images()
        image = task.columns if is_image is True else emit.scratch(self.plan.held, self.dtype)

        def one(inner: Expr, c: Expr) -> None:
            columns = inner * self.pitch + c * self.problem.geometry.taps
            number = task.image + inner

            def add_up_and_write() -> None:
                self._add_up(task, image, inner, c)
                self._write(image, 0, channel + c, number)

            emit.when(
                is_image,
                lambda: self._write(task.columns, columns, channel + c, number),
                add_up_and_write,
            )

        emit.nest((task.images, count), one)

    def _add_up(self, task: _Task, image: Array, inner: Expr, c: Expr) -> None:
        """image[depth][height][width] of one channel, padding included."""
        geometry, sizes = self.problem.geometry, self.sizes
        emit.fill(image, 0, sizes.elements, emit.constant(0, self.dtype))

        def add(*position: Expr) -> None:
            steps = zip(position, geometry.stride, self.shift)
            corner = emit.opaque_base(_flat([p * s + shift for p, s, shift in steps], sizes.extent))
            row = inner * sizes.positions + _flat(position, sizes.y)
            columns = emit.opaque_base(row * self.pitch + c * geometry.taps)

            def tap(*r: Expr) -> None:
                reach = [i * dilation for i, dilation in zip(r, geometry.dilation)]
                into = corner + _flat(reach, sizes.extent)
                column = task.columns[columns + _flat(r, geometry.kernel)]
                emit.store(image, into, image[into] + column)

            emit.nest(geometry.kernel, tap)

        emit.nest(sizes.y, add)

    def _write(self, image: Array, first: Expr, channel: Expr, number: Expr) -> None:
        """The image of a channel, from `first` on, as that of this number of x."""
        sizes, axes = self.problem.x_sizes[1:], self._run_axes()

        def row(*outer: Expr) -> None:
            where = [*outer, *[0] * axes]
            before = zip(where, self.problem.geometry.pad_before, self.shift)
            corner = _flat([i + p + s for i, p, s in before], self.sizes.extent)
            source = emit.opaque_base(first + corner)
            written = self.rows.row(channel, (number, *where))
            emit.loop(prod(sizes[-axes:]), lambda i: written.put(i, image[source + i]))

        emit.nest(sizes[:-axes], row)

    def _columns_are_images(self) -> Expr:
        """Whether images of y have one position, whose columns are an image of x.

        Of more positions it would be larger than a kernel.
        """
        if self.problem.is_static:
            return self.plan.held == 0
        geometry = self.problem.geometry
        same = [e <= taps for e, taps in zip(self.sizes.extent, geometry.kernel)]
        return emit.both(prod(geometry.y_size) > 0, *same)

    def _run_axes(self) -> int:
        """How many of the last axes of an image are one run, here and in the result: at least its
        rows, or more where they have no padding to cut off."""
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
    """The number of an element of an array of these sizes."""
    index: Expr = 0
    for i, size in zip(where, sizes):
        index = index * size + i
    return index
