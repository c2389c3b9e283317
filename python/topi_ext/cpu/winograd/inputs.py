# SPDX-License-Identifier: Apache-2.0
"""Transformed inputs, which are multiplied with transformed filters or transformed outputs.

::

    for each input channel:
        copy the rows of the data that the block reads, between zeros       -> raw
        for each row of tiles, for each vector of its tiles:
            for each product of terms along depth and height (a loop where depth has no tiles):
                add and subtract vectors of rows of raw                     -> mixed
                pick elements that are as far apart as tiles                -> inputs
                for each term along the row:
                    add and subtract vectors of inputs                      -> made

`mixed` and `inputs` are registers.  All rows of a channel are copied before the first is read: what
a vector was just written to, at another offset, a processor can't read at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from typing import NamedTuple

from ...spec.conv import DATA, Convolution
from ...spec.minimal_filtering import Combination, Filter
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.copies import are_near
from ..parts.copies import copy as copy_row
from ..plan.vectors import NARROW, row_lanes
from .transform import linear_combination


class TilePhase(NamedTuple):
    """A phase of tiles: along each spatial axis how it is computed, and its number among the phases
    that are computed so."""

    filters: Sequence[Filter]
    numbers: Sequence[Expr]


@dataclass(frozen=True)
class WinogradInputs:
    """The inputs of one block of tiles.

    Attributes
    ----------
    problem : Convolution
    data : Operand
        The operand that is read.
    first, block : sequence
        The first tile along the four axes, and how many there are.
    room : int
        Tiles of a block, at most.
    pitch : int or expression
        Distance of two rows of tiles in what is made.
    lanes : int
        Elements per vector.
    """

    problem: Convolution
    data: Operand
    first: Sequence[Expr]
    block: Sequence[Expr]
    room: int
    pitch: Expr
    lanes: int

    def rows_into(
        self, made: Array, first_rows: Sequence[int], group: Expr, phase: TilePhase
    ) -> ChannelInputs:
        """Prepare to combine the inputs of one phase, channel by channel.

        The values of a term are written to ``made[first row of the term + row]``.
        """
        dtype, depth = self.problem.acc_dtype, phase.filters[0]
        rows = _Rows.emitted(phase.filters, self.block)
        # What lies outside is zero, and stays zero.
        room = self.room if not self.problem.is_static else None
        raw = emit.scratch(rows.room(room) + self.lanes, dtype)
        emit.fill(raw, 0, rows.elements, emit.constant(0, dtype))
        copied = self._copied_rows(raw, rows, group, phase)
        terms = _Terms(phase.filters, rows, raw, made, first_rows)
        return ChannelInputs(self, copied, terms, emit.table(depth.missing)(phase.numbers[0]))

    def combine_row(
        self, terms: _Terms, lanes: int, row: Expr, term: Expr, numbers: Sequence[Expr]
    ) -> None:
        """Combine one row of tiles: all terms, or those with this one along depth."""
        rows, dtype, width = terms.rows, self.problem.acc_dtype, self.block[3]
        sources, into = terms.sources(term, numbers), self._starts(terms, row, term, numbers)
        vectors = range(rows.vectors(lanes))
        is_even = lanes == 1 or (isinstance(width, int) and width % lanes == 0)
        for number in emit.loop(emit.ceil_div(width, lanes)):
            i = number * lanes
            if not is_even:  # the last vector overlaps the one before it
                i = emit.let(emit.least(i, width - lanes))
            read = {
                at: [
                    emit.let(terms.raw[_index(source + (i * rows.step + v * lanes), lanes)])
                    for v in vectors
                ]
                for at, source in sources.items()
            }
            starts = iter(into)
            for mixture in terms.mixtures:
                mixed = []
                for v in vectors:
                    addends = [(read[at][v], c) for at, c in mixture]
                    mixed.append(emit.let(linear_combination(addends, dtype, lanes)))
                inputs = {x: emit.let(rows.pick(mixed, x, lanes)) for x in rows.row.inputs}
                for along_row in rows.row.terms:
                    addends = [(inputs[x], c) for x, c in along_row.inputs]
                    value = linear_combination(addends, dtype, lanes)
                    emit.store(terms.made, _index(next(starts) + i, lanes), value)

    def _starts(self, terms: _Terms, row: Expr, term: Expr, numbers: Sequence[Expr]) -> list[Expr]:
        """Return where the tiles of each term begin, in the order of the mixtures and of terms
        along the row."""
        block, first_rows, steps = self.block, terms.first_rows, terms.steps
        flat = emit.let(((numbers[0] * block[1] + numbers[1]) * block[2] + numbers[2]) * block[3])
        # Rows of terms are often equally far apart, from one term along depth to the next.
        common = steps[0] if len(set(steps)) == 1 else 0
        start = emit.opaque_base((row + term * common) * self.pitch + flat)
        return [
            _beyond(start, (first + (term * step if step != common else 0)) * self.pitch)
            for first, step in zip(first_rows, steps)
        ]

    def _copied_rows(self, raw: Array, rows: _Rows, group: Expr, phase: TilePhase) -> _CopiedRows:
        """Return the rows of the data that are copied to `raw` for each input channel."""
        size = self.problem.in_sizes[3]
        starts = [
            emit.let(first * (f.in_step * f.tile) + emit.table([b for _, b, _ in f.phases])(number))
            for f, first, number in zip(phase.filters, self.first[1:], phase.numbers)
        ]
        every, along_row = rows.input_stride, starts[2]
        low = emit.let(emit.least(emit.most(0 - along_row // every, 0), rows.length))
        behind = (size - 1 - along_row) // every + 1
        high = emit.let(emit.least(emit.most(behind, low), rows.length))
        return _CopiedRows(raw, rows, group, starts, low, high)

    def copy(self, copied: _CopiedRows, channel: Expr) -> None:
        """Copy the rows of one input channel that are not padding."""
        problem, data, rows, raw = self.problem, self.data, copied.rows, copied.raw
        sizes, stride, every = problem.in_sizes, data.strides[DATA[-1]], rows.input_stride
        # LLVM takes a loop of unknown length for a long one.
        by_vectors = are_near(stride, 1) and not (every == 1 and problem.is_static)
        low, length = copied.low, copied.high - copied.low
        source_channel = copied.group * problem.in_channels + channel
        of_axes = ((len(axis.residues), axis.total) for axis in rows.axes)
        for b, *inputs in emit.grid(self.block[0], *chain.from_iterable(of_axes)):
            image, of_axis = self.first[0] + b, (inputs[:2], inputs[2:])
            depth, height = (
                emit.let(start + axis.input_of(*at))
                for start, axis, at in zip(copied.starts, rows.axes, of_axis)
            )
            numbers = [axis.number_of(*at) for axis, at in zip(rows.axes, of_axis)]
            inside = emit.both(
                image < sizes[0],
                *(depth >= 0, depth < sizes[1]),
                *(height >= 0, height < sizes[2]),
            )
            for _ in emit.only_if(inside):
                where = (source_channel, image, depth, height, copied.starts[2] + low * every)
                origin = emit.opaque_base(data.at("C" + DATA, *where))
                into = emit.opaque_base(rows.start((b, *numbers)) + low)
                if by_vectors:
                    copy_row(raw, into, data, origin, length, self.lanes, every)
                else:
                    for i in emit.loop(length):
                        value = data.load(origin + i * stride * every, raw.dtype)
                        emit.store(raw, into + i, value)


class ChannelInputs(NamedTuple):
    """The inputs of one phase of a block, to be combined channel by channel.

    Attributes
    ----------
    inputs : WinogradInputs
    copied : _CopiedRows
    terms : _Terms
    missing : Expr
        How many first terms along depth the phase lacks.
    """

    inputs: WinogradInputs
    copied: _CopiedRows
    terms: _Terms
    missing: Expr

    def combine(self, channel: Expr, row: Expr) -> None:
        """Combine the inputs of one input channel, to `row` of each term."""
        inputs, terms = self.inputs, self.terms
        inputs.copy(self.copied, channel)
        for lanes in _widest(inputs.block[3], inputs.lanes):
            loops = terms.filters[0].loops - self.missing
            for term, *numbers in emit.grid(loops, *inputs.block[:3]):
                inputs.combine_row(terms, lanes, row, self.missing + term, numbers)


def _widest(width: Expr, lanes: int) -> Iterator[int]:
    """Emit a branch for each width of vectors; the widest that a row of `width` tiles fills is
    taken."""
    if isinstance(width, int):
        yield row_lanes(width, lanes)
    elif lanes >= NARROW:
        for fits in emit.sides(width >= lanes):
            if fits:
                yield lanes
            else:
                yield from _widest(width, lanes // 2)
    else:
        yield 1


class _CopiedRows(NamedTuple):
    """The rows of the data that a phase reads, of each input channel of a group.

    Attributes
    ----------
    raw : Array
        Where they are copied to.
    rows : _Rows
    group : Expr
    starts : sequence
        The input that the first tile reads first, along the three axes.
    low, high : Expr
        Which elements of a row are data; the others are padding.
    """

    raw: Array
    rows: _Rows
    group: Expr
    starts: Sequence[Expr]
    low: Expr
    high: Expr


class _Terms(NamedTuple):
    """The terms of one phase.

    Attributes
    ----------
    filters : sequence of Filter
        How the axes are computed.
    rows : _Rows
        The rows of the data that are read, as `raw` holds them.
    raw, made : Array
        The inputs, and the transformed inputs.
    first_rows : sequence of int
        The first row of each term in `made`.
    """

    filters: Sequence[Filter]
    rows: _Rows
    raw: Array
    made: Array
    first_rows: Sequence[int]

    @property
    def steps(self) -> list[int]:
        """Return, for each term with the first input along depth, the distance in rows to the term
        with the next.
        """
        first_rows = self.first_rows
        each = len(first_rows) // self.filters[0].loops
        return [b - a for a, b in zip(first_rows, first_rows[each:])][:each] or [0] * each

    @property
    def mixtures(self) -> list[list[tuple[tuple[int, int], float]]]:
        """For each product of terms along depth and height, the rows that it is a combination of,
        with their factors."""
        depth, height, _ = self.filters
        of_depth: list[Combination] = [((0, 1),)]
        if not depth.is_direct:
            of_depth = [term.inputs for term in depth.terms]
        return [
            [((d, h), a * b) for (d, a), (h, b) in product(some_depth, term.inputs)]
            for some_depth, term in product(of_depth, height.terms)
        ]

    def sources(self, term: Expr, numbers: Sequence[Expr]) -> dict[tuple[int, int], Expr]:
        """Return where the rows of `raw` begin from which one row of tiles is combined, by their
        numbers along depth and height."""
        (depth, height, _), (along_depth, along_height) = self.filters, self.rows.axes
        at_height = {x: along_height.place(x) for x in height.inputs}
        corner = [numbers[1] * depth.tile, numbers[2] * height.tile]
        if depth.is_direct:
            at_depth: dict[int, Expr] = {0: 0}
            read = [one.inputs[0][0] for one in depth.terms]
            corner[0] = corner[0] + along_depth.place_of(read, term)
        else:
            at_depth = {x: along_depth.place(x) for x in depth.inputs}
        source = emit.opaque_base(self.rows.start((numbers[0], *corner)))
        return {
            (d, h): _beyond(source, self.rows.start((0, at_d, at_h)))
            for (d, at_d), (h, at_h) in product(at_depth.items(), at_height.items())
        }


class _Axis(NamedTuple):
    """The inputs along depth or height that a block reads, residue by residue of the step.

    Attributes
    ----------
    step, tile : int
        Inputs of the filter from one of a residue to the next, and outputs of a tile.
    residues : sequence of int
    total : int or expression
        Inputs of one residue.
    number : int or expression
        Inputs of all.
    most : int
        Inputs for each tile of a block of unknown shape.
    """

    step: int
    tile: int
    residues: Sequence[int]
    total: Expr
    number: Expr
    most: int

    @classmethod
    def emitted(cls, filter_: Filter, tiles: Expr) -> _Axis:
        """Return the layout of a block with so many tiles."""
        tile, residues = filter_.tile, filter_.residues
        total = emit.opaque_value(tiles * tile + filter_.halo)
        number = emit.opaque_value(total * len(residues))
        most = (tile + max(filter_.halo, 0)) * len(residues)
        return cls(filter_.in_step, tile, residues, total, number, most)

    def place(self, x: int) -> Expr:
        """Return the number of the input `x` of the first tile."""
        return self.number_of(self.residues.index(x % self.step), x // self.step)

    def place_of(self, inputs: Sequence[int], i: Expr) -> Expr:
        """Return the offset of ``inputs[i]``."""
        residues = emit.table([self.residues.index(x % self.step) for x in inputs])
        steps = emit.table([x // self.step for x in inputs])
        return self.number_of(residues(i), steps(i))

    def number_of(self, residue: Expr, i: Expr) -> Expr:
        """Return the number of input `i` of a residue, itself given by its number."""
        return residue * self.total + i

    def input_of(self, residue: Expr, i: Expr) -> Expr:
        """Return how far that input lies behind the first."""
        return i * self.step + emit.table(self.residues)(residue)


class _Rows(NamedTuple):
    """The rows of one channel that a block reads: [image][depth][height][width].

    Attributes
    ----------
    axes : list of _Axis
        Depth and height.
    extents : tuple
        Images, and inputs along depth and height.
    row : Filter
        Filter along a row, for the inputs that are stored.
    input_stride : int
        How far apart these are in the data.
    length : int or expression
        Inputs of a row.
    elements : int or expression
        Elements of all rows.
    """

    axes: Sequence[_Axis]
    extents: Sequence[Expr]
    row: Filter
    input_stride: int
    length: Expr
    elements: Expr

    @classmethod
    def emitted(cls, filters: Sequence[Filter], block: Sequence[Expr]) -> _Rows:
        """Return the inputs of a block of tiles."""
        axes = [_Axis.emitted(f, tiles) for f, tiles in zip(filters[:2], block[1:])]
        extents = (block[0], *(axis.number for axis in axes))
        row = filters[2].packed
        length = emit.opaque_value(row.span(block[3]))
        elements = emit.opaque_value(prod(extents) * length)
        return cls(axes, extents, row, filters[2].input_stride, length, elements)

    @property
    def step(self) -> int:
        """Inputs from one tile to the next of a row."""
        step: int = self.row.in_step * self.row.tile
        return step

    def room(self, tiles: int | None) -> Expr:
        """Return the elements to allocate, for a block of so many tiles of unknown shape, or for
        this one.
        """
        if tiles is None:
            return self.elements
        return tiles * prod(axis.most for axis in self.axes) * max(self.step, self.row.span(1))

    def start(self, numbers: Sequence[Expr]) -> Expr:
        """Return the offset of the first element of a row."""
        flat = numbers[0]
        for number, extent in zip(numbers[1:], self.extents[1:]):
            flat = flat * extent + number
        return flat * self.length

    def vectors(self, lanes: int) -> int:
        """Return how many vectors hold what `lanes` tiles of a row read."""
        count: int = -(-self.row.span(lanes) // lanes)
        return count

    def pick(self, vectors: Sequence[Expr], x: int, lanes: int) -> Expr:
        """Return input `x` of each tile from the inputs of a row in `vectors`."""
        if lanes == 1:
            return vectors[x]
        first, last = x // lanes, (x + (lanes - 1) * self.step) // lanes
        start = x - first * lanes
        return emit.shuffled(
            vectors[first : last + 1], range(start, start + lanes * self.step, self.step)
        )


def _beyond(origin: Expr, offset: Expr) -> Expr:
    """Return the place `offset` behind an origin; TVM takes long over kernels with many origins."""
    return origin + offset if isinstance(offset, int) else emit.opaque_base(origin + offset)


def _index(start: Expr, lanes: int) -> Expr:
    """Return the index of one element, or of a vector."""
    return start if lanes == 1 else emit.lanes_of(start, lanes)
