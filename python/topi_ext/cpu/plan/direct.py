# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.kernels.gather`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

from ...dtypes import byte_width
from ...gather import Gather
from ...problem import Problem
from ..machine import CACHE_LINE, Machine
from .cost import (
    MOST_CHANNELS,
    PARALLEL_CYCLES,
    blocks_in,
    candidate_blocks,
    candidate_depths,
    candidate_splits,
    memory_price,
    pack_cycles,
    register_tile,
    row_cycles,
    rows_that_fit,
    widening_cycles,
)
from .nominal import data_elements, nominal
from .vectors import square_size
from .window import Plan, Window

UNROLLED_TAPS = 8
"""Taps written out in an innermost loop; with more, LLVM runs out of registers."""


MOST_COPIED = 4096
"""Weights that are copied at a time before they are packed."""


@lru_cache(maxsize=64)
def read_through(problem: Problem, *, plane_per_tap: bool) -> tuple[Gather, ...]:
    """How the data of `problem` is read, along the four axes; with `plane_per_tap` each tap of a
    ``conv`` has a plane of its own."""
    if not plane_per_tap:
        return problem.gathers
    return tuple(replace(gather, plane_per_tap=True) for gather in problem.gathers)


@dataclass(frozen=True)
class DirectPlan(Plan):
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
    channel_splits : int
        Into how many tasks the output channels of one block are divided.
    depth : int
        Input channels that are summed at a time.
    packed : bool
        Whether the weights are packed first, or read where they are.
    parallel : bool
        Whether threads share the tasks.
    plane_per_tap : bool
        Whether each tap of a ``conv`` has a plane of its own, so that no lane is in a halo.
    tasks : int
        Of symbolic sizes, how many tasks there should be: `channel_splits` follows at run time.
    tiles_first : bool
        Whether all output channels of a tile of positions are summed before those of the next,
        instead of all positions of a block of output channels.
    unrolled : int
        Most taps that are written out in an innermost loop.
    panel_by_tile : bool
        Whether the panel holds what one register tile reads of all planes together; only of
        windows without a halo, in which no tap is shifted.
    streamed : bool
        Whether the result is written past the caches.
    all_phases : bool
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
    channel_splits: int
    depth: int
    packed: bool = True
    parallel: bool = True
    plane_per_tap: bool = False
    tasks: int = 1
    tiles_first: bool = False
    unrolled: int = UNROLLED_TAPS
    panel_by_tile: bool = False
    streamed: bool = False
    all_phases: bool = False
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
        return read_through(problem, plane_per_tap=self.plane_per_tap)


FEW_CHANNELS = 8
"""With so many output channels, register tiles of one phase load little for their products."""

MOST_ROW_TAPS = 64
"""Longest kernel along a row whose taps are all written out."""

MANY_PHASES = 64
"""With more of them, the lines in which their packed weights begin are too many for a cache."""

MOST_PHASES = 1 << 12
"""Of symbolic sizes, with more of them a task has room for one position."""

TILED_CHANNELS = 16
"""Least input channels for which rearranging a panel by register tiles pays."""


@lru_cache(maxsize=64)
def plan_direct(problem: Problem, machine: Machine) -> tuple[float, DirectPlan]:
    """Lanes over positions: the plan of :mod:`topi_ext.kernels.gather`, and its cycles."""
    cost, plan = min(
        _plans(problem, machine), key=lambda one: one[0] * _price(problem, one[1], machine)
    )
    return cost + _packing_cycles(problem, plan, machine), plan


def direct_candidates(problem: Problem, machine: Machine) -> Iterator[tuple[float, DirectPlan]]:
    """Of what :func:`plan_direct` chooses, by these cycles without those of packing weights."""
    for cost, plan in _plans(problem, machine):
        cost *= _price(problem, plan, machine)
        yield cost + _packing_cycles(problem, plan, machine), plan


def _plans(problem: Problem, machine: Machine) -> Iterator[tuple[float, DirectPlan]]:
    """Candidates, and their cycles but for packing weights."""
    lanes = machine.lanes(problem.acc_dtype)
    positions = nominal(problem.positions)
    if not problem.is_static and prod(gather.out_step for gather in problem.gathers) > MOST_PHASES:
        positions = (1,) * len(positions)  # each holds a result for every phase
    kinds = prod(len(gather.groups) for gather in problem.gathers)
    most = MOST_CHANNELS
    if problem.weights_are_rows:
        stride = problem.in_channels * problem.geometry.taps * byte_width(problem.acc_dtype)
        most = min(most, rows_that_fit(stride, machine))
    may_spread = problem.is_static and not problem.transposed and problem.geometry.taps > 1
    orders = [(False, False)]
    orders += [(True, False)] if may_spread else []
    orders += [(False, True)] if _may_take_rows(problem, machine) else []
    for block, (plane_per_tap, all_phases) in product(candidate_blocks(positions, lanes), orders):
        window = Window.of(block, read_through(problem, plane_per_tap=plane_per_tap))
        vectors = -(-window.length // lanes)
        channels, width = (
            _row_tile(problem, vectors, machine)
            if all_phases
            else register_tile(problem.out_channels, vectors, machine, kinds, most)
        )
        tasks = problem.geometry.groups * blocks_in(positions, block)
        blocks = -(-problem.out_channels // channels)
        may_tile = window.extent == window.block and problem.in_channels >= TILED_CHANNELS
        may_tile = may_tile and not all_phases
        for splits, depth, tiles_first, tiled in product(
            candidate_splits(tasks, blocks, machine),
            candidate_depths(problem.in_channels),
            (False, True),
            (False, True)[: 1 + may_tile],
        ):
            plan = DirectPlan(
                window, lanes, channels, width, splits, depth, not problem.weights_are_rows,
                plane_per_tap=plane_per_tap, tasks=2 * machine.threads, tiles_first=tiles_first,
                panel_by_tile=tiled,
                all_phases=all_phases,
            )  # fmt: skip
            cycles = _cycles(problem, plan, machine)
            if cycles is None:
                continue
            if problem.is_static and tasks * splits * cycles < PARALLEL_CYCLES:
                plan = replace(plan, parallel=False)
            yield -(-tasks * splits // machine.threads) * cycles, plan


def direct_tasks(problem: Problem, plan: DirectPlan) -> int:
    """Tasks that may run at once."""
    blocks = blocks_in(nominal(problem.positions), plan.window.block)
    return problem.geometry.groups * blocks * plan.channel_splits


def _price(problem: Problem, plan: DirectPlan, machine: Machine) -> float:
    """That of its memory, of known sizes."""
    if not problem.is_static:
        return 1.0
    busy = min(machine.threads if plan.parallel else 1, direct_tasks(problem, plan))
    return memory_price(problem, direct_elements(problem, plan, busy))


def _packing_cycles(problem: Problem, plan: DirectPlan, machine: Machine) -> float:
    """Estimated cycles of packing weights before the kernel runs."""
    if not plan.packed or problem.prepacked:
        return 0.0
    weights = problem.weights
    each = 1.5 if machine.vector_bytes >= 64 else 2.5 if weights * 4 <= machine.l2 else 6.0
    if prod(gather.out_step for gather in problem.gathers) > MANY_PHASES:
        # One after the other they are written far apart.
        each = max(each, 8.0)
    each += widening_cycles(problem.dtypes[1], problem.acc_dtype)
    if plan.copies_squares(problem):
        near, far = machine.l2 * machine.threads, 16 * machine.l2
        each = 0.8 if weights * 4 <= near else 2.0 if weights * 4 <= far else 3.0
    return weights * each / machine.threads


def direct_elements(problem: Problem, plan: DirectPlan, busy: int) -> int:
    """What the kernel holds beside its operands while `busy` tasks run."""
    lanes, gathers = plan.lanes, plan.gathers(problem)
    slots, phases = prod(g.slots for g in gathers), prod(g.out_step for g in gathers)
    row = -(-plan.window.length // lanes) * lanes
    blocks = -(-problem.out_channels // plan.channels)
    pitch, width = plan.window.pitch(lanes), plan.vectors * lanes
    if plan.panel_by_tile:
        # Whole register tiles, and the planes of one channel from which they are made.
        task = plan.depth * slots * -(-row // width) * width + slots * pitch + width
    else:
        task = plan.depth * slots * pitch
    together = (
        -(-blocks // plan.channel_splits)
        if plan.depth < problem.in_channels or plan.tiles_first
        else 1
    )
    task += plan.channels * phases * row * together
    packed = 0
    if plan.packed and not problem.prepacked:
        groups, taps = problem.geometry.groups, problem.geometry.taps
        packed = groups * blocks * plan.channels * problem.in_channels * taps
        # Copied before the tasks begin.
        task = max(task, taps * (plan.copied_channels(problem) * plan.channels + lanes))
    return packed + busy * task


def _cycles(problem: Problem, plan: DirectPlan, machine: Machine) -> float | None:
    """Estimated cycles of one task; None where it holds more than pays."""
    window, lanes = plan.window, plan.lanes
    width = byte_width(problem.acc_dtype)
    gathers = plan.gathers(problem)
    slots = prod(g.slots for g in gathers)
    phases = prod(g.out_step for g in gathers)
    busy = prod(sum(group.phases for group in g.groups) for g in gathers)
    taps = problem.geometry.taps
    # Rows of symbolic length are copied in another way.
    wide = problem.is_static and machine.vector_bytes >= 64
    pack = pack_cycles(gathers, window, problem.in_channels, wide=wide)
    panel = plan.depth * slots * window.pitch(lanes) * width
    if panel > machine.l2 // 2:
        pack *= 3
    elif panel <= machine.l1 * 3 // 4 and wide:
        pack *= 0.6
    blocks = -(-problem.out_channels // plan.channels)
    per_split = -(-blocks // plan.channel_splits)
    vectors = -(-window.length // lanes)
    full, tail = divmod(vectors, plan.vectors)
    shifted = window.extent != window.block
    if plan.all_phases:
        last = gathers[-1]
        step = _whole_row_cycles(last, plan.channels, vectors, plan.vectors, machine) / last.kernel
        passes = busy // sum(group.phases for group in last.groups)
    else:
        passes = busy
        step = row_cycles(plan.channels, vectors, plan.vectors, machine, shifted=shifted)
    # Above half of the cache times vary from run to run, by up to 1.4 as measured.
    spill = 1.0 if panel <= machine.l2 // 2 else 1.15 if panel <= machine.l2 * 3 // 4 else 1.3
    if plan.plane_per_tap:
        # As measured: planes are read in order, unless weights push them out of the same cache.
        spill = 0.94 if panel <= machine.l2 // 4 and not plan.tiles_first else 1.03
    if plan.panel_by_tile:
        # What a tile reads comes in order, from wherever it is.
        pack *= 1.5
        spill = 1.0 if plan.tiles_first else 1.03 if panel <= machine.l2 // 2 else 1.06
    compute = per_split * problem.in_channels * taps * step * spill
    if panel > machine.l2 * 3 // 4 and not plan.tiles_first:
        # It is read once for every block of output channels, and phase that has taps.
        rows = per_split * problem.in_channels * slots * passes
        lines = rows * vectors * machine.vector_bytes // CACHE_LINE
        compute = max(compute, lines * machine.l3_line_cycles)
    chunks = -(-problem.in_channels // plan.depth)
    tiles = full + bool(tail)
    held = plan.channels * phases * vectors * lanes * width
    if plan.tiles_first:
        # All blocks of output channels read what one tile of positions needs from the first cache.
        halo = [g.last_shift - g.first_shift for g in gathers]
        rows = prod(1 + reach for reach in halo[:-1])
        row = (plan.vectors * lanes + halo[-1]) * width + 64
        taken = per_split * plan.depth * taps * plan.channels
        room = machine.threads * (panel + held * per_split)
        if not plan.panel_by_tile and plan.depth * slots * rows * row > machine.l1 * 3 // 4:
            return None
        if room > data_elements(problem) * width:
            return None
        near = taken * width + panel <= machine.l2 * 3 // 4
        compute *= 1.0 if plan.panel_by_tile else 1.04
        compute += tiles * chunks * taken * (0.03 if near else 0.06 if plan.panel_by_tile else 0.15)
    elif (
        not plan.panel_by_tile
        and panel + plan.depth * taps * plan.channels * width > machine.l1 * 3 // 4
    ):
        # What one block of output channels reads: the panel, once per phase that has taps.
        lines = slots * passes * (vectors + tiles)
        # Planes that one tap reads come in order, and most of the way is hidden.
        slice_ = plan.depth * taps * (plan.vectors * lanes + plan.channels) * width
        has_one_tap = slots == 1 and taps <= phases
        hidden = has_one_tap or (plan.plane_per_tap and slice_ <= machine.l1 // 2)
        compute += per_split * problem.in_channels * lines * (0.25 if hidden else 1.0)
    out_rows = prod(window.block[:-1])
    # Phases of long strides are put together one by one, and narrowed so.
    narrowed = 0.0 if problem.dtypes[2] == problem.acc_dtype else 25.0
    element = 0.6 if gathers[-1].out_step < lanes else 1.5 + narrowed
    copy = per_split * plan.channels * phases * (out_rows * 6 + prod(window.block) * element)
    if chunks > 1 or plan.tiles_first:
        held *= per_split
        sums = per_split * chunks * busy * plan.channels * vectors * 2.0
        compute += sums * (1 if held <= machine.l2 // 2 else 4)
    if held > machine.l2 // 2:
        copy *= 4
    # Every block reads the weights again, from wherever they fit.
    far = problem.weights_per_group * width > machine.l2
    weights = per_split * problem.in_channels * taps * plan.channels * (0.6 if far else 0.25)
    return 1000 + pack + compute + copy + weights


def _may_take_rows(problem: Problem, machine: Machine) -> bool:
    """Whether a register tile has room for all phases of a row, of one output channel."""
    last = problem.gathers[-1]
    phases = sum(group.phases for group in last.groups)
    few = problem.out_channels < FEW_CHANNELS and last.kernel <= MOST_ROW_TAPS
    return few and 1 < phases <= machine.registers // 2 - 4


def _row_tile(problem: Problem, vectors: int, machine: Machine) -> tuple[int, int]:
    """Output channels and vectors of the cheapest register tile of whole rows."""
    last, usable = problem.gathers[-1], machine.registers - (machine.registers - 16) // 4
    phases = sum(group.phases for group in last.groups)
    best: tuple[float, int, int] | None = None
    for channels, width in product(range(1, problem.out_channels + 1), range(1, 9)):
        fits = (channels * phases + 1) * width < usable
        fits = fits and channels * width * last.kernel <= 4 * MOST_ROW_TAPS
        if width > vectors or not (fits or channels == width == 1):
            continue
        cycles = _whole_row_cycles(last, channels, vectors, width, machine)
        cycles *= -(-problem.out_channels // channels)
        if best is None or cycles < best[0]:
            best = cycles, channels, width
    return best[1:] if best else (1, 1)


def _whole_row_cycles(
    gather: Gather, channels: int, vectors: int, width: int, machine: Machine
) -> float:
    """Cycles of all taps along a row of `vectors` vectors, for one tap along the other axes."""

    def tile(count: int) -> float:
        products = gather.kernel * channels * count / machine.fmas
        rows = len(gather.reads) * count * (2 if machine.vector_bytes >= 64 else 1)
        # Somewhat more, as measured, than the same products in tiles of one phase.
        return 1.05 * max(products, (rows + gather.kernel * channels) * 0.78, 4.0) + 0.4

    full, tail = divmod(vectors, width)
    return full * tile(width) + (tile(tail) if tail else 0)
