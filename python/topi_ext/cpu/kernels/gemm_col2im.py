# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_transpose`` for small images: a matrix product, then a scatter of its rows.

With few positions, vectors of positions would be mostly padding and packed weights would be read
about once.  So lanes run over the weights as they lie in memory, and each position gives one row
of columns (channel, tap), which are added up where they overlap::

    parallel (block of images, group, block of channels of x):
        for each chunk of `k_block` channels of y:
            copy a row of weights (channel of x, tap) for each              -> rows
            for each tile of `m_tile` positions:
                pack their values, channel by channel                       -> values
            for each tile of `vectors` vectors, each tile of positions:
                for each channel of y:
                    ask for weights of the next chunk
                    accumulators[m_tile][vectors] += values * rows          -> columns
        for each image, each channel of x:
            for each position, each tap: image += column    (one position's may be the image)
            cut the padding off                                             -> out
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from ...dtypes import byte_width
from ...emit.arguments import conv_arguments
from ...problem import DATA, TAPS, Problem
from .. import emit
from ..emit import ATTRIBUTES, Array, Expr, Operand
from ..machine import CACHE_LINE
from ..parts.copies import copy
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.output_rows import Result, Rows
from ..plan.gemm_col2im import Col2imPlan


def build(problem: Problem, plan: Col2imPlan) -> Any:
    """The PrimFunc ``(y, weight, *operands of the epilogue, out)``, scheduled by `plan`."""
    with emit.kernel(ATTRIBUTES) as made:
        with emit.body(*conv_arguments(problem)) as operands:
            kernel_of(problem, plan, operands).emit()
    return made[0]


def kernel_of(problem: Problem, plan: Col2imPlan, operands: Sequence[Operand]) -> GemmCol2im:
    """The kernel with the arguments of that PrimFunc as `operands`."""
    y, weight, *extra, out = operands
    return GemmCol2im(problem, plan, y, weight, out, extra)


class GemmCol2im:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Problem,
        plan: Col2imPlan,
        y: Operand,
        weight: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        self.problem, self.plan = problem, plan
        self.y, self.weight, self.result = y, weight, Result(problem, out, extra)
        self.dtype = problem.acc_dtype
        geometry = problem.geometry
        self.vectors = plan.row_vectors(geometry)
        self.row, self.pitch = self.vectors * plan.lanes, plan.pitch(geometry)
        self.is_run = problem.weights_are_runs
        # Negative padding in front moves the image away from the edge of its scratch.
        self.shift = [max(0, -pad) for pad in geometry.pad_before]
        # An image may be empty, but nothing is divided by zero.
        self.y_size = [emit.opaque_value(emit.most(y, 1)) for y in geometry.y_size]
        self.size = emit.opaque_value(prod(self.y_size))
        self.extent = [emit.opaque_value(e) for e in plan.extents(geometry, emit.most)]
        self.held = emit.opaque_value(prod(self.extent))

    def fits(self) -> Expr:
        """Whether there is room for an image."""
        return emit.both(self.size <= self.plan.positions, self.held <= self.plan.held)

    def emit(self) -> None:
        """The whole kernel."""
        problem, geometry, plan = self.problem, self.problem.geometry, self.plan
        blocks = -(-geometry.c_per_group // plan.c_block)
        n = problem.n
        images: Expr = plan.images
        if not problem.is_static:
            # As many images as there is room for, in equal parts.
            most = emit.opaque_value(emit.quotient(plan.positions, self.size))
            parts = emit.opaque_value(emit.ceil_div(emit.most(n, 1), most))
            images = emit.opaque_value(emit.ceil_div(emit.most(n, 1), parts))
        extents = (emit.ceil_div(n, images), geometry.groups, blocks)
        with emit.tasks(prod(extents), plan.parallel) as task:
            number_of = emit.let if problem.is_static else emit.opaque_value
            image, group, block = map(number_of, emit.unravel(task, extents))
            self.image = image * images
            self.images = (
                images
                if problem.is_static
                else emit.opaque_value(emit.least(images, n - self.image))
            )
            self.positions = emit.opaque_value(self.images * self.size)
            room = -(-plan.positions // plan.m_tile) * plan.m_tile
            first_c = block * plan.c_block
            count = emit.clamped_extent(first_c, geometry.c_per_group, plan.c_block)
            self.rows = emit.scratch(plan.k_block * self.row, self.dtype)
            self.values = emit.scratch(room * plan.k_block, self.dtype)
            self.columns = emit.scratch(room * self.pitch, self.dtype)
            zero = emit.constant(0, self.dtype)
            # Lanes beyond the last weight are computed and dropped: they only have to be numbers.
            emit.fill(self.rows, 0, plan.k_block * self.row, zero)
            full, rest = divmod(geometry.k_per_group, plan.k_block)
            first_k = group * geometry.k_per_group

            def chunk(number: Expr, depth: int, *, fresh: bool) -> None:
                first = first_k + number * plan.k_block
                self._copy_weights(first, depth, first_c, count)
                self._pack_values(first, depth)
                following = emit.least(first + depth, first_k + (geometry.k_per_group - depth))
                self._products(depth, emit.let(self.weight.at("OI", following, first_c)), fresh)

            # The first chunk starts the sums, the others go on.
            chunk(0, plan.k_block if full else rest, fresh=True)
            emit.loop(full - 1, lambda i: chunk(i + 1, plan.k_block, fresh=False))
            if full and rest:
                chunk(full, rest, fresh=False)
            self._scatter(group * geometry.c_per_group + first_c, count)

    # ------------------------------------------------------------ operands

    def _copy_weights(self, first_k: Expr, depth: int, first_c: Expr, count: Expr) -> None:
        """rows[tile of vectors][channel of y][lanes] of the weights, in their order in memory."""
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
                copy(self.rows, into, line, start + first * lanes, present, lanes)

            emit.tiles(self.vectors, self.plan.vectors, tile)

        def gathered(k: Expr, c: Expr, *taps: Expr) -> None:
            column = c
            for r, size in zip(taps, geometry.kernel):
                column = column * size + r
            value = self.weight.load(self.weight.at("OI" + TAPS, k, first_c + c, *taps), self.dtype)
            emit.store(line, column, value)

        emit.loop(depth, weights_of)

    def _pack_values(self, first_k: Expr, depth: int) -> None:
        """values[tile of positions][channel of y][position]; beyond the last, the last again.

        Channel by channel: positions are neighbours in memory, or near; a channel's may be so far
        from the next one's that few of them stay in the first cache.
        """
        step, tile = self.y.strides["C"], self.plan.m_tile

        def place(number: Expr) -> Expr:
            inner, *rest = emit.unravel(emit.let(number), (self.images, *self.y_size))
            return emit.let(self.y.at("C" + DATA, first_k, self.image + inner, *rest))

        def put(into: Expr, source: Expr) -> None:
            emit.store(self.values, into, self.y.load(source, self.dtype))

        def neighbours(first: Expr) -> None:
            source, into = emit.opaque_base(place(first)), emit.opaque_base(first * depth)
            emit.nest(
                (depth, tile), lambda k, o: put(into + (k * tile + o), source + (k * step + o))
            )

        def any_positions(first: Expr, size: int) -> None:
            numbers = [first + o for o in range(size)]
            if self.problem.is_static and self.positions % size:
                numbers = [emit.least(number, self.positions - 1) for number in numbers]
            sources = [place(number) for number in numbers]

            def channel(k: Expr) -> None:
                for o, source in enumerate(sources):
                    put(first * depth + (k * size + o), source + k * step)

            emit.loop(depth, channel)

        if not self._has_neighbours:
            emit.tiles_or_ones(self.positions, tile, any_positions)
            return
        whole = self.positions // tile
        emit.loop(whole, lambda i: neighbours(i * tile))
        if self.positions % tile:
            any_positions(whole * tile, tile)

    @property
    def _has_neighbours(self) -> bool:
        """Whether the positions of a whole tile are known to be neighbours in memory."""
        if not self.problem.is_static or not self.y.is_run(DATA[1:]):
            return False
        return self.images == 1 or self.size % self.plan.m_tile == 0

    # ------------------------------------------------------------ arithmetic

    def _products(self, depth: int, following: Expr, fresh: bool) -> None:
        """columns[position][channel of x, tap] (+)= sum over channels of y of values * rows.

        At `following` begin the weights of the next chunk.
        """
        lanes = self.plan.lanes
        lines = self.plan.ahead if self.is_run else 0
        line = CACHE_LINE // byte_width(self.weight.dtype)

        def ask(first: Expr, position: Expr, k: Expr) -> None:
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
                Matrix(self.values, lambda o, k: position * depth + k * size + o),
                Matrix(self.rows, lambda k: (first * depth + k * vectors) * lanes),
                RegisterTile(self.columns, places, vectors, lanes),
                fresh=fresh,
                # Single positions would take longer to ask than to multiply.
                prefetch=partial(ask, first, position) if lines and size > 1 else None,
            )

        emit.tiles(
            self.vectors,
            self.plan.vectors,
            lambda first, vectors: emit.tiles_or_ones(
                self.positions, self.plan.m_tile, partial(tile, first, vectors)
            ),
        )

    def _scatter(self, channel: Expr, count: Expr) -> None:
        """Add up the columns where they overlap, and cut the padding off."""
        problem, geometry = self.problem, self.problem.geometry
        is_image = self._columns_are_images()
        held = self.columns if is_image is True else emit.scratch(self.plan.held, self.dtype)
        zero = emit.constant(0, self.dtype)
        sizes, axes = problem.x_sizes[1:], self._run_axes()

        def flat(where: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
            index: Expr = 0
            for i, size in zip(where, sizes):
                index = index * size + i
            return index

        def add_up(inner: Expr, c: Expr) -> None:
            emit.fill(held, 0, self.held, zero)

            def add(*position: Expr) -> None:
                steps = zip(position, geometry.stride, self.shift)
                corner = emit.opaque_base(
                    flat([p * s + shift for p, s, shift in steps], self.extent)
                )
                row = inner * self.size + flat(position, self.y_size)
                columns = emit.opaque_base(row * self.pitch + c * geometry.taps)

                def tap(*r: Expr) -> None:
                    reach = [i * dilation for i, dilation in zip(r, geometry.dilation)]
                    into = corner + flat(reach, self.extent)
                    column = self.columns[columns + flat(r, geometry.kernel)]
                    emit.store(held, into, held[into] + column)

                emit.nest(geometry.kernel, tap)

            emit.nest(self.y_size, add)

        def write(image: Array, first: Expr, inner: Expr, c: Expr) -> None:
            def row(*outer: Expr) -> None:
                where = [*outer, *[0] * axes]
                before = zip(where, geometry.pad_before, self.shift)
                corner = flat([i + p + s for i, p, s in before], self.extent)
                source = emit.opaque_base(first + corner)
                number = self.image + inner
                row = Rows(self.result).row(channel + c, (number, *where))
                emit.loop(prod(sizes[-axes:]), lambda i: row.put(i, image[source + i]))

            emit.nest(sizes[:-axes], row)

        def add_up_and_write(inner: Expr, c: Expr) -> None:
            add_up(inner, c)
            write(held, 0, inner, c)

        def one(inner: Expr, c: Expr) -> None:
            columns = inner * self.pitch + c * geometry.taps
            emit.when(
                is_image,
                lambda: write(self.columns, columns, inner, c),
                lambda: add_up_and_write(inner, c),
            )

        emit.nest((self.images, count), one)

    def _columns_are_images(self) -> Expr:
        """Whether images of y have one position, whose columns are an image of x.

        Of more positions it would be larger than a kernel.
        """
        if self.problem.is_static:
            return self.plan.held == 0
        geometry = self.problem.geometry
        same = [e <= taps for e, taps in zip(self.extent, geometry.kernel)]
        return emit.both(prod(geometry.y_size) > 0, *same)

    def _run_axes(self) -> int:
        """How many of the last axes of an image are one run, here and in the result: at least its
        rows, or more where they have no padding to cut off."""
        sizes, out = self.problem.x_sizes[1:], self.result.out
        axes, is_known = 1, self.problem.is_static
        varies = {letter for step in self.problem.epilogue for letter in step.varies}
        while is_known and axes < len(sizes) and self.extent[-axes:] == list(sizes[-axes:]):
            letters = DATA[-axes - 1 :]
            if varies & set(letters) or not out.is_run(letters):
                break
            axes += 1
        return axes
