# SPDX-License-Identifier: Apache-2.0
"""The plan of each CPU kernel: its blocks, register tile, and the order of its loops.

Any plan is right; :mod:`topi_ext.plan.cpu` guesses which is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from operator import floordiv
from typing import Any, Union

from ..filtering import Filter, filters_of, joined_filters_of
from ..geometry import Gather, Geometry, Size
from .problem import Problem, nominal

UNROLLED_TAPS = 8
"""Taps written out in an innermost loop; with more, LLVM runs out of registers."""

TILE = 16
"""Most rows, and columns of 32 bits, of a matrix unit's tile."""


def row_lanes(tiles: int, lanes: int) -> int:
    """Lanes of the vectors in which a row of tiles is combined: no more than it has tiles."""
    return min(lanes, 1 << (tiles.bit_length() - 1))


def odd(vectors: int) -> int:
    """So many, or one more: rows a power of two of cache lines apart share one set of a cache."""
    return vectors | 1


MOST_COPIED = 4096
"""Weights that are copied at a time before they are packed."""

MOST_STEP = 4
"""Longest step of elements that are read as vectors, of which most is dropped."""

NARROW = 4
"""Lanes of the narrowest vectors of kernels for symbolic sizes: shorter rows go one by one."""


def square_size(problem: Problem, channels: int, lanes: int) -> int:
    """Weights of how many of a block's output channels, and of as many taps, are copied at a time.

    Zero where they are copied one by one.
    """
    run = min(problem.geometry.taps, channels) if problem.taps_are_runs else 1
    return square_side(run, lanes)


def square_side(run: int, lanes: int) -> int:
    """Side of the squares in which runs of so many elements are transposed in registers.

    Zero where they are too short.
    """
    side = row_lanes(run, lanes)
    return side if side >= 4 else 0


@dataclass(frozen=True)
class Window:
    """The part of the packed operand that one block of positions reads, flattened.

    Position ``(b0, b1, b2, b3)`` of the block is flat position ``((b0*E1 + b1)*E2 + b2)*E3 + b3``
    where ``E`` is the extent of the window; a tap is one constant offset in it.  Between rows lie
    the columns of the halo: lanes computed there are dropped.
    """

    block: tuple[int, ...]
    extent: tuple[int, ...]

    @classmethod
    def of(cls, block: Sequence[int], gathers: Sequence[Gather]) -> Window:
        """The window that `block` reads through `gathers`."""
        extent = tuple(b + g.last_shift - g.first_shift for b, g in zip(block, gathers))
        return cls(tuple(block), extent)

    @property
    def steps(self) -> tuple[int, ...]:
        """Distance in flat positions of neighbours along each axis."""
        return tuple(prod(self.extent[axis + 1 :]) for axis in range(len(self.extent)))

    @property
    def length(self) -> int:
        """Flat positions from the first to the last of the block."""
        return sum((b - 1) * step for b, step in zip(self.block, self.steps)) + 1

    @property
    def elements(self) -> int:
        """Elements of the whole window."""
        return prod(self.extent)

    def pitch(self, lanes: int) -> int:
        """Distance of two planes: whole vectors, and never a power of two of cache lines."""
        vectors = -(-self.elements // lanes)
        return odd(vectors) * lanes

    def most_pitch(self, lanes: int) -> int:
        """What has to be allocated for a plane."""
        return self.pitch(lanes)


@dataclass(frozen=True)
class GatherPlan:
    """Plan of the kernel that serves ``conv`` and ``conv_transpose``.

    Attributes
    ----------
    window : Window
        Block of positions per task and what it reads; of symbolic sizes the room for it, which the
        kernel fills when it runs.
    lanes : int
        Elements per vector.
    channels, vectors : int
        Register tile: output channels by vectors of positions.
    splits : int
        Into how many tasks the output channels of one block are divided.
    depth : int
        Input channels that are summed at a time.
    packed : bool
        Whether the weights are packed first, or read where they are.
    parallel : bool
        Whether threads share the tasks.
    spread : bool
        Whether each tap of a ``conv`` has a plane of its own, so that no lane is in a halo.
    tasks : int
        Of symbolic sizes, how many tasks there should be: `splits` follows when the kernel runs.
    tiles_first : bool
        Whether all output channels of a tile of positions are summed before those of the next,
        instead of all positions of a block of output channels.
    unrolled : int
        Most taps that are written out in an innermost loop.
    tiled : bool
        Whether the panel holds what one register tile reads of all planes together; only of
        windows without a halo, in which no tap is shifted.
    streamed : bool
        Whether the result is written past the caches.
    whole_rows : bool
        Whether a register tile of a ``conv_transpose`` has all phases of its rows: what they read
        is loaded once for all of them.
    shared : int
        Of depth, height and width, along how many, from the first on, phases with different numbers
        of taps share code: slower, and sooner built.
    """

    window: Window
    lanes: int
    channels: int
    vectors: int
    splits: int
    depth: int
    packed: bool = True
    parallel: bool = True
    spread: bool = False
    tasks: int = 1
    tiles_first: bool = False
    unrolled: int = UNROLLED_TAPS
    tiled: bool = False
    streamed: bool = False
    whole_rows: bool = False
    shared: int = 1

    def copies_squares(self, problem: Problem) -> bool:
        """Whether weights are transposed in registers before they are packed.

        Of fewer channels that is slower than to pack them one by one, as measured.
        """
        return self.channels >= 8 and square_size(problem, self.channels, self.lanes) > 0

    def copied_channels(self, problem: Problem) -> int:
        """Input channels whose weights are copied at a time for that: what a cache holds."""
        most: int = MOST_COPIED // (problem.geometry.taps * self.channels)
        return min(problem.in_channels, most) if self.copies_squares(problem) else 0

    def gathers(self, problem: Problem) -> tuple[Gather, ...]:
        """How the data of `problem` is read, along the four axes."""
        return problem.spread_gathers if self.spread else problem.gathers


@dataclass(frozen=True)
class ScatterPlan:
    """Plan of the ``conv_transpose`` kernel for small images.

    Attributes
    ----------
    images : int
        Images per task; divides the batch.  Symbolic sizes choose it when the kernel runs.
    positions, held : int
        Room of a task: positions of y, and elements of an image of x with its padding: none for
        images of one position whose columns are what is written.
    lanes : int
        Elements per vector.
    c_block : int
        Channels of x per task.
    k_block : int
        Channels of y that are summed at a time.
    m_tile, vectors : int
        Register tile: positions by vectors of (channel of x, tap).
    parallel : bool
        Whether threads share the tasks.
    ahead : int
        Cache lines of the next chunk's weights for which a register tile asks with each term.
    """

    images: int
    positions: int
    held: int
    lanes: int
    c_block: int
    k_block: int
    m_tile: int
    vectors: int
    parallel: bool = True
    ahead: int = 0

    def row_vectors(self, geometry: Geometry) -> int:
        """Vectors of a row of columns: of all channels and taps of a task."""
        return -(-self.c_block * geometry.taps // self.lanes)

    def pitch(self, geometry: Geometry) -> int:
        """Elements from one row of columns to the next: of vectors never a power of two."""
        return odd(self.row_vectors(geometry)) * self.lanes

    @staticmethod
    def extents(geometry: Geometry, most: Callable[..., Any] = max) -> list[Any]:
        """Extents of an image of x before its padding is cut off, and of what lies behind it.

        Of symbolic sizes `most` has to be a maximum of expressions.
        """
        return [
            max(0, -pad) + most((y - 1) * s + (r - 1) * d + 1, x + pad)
            for y, x, r, s, d, pad in zip(
                geometry.y_size, geometry.x_size, geometry.kernel, geometry.stride,
                geometry.dilation, geometry.pad_before,
            )
        ]  # fmt: skip

    @classmethod
    def elements_held(cls, geometry: Geometry) -> int:
        """Of such an image, whose size is known: none if the columns of a position are it."""
        extents = cls.extents(geometry)
        is_image = prod(geometry.y_size) == 1 and extents == list(geometry.kernel)
        return 0 if is_image else prod(extents)


@dataclass(frozen=True)
class PhasesPlan:
    """Plan of the ``conv_transpose`` kernel for strides along a row of a vector or more.

    Kernels are multiples of the strides, so that every phase has as many taps.

    Attributes
    ----------
    images : int
        Images per task.
    lanes : int
        Elements per vector.
    c_block : int
        Channels of x per task.
    m_tile, vectors : int
        Register tile: positions by vectors of (channel of x, phase).
    parallel : bool
        Whether threads share the tasks.
    streamed : bool
        Whether the result is written past the caches.
    splits : int
        Into how many tasks the phases of one channel are divided: equal numbers of whole vectors.
    chunks : int
        Into how many parts the channels of y are divided, which are summed one after the other; of
        tasks that have one row of one image.
    """

    images: int
    lanes: int
    c_block: int
    m_tile: int
    vectors: int
    parallel: bool = True
    streamed: bool = False
    splits: int = 1
    chunks: int = 1

    @staticmethod
    def taps(geometry: Geometry) -> tuple[int, ...]:
        """Taps of a phase along each axis."""
        return tuple(k // s for k, s in zip(geometry.kernel, geometry.stride))

    @classmethod
    def reads(cls, geometry: Geometry) -> tuple[list[int], list[int]]:
        """Of y along each axis, the first position that is read, and how many are."""
        firsts = [pad // s for pad, s in zip(geometry.pad_before, geometry.stride)]
        before = [t - 1 for t in cls.taps(geometry)]
        lasts = [
            (pad + size - 1) // s
            for pad, size, s in zip(geometry.pad_before, geometry.x_size, geometry.stride)
        ]
        return [a - t for a, t in zip(firsts, before)], [
            b - a + 1 + t for a, b, t in zip(firsts, lasts, before)
        ]

    @classmethod
    def positions(cls, geometry: Geometry) -> int:
        """Positions of a row that have outputs."""
        return cls.reads(geometry)[1][-1] - (cls.taps(geometry)[-1] - 1)


class Tiled:
    """What plans have in common that compute in tiles: of 1, 2 or 4 outputs along an axis."""

    tile: tuple[int, ...]

    def filters(self, problem: Problem) -> tuple[tuple[Filter, ...], ...]:
        """How each spatial axis is computed."""
        gathers = problem.gathers[1:]
        return tuple(filters_of(gather, tile) for gather, tile in zip(gathers, self.tile))

    def tiles(self, problem: Problem) -> tuple[Size, ...]:
        """Tiles of a phase along the four axes."""
        steps = (1, *(f[0].out_step * f[0].tile for f in self.filters(problem)))
        return tuple((size + step - 1) // step for size, step in zip(problem.out_sizes, steps))


@dataclass(frozen=True)
class WinogradPlan(Tiled):
    """Plan of the kernel of ``conv`` and ``conv_transpose`` that saves products.

    Attributes
    ----------
    tile : tuple of int
        Outputs of a phase per tile along depth, height and width: 1 or 2, along the width also 4.
    block : tuple of int
        Tiles per task along the four axes.
    lanes : int
        Elements per vector.
    channels, vectors : int
        Register tile: output channels by vectors of tiles.
    splits : int
        Into how many tasks the output channels of one block are divided.
    pass_blocks : int
        Blocks of output channels whose points are held at a time.
    direct : GatherPlan
        For data that is not finite, and for symbolic sizes of few tiles.
    parallel : bool
        Whether threads share the tasks.
    parts : int
        Parts of the output channels: tasks, or one after the other, for less memory, if `shares` is
        zero.
    shares : int
        Into how many tasks the positions of a part are divided, each of which combines the taps of
        the part for itself; then `splits` is 1.  Zero: all threads combine them together, and
        blocks of positions are tasks.
    per_task : int
        Parts that a task computes one after the other, if `shares` is not zero.  Of more than one,
        all positions are one block, whose inputs the task combines once, and `shares` is 1.
    by_slice : bool
        Whether a task computes the rows that one slice of the kernel serves before those of the
        next, for less memory, if `shares` is not zero.
    chunks : int
        Into how many equal parts the input channels are divided, which are summed one after the
        other; 1 if a task has several parts.
    streamed : bool
        Whether the result is written past the caches.
    least, tasks : int
        Of symbolic sizes, how many positions of a phase there have to be, and how many tasks there
        should be.  The block is then the room for one, which the kernel fills when it runs.
    """

    tile: tuple[int, ...]
    block: tuple[int, ...]
    lanes: int
    channels: int
    vectors: int
    splits: int
    pass_blocks: int
    direct: GatherPlan
    parallel: bool = True
    parts: int = 1
    shares: int = 0
    per_task: int = 1
    by_slice: bool = False
    chunks: int = 1
    streamed: bool = False
    least: int = 0
    tasks: int = 1

    def filters(self, problem: Problem) -> tuple[tuple[Filter, ...], ...]:
        """How each spatial axis is computed; along depth, where terms are a loop, in one way."""
        _, height, width = super().filters(problem)
        return joined_filters_of(problem.gathers[1], self.tile[0]), height, width

    def depth(self, problem: Problem) -> int:
        """Input channels of a chunk."""
        return problem.in_channels // self.chunks

    def slices(self, problem: Problem) -> int:
        """Slices of the kernel along depth and height: the rows of a phase need one."""
        return prod(
            sum(len(f.first_taps) for f in filters) for filters in self.filters(problem)[:2]
        )

    @property
    def inputs_first(self) -> bool:
        """Whether all inputs of a task are combined before its parts begin."""
        return self.per_task > 1

    def gap(self, problem: Problem) -> int:
        """Rows that stay empty behind those of a point: one for each input channel and term.

        Streams whose distance is a power of two would push each other out of the first cache.  Of
        many channels there are as many rows as let combined taps begin with a cache line.
        """
        rows = self.lanes // gcd(self.lanes, self.channels)
        return rows if self.depth(problem) >= 16 * rows else 1

    @property
    def pitch(self) -> int:
        """Distance of two rows of tiles: one register tile, or never a power of two of lines."""
        rounds = -(-prod(self.block) // (self.vectors * self.lanes))
        vectors = rounds * self.vectors
        return (vectors if rounds == 1 else odd(vectors)) * self.lanes


@dataclass(frozen=True)
class AmxPlan:
    """Plan of the kernel of ``conv`` and ``conv_transpose`` of bfloat16 by a matrix unit.

    Attributes
    ----------
    gather : GatherPlan
        The loop nest: its lanes are the columns of a tile, its channels whole tiles, its depth
        counts steps of a tile of pairs of input channels.
    refused : GatherPlan
        For where the matrix unit may not be used.
    """

    gather: GatherPlan
    refused: GatherPlan


@dataclass(frozen=True)
class DotPlan:
    """Plan of the kernel of ``conv`` and ``conv_transpose`` of bfloat16 by products of pairs.

    Attributes
    ----------
    gather : GatherPlan
        The loop nest: its depth counts pairs of input channels.
    """

    gather: GatherPlan


@dataclass(frozen=True)
class InnerPlan:
    """Plan of the ``conv`` kernel for few positions.

    Attributes
    ----------
    lanes : int
        Elements per vector.
    k_block : int
        Output channels per task: whole register tiles.
    channels, m_tile : int
        Register tile: output channels by positions.
    parallel : bool
        Whether threads share the tasks.
    room : int
        Of symbolic sizes, the most positions that it takes at a time.
    """

    lanes: int
    k_block: int
    channels: int
    m_tile: int
    parallel: bool = True
    room: int = 0

    def pitch(self, problem: Problem) -> int:
        """Distance of what two positions read: whole vectors, never a power of two of them."""
        vectors = -(-problem.in_channels * problem.geometry.taps // self.lanes)
        return odd(vectors) * self.lanes


@dataclass(frozen=True)
class WeightGradPlan:
    """Plan of the ``conv_weight_grad`` kernel.

    Attributes
    ----------
    window : Window
        Block of positions of y that is reduced at a time and what it reads of x.
    lanes : int
        Elements per vector.
    k_block, c_block : int
        Channels of y and of x that one task holds partial sums for.
    k_tile, c_tile, tap_tile : int
        Register tile: channels of y by (channels of x times taps along the last axis).
    parallel : bool
        Whether threads share the tasks.
    """

    window: Window
    lanes: int
    k_block: int
    c_block: int
    k_tile: int
    c_tile: int
    tap_tile: int
    parallel: bool = True


@dataclass(frozen=True)
class ChannelsPlan:
    """Plan of the ``conv_weight_grad`` kernel for many channels.

    Attributes
    ----------
    window : Window
        Block of positions of y that is reduced at a time and what it reads of x.
    lanes : int
        Elements per vector.
    k_block, c_block : int
        Channels of y and of x that one task holds partial sums for.
    c_tile, vectors : int
        Register tile: channels of x by vectors of channels of y.
    parallel : bool
        Whether threads share the tasks.
    clipped : bool
        Whether each tap runs over the positions alone where it meets data.
    """

    window: Window
    lanes: int
    k_block: int
    c_block: int
    c_tile: int
    vectors: int
    parallel: bool = True
    clipped: bool = False


@dataclass(frozen=True)
class ClippedPlan:
    """Plan of the kernel of plain gathers whose taps run only where they meet data.

    Attributes
    ----------
    rows : tuple of int
        Rows of positions per task, along depth and height; of symbolic images the kernel chooses.
    lanes : int
        Elements per vector.
    vectors : int
        Vectors of output channels of a block.
    m_tile : int
        Positions of a register tile.
    depth : int
        Input channels that are summed at a time.
    splits : int
        Into how many tasks the output channels of one block of rows are divided.
    parallel : bool
        Whether threads share the tasks.  Of symbolic images they do: tasks size what they hold.
    room : int
        Of symbolic images, positions of which a task has about as many, or one row.
    """

    rows: tuple[int, int]
    lanes: int
    vectors: int
    m_tile: int
    depth: int
    splits: int
    parallel: bool = True
    room: int = 0

    def blocks(self, problem: Problem) -> int:
        """Blocks of output channels of a group."""
        return -(-problem.out_channels // (self.vectors * self.lanes))

    def packed(self, problem: Problem) -> int:
        """Elements of all packed weights."""
        g = problem.geometry
        channels = self.blocks(problem) * self.vectors * self.lanes
        return g.groups * channels * problem.in_channels * g.taps

    def rows_of(
        self,
        height: Any,
        width: Any,
        quotient: Callable[..., Any] = floordiv,
        most: Callable[..., Any] = max,
    ) -> Any:
        """Rows of a task along the height of symbolic images, once these sizes are known.

        About as many as of another task; `quotient` and `most` compute with expressions.
        """
        fit = most(quotient(self.room, most(width, 1)), 1)
        parts = most(quotient(height + fit - 1, fit), 1)
        return most(quotient(height + parts - 1, parts), 1)

    def positions(self, problem: Problem) -> int:
        """Positions of a task."""
        width: int = problem.positions[-1]
        return prod(self.rows) * width

    def pitch(self, problem: Problem, rows: Sequence[Any] = ()) -> Any:
        """Elements from one input channel to the next: never a power of two of cache lines."""
        held = prod(problem.geometry.kernel[:-1]) * prod(rows or self.rows)
        vectors = (held * problem.in_sizes[-1] + self.lanes - 1) // self.lanes
        return odd(vectors) * self.lanes


@dataclass(frozen=True)
class ColumnsPlan:
    """Plan of the ``conv_weight_grad`` kernel for few positions.

    Attributes
    ----------
    images : int
        Images whose positions are held at a time; divides the batch.  Of symbolic sizes all are.
    lanes : int
        Elements per vector.
    c_block : int
        Channels of x per task.
    splits : int
        Into how many tasks the channels of y are divided.
    k_tile, vectors : int
        Register tile: channels of y by vectors of (channel of x, tap).
    parallel : bool
        Whether threads share the tasks.
    room : int
        Of symbolic sizes, the most positions that it holds.
    """

    images: int
    lanes: int
    c_block: int
    splits: int
    k_tile: int
    vectors: int
    parallel: bool = True
    room: int = 0

    def row_vectors(self, geometry: Geometry) -> int:
        """Vectors of a row of columns: of all channels and taps of a task."""
        return -(-self.c_block * geometry.taps // self.lanes)

    def is_whole(self, geometry: Geometry) -> bool:
        """Whether all register tiles are full, and rows of columns full vectors."""
        return (
            geometry.k_per_group % self.k_tile == 0
            and geometry.c_per_group % self.c_block == 0
            and self.c_block * geometry.taps % self.lanes == 0
        )


@dataclass(frozen=True)
class WeightTilesPlan(Tiled):
    """Plan of the ``conv_weight_grad`` kernel that saves products.

    Attributes
    ----------
    tile : tuple of int
        Outputs per tile along depth, height and width: 1 or 2, along the width also 4.
    block : tuple of int
        Tiles that are reduced at a time along the four axes.
    lanes : int
        Elements per vector.
    c_block : int
        Channels of x per task.
    c_tile, vectors : int
        Register tile: channels of x by vectors of channels of y.
    direct : WeightGradPlan
        For data that is not finite.
    parallel : bool
        Whether threads share the tasks.
    parts : int
        Parts of the channels of x that are computed one after the other, for less memory.
    shares : int
        Into how many tasks phases and blocks of tiles are divided, each with sums of its own; of 1,
        blocks of channels are tasks.
    """

    tile: tuple[int, ...]
    block: tuple[int, ...]
    lanes: int
    c_block: int
    c_tile: int
    vectors: int
    direct: WeightGradPlan
    parallel: bool = True
    parts: int = 1
    shares: int = 1

    def passes(self, problem: Problem) -> int:
        """How often sums are added to: for each block of tiles and each phase."""
        passes = prod(len(filters[0].phases) for filters in self.filters(problem))
        for count, size in zip(nominal(self.tiles(problem)), self.block):
            passes *= -(-count // size)
        return passes

    @property
    def pitch(self) -> int:
        """Distance of two rows of combined inputs: never a power of two of cache lines."""
        vectors = -(-prod(self.block) // self.lanes)
        return odd(vectors) * self.lanes

    @property
    def rows(self) -> int:
        """Rows of combined inputs from one term to the next: those of a channel, which are written
        together, lie in different sets of a cache."""
        return odd(self.c_block)


@dataclass(frozen=True)
class EitherPlan:
    """Plan for symbolic sizes, which choose one of two when the kernel runs.

    Attributes
    ----------
    small : InnerPlan, ScatterPlan, ClippedPlan, ColumnsPlan or ChannelsPlan
        For no more than so many positions of y, where it has room for them.
    large : Plan
        For everything else: of any size.
    most, most_of_image : int, optional
        Of all images together, and of each; None for any number.
    """

    small: InnerPlan | ScatterPlan | ClippedPlan | ColumnsPlan | ChannelsPlan
    large: Plan
    most: int | None = None
    most_of_image: int | None = None


Plan = Union[
    GatherPlan, WinogradPlan, AmxPlan, DotPlan, InnerPlan, ScatterPlan, PhasesPlan, ClippedPlan,
    EitherPlan, WeightGradPlan, ChannelsPlan, ColumnsPlan, WeightTilesPlan,
]  # fmt: skip
"""Each is the plan of one kernel."""
