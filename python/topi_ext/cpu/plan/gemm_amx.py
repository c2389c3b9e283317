# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.gemm_amx`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from ...kernel.registry import Refused, cost_of, require
from ...spec.conv import Convolution
from ...spec.matmul import MatMul
from ..machine import CACHE_LINE, CpuMachine
from ..products import DOTS, Product, tile_dot_of
from .base import Plan
from .direct_amx import TILE
from .direct_dot import NARROW_RULE
from .estimate import PARALLEL_CYCLES, candidate_splits, most_of
from .gemm import (
    DEPTHS,
    PRODUCT_RULE,
    GemmPlan,
    blocks_of_rows,
    gemm_candidates,
    known_sizes,
    line_cycles,
    product_of,
    require_lanes,
)
from .step_costs import costs_of

REGISTER_TILES = ((2, 2), (1, 3), (1, 1))
"""Tiles of rows by tiles of columns: of eight registers, sums take up to four."""


@dataclass(frozen=True)
class GemmAmxPlan(Plan):
    """Plan of the kernel of matrix products by a matrix unit.

    Attributes
    ----------
    nest : GemmPlan
        The loop nest: its rows and columns are whole tiles, its depth counts lanes of terms, whole
        tiles too.
    refused : GemmPlan or None
        For where the matrix unit may not be used and weights are not packed.
    vector_dot : str
        For where they are: the instruction, of :data:`~topi_ext.cpu.products.DOTS`, that reads the
        same packed weights by the same loop nest.
    dot : str
        The instruction, of :data:`~topi_ext.cpu.products.TILE_DOTS`.
    """

    nest: GemmPlan
    refused: GemmPlan | None
    vector_dot: str
    dot: str


def gemm_amx_candidates(
    problem: Convolution | MatMul, machine: CpuMachine
) -> Iterator[tuple[float, GemmAmxPlan]]:
    """Yield plans that multiply tiles, and their cycles."""
    require(machine.amx or machine.amx_int8, "the processor must have AMX")
    require(machine.lanes("int32") == TILE, "vectors must have as many lanes as tiles: AVX-512")
    found = product_of(problem)
    if found is None:
        raise Refused(PRODUCT_RULE)
    dot = tile_dot_of(found)
    if dot is None:
        raise Refused(f"{NARROW_RULE}: no AMX instruction multiplies these")
    require(machine.amx if dot.is_float else machine.amx_int8, f"AMX of the processor: {dot.name}")
    require_lanes(found, machine)
    is_known = bool(found.inner) and isinstance(found.extent(found.inner), int)
    require(is_known, "terms must be known, and more than one")
    rule = "weights must be packed ahead, or data must have no zero point"
    require(found.prepacked or not dot.zero_of(found), rule)
    vector_dot = _vector_dot(found, dot, machine) if found.prepacked else ""
    refused = None if vector_dot else min(gemm_candidates(found, machine), key=cost_of)[1]
    known = known_sizes(found)
    for nest in _nests(found, known, dot, machine):
        cycles, tasks = _cycles(known, nest, dot, machine)
        parallel = tasks * cycles >= PARALLEL_CYCLES or not found.is_static
        nest = replace(nest, parallel=parallel)
        yield (
            -(-tasks // machine.threads) * cycles,
            GemmAmxPlan(nest, refused, vector_dot, dot.name),
        )


def _vector_dot(found: MatMul, dot: Product, machine: CpuMachine) -> str:
    """Return the instruction of vectors that multiplies the same packed weights."""
    rates = (*([("dpbf16ps", 0.0)] if machine.dots else []), *machine.int_dots)
    names = (name for name, _ in rates if DOTS[name].size == dot.size and DOTS[name].fits(found))
    name = next(names, "")
    require(bool(name), "vectors must multiply the same packed weights where Linux denies AMX")
    return name


def _nests(found: MatMul, known: MatMul, dot: Product, machine: CpuMachine) -> Iterator[GemmPlan]:
    """Yield loop nests that do not yet state whether threads share the tasks."""
    columns, rows = map(known.extent, (known.column, known.row))
    steps = tile_steps(known, dot)
    outer: int = known.extent(known.outer)
    depths = sorted({min(-(-depth // TILE), steps) * TILE for depth in DEPTHS})
    for (high, wide), depth in product(REGISTER_TILES, depths):
        if columns <= (wide - 1) * TILE or rows <= (high - 1) * TILE:
            continue
        if depth < steps * TILE and depth * wide * TILE * 4 > machine.l2 // 2:
            continue
        panels = -(-columns // (wide * TILE))
        for block in blocks_of_rows(rows, high * TILE):
            if block > high * TILE and block * steps * TILE * 4 > most_of(machine.l2):
                continue  # rows are copied, to be read again for each panel
            tasks = outer * -(-rows // block)
            for splits in candidate_splits(tasks, panels, machine):
                yield GemmPlan(
                    TILE, wide, high * TILE, depth, block, splits, True, not found.prepacked
                )


def tile_steps(found: MatMul, dot: Product) -> int:
    """Return the tiles that cover all terms."""
    steps: int = -(-found.extent(found.inner) // (dot.size * TILE))
    return steps


def _cycles(known: MatMul, nest: GemmPlan, dot: Product, machine: CpuMachine) -> tuple[float, int]:
    """Return the estimated cycles of one task, and how many tasks there are.

    A product takes a cycle for each row.
    """
    costs, tiles = costs_of(machine).gemm, costs_of(machine).direct_amx
    columns, rows = map(known.extent, (known.column, known.row))
    high, wide, steps = nest.m_tile // TILE, nest.vectors, tile_steps(known, dot)
    panels, block = -(-columns // nest.width), min(nest.rows, rows)
    tasks: int = known.extent(known.outer) * -(-rows // nest.rows) * nest.splits
    lanes = steps * TILE
    # What comes around again: the panel from tile to tile of rows, all rows from panel to panel.
    panel_bytes = nest.width * min(nest.depth, lanes) * 4
    is_near = panel_bytes <= most_of(machine.l1)
    each_weight = TILE * (tiles.weight_row if is_near else tiles.weight_row_far)
    data_near = panel_bytes + block * lanes * 4 <= most_of(machine.l1)
    each_data = TILE * (tiles.weight_row if data_near else tiles.weight_row_far)

    def tile(rows_of: int) -> float:
        loads = rows_of * each_data + wide * each_weight
        again = nest.depth < lanes
        each_sum = tiles.sum_row_again if again else tiles.sum_row
        sums = tiles.sums + rows_of * wide * TILE * each_sum
        return steps * max(rows_of * wide * TILE, loads) + -(-lanes // nest.depth) * sums

    full, rest = divmod(-(-block // TILE), high)
    products = full * tile(high) + (tile(rest) if rest else 0)
    all_of_w = known.extent(known.w) * 4 // dot.size
    lines = lanes * nest.width * 4 / CACHE_LINE * line_cycles(all_of_w, costs, machine)
    packed = 0.0
    if nest.copies_w:
        turned = known.step("w", known.column) != 1
        packed = lanes * nest.width * (costs.turn if turned else costs.copy) * dot.size
    written = block * (costs.out_row + nest.width * (costs.out_element + len(known.epilogue) * 0.1))
    panel = max(products, lines) + 0.25 * min(products, lines) + packed + written
    return costs.task + block * lanes * costs.copy + -(-panels // nest.splits) * panel, tasks
