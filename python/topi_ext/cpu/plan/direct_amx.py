# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.direct_amx`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from ...kernel.registry import Refused, require
from ...spec.conv import Convolution
from ...spec.size_hints import nominal
from ..machine import CpuMachine
from ..products import tile_dot_of
from .base import Plan
from .direct import DirectPlan, plan_direct
from .direct_dot import NARROW_RULE, DirectDotPlan, plan_direct_dot
from .estimate import (
    PARALLEL_CYCLES,
    blocks_in,
    candidate_blocks,
    candidate_splits,
    pack_cycles,
)
from .step_costs import costs_of
from .window import Window

TILE = 16
"""Most rows, and columns of 32 bits, of a matrix unit's tile."""

FEWEST_CHANNELS = 3
"""Minimum of output channels in a group.  With one or two of the 16 that a tile has room for,
float32 took 0.4 to 0.9 times as long in each of eight shapes; with three, 0.96 to 1.6 times in
six."""


@dataclass(frozen=True)
class DirectAmxPlan(Plan):
    """Plan of the kernel of ``conv`` and ``conv_transpose`` by a matrix unit.

    Attributes
    ----------
    nest : DirectPlan
        The loop nest: its lanes are the columns of a tile, its channels whole tiles, its depth
        counts steps of a tile of input channels in 32 bits.
    refused : DirectPlan or DirectDotPlan
        For where the matrix unit may not be used.
    dot : str
        The instruction, of :data:`~topi_ext.cpu.products.TILE_DOTS`.
    tiles_first : bool
        Whether all output channels of a tile of positions are summed before those of the next,
        instead of all positions of a block of output channels.
    """

    nest: DirectPlan
    refused: DirectPlan | DirectDotPlan
    dot: str
    tiles_first: bool = False


def direct_amx_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, DirectAmxPlan]]:
    """Yield plans that multiply tiles, and their cycles."""
    require(machine.amx or machine.amx_int8, "the processor must have AMX")
    dot = tile_dot_of(problem)
    if dot is None:
        raise Refused(f"{NARROW_RULE}: no AMX instruction multiplies these")
    require(machine.amx if dot.is_float else machine.amx_int8, f"AMX of the processor: {dot.name}")
    rule = f"output channels of a group must be at least {FEWEST_CHANNELS}"
    require(problem.out_channels >= FEWEST_CHANNELS, rule)
    refused: DirectPlan | DirectDotPlan = plan_direct(problem, machine)[1]
    if not dot.is_float:  # vectors can't read pairs of bfloat16 from packed weights as stored
        with suppress(Refused):
            refused = plan_direct_dot(problem, machine)[1]
    packing = packing_cycles(problem, machine)
    for cycles, nest, tiles_first in tile_candidates(problem.in_steps(dot.size), machine):
        yield cycles + packing, DirectAmxPlan(nest, refused, dot.name, tiles_first)


def packing_cycles(problem: Convolution, machine: CpuMachine) -> float:
    """Return the estimated cycles of packing weights before tasks begin."""
    each = 0.0 if problem.prepacked else costs_of(machine).direct_amx.pack_weight
    return problem.weights * each / machine.threads


def tile_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, DirectPlan, bool]]:
    """Loop nests over tiles, and whether tiles of positions come first, with their cycles.

    The input channels of the problem are elements of 32 bits, such as pairs of others.
    """
    steps = -(-problem.in_channels // TILE)
    # Of eight registers, four hold sums, or three if there is but one row of them.
    channels, width = (2 * TILE, 2) if problem.out_channels > TILE else (TILE, 3)
    blocks = -(-problem.out_channels // channels)
    positions = nominal(problem.positions)
    for block in candidate_blocks(positions, TILE):
        window = Window.of(block, problem.accesses)
        tasks = problem.geometry.groups * blocks_in(positions, block)
        depths = sorted({-(-steps // i) for i in (1, 2, 4, 8, 16)})
        for splits, depth, tiles_first in product(
            candidate_splits(tasks, blocks, machine), depths, (False, True)
        ):
            nest = DirectPlan(
                window, TILE, channels, width, splits, depth, tasks=2 * machine.threads, unrolled=4
            )
            cycles = _cycles(problem, nest, machine, tiles_first=tiles_first)
            if problem.is_static and tasks * splits * cycles < PARALLEL_CYCLES:
                nest = replace(nest, parallel=False)
            yield -(-tasks * splits // machine.threads) * cycles, nest, tiles_first


def _cycles(
    problem: Convolution, nest: DirectPlan, machine: CpuMachine, *, tiles_first: bool
) -> float:
    """Return the estimated cycles of one task.

    A product takes a cycle for each row.
    """
    costs = costs_of(machine).direct_amx
    window, high = nest.window, nest.channels // TILE
    slots = prod(g.slots for g in problem.accesses)
    phases = prod(g.out_step for g in problem.accesses)
    busy = prod(g.busy_phases for g in problem.accesses)
    taps = problem.geometry.taps
    steps = -(-problem.in_channels // TILE)
    chunks = -(-steps // nest.depth)
    blocks = -(-problem.out_channels // nest.channels)
    per_split = -(-blocks // nest.channel_splits)
    full, tail = divmod(-(-window.length // TILE), nest.vectors)
    tiles = full + bool(tail)
    near = machine.l1 // 2
    # What comes around again: the weights of a phase from tile to tile, or a tile's data.
    weights = nest.channels * nest.depth * TILE * 4 * -(-taps // busy)
    data = nest.vectors * TILE * 4 * nest.depth * TILE * slots
    weights_near = (tiles == 1 or not tiles_first) and weights <= near
    data_near = data <= near if tiles_first else data * tiles <= near
    each_weight = TILE * (costs.weight_row if weights_near else costs.weight_row_far)
    each_data = TILE * (costs.data_row if data_near else costs.data_row_far)

    def tile(width: int) -> float:
        loads = high * each_weight + width * each_data
        row = costs.sum_row if chunks == 1 else costs.sum_row_again
        sums = costs.sums + high * width * TILE * row
        return nest.depth * taps * max(high * width * TILE, loads) + busy * sums

    compute = per_split * chunks * (full * tile(nest.vectors) + (tile(tail) if tail else 0))
    pack = pack_cycles(problem.accesses, window, problem.in_channels, costs_of(machine).common)
    panel = nest.depth * TILE * slots * window.pitch(TILE) * 4
    held = nest.channels * phases * tiles * nest.vectors * TILE * 4
    held *= per_split if chunks > 1 or tiles_first else 1
    if panel + held > machine.l2 // 2:
        compute, pack = compute * costs.far, pack * costs.panel_far
    out_rows = prod(window.block[:-1])
    copy = (
        per_split
        * nest.channels
        * phases
        * (out_rows * costs.out_row + prod(window.block) * costs.out_element)
    )
    return costs.task + pack + compute + copy
