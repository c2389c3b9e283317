# SPDX-License-Identifier: Apache-2.0
"""What planners share: candidates, register tiles, and the cycles of what kernels have in common.

Constants of an estimate are measured, in cycles of one core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import TypeVar

from ...gather import Gather
from ...problem import Problem
from ..machine import CACHE_LINE, Machine
from .nominal import elements
from .window import Window

AnyPlan = TypeVar("AnyPlan")

MOST_CHANNELS = 16
"""Output channels of a register tile."""

WAYS = 8
"""Lines that a set of the first cache holds."""

PARALLEL_CYCLES = 40_000
"""Work below this is done by the calling thread: waking the others takes about as long."""


def cheapest(plans: Iterable[tuple[float, AnyPlan]]) -> tuple[float, AnyPlan] | None:
    """Of plans and their cycles the first of fewest, or None where there is none."""
    return min(plans, key=lambda one: one[0], default=None)


def candidate_blocks(positions: Sequence[int], lanes: int) -> Iterator[tuple[int, ...]]:
    """Candidate blocks: axes are cut from the outside in, the last one only when it is long."""
    n, depth, height, width = positions
    widths = sorted(
        {-(-width // i) for i in (1, 2, 3, 4, 6, 8) if i == 1 or width // i >= 4 * lanes}
    )
    if width > 512:
        widths = sorted({-(-width // -(-width // limit)) for limit in (64, 128, 256, 512)})
    heights = sorted({-(-height // i) for i in range(1, min(height, 32) + 1)} | {1})
    depths = sorted({-(-depth // i) for i in range(1, min(depth, 16) + 1)} | {1})
    for w in widths:
        for h in heights if w == width else (1,):
            for d in depths if h == height and w == width else (1,):
                whole = (d, h, w) == (depth, height, width)
                images = {i for i in (1, 2, 4, 8, 16, n) if i <= n} if whole else {1}
                for i in sorted(images):
                    if i == 1 or i * d * h * w <= 4096:
                        yield (i, d, h, w)


def blocks_in(sizes: Sequence[int], block: Sequence[int]) -> int:
    """How many such blocks cover these sizes."""
    return prod(-(-size // part) for size, part in zip(sizes, block))


def candidate_channels(channels: int, tile: int) -> list[int]:
    """Candidates: the channels in equal parts, each whole tiles."""
    parts = {-(-channels // i) for i in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)}
    return sorted({min(channels, -(-part // tile) * tile) for part in parts})


def divisors(n: int) -> list[int]:
    """Candidates: equal parts of `n`."""
    return [i for i in range(1, min(n, 4096) + 1) if n % i == 0]


def candidate_splits(tasks: int, blocks: int, machine: Machine) -> list[int]:
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
    out_channels: int, vectors: int, machine: Machine, kinds: int = 1, most: int = MOST_CHANNELS
) -> tuple[int, int]:
    """Output channels, of so many at `most`, and vectors of the cheapest register tile.

    A smaller last one is code of its own, for each of so many `kinds` of phases; for none of them,
    it is as large as the others.  Of 32 registers
    some are left for weights that LLVM loads ahead; of 16 none: x86 reads them from memory while it
    multiplies.
    """
    usable = machine.registers - (machine.registers - 16) // 4
    best: tuple[float, int, int] | None = None
    for channels, width in product(range(1, min(out_channels, most) + 1), range(1, 9)):
        if width > vectors or channels * width + width + 1 > usable:
            continue
        cycles = row_cycles(channels, vectors, width, machine)
        if not kinds:
            far = tile_cycles(channels, width, machine) + 0.1 * max(0, width - 4)
            cycles = -(-vectors // width) * far
        cycles *= -(-out_channels // channels)
        cycles *= 1 + (0.005 * kinds if vectors % width else 0.0)
        if best is None or cycles < best[0]:
            best = (cycles, channels, width)
    return best[1:] if best else (1, 1)


def rows_that_fit(stride: int, machine: Machine) -> int:
    """Of rows that begin `stride` bytes apart, how many can be read side by side: their lines find
    room in the sets of the first cache that they share."""
    way = machine.l1 // WAYS
    return WAYS * (way // max(gcd(stride, way), CACHE_LINE))


def row_cycles(
    channels: int, vectors: int, width: int, machine: Machine, *, shifted: bool = False
) -> float:
    """Cycles of one tap of `vectors` vectors, in register tiles of `width` and a smaller last."""
    full, tail = divmod(vectors, width)
    cycles = full * tile_cycles(channels, width, machine, shifted=shifted)
    return cycles + (tile_cycles(channels, tail, machine, shifted=shifted) if tail else 0)


def tile_cycles(channels: int, vectors: int, machine: Machine, *, shifted: bool = False) -> float:
    """Cycles of one tap: its FMAs; as measured, four loads in three cycles; four cycles until a sum
    is ready.

    Rows that are `shifted` begin anywhere: where a vector fills a cache line, each touches two.
    """
    loads = channels + vectors * (2 if shifted and machine.vector_bytes >= 64 else 1)
    return max(channels * vectors / machine.fmas, loads * 0.78, 4.0) + 0.4


def pack_cycles(
    gathers: Sequence[Gather], window: Window, channels: int, *, wide: bool = False
) -> float:
    """Estimated cycles of packing one window: rows begin, elements follow; `wide` are vectors that
    fill cache lines, by which neighbours are copied."""
    last = gathers[-1]
    slots = prod(gather.slots for gather in gathers)
    begin, element = 10, 0.25
    if last.in_step > 4:
        # Elements far apart each take a cache line.
        element = 3.0
    elif last.plane_per_tap:
        element = 0.6
    elif last.in_step == 1:
        begin, element = (6, 0.3) if wide else (10, 0.6)
    cycles = channels * slots * (prod(window.extent[:-1]) * begin + window.elements * element)
    # One after the other, the taps read the same rows; with a step they do so one by one.
    if last.plane_per_tap and last.in_step == 1:
        cycles *= 0.6
    return cycles


def widening_cycles(dtype: str, wanted: str) -> float:
    """Of one element that is not beside its neighbours."""
    return 0.0 if dtype == wanted else 3.0 if dtype == "float16" else 1.5


def room_for(problem: Problem) -> int:
    """Elements that tasks together may hold: those of operands and result, less some for tables."""
    return elements(problem) * 15 // 16


def memory_price(problem: Problem, held: int, room: int | None = None) -> float:
    """What a plan costs more, so that it is the last choice, if its tasks hold more than that, or
    than another `room`."""
    return 4.0 if held > (room_for(problem) if room is None else room) else 1.0
