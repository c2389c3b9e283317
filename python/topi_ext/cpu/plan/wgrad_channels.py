# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.wgrad_channels`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod
from statistics import mean
from typing import Any

from ...kernel.registry import Refused
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.size_hints import nominal
from ..machine import CACHE_LINE, CpuMachine
from .base import Plan
from .estimate import (
    MOST_MEAN,
    PARALLEL_CYCLES,
    blocks_in,
    candidate_blocks,
    candidate_channels,
    cheapest,
    memory_price,
    most_of,
    plane_cycles,
    register_tile,
    room_for,
    row_cycles,
)
from .step_costs import WgradChannelsCosts, costs_of
from .vectors import square_side
from .window import Window


@dataclass(frozen=True)
class WgradChannelsPlan(Plan):
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


MOST_POSITIONS = 1024
"""Maximum of a block."""

MOST_VALID = 0.85
"""Largest share of products with data for which each tap counts the positions where it meets it."""


def wgrad_channels_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, WgradChannelsPlan]]:
    """Yield plans, with lanes over channels of y, and their cycles."""
    for cycles, fields in _rated(problem, machine):
        yield cycles, WgradChannelsPlan(*fields)


def _rated(problem: Convolution, machine: CpuMachine) -> Iterator[tuple[float, tuple[Any, ...]]]:
    """Yield the cycles of plans, and their fields."""
    geometry, lanes = problem.geometry, machine.lanes(problem.acc_dtype)
    costs, common = costs_of(machine).wgrad_channels, costs_of(machine).common
    c, k, taps = geometry.c_per_group, geometry.k_per_group, geometry.taps
    slots = prod(g.slots for g in problem.accesses)
    width = byte_width(problem.acc_dtype)
    positions = nominal(problem.positions)
    clips = problem.valid_fraction < MOST_VALID
    share = problem.valid_fraction if clips else 1.0
    room, is_static, last = room_for(problem), problem.is_static, problem.accesses[-1]
    blocks = [
        (
            window := Window.of(block, problem.accesses),
            size,
            prod(block[:-1]),
            blocks_in(positions, block),
            plane_cycles(last, window, common),
            _turn_cycles(problem, block, lanes, costs),
            slots * window.pitch(lanes),
        )
        for block in candidate_blocks(positions, lanes)
        for size in [prod(block)]
        if size <= MOST_POSITIONS
    ]
    for k_block in candidate_channels(k, lanes):
        vectors = -(-k_block // lanes)
        # The tile is one of channels alone: of neighbouring taps LLVM would keep what the next
        # position reads again in registers, and spill.
        c_tile, v_tile = register_tile(c, vectors, machine)
        full, tail = divmod(vectors, v_tile)
        step = row_cycles(c_tile, vectors, v_tile, machine)
        # Each tile reads all rows of y again: at least from where they are.
        far = max(step, vectors * costs.vector_far * machine.vector_bytes / CACHE_LINE)
        most_near = most_of(machine.l1) // (v_tile * lanes * width)
        for one, c_block in product(blocks, candidate_channels(c, c_tile)):
            window, size, rows, counts, packed, turned, planes = one
            # What is left over of the tiles goes one channel at a time.
            tiles = (c_block // c_tile + c_block % c_tile) * taps
            overhead = (full + bool(tail)) * (
                rows * costs.row + c_tile * v_tile * costs.sum_vector + costs.tile
            )
            each = step if size <= most_near else far
            products = tiles * (size * each * share + overhead)
            held = c_block * planes + size * vectors * lanes
            if held * width > machine.l2 // 2:
                products *= costs.far
            products *= costs.products
            write = k_block * c_block * (taps * costs.write + costs.write_row)
            pack = c_block * slots * packed
            task = costs.task + counts * (pack + vectors * turned + products) + write
            tasks = geometry.groups * -(-k // k_block) * -(-c // c_block)
            cost = -(-tasks // machine.threads) * task
            held += c_block * taps * vectors * lanes
            cost *= memory_price(problem, min(tasks, machine.threads) * held, room)
            parallel = not is_static or tasks * task >= PARALLEL_CYCLES
            yield cost, (window, lanes, k_block, c_block, c_tile, v_tile, parallel, clips)


def wgrad_channels_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[WgradChannelsPlan, list[float]]]:
    """Return the plan for symbolic sizes, and its cycles for all `known` sizes."""
    best = cheapest(_rated(problem, machine))
    if best is None:
        raise Refused("a block of an image must be small enough")
    plan = WgradChannelsPlan(*best[1])
    if not problem.images_are_known:
        is_clipped = mean(one.valid_fraction for one in known) <= MOST_MEAN
        plan = replace(plan, clipped=is_clipped)
    costed = ((cycles for cycles, _ in _rated(one, machine)) for one in known)
    yield plan, [min(cycles, default=inf) for cycles in costed]


def _turn_cycles(
    problem: Convolution, block: Sequence[int], lanes: int, costs: WgradChannelsCosts
) -> float:
    """Return the cycles to transpose a vector of channels of y by squares; whole rows and whole
    planes are one run.
    """
    sizes, axes = nominal(problem.positions), 3
    while axes > 1 and block[axes] == sizes[axes]:
        axes -= 1
    runs, length = prod(block[:axes]), prod(block[axes:])
    side = square_side(length, lanes) if problem.dtypes[1] == problem.acc_dtype else 0
    if not side:
        return runs * lanes * (length * costs.turn_element + costs.turn_row)
    # Each row of a square is read, exchanged with others and stored.
    return runs * (-(-length // side) * lanes * (side.bit_length() + 1) + costs.turn_row)
