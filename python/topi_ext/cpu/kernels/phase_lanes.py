# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_transpose`` for long strides: lanes run over the phases of a row.

Output ``q*s + a`` of a row is a sum over taps ``a + t*s`` of inputs ``q - t``: for one q, its s
phases read the same inputs, and taps that are neighbours.  With as many phases as a vector has
lanes, or more, outputs leave the registers in the order in which they are stored::

    parallel (block of images, group, block of channels of x, split of their phases):
        copy the weights: a vector is some phases of one channel            -> weights
        for each image:
            copy its values, with zeros around                              -> values
            for each row of x:
                for each tile of `vectors` vectors, each tile of `m_tile` positions q:
                    for each row and channel of y, each t:
                        accumulators[m_tile][vectors] += values * weights   -> acc
                cut the padding off                                         -> out

In the matrix product, M are the positions q of a row, N channels of x and phases of a row, K rows
of the kernel, channels of y and taps t.  Left, `values` ``[channel of y][depth][height][width]``,
each broadcast; right, `weights` ``[row of the kernel][tile of vectors][channel of y][t][lanes]``.

A task that has one row of one image may sum one K-block of the channels of y after the other: then
it keeps the weights of one K-block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

from ...spec.conv import DATA, TAPS, Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.output_rows import Result, Row, Rows
from ..plan.phase_lanes import PhaseLanesPlan


def emit_body(problem: Convolution, plan: PhaseLanesPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    y, weight, *extra, out = operands
    _PhaseLanes(problem, plan, y, weight, out, extra).emit()


class _Sizes(NamedTuple):
    """Sizes of the arrays of a task; symbolic ones are known at run time.

    Attributes
    ----------
    extent : list
        Sizes of the values, along depth, height and width.
    positions, tiles : int or expression
        Positions q of a row, and tiles of `m_tile` of them.
    """

    extent: Sequence[Expr]
    positions: Expr
    tiles: Expr


class _Task(NamedTuple):
    """One task, and its arrays.

    Attributes
    ----------
    sizes : _Sizes
    rows : Rows
        The rows of the result that it writes.
    group, first_c, first_phase : Expr
        Its group, its first channel of x in the group, and its first phase of a row.
    weights, values, acc : Array
        Weights, values of y between zeros, and the accumulators ``[position][vectors]`` of a row.
    """

    sizes: _Sizes
    rows: Rows
    group: Expr
    first_c: Expr
    first_phase: Expr
    weights: Array
    values: Array
    acc: Array


class _PhaseLanes:
    """The emitter of one kernel."""

    def __init__(
        self,
        problem: Convolution,
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
        self.first, _ = plan.reads(g)
        # Vectors of a channel and split, and of all channels of a task.
        self.each = -(-self.stride // (plan.lanes * plan.phase_splits))
        self.vectors = plan.c_block * self.each
        self.row = self.vectors * plan.lanes
        self.k_block = -(-g.k_per_group // plan.chunks)

    def _sizes(self) -> _Sizes:
        plan, g = self.plan, self.problem.geometry
        extent = [emit.opaque_value(count) for count in plan.reads(g)[1]]
        positions = emit.opaque_value(plan.positions(g))
        return _Sizes(extent, positions, emit.opaque_value(emit.ceil_div(positions, plan.m_tile)))

    def emit(self) -> None:
        """Emit the whole kernel."""
        problem, plan, g, sizes = self.problem, self.plan, self.problem.geometry, self._sizes()
        blocks = -(-g.c_per_group // plan.c_block)
        extents = (emit.ceil_div(problem.n, plan.images), g.groups, blocks, plan.phase_splits)
        tasks = emit.tasks(prod(extents), plan.parallel)
        with self.result.kernel(), tasks as number, self.result.task(problem.x_sizes[-1]) as rows:
            number_of = emit.let if problem.is_static else emit.opaque_value
            images, group, block, split = map(number_of, emit.unravel(number, extents))
            terms = self.k_block * self.taps[-1]
            weights = emit.scratch(prod(g.kernel[:-1]) * terms * self.row, self.dtype)
            # The last tile may read past the last row.
            room = self.k_block * prod(sizes.extent) + plan.m_tile
            values = emit.scratch(room, self.dtype)
            acc = emit.scratch(sizes.tiles * plan.m_tile * self.row, self.dtype)
            emit.fill(values, 0, room, emit.constant(0, self.dtype))
            first_phase = split * (self.each * plan.lanes)
            task = _Task(
                sizes, rows, group, block * plan.c_block, first_phase, weights, values, acc
            )
            if plan.chunks == 1:
                self._images(task, images)
            else:
                self._k_blocks(task, images)

    def _images(self, task: _Task, images: Expr) -> None:
        """Emit all rows of the images of a task."""
        problem, plan, g = self.problem, self.plan, self.problem.geometry
        self._copy_weights(task, 0, g.k_per_group)
        for i in emit.loop(plan.images):
            number = emit.let(images * plan.images + i)
            is_even = plan.images == 1 or problem.n % plan.images == 0
            for _ in emit.only_if(True if is_even else number < problem.n):
                self._copy_values(task, number, 0, g.k_per_group)
                for row in emit.grid(*problem.x_sizes[1:-1]):
                    self._products(task, row, g.k_per_group, fresh=True)
                    self._write(task, number, row)

    def _k_blocks(self, task: _Task, image: Expr) -> None:
        """Emit the only row of an image, one K-block after the other."""
        k, row = self.problem.geometry.k_per_group, (0, 0)
        room = task.sizes.tiles * self.plan.m_tile * self.row
        emit.fill(task.acc, 0, room, emit.constant(0, self.dtype))
        for first, count in emit.tiles(k, self.k_block):
            self._copy_weights(task, first, count)
            self._copy_values(task, image, first, count)
            self._products(task, row, count, fresh=False)
        self._write(task, image, row)

    # ------------------------------------------------------------ operands

    def _row_at(self, first: Expr, vectors: int, outer: Sequence[Expr], k: Expr, t: Expr) -> Expr:
        """Return the index of weights[row of the kernel][tile of vectors][channel of y][t]."""
        depth, height = outer
        number = depth * self.problem.geometry.kernel[1] + height
        terms = self.k_block * self.taps[-1]
        tile = number * (terms * self.row) + first * (terms * self.plan.lanes)
        return tile + (k * self.taps[-1] + t) * (vectors * self.plan.lanes)

    def _copy_weights(self, task: _Task, first_k: Expr, count: int) -> None:
        """Copy the weights of `count` channels of y, in the order in which they are usually stored;
        zeros fill the last vector of a stride."""
        g, lanes = self.problem.geometry, self.plan.lanes
        stride = self.weight.strides.get(TAPS[-1], 1)
        for k in emit.loop(count):
            for first, vectors in emit.tiles(self.vectors, self.plan.vectors):
                for v, depth, height, t in emit.grid(vectors, *g.kernel[:-1], self.taps[-1]):
                    number = first + v
                    c = emit.least(task.first_c + number // self.each, g.c_per_group - 1)
                    phase = emit.let(task.first_phase + number % self.each * lanes)
                    row = self._row_at(first, vectors, (depth, height), k, t)
                    into = emit.opaque_base(row + v * lanes)
                    tap = t * self.stride + phase
                    present: Expr = lanes
                    if self.stride % lanes:
                        present = emit.let(emit.least(self.stride - phase, lanes))
                    outer_k = task.group * g.k_per_group + first_k + k
                    where = (outer_k, c, depth, height, tap)
                    source = emit.opaque_base(self.weight.at("OI" + TAPS, *where))
                    for i in emit.loop(present):
                        value = self.weight.load(source + i * stride, self.dtype)
                        emit.store(task.weights, into + i, value)
                    if not isinstance(present, int):
                        zero = emit.constant(0, self.dtype)
                        emit.fill(task.weights, into + present, lanes - present, zero)

    def _copy_values(self, task: _Task, image: Expr, first_k: Expr, count: int) -> None:
        """Copy values[channel of y][depth][height][width]; the zeros around them stay."""
        g = self.problem.geometry
        extent = task.sizes.extent
        low = [max(0, a) for a in self.first]
        high = [emit.least(size, a + e) for size, a, e in zip(g.y_size, self.first, extent)]
        present = [emit.opaque_value(emit.most(b - a, 0)) for a, b in zip(low, high)]
        stride = self.y.strides[DATA[-1]]
        for k, *outer in emit.grid(count, *present[:-1]):
            index = k
            for at, a, b, e in zip((*outer, 0), low, self.first, extent):
                index = index * e + (at + a - b)
            into = emit.opaque_base(index)
            where = [at + a for at, a in zip((*outer, 0), low)]
            channel = task.group * g.k_per_group + first_k + k
            source = emit.opaque_base(self.y.at("C" + DATA, channel, image, *where))
            for i in emit.loop(present[-1]):
                value = self.y.load(source + i * stride, self.dtype)
                emit.store(task.values, into + i, value)

    # ------------------------------------------------------------ one row of x

    def _products(self, task: _Task, at: Sequence[Expr], count: int, *, fresh: bool) -> None:
        """acc[position][vectors] (+)= sum over taps and `count` channels of y."""
        g, plan, extent = self.problem.geometry, self.plan, task.sizes.extent
        unpadded = [emit.let(o + pad) for o, pad in zip(at, g.pad_before)]
        phases = [emit.let(u % s) for u, s in zip(unpadded, g.stride)]
        # Where the row that the first tap reads is, in `values`.
        starts = [emit.let(u // s - first) for u, s, first in zip(unpadded, g.stride, self.first)]
        last = self.taps[-1] - 1

        def value_at(q: Expr, o: int, depth: Expr, height: Expr, k: Expr, t: Expr) -> Expr:
            row = k * extent[0] + starts[0] - depth
            row = row * extent[1] + starts[1] - height
            return row * extent[2] + (q + o) + last - t

        def weights_at(
            first: Expr, vectors: int, depth: Expr, height: Expr, k: Expr, t: Expr
        ) -> Expr:
            outer = [p + i * s for p, i, s in zip(phases, (depth, height), g.stride)]
            return self._row_at(first, vectors, outer, k, t)

        is_static = self.problem.is_static
        for first, vectors in emit.tiles(self.vectors, plan.vectors):
            steps = (None, None) if is_static else (-1, vectors * plan.lanes)
            for q, size in emit.tiles_or_ones(task.sizes.positions, plan.m_tile):
                offsets = [(q + o) * self.row + first * plan.lanes for o in range(size)]
                add_products(
                    (*self.taps[:-1], count, self.taps[-1]),
                    Matrix(task.values, partial(value_at, q), steps[0]),
                    Matrix(task.weights, partial(weights_at, first, vectors), steps[1]),
                    RegisterTile(task.acc, offsets, vectors, plan.lanes),
                    fresh=fresh,
                )

    def _write(self, task: _Task, image: Expr, at: Sequence[Expr]) -> None:
        """Write the row of each channel of the block."""
        g, plan = self.problem.geometry, self.plan
        for c in emit.loop(plan.c_block):
            number = task.group * g.c_per_group + task.first_c + c
            whole = g.c_per_group % plan.c_block == 0
            for _ in emit.only_if(True if whole else task.first_c + c < g.c_per_group):
                self._write_row(task, task.rows.row(number, (image, *at, 0)), c)

    def _write_row(self, task: _Task, row: Row, c: Expr) -> None:
        """Write the row of channel `c` of the block: some phases of its first position, all phases
        of the others, and some of a last one."""
        size, step = self.problem.x_sizes[-1], self.stride
        # The first output is the phase `skip` of the first position.
        skip = self.problem.geometry.pad_before[-1] % step
        phases, lanes = step // self.plan.phase_splits, self.plan.lanes

        def write(q: Expr, first: Expr, end: Expr) -> None:
            """Write the phases of this task from `first` to `end`, of position q."""
            first = emit.most(first, task.first_phase)
            count = emit.most(emit.least(end, task.first_phase + phases) - first, 0)
            start = q * self.row + c * (self.each * lanes) + (first - task.first_phase)
            source = emit.opaque_base(start)
            begin = emit.let(q * step + (first - skip))
            row.put_all(begin, task.acc, source, count, lanes)

        head = emit.opaque_value(emit.least(size, step - skip)) if skip else 0
        begin = 1 if skip else 0
        if skip:
            write(0, skip, skip + head)
        whole = emit.opaque_value(emit.quotient(size - head, step))
        tail = emit.opaque_value(size - head - whole * step)
        for q in emit.loop(whole):
            write(q + begin, task.first_phase, task.first_phase + phases)
        if not (isinstance(tail, int) and tail == 0):
            write(whole + begin, 0, tail)
        row.end(size)
