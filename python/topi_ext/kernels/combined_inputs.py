# SPDX-License-Identifier: Apache-2.0
"""Combined inputs: what is multiplied with combined taps, or with combined outputs.

::

    for each row of tiles:
        copy the rows of the data that it reads, zero where there are none  -> raw
        for each product of terms along depth and height:
            add and subtract rows of raw                                    -> mixed
            for each term along the row, each tile:
                add and subtract elements of mixed                          -> made
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from .. import emit
from ..emit import Array, Expr, Operand
from ..filtering import Filter
from ..plan.problem import Problem
from . import DATA
from .combinations import combination


@dataclass(frozen=True)
class CombinedInputs:
    """The inputs of one block of tiles.

    Attributes
    ----------
    problem : Problem
    data : Operand
        What is read.
    first, block : sequence
        The first tile along the four axes, and how many there are.
    room : int
        Tiles of a block, at most.
    pitch : int or expression
        Distance of two rows of tiles in what is made.
    """

    problem: Problem
    data: Operand
    first: Sequence[Expr]
    block: Sequence[Expr]
    room: int
    pitch: Expr

    def rows_into(
        self,
        made: Array,
        first_rows: Sequence[int],
        group: Expr,
        filters: Sequence[Filter],
        phases: Sequence[Expr],
    ) -> Callable[..., None]:
        """``tiles(channel, row, image, depth, height)`` combines the inputs of one row of tiles.

        Those of a term are written to ``made[first row of the term + row]``.
        """
        problem, data, dtype = self.problem, self.data, self.problem.acc_dtype
        in_steps = [f.in_step * f.tile for f in filters]
        bases = [
            emit.table([base for _, base, _ in f.phases])(phase)
            for f, phase in zip(filters, phases)
        ]
        block = self.block
        line, line_room = (
            emit.chosen(in_steps[2] * (width - 1) + filters[2].reach[-1] + 1)
            for width in (block[3], self.room)
        )
        if problem.is_static:
            line_room = line
        rows = list(product(filters[0].reach, filters[1].reach))
        row_depth, row_height = (emit.table([row[axis] for row in rows]) for axis in (0, 1))
        # One row more, of zeros, for what lies outside; the borders of all others stay zero.
        raw = emit.scratch((len(rows) + 1) * line_room, dtype)
        emit.fill(raw, 0, (len(rows) + 1) * line, emit.constant(0, dtype))
        places = emit.scratch(len(rows) + 1, "int64")
        outside = emit.wide(len(rows) * line)
        emit.store(places, len(rows), outside)
        mixed = emit.scratch(line_room, dtype)
        sizes = problem.in_sizes
        starts = [
            emit.let(first * step + base)
            for first, step, base in zip(self.first[1:], in_steps, bases)
        ]
        low = emit.let(emit.least(emit.most(0 - starts[2], 0), line))
        high = emit.let(emit.least(emit.most(sizes[3] - starts[2], low), line))

        outer = list(product(filters[0].terms, filters[1].terms))
        mixtures = [
            [(rows.index((d, h)), a * b) for (d, a), (h, b) in product(depth.inputs, height.inputs)]
            for depth, height in outer
        ]
        most = max(map(len, mixtures))
        nothing = (len(rows), 0.0)
        mixtures = [[*mixture, *[nothing] * (most - len(mixture))] for mixture in mixtures]
        sources = [emit.table([mixture[i][0] for mixture in mixtures]) for i in range(most)]
        factors = [emit.table([mixture[i][1] for mixture in mixtures], dtype) for i in range(most)]
        inner = filters[2].terms
        firsts = [emit.table(first_rows[k :: len(inner)]) for k in range(len(inner))]

        def tiles(channel: Expr, row: Expr, b0: Expr, b1: Expr, b2: Expr) -> None:
            image = self.first[0] + b0
            source_channel = group * problem.in_channels + channel

            def copy_row(number: Expr) -> None:
                depth = emit.let(starts[0] + b1 * in_steps[0] + row_depth(number))
                height = emit.let(starts[1] + b2 * in_steps[1] + row_height(number))
                inside = emit.both(
                    image < sizes[0],
                    *(depth >= 0, depth < sizes[1]),
                    *(height >= 0, height < sizes[2]),
                )

                def copy() -> None:
                    where = (source_channel, image, depth, height, starts[2] + low)
                    origin = emit.origin(data.at("C" + DATA, *where))
                    into = emit.origin(number * line + low)
                    stride = data.strides[DATA[-1]]
                    emit.loop(
                        high - low,
                        lambda i: emit.store(raw, into + i, data.load(origin + i * stride, dtype)),
                    )
                    emit.store(places, number, emit.wide(number * line))

                emit.when(inside, copy, lambda: emit.store(places, number, outside))

            emit.loop(len(rows), copy_row)
            flat = emit.let(((b0 * block[1] + b1) * block[2] + b2) * block[3])

            def mix(t: Expr) -> None:
                parts = [
                    (emit.let(places[source(t)]), factor(t))
                    for source, factor in zip(sources, factors)
                ]

                def element(x: Expr) -> None:
                    value: Expr = None
                    for place, factor in parts:
                        part = raw[place + x]
                        if most > 1:
                            part = part * factor
                        value = part if value is None else value + part
                    emit.store(mixed, x, value)

                emit.loop(line, element)
                into = [emit.origin((first(t) + row) * self.pitch + flat) for first in firsts]

                def tile(q: Expr) -> None:
                    for place, term in zip(into, inner):
                        inputs = [(mixed[q * in_steps[2] + x], c) for x, c in term.inputs]
                        emit.store(made, place + q, combination(inputs, dtype))

                emit.loop(block[3], tile)

            emit.loop(len(outer), mix)

        return tiles
