# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_transpose`` for long strides: lanes run over the phases of a row.

Output ``q*s + a`` of a row is a sum over taps ``a + t*s`` of inputs ``q - t``: for one q, its s
phases read the same inputs, and taps that are neighbours.  With as many phases as a vector has
lanes, or more, outputs leave the registers in the order in which they are stored::

    parallel (block of images, group, block of channels of x, split of their phases):
        copy the weights: a vector is some phases of one channel            -> rows
        for each image:
            copy its values, with zeros around                              -> values
            for each row of x:
                for each tile of `vectors` vectors, each tile of `m_tile` positions q:
                    for each row and channel of y, each t:
                        accumulators[m_tile][vectors] += values * rows      -> held
                cut the padding off                                         -> out

A task that has but one row of one image may do so for a chunk of the channels of y after the other:
then it holds the weights of one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from ...emit.arguments import conv_arguments
from ...problem import DATA, TAPS, Problem
from .. import emit
from ..emit import ATTRIBUTES, Expr, Operand
from ..parts.outer_product import add_products
from ..parts.output_rows import Result
from ..plan.phase_lanes import PhaseLanesPlan


def build(problem: Problem, plan: PhaseLanesPlan) -> Any:
    """The PrimFunc ``(y, weight, *operands of the epilogue, out)``, scheduled by `plan`."""
    with emit.kernel(ATTRIBUTES) as made:
        with emit.body(*conv_arguments(problem)) as operands:
            emit_body(problem, plan, operands)
    return made[0]


def emit_body(problem: Problem, plan: PhaseLanesPlan, operands: Sequence[Operand]) -> None:
    """What that PrimFunc does, with its arguments as `operands`."""
    y, weight, *extra, out = operands
    _Phases(problem, plan, y, weight, out, extra).emit()


class _Phases:
    """One kernel while it is being emitted."""

    def __init__(
        self,
        problem: Problem,
        plan: PhaseLanesPlan,
        y: Operand,
        weight: Operand,
        out: Operand,
        extra: Sequence[Operand],
    ):
        self.problem, self.plan = problem, plan
        self.y, self.weight = y, weight
        self.result = Result(problem, out, extra, plan.lanes if plan.streamed else 0)
        self.dtype = problem.acc_dtype
        g = problem.geometry
        self.stride = g.stride[-1]
        self.taps = plan.taps(g)
        self.first, extent = plan.reads(g)
        self.extent = [emit.opaque_value(count) for count in extent]
        # Vectors of a channel and split, and of all channels of a task.
        self.each = -(-self.stride // (plan.lanes * plan.phase_splits))
        self.vectors = plan.c_block * self.each
        self.row = self.vectors * plan.lanes
        self.positions = emit.opaque_value(plan.positions(g))
        self.tiles = emit.opaque_value(emit.ceil_div(self.positions, plan.m_tile))
        self.k_block = -(-g.k_per_group // plan.chunks)

    def emit(self) -> None:
        """The whole kernel."""
        problem, plan, g = self.problem, self.plan, self.problem.geometry
        blocks = -(-g.c_per_group // plan.c_block)
        extents = (emit.ceil_div(problem.n, plan.images), g.groups, blocks, plan.phase_splits)
        tasks = emit.tasks(prod(extents), plan.parallel)
        with self.result.kernel(), tasks as task, self.result.task(problem.x_sizes[-1]):
            number_of = emit.let if problem.is_static else emit.opaque_value
            images, group, block, split = map(number_of, emit.unravel(task, extents))
            first_c = block * plan.c_block
            self.first_phase = split * (self.each * plan.lanes)
            terms = self.k_block * self.taps[-1]
            self.rows = emit.scratch(prod(g.kernel[:-1]) * terms * self.row, self.dtype)
            # The last tile may read behind the last row.
            room = self.k_block * prod(self.extent) + plan.m_tile
            self.values = emit.scratch(room, self.dtype)
            self.held = emit.scratch(self.tiles * plan.m_tile * self.row, self.dtype)
            emit.fill(self.values, 0, room, emit.constant(0, self.dtype))
            if plan.chunks == 1:
                self._images(images, group, first_c)
            else:
                self._chunks(images, group, first_c)

    def _images(self, images: Expr, group: Expr, first_c: Expr) -> None:
        """All rows of some images."""
        problem, plan, g = self.problem, self.plan, self.problem.geometry
        self._copy_weights(group, 0, g.k_per_group, first_c)

        def image(i: Expr) -> None:
            number = emit.let(images * plan.images + i)

            def row(*at: Expr) -> None:
                self._products(at, g.k_per_group, fresh=True)
                self._write(number, group, first_c, at)

            def present() -> None:
                self._copy_values(number, group, 0, g.k_per_group)
                emit.nest(problem.x_sizes[1:-1], row)

            is_even = plan.images == 1 or problem.n % plan.images == 0
            emit.when(True if is_even else number < problem.n, present)

        emit.loop(plan.images, image)

    def _chunks(self, image: Expr, group: Expr, first_c: Expr) -> None:
        """The only row of an image, chunk by chunk of the channels of y."""
        k, row = self.problem.geometry.k_per_group, (0, 0)
        room = self.tiles * self.plan.m_tile * self.row
        emit.fill(self.held, 0, room, emit.constant(0, self.dtype))

        def chunk(first: Expr, count: int) -> None:
            self._copy_weights(group, first, count, first_c)
            self._copy_values(image, group, first, count)
            self._products(row, count, fresh=False)

        emit.tiles(k, self.k_block, chunk)
        self._write(image, group, first_c, row)

    # ------------------------------------------------------------ operands

    def _row_at(self, first: Expr, vectors: int, outer: Sequence[Expr], k: Expr, t: Expr) -> Expr:
        """rows[row of the kernel][tile of vectors][channel of y][t][vectors]."""
        depth, height = outer
        number = depth * self.problem.geometry.kernel[1] + height
        terms = self.k_block * self.taps[-1]
        place = number * (terms * self.row) + first * (terms * self.plan.lanes)
        return place + (k * self.taps[-1] + t) * (vectors * self.plan.lanes)

    def _copy_weights(self, group: Expr, first_k: Expr, count: int, first_c: Expr) -> None:
        """Of `count` channels of y, read as they are usually stored; zeros fill the last vector of
        a stride."""
        g, lanes = self.problem.geometry, self.plan.lanes
        stride = self.weight.strides.get(TAPS[-1], 1)

        def tile(k: Expr, first: Expr, vectors: int) -> None:
            def one(v: Expr, depth: Expr, height: Expr, t: Expr) -> None:
                number = first + v
                c = emit.least(first_c + number // self.each, g.c_per_group - 1)
                phase = emit.let(self.first_phase + number % self.each * lanes)
                place = self._row_at(first, vectors, (depth, height), k, t) + v * lanes
                into = emit.opaque_base(place)
                tap = t * self.stride + phase
                present: Expr = lanes
                if self.stride % lanes:
                    present = emit.let(emit.least(self.stride - phase, lanes))
                outer_k = group * g.k_per_group + first_k + k
                where = (outer_k, c, depth, height, tap)
                source = emit.opaque_base(self.weight.at("OI" + TAPS, *where))

                def element(i: Expr) -> None:
                    value = self.weight.load(source + i * stride, self.dtype)
                    emit.store(self.rows, into + i, value)

                emit.loop(present, element)
                if not isinstance(present, int):
                    zero = emit.constant(0, self.dtype)
                    emit.fill(self.rows, into + present, lanes - present, zero)

            emit.nest((vectors, *g.kernel[:-1], self.taps[-1]), one)

        emit.loop(count, lambda k: emit.tiles(self.vectors, self.plan.vectors, partial(tile, k)))

    def _copy_values(self, image: Expr, group: Expr, first_k: Expr, count: int) -> None:
        """values[channel of y][depth][height][width], from `first` on; zeros around stay zero."""
        g = self.problem.geometry
        low = [max(0, a) for a in self.first]
        high = [emit.least(size, a + e) for size, a, e in zip(g.y_size, self.first, self.extent)]
        present = [emit.opaque_value(emit.most(b - a, 0)) for a, b in zip(low, high)]
        stride = self.y.strides[DATA[-1]]

        def run(k: Expr, *outer: Expr) -> None:
            place = k
            for at, a, b, e in zip((*outer, 0), low, self.first, self.extent):
                place = place * e + (at + a - b)
            into = emit.opaque_base(place)
            where = [at + a for at, a in zip((*outer, 0), low)]
            channel = group * g.k_per_group + first_k + k
            source = emit.opaque_base(self.y.at("C" + DATA, channel, image, *where))

            def element(i: Expr) -> None:
                value = self.y.load(source + i * stride, self.dtype)
                emit.store(self.values, into + i, value)

            emit.loop(present[-1], element)

        emit.nest((count, *present[:-1]), run)

    # ------------------------------------------------------------ one row of x

    def _products(self, at: Sequence[Expr], count: int, *, fresh: bool) -> None:
        """held[position][vectors] (+)= sum over taps and `count` channels of y."""
        g, plan = self.problem.geometry, self.plan
        unpadded = [emit.let(o + pad) for o, pad in zip(at, g.pad_before)]
        phases = [emit.let(u % s) for u, s in zip(unpadded, g.stride)]
        # Where the row that the first tap reads is, in `values`.
        starts = [emit.let(u // s - first) for u, s, first in zip(unpadded, g.stride, self.first)]
        last = self.taps[-1] - 1

        def value_at(o: Expr, depth: Expr, height: Expr, k: Expr, t: Expr) -> Expr:
            place = k * self.extent[0] + starts[0] - depth
            place = place * self.extent[1] + starts[1] - height
            return place * self.extent[2] + o + last - t

        def tile(first: Expr, vectors: int, q: Expr, size: int) -> None:
            add_products(
                (*self.taps[:-1], count, self.taps[-1]),
                self.values,
                lambda o, *term: value_at(q + o, *term),
                self.rows,
                lambda depth, height, k, t: self._row_at(
                    first,
                    vectors,
                    [p + i * s for p, i, s in zip(phases, (depth, height), g.stride)],
                    k,
                    t,
                ),
                self.held,
                [(q + o) * self.row + first * plan.lanes for o in range(size)],
                vectors,
                plan.lanes,
                fresh=fresh,
                steps=None if self.problem.is_static else (-1, vectors * plan.lanes),
            )

        emit.tiles(
            self.vectors,
            plan.vectors,
            lambda first, vectors: emit.tiles_or_ones(
                self.positions, plan.m_tile, partial(tile, first, vectors)
            ),
        )

    def _write(self, image: Expr, group: Expr, first_c: Expr, at: Sequence[Expr]) -> None:
        """The row of each channel of the block."""
        problem, g, plan = self.problem, self.problem.geometry, self.plan
        size, step, room = problem.x_sizes[-1], self.stride, self.each * plan.lanes
        # The first output is the phase `skip` of the first position.
        skip = g.pad_before[-1] % step
        phases = step // plan.phase_splits

        def channel(c: Expr) -> None:
            number = group * g.c_per_group + first_c + c
            written = self.result.row(number, (image, *at, 0))

            def some(q: Expr, first: Expr, end: Expr) -> None:
                """The phases of this task from `first` to `end`, of position q."""
                first = emit.most(first, self.first_phase)
                count = emit.most(emit.least(end, self.first_phase + phases) - first, 0)
                source = emit.opaque_base(q * self.row + c * room + (first - self.first_phase))
                begin = emit.let(q * step + (first - skip))
                written.put_all(begin, self.held, source, count, plan.lanes)

            head = emit.opaque_value(emit.least(size, step - skip)) if skip else 0
            begin = 1 if skip else 0
            if skip:
                some(0, skip, skip + head)
            whole = emit.opaque_value(emit.quotient(size - head, step))
            tail = emit.opaque_value(size - head - whole * step)
            emit.loop(whole, lambda q: some(q + begin, self.first_phase, self.first_phase + phases))
            if not (isinstance(tail, int) and tail == 0):
                some(whole + begin, 0, tail)
            written.end(size)

        def present(c: Expr) -> None:
            whole = g.c_per_group % plan.c_block == 0
            emit.when(
                True if whole else first_c + c < g.c_per_group,
                lambda: channel(c),
            )

        emit.loop(plan.c_block, present)
