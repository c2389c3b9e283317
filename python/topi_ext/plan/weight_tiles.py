# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.kernels.weight_tiles`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from ..dtypes import byte_width
from .cost import (
    PARALLEL_CYCLES,
    candidate_blocks,
    candidate_channels,
    cheapest,
    register_tile,
    room_for,
    row_cycles,
)
from .output_tiles import (
    MOST_TERMS,
    candidate_tiles,
    combined_inputs_cycles,
    input_rows,
    written_terms,
)
from .plans import WeightTilesPlan
from .problem import Machine, Problem, nominal
from .weight_grad import plan_sums


def plan_weight_tiles(problem: Problem, machine: Machine) -> tuple[float, WeightTilesPlan] | None:
    """Fewer products: the plan of :mod:`topi_ext.kernels.weight_tiles`, and its cycles.

    None for integers, whose sums have to be exact, for symbolic sizes, and where no two taps are
    neighbours.
    """
    if not (problem.acc_dtype.startswith("float") and problem.is_static):
        return None
    tiles = candidate_tiles(problem)
    if not tiles or min(problem.y_sizes) < 1:
        return None
    lanes = problem.lanes(machine)
    vectors = -(-problem.geometry.k_per_group // lanes)
    c_tile, v_tile = register_tile(problem.geometry.c_per_group, vectors, machine)
    # Slower than it could be, and built sooner.
    direct = replace(plan_sums(problem, machine)[1], k_tile=2, c_tile=1, tap_tile=1)
    # The blocks follow.
    one = WeightTilesPlan(tiles[0], (1,) * 4, lanes, c_tile, c_tile, v_tile, direct)
    return cheapest(
        plan for tile in tiles for plan in _plans(problem, replace(one, tile=tile), machine)
    )


def _plans(
    problem: Problem, plan: WeightTilesPlan, machine: Machine
) -> Iterator[tuple[float, WeightTilesPlan]]:
    """Candidates with the tile of this one, and their cycles."""
    filters = [of_axis[0] for of_axis in plan.filters(problem)]
    if written_terms([filters]) > MOST_TERMS:
        return
    geometry, lanes, tile = problem.geometry, plan.lanes, plan.tile
    c, width = geometry.c_per_group, byte_width(problem.acc_dtype)
    c_tile, v_tile = plan.c_tile, plan.vectors
    vectors = -(-geometry.k_per_group // lanes)
    terms, points = (prod(len(f.terms) for f in filters), prod(len(f.points) for f in filters))
    step = row_cycles(c_tile, vectors, v_tile, machine)
    sums = (terms * vectors + 1) * lanes
    write = vectors * (terms * 3 + geometry.taps * lanes * 2.0)
    for block, c_block, parts, shares in product(
        candidate_blocks(nominal(plan.tiles(problem)), lanes),
        candidate_channels(c, c_tile),
        (1, 2, 4),
        sorted({1, machine.threads}),
    ):
        plan = replace(plan, block=block, c_block=c_block, parts=parts, shares=shares)
        tiles, passes = prod(block), plan.passes(problem)
        rows = points * tiles * vectors * lanes
        inputs = terms * c_block * plan.pitch + prod(input_rows(filters, block)) + lanes
        tasks = -(-c // (c_block * parts))
        busy = min(machine.threads, tasks if shares == 1 else shares)
        held = rows + busy * inputs + sums * c_block * (busy if passes == 1 else tasks)
        if shares > 1:
            held = busy * (rows + inputs) + sums * c_block * tasks * shares
        if held > room_for(problem) or (max(parts, shares) > 1 and passes == 1):
            continue
        line, tile_rows = block[3] * tile[2], prod(block[:-1])
        turn = tile_rows * prod(tile[:-1]) * (lanes * (10 + line * 1.2) + line)
        outputs = vectors * (turn + tiles * points * 2.5)
        # What is left over of the tiles goes one channel at a time.
        register_tiles = c_block // c_tile + c_block % c_tile
        task = 1000 + c_block * combined_inputs_cycles(filters, block, lanes)
        # From a cache that is further away, and not of this core alone.
        near = rows + inputs + (sums * c_block * tasks if shares > 1 else 0)
        far = 1.0 if near * width <= machine.l2 * 3 // 4 else 1.4
        task += terms * register_tiles * tiles * step * far
        task += terms * c_block * vectors * (2.0 if passes == 1 else 5.0)
        turns = -(-tasks // machine.threads)
        written = turns * c_block * write
        if shares > 1:
            added = turns * c_block * sums * shares * 0.5
            cost = -(-passes // shares) * (outputs + tasks * task)
            cost *= 1.1 if machine.vector_bytes >= 64 else 1.0  # as measured
            cost += added + written + 30000
        else:
            # Lines that the other cores have read are slow to write.
            if machine.threads > 1:
                outputs += rows * (4.0 if machine.vector_bytes >= 64 else 1.0)
            cost = passes * (outputs / machine.threads + turns * task + 15000) + written
        cost *= geometry.groups * parts * 1.1
        yield cost, replace(plan, parallel=cost * machine.threads >= PARALLEL_CYCLES)
