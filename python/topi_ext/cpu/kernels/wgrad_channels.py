# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_weight_grad`` for many channels: lanes run over the channels of y.

y is transposed so that its channels are neighbours; x is packed as for ``conv``, its values are
broadcast, and stride, dilation and taps are arithmetic of addresses. No column is ever built::

    parallel (group, block of channels of y, block of channels of x):
        for each block of positions:
            pack the channels of x with what the taps reach               -> panel
            transpose the channels of y                                   -> rows
            for each tile of `vectors` vectors of channels of y:
                for each tile of `c_tile` channels of x, each tap:
                    for each position:
                        accumulators[c_tile][vectors] += panel * rows     -> acc
        transpose the weights back                                        -> out

In the matrix product, M are channels of x and taps, N channels of y, K positions.  Left, `panel`
``[channel of x][residue][position]``, read at an offset for each tap, each value broadcast; right,
`rows` ``[tile of vectors][position][lanes]``.

Where much of what the taps reach is padding (long dilations), each runs over the positions alone
where it meets data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ...emit.arguments import tap_number
from ...spec.conv import DATA, TAPS, Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.pack_panel import Source, pack
from ..parts.panel import Panel, window_of
from ..parts.transpose import Pitched, Runs, transpose
from ..plan.wgrad_channels import WgradChannelsPlan


def emit_body(problem: Convolution, plan: WgradChannelsPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc whose arguments are `operands`."""
    _WgradChannels(problem, plan, *operands).emit()


class _Blocking(NamedTuple):
    """Blocks of positions.

    Attributes
    ----------
    panel : Panel
        Panel of x.
    steps : list
        How far positions of a block are apart along the four axes.
    positions, room : int or expression
        Positions of a block, and what there is room for.
    """

    panel: Panel
    steps: Sequence[Expr]
    positions: Expr
    room: int


class _Task(NamedTuple):
    """One block of channels of y and of x, and what it holds.

    Attributes
    ----------
    blocking : _Blocking
    first_k, k_count : Expr
        The first channel of y, of all groups, and how many.
    first_c, c_count : Expr
        The first channel of x in its group, and how many.
    panel, rows, acc : Array
        Packed x, transposed y, and accumulators ``[channel of x][tap][channel of y]``.
    """

    blocking: _Blocking
    first_k: Expr
    k_count: Expr
    first_c: Expr
    c_count: Expr
    panel: Array
    rows: Array
    acc: Array


class _Block(NamedTuple):
    """One block of positions: along the four axes the first, and how many exist."""

    first: Sequence[Expr]
    present: Sequence[Expr]


class _WgradChannels:
    """One kernel while it is being emitted."""

    def __init__(
        self, problem: Convolution, plan: WgradChannelsPlan, x: Operand, y: Operand, out: Operand
    ):
        self.problem, self.plan = problem, plan
        self.x, self.y, self.out = x, y, out
        self.dtype = problem.acc_dtype
        self.vectors = -(-plan.k_block // plan.lanes)
        self.row = self.vectors * plan.lanes

    def _blocking(self) -> _Blocking:
        """Choose the blocks of positions."""
        problem, plan = self.problem, self.plan
        window = window_of(problem, plan.window, problem.accesses, plan.lanes)
        block = window.block
        steps = [*(emit.opaque_value(prod(block[axis:])) for axis in (1, 2, 3)), 1]
        positions = emit.opaque_value(prod(block))
        room = positions if problem.is_static else plan.window.elements
        return _Blocking(Panel(problem.accesses, window, plan.lanes), steps, positions, room)

    def emit(self) -> None:
        """Emit the whole kernel."""
        geometry, plan, blocking = self.problem.geometry, self.plan, self._blocking()
        extents = (
            geometry.groups,
            -(-geometry.k_per_group // plan.k_block),
            -(-geometry.c_per_group // plan.c_block),
        )
        with emit.tasks(prod(extents), plan.parallel) as task:
            group, k, c = map(emit.let, emit.unravel(task, extents))
            self._task(blocking, group, k * plan.k_block, c * plan.c_block)

    def _task(self, blocking: _Blocking, group: Expr, first_k: Expr, first_c: Expr) -> None:
        """Sum over all blocks of positions, for one block of channels of y and of x."""
        geometry, plan = self.problem.geometry, self.plan
        k_count = emit.clamped_extent(first_k, geometry.k_per_group, plan.k_block)
        c_count = emit.clamped_extent(first_c, geometry.c_per_group, plan.c_block)
        first_k = group * geometry.k_per_group + first_k
        acc = emit.scratch(plan.c_block * geometry.taps * self.row, self.dtype)
        panel = emit.scratch(blocking.panel.room(plan.c_block), self.dtype)
        rows = emit.scratch(blocking.room * self.row, self.dtype)
        zero = emit.constant(0, self.dtype)
        emit.fill(acc, 0, plan.c_block * geometry.taps * self.row, zero)
        # Lanes beyond the last channel are computed and dropped: they only have to be numbers.
        emit.fill(rows, 0, blocking.positions * self.row, zero)
        task = _Task(blocking, first_k, k_count, first_c, c_count, panel, rows, acc)
        size = blocking.panel.window.block
        counts = [emit.ceil_div(p, b) for p, b in zip(self.problem.y_sizes, size)]
        for numbers in emit.grid(*counts):
            first = [i * b for i, b in zip(numbers, size)]
            bounds = zip(first, self.problem.y_sizes, size)
            present = [emit.clamped_extent(*bound) for bound in bounds]
            c = group * geometry.c_per_group + first_c
            pack(blocking.panel, panel, Source(self.x, c, c_count, self.problem.x_sizes), first)
            self._transpose(task, _Block(first, present))
            self._products(task, _Block(first, present))
        self._write(task)

    def _place(
        self, blocking: _Blocking, position: Sequence[Expr], first: Expr, vectors: Expr
    ) -> Expr:
        """Return where a position of a tile of vectors is: rows[tile][position][lanes]."""
        index = sum(p * step for p, step in zip(position, blocking.steps))
        return (first * blocking.positions + index * vectors) * self.plan.lanes

    def _transpose(self, task: _Task, block: _Block) -> None:
        """Write rows[tile of vectors][position][channel] of y, run by run of neighbouring
        positions."""
        lanes, step = self.plan.lanes, self.y.strides[DATA[-1]]
        counts, length, longest = self._runs(task.blocking.panel.window.block, block.present)
        for number, *outer in emit.grid(self.vectors, *counts):
            position = (*outer, 0)
            v = emit.let(emit.remainder(number, self.plan.vectors))
            vectors = emit.clamped_extent(number - v, self.vectors, self.plan.vectors)
            channels = emit.clamped_extent(number * lanes, task.k_count, lanes)
            where = [f + p for f, p in zip(block.first, position)]
            k = task.first_k + number * lanes
            source = emit.opaque_base(self.y.at("C" + DATA, k, *where))
            place = self._place(task.blocking, position, number - v, vectors)
            into = emit.opaque_base(place + v * lanes)
            runs = Runs(self.y, source, step, channels, length, longest, self.y.strides["C"])
            transpose(Pitched(task.rows, into, vectors * lanes), runs, lanes)

    def _runs(self, block: Sequence[Expr], extent: Sequence[Expr]) -> tuple[list[Expr], Expr, Expr]:
        """Return the runs of y along the outer axes, their length, and the most that it can be.

        Whole rows are one run, and so are whole planes.
        """
        y_sizes = self.problem.y_sizes
        counts, length, longest = list(extent[:3]), extent[3], block[3]
        whole: Expr = True

        def joined(value: Expr, alone: Expr) -> Expr:
            return emit.let(emit.choose(whole, lambda: value, alone))

        for axis in (2, 1):
            whole = emit.both(whole, block[axis + 1] == y_sizes[axis + 1])
            if whole is False or not self.y.is_run(DATA[axis:]):
                break
            length = joined(length * extent[axis], length)
            longest = joined(longest * block[axis], longest)
            counts[axis] = joined(1, counts[axis])
        return counts, length, longest

    def _products(self, task: _Task, block: _Block) -> None:
        """Compute every register tile of the block, remainders included."""
        for vector, vectors in emit.tiles(self.vectors, self.plan.vectors):
            for c, cs in emit.tiles_then_ones(task.c_count, self.plan.c_tile):
                for taps in emit.grid(*self.problem.geometry.kernel):
                    self._tile(task, block, (vector, vectors), (c, cs), taps)

    def _tile(
        self,
        task: _Task,
        block: _Block,
        vectors: tuple[Expr, int],
        channels: tuple[Expr, int],
        taps: Sequence[Expr],
    ) -> None:
        """Add panel * rows over positions to a tile: channels of x by vectors of channels of y.

        Each is the first one and their number.
        """
        accesses, panel, lanes = self.problem.accesses, task.blocking.panel, self.plan.lanes
        (vector, count), (c, cs) = vectors, channels
        slots = [0, *(emit.let(g.slot_of(r)) for g, r in zip(accesses[1:], taps))]
        shifts = [0, *(emit.let(g.shift_of(0, r)) for g, r in zip(accesses[1:], taps))]
        shifted = panel.shifted(shifts)
        sources = [panel.plane(c + o, slots) + shifted for o in range(cs)]
        begins, counts = self._valid((0, *taps), block)

        def panel_at(o: int, *p: Expr) -> Expr:
            position = [begin + i for begin, i in zip(begins, p)]
            return sources[o] + sum(i * step for i, step in zip(position, panel.window.steps))

        def row_at(*p: Expr) -> Expr:
            position = [begin + i for begin, i in zip(begins, p)]
            return self._place(task.blocking, position, vector, count)

        along = (None, None) if self.problem.is_static else (1, count * lanes)
        places = [self._weight(c + o, taps) + vector * lanes for o in range(cs)]
        add_products(
            counts,
            Matrix(task.panel, panel_at, along[0]),
            Matrix(task.rows, row_at, along[1]),
            RegisterTile(task.acc, places, count, lanes),
            fresh=False,
        )

    def _valid(self, taps: Sequence[Expr], block: _Block) -> tuple[list[Expr], list[Expr]]:
        """Return along each axis the first position of the block that a tap meets, and how many."""
        if not self.plan.clipped:
            return [0] * 4, list(block.present)
        problem = self.problem
        number_of = emit.let if problem.is_static else emit.opaque_value
        axes = zip(problem.accesses, taps, problem.y_sizes, problem.x_sizes, *block)
        begins, counts = [], []
        for access, tap, positions, size, start, count in axes:
            low, high = access.meets(tap, positions, size, emit.most, emit.least)
            begin = number_of(emit.most(low - start, 0))
            begins.append(begin)
            counts.append(number_of(emit.most(emit.least(high - start, count) - begin, 0)))
        return begins, counts

    def _weight(self, c: Expr, tap: Sequence[Expr]) -> Expr:
        """Return where the row of channels of y of one weight is."""
        index = c
        for r, size in zip(tap, self.problem.geometry.kernel):
            index = index * size + r
        return index * self.row

    def _write(self, task: _Task) -> None:
        """Transpose the weights back, a vector of channels of y at a time."""
        lanes, kernel = self.plan.lanes, self.problem.geometry.kernel
        transposed = emit.scratch(prod(kernel) * lanes, self.dtype)
        # Neighbouring channels of x share lines of the result.
        for v, c in emit.grid(emit.ceil_div(task.k_count, lanes), task.c_count):
            start = emit.let(v * lanes)
            for taps in emit.grid(*kernel):
                into = emit.lanes_of(tap_number(self.problem, taps) * lanes, lanes)
                row = self._weight(c, taps) + start
                emit.store(transposed, into, task.acc[emit.lanes_of(row, lanes)])
            count = emit.clamped_extent(start, task.k_count, lanes)
            column = Column(transposed, lanes, count)
            write_transposed(self.problem, self.out, column, task.first_k + start, task.first_c + c)


class Column(NamedTuple):
    """``array[tap][lanes]``, the weights of `count` channels of y and one of x."""

    array: Array
    lanes: int
    count: Expr


def write_transposed(
    problem: Convolution, out: Operand, column: Column, first_k: Expr, c: Expr
) -> None:
    """Write a column, of channels of y from `first_k` on and channel `c` of x."""
    for k in emit.loop(column.count):
        for taps in emit.grid(*problem.geometry.kernel):
            into = out.at("OI" + TAPS, first_k + k, c, *taps)
            index = tap_number(problem, taps) * column.lanes + k
            emit.store(out, into, column.array.load(index, out.dtype))
