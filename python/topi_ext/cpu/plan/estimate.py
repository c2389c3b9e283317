# SPDX-License-Identifier: Apache-2.0
"""Functions that planners share: candidates, register tiles, cycles of common steps.

Cycles are of one core; what a step takes is in the tables of :mod:`.step_costs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import TypeVar

from ...kernel.registry import accepted, cost_of
from ...spec.axis_access import AxisAccess
from ...spec.conv import Convolution
from ..machine import CACHE_LINE, CpuMachine
from .step_costs import CommonCosts, costs_of
from .vectors import MOST_STEP
from .window import Window

AnyPlan = TypeVar("AnyPlan")

MOST_CHANNELS = 16
"""Output channels of a register tile."""

WAYS = 8
"""Lines that a set of the first cache holds."""

PARALLEL_CYCLES = 40_000
"""Work below this is done by the calling thread: waking the others takes about as long."""

MOST_ROWS = 14
"""Most rows of the register tile of a matrix product."""

SHARED_CACHES = 16
"""Size of the cache that cores share, in second caches."""

BLOCK_POSITIONS = 4096
"""Most positions of a block that has several images."""

MOST_PARTS = 4096
"""Parts up to which a number is divided into equal ones: to look for more takes too long."""

LONG_ROW = 512
"""Positions of a row from which on it is cut by length, not into some number of parts."""

BROAD_TILE = 4
"""Vectors of a register tile above which its lines are apart."""

TOO_LARGE = 4.0
"""Times that a plan counts which holds more memory than it may: the last choice, yet one."""

MOST_MEAN = 0.75
"""Largest mean over known sizes of the share of products with data for which kernels of symbolic
sizes leave out padding: a dilation of 2 has it."""


def cheapest(plans: Iterable[tuple[float, AnyPlan]]) -> tuple[float, AnyPlan] | None:
    """Return the first plan with the fewest cycles, or None if the planner has none."""
    return min(accepted(plans), key=cost_of, default=None)


def candidate_blocks(positions: Sequence[int], lanes: int) -> Iterator[tuple[int, ...]]:
    """Candidate blocks: axes are cut from the outside in, the last one only when it is long."""
    n, depth, height, width = positions
    widths = sorted(
        {-(-width // i) for i in (1, 2, 3, 4, 6, 8) if i == 1 or width // i >= 4 * lanes}
    )
    if width > LONG_ROW:
        widths = sorted({-(-width // -(-width // limit)) for limit in (64, 128, 256, LONG_ROW)})
    heights = sorted({-(-height // i) for i in range(1, min(height, 32) + 1)} | {1})
    depths = sorted({-(-depth // i) for i in range(1, min(depth, 16) + 1)} | {1})
    for w in widths:
        for h in heights if w == width else (1,):
            for d in depths if h == height and w == width else (1,):
                whole = (d, h, w) == (depth, height, width)
                images = {i for i in (1, 2, 4, 8, 16, n) if i <= n} if whole else {1}
                for i in sorted(images):
                    if i == 1 or i * d * h * w <= BLOCK_POSITIONS:
                        yield (i, d, h, w)


def blocks_in(sizes: Sequence[int], block: Sequence[int]) -> int:
    """Return how many such blocks cover these sizes."""
    return prod(-(-size // part) for size, part in zip(sizes, block))


def candidate_channels(channels: int, tile: int) -> list[int]:
    """Candidates: the channels in equal parts, each whole tiles."""
    parts = {-(-channels // i) for i in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)}
    return sorted({min(channels, -(-part // tile) * tile) for part in parts})


def divisors(n: int) -> list[int]:
    """Candidates: equal parts of `n`, no more than there can be use for."""
    return [i for i in range(1, min(n, MOST_PARTS) + 1) if n % i == 0]


def candidate_splits(tasks: int, blocks: int, machine: CpuMachine) -> list[int]:
    """Candidates: a task for each thread, two, and more, if there are not enough without."""
    wanted = {-(-count * machine.threads // tasks) for count in (1, 2, 4, 8)}
    return sorted({min(blocks, count) for count in wanted if tasks < 2 * machine.threads} or {1})


def candidate_depths(channels: int) -> list[int]:
    """Candidates: all channels at once, or equal parts of them."""
    return sorted(
        {-(-channels // i) for i in (1, 2, 4, 8, 16, 32) if i == 1 or channels // i >= 16}
    )


@lru_cache(maxsize=4096)
def register_tile(
    out_channels: int, vectors: int, machine: CpuMachine, kinds: int = 1, most: int = MOST_CHANNELS
) -> tuple[int, int]:
    """Output channels, of so many at `most`, and vectors of the cheapest register tile.

    A smaller last one is code of its own, for each of so many `kinds` of phases; for none of them,
    it is as large as the others.
    """
    usable, common = usable_registers(machine), costs_of(machine).common
    best: tuple[float, int, int] | None = None
    for channels, width in product(range(1, min(out_channels, most) + 1), range(1, 9)):
        if width > vectors or channels * width + width + 1 > usable:
            continue
        cycles = row_cycles(channels, vectors, width, machine)
        if not kinds:
            far = common.broad_tile * max(0, width - BROAD_TILE)
            cycles = -(-vectors // width) * (tile_cycles(channels, width, machine) + far)
        cycles *= -(-out_channels // channels)
        cycles *= 1 + (common.odd_tile * kinds if vectors % width else 0.0)
        if best is None or cycles < best[0]:
            best = (cycles, channels, width)
    return best[1:] if best else (1, 1)


def usable_registers(machine: CpuMachine) -> int:
    """Return the registers available for accumulators. With 32 registers some are left for weights
    that LLVM loads ahead; with 16 none, because x86 reads them from memory while it multiplies.
    """
    return machine.registers - max(0, machine.registers - 16) // 4


def most_of(cache: int) -> int:
    """Return how many of these bytes reused data may take; the rest is for streamed data."""
    return cache * 3 // 4


def rows_that_fit(stride: int, machine: CpuMachine) -> int:
    """Return how many rows that begin `stride` bytes apart can be read together, so that their
    lines fit into the sets of the first cache that they share.
    """
    way = machine.l1 // WAYS
    return WAYS * (way // max(gcd(stride, way), CACHE_LINE))


def row_cycles(
    channels: int, vectors: int, width: int, machine: CpuMachine, *, shifted: bool = False
) -> float:
    """Return the cycles of one tap of `vectors` vectors, in register tiles of `width` and a smaller
    last.
    """
    full, tail = divmod(vectors, width)
    cycles = full * tile_cycles(channels, width, machine, shifted=shifted)
    return cycles + (tile_cycles(channels, tail, machine, shifted=shifted) if tail else 0)


def tile_cycles(
    channels: int, vectors: int, machine: CpuMachine, *, shifted: bool = False
) -> float:
    """Return the cycles of one tap: its FMAs, its loads, or the time until a sum is ready.

    Rows that are `shifted` begin anywhere: where a vector fills a cache line, each touches two.
    """
    common = costs_of(machine).common
    loads = channels + vectors * (2 if shifted and machine.vector_bytes >= CACHE_LINE else 1)
    products = channels * vectors / machine.fmas
    beside = products + loads * common.load_beside
    return max(beside, loads * common.load, common.sum_ready) + common.tap


@lru_cache(maxsize=1024)
def rows_of_tile(rows: int, vectors: int, machine: CpuMachine) -> int:
    """Return the rows of the register tile that computes `rows` of a matrix product fastest."""
    most = max(1, min((usable_registers(machine) - 1 - vectors) // vectors, MOST_ROWS, rows))
    return min(range(most, 0, -1), key=lambda tile: rows_cycles(rows, tile, vectors, machine))


def rows_cycles(rows: int, tile: int, vectors: int, machine: CpuMachine) -> float:
    """Return the cycles of one term of all rows, by tiles of `tile` rows and a smaller last one."""
    full, tail = divmod(rows, tile)
    cycles = full * tile_cycles(tile, vectors, machine)
    return cycles + (tile_cycles(tail, vectors, machine) if tail else 0.0)


def pack_cycles(
    accesses: Sequence[AxisAccess],
    window: Window,
    channels: int,
    common: CommonCosts,
    *,
    wide: bool = False,
) -> float:
    """Return the estimated cycles of packing one window: rows begin, elements follow; `wide` are
    vectors that fill cache lines, by which neighbours are copied.
    """
    last, planes = accesses[-1], channels * prod(access.slots for access in accesses)
    cycles = planes * plane_cycles(last, window, common, wide=wide)
    # One after the other, the taps read the same rows; with a step they do so one by one.
    if last.plane_per_tap and last.in_step == 1:
        cycles *= common.pack_again
    return cycles


def plane_cycles(
    last: AxisAccess, window: Window, common: CommonCosts, *, wide: bool = False
) -> float:
    """Return the estimated cycles of packing one plane of a window with this access along rows."""
    begin, element = common.pack_row, common.pack_step
    if last.in_step > MOST_STEP:
        element = common.pack_apart
    elif last.plane_per_tap:
        element = common.pack_tap
    elif last.in_step == 1:
        element = common.pack_element
        if wide:
            begin, element = common.pack_row_wide, common.pack_element_wide
    return prod(window.extent[:-1]) * begin + window.elements * element


def widening_cycles(dtype: str, wanted: str, common: CommonCosts) -> float:
    """Return the cycles of one element that is not adjacent to its neighbours."""
    if dtype == wanted:
        return 0.0
    return common.widen_float16 if dtype == "float16" else common.widen_other


def room_for(problem: Convolution) -> int:
    """Return the elements that tasks together may hold: those of operands and result, less some for
    tables.
    """
    return problem.elements * 15 // 16


def memory_price(problem: Convolution, held: int, room: int | None = None) -> float:
    """Return the cost multiplier for plans whose tasks hold more than the limit or `room`, so that
    they are chosen only when nothing else fits.
    """
    return TOO_LARGE if held > (room_for(problem) if room is None else room) else 1.0
