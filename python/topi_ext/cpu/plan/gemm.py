# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.gemm`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from ...kernel.registry import Refused, cost_of, require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.geometry import Size
from ...spec.matmul import MatMul
from ..machine import CACHE_LINE, CpuMachine
from .base import Plan
from .estimate import (
    PARALLEL_CYCLES,
    SHARED_CACHES,
    candidate_splits,
    most_of,
    rows_cycles,
    rows_of_tile,
    widening_cycles,
)
from .step_costs import GemmCosts, costs_of
from .vectors import odd_vectors


@dataclass(frozen=True)
class GemmPlan(Plan):
    """Plan of the kernel of matrix products.

    Attributes
    ----------
    lanes : int
        Elements per vector.
    vectors, m_tile : int
        Register tile: vectors of columns by rows.
    depth : int
        Terms that are summed at a time.
    rows : int
        Rows of a task, a multiple of `m_tile`.
    splits : int
        Into how many tasks the columns of one block of rows are divided.
    copies_x, copies_w : bool
        Whether a task copies its rows of x, and each panel of w, or reads them as they are.
    parallel : bool
        Whether threads share the tasks.
    """

    lanes: int
    vectors: int
    m_tile: int
    depth: int
    rows: int
    splits: int
    copies_x: bool
    copies_w: bool
    parallel: bool = True

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    def pitch(self, terms: Size) -> Size:
        """Return the distance of two rows of x that are copied: never a power of two of cache
        lines.
        """
        vectors = (terms + self.lanes - 1) // self.lanes
        return (odd_vectors(vectors) if isinstance(vectors, int) else vectors + 1) * self.lanes


MOST_VECTORS = 6
"""Maximum of a register tile."""

DEPTHS = (1 << 30, 512, 384, 256, 192, 128)
"""Candidates: terms that are summed at a time."""

PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Candidates: into how many blocks of rows, about equal ones, a product is divided."""

MOST_OF_BLOCK = 768
"""Rows of a task at most."""

PRODUCT_RULE = "a convolution must have one tap, one group, no stride and no padding"

NOMINAL = 256
"""Value of symbolic sizes in estimates."""


def gemm_candidates(
    problem: Convolution | MatMul, machine: CpuMachine
) -> Iterator[tuple[float, GemmPlan]]:
    """Yield plans, with lanes over columns, and their cycles."""
    found = product_of(problem)
    if found is None:
        raise Refused(PRODUCT_RULE)
    if isinstance(problem, Convolution):
        require_lanes(found, machine)
    known = known_sizes(found)
    for plan in _candidates(known, machine):
        if not found.is_static:
            plan = replace(plan, rows=min(plan.rows, 96 // plan.m_tile * plan.m_tile))
        cycles, of_tasks = _cycles(known, plan, machine)
        parallel = of_tasks >= PARALLEL_CYCLES or not found.is_static
        yield cycles, replace(plan, parallel=parallel)


def gemm_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[GemmPlan, list[float]]]:
    """Return the plan for symbolic sizes, and its cycles for all `known` sizes."""
    _, plan = min(gemm_candidates(problem, machine), key=cost_of)
    products = [product_of(one) for one in known]
    require(all(products), "a convolution of each size must be a matrix product")
    yield plan, [_cycles(known_sizes(one), plan, machine)[0] for one in products if one]


@lru_cache(maxsize=256)
def product_of(problem: Convolution | MatMul) -> MatMul | None:
    """Return the product that a problem is."""
    return problem if isinstance(problem, MatMul) else MatMul.of(problem)


def require_lanes(found: MatMul, machine: CpuMachine) -> None:
    """Require what makes lanes over output channels pay."""
    require(found.step("y", found.column) == 1, "output channels must be neighbours in memory")
    require(len(found.inner) <= 1, "input channels must be one axis")
    require(machine.lanes(found.acc_dtype) > 1, "a vector must hold two sums")
    require(0 not in found.size.values(), "operands must have elements")


def known_sizes(found: MatMul) -> MatMul:
    """Return the product with sizes that are numbers, none of them 0."""
    sizes = tuple(
        (a, max(1, size) if isinstance(size, int) else NOMINAL) for a, size in found.sizes
    )
    return replace(found, sizes=sizes)


def _candidates(found: MatMul, machine: CpuMachine) -> Iterator[GemmPlan]:
    """Yield plans that do not yet state whether threads share the tasks."""
    lanes = machine.lanes(found.acc_dtype)
    columns, rows, terms = map(found.extent, (found.column, found.row, found.inner))
    copies_x = found.dtypes[0] != found.acc_dtype or found.step("x", found.inner) != 1
    copies_w = not found.prepacked
    outer: int = found.extent(found.outer)
    depths = sorted({min(depth, terms) for depth in DEPTHS})
    for vectors in range(1, min(-(-columns // lanes), MOST_VECTORS) + 1):
        m_tile = rows_of_tile(rows, vectors, machine)
        panels = -(-columns // (vectors * lanes))
        for depth, block in product(depths, blocks_of_rows(rows, m_tile)):
            if depth < terms and depth * vectors * machine.vector_bytes > machine.l2 // 2:
                continue
            tasks = outer * -(-rows // block)
            for splits in candidate_splits(tasks, panels, machine):
                yield GemmPlan(lanes, vectors, m_tile, depth, block, splits, copies_x, copies_w)


def blocks_of_rows(rows: int, m_tile: int) -> list[int]:
    """Candidates: rows of a task, whole tiles."""
    least = -(-rows // MOST_OF_BLOCK)
    parts = (-(-rows // (least * part)) for part in PARTS)
    return sorted({-(-part // m_tile) * m_tile for part in parts})


def _cycles(found: MatMul, plan: GemmPlan, machine: CpuMachine) -> tuple[float, float]:
    """Return the estimated cycles until the kernel is done, and of all its tasks."""
    costs = costs_of(machine).gemm
    columns, rows, terms = map(found.extent, (found.column, found.row, found.inner))
    blocks, panels = -(-rows // plan.rows), -(-columns // plan.width)
    tasks: int = found.extent(found.outer) * blocks * plan.splits
    block = min(plan.rows, rows)
    one = _panel_cycles(found, plan, block, machine)
    copied = 0.0
    if plan.copies_x:
        each = costs.copy if found.step("x", found.inner) == 1 else costs.turn
        widening = widening_cycles(found.dtypes[0], found.acc_dtype, costs_of(machine).common)
        copied = block * terms * (each + widening)
    task = costs.task + copied + -(-panels // plan.splits) * one
    return -(-tasks // machine.threads) * task, tasks * task


def _panel_cycles(found: MatMul, plan: GemmPlan, block: int, machine: CpuMachine) -> float:
    """Return the cycles of one panel of columns and a block of rows."""
    costs, common, width = costs_of(machine).gemm, costs_of(machine).common, plan.width
    terms: int = found.extent(found.inner)
    each, of_w = byte_width(found.acc_dtype), byte_width(found.dtypes[1])
    products = terms * rows_cycles(block, plan.m_tile, plan.vectors, machine)
    if found.widens_weights and found.prepacked:
        products += terms * -(-block // plan.m_tile) * plan.vectors * costs.widen_vector
    chunks = -(-terms // plan.depth)
    if plan.depth * width * each > most_of(machine.l1):
        products *= costs.panel_far
    if block * terms * each > machine.l2 // 4:
        products *= costs.rows_far
    sums = chunks * block * plan.vectors * costs.sum_vector
    rows_bytes = block * terms * each
    lines = rows_bytes / CACHE_LINE * line_cycles(rows_bytes, costs, machine)
    panel_lines = terms * width * of_w / CACHE_LINE
    all_of_w = found.extent(found.w) * of_w
    lines += panel_lines * line_cycles(all_of_w, costs, machine)
    packed = 0.0
    if plan.copies_w:
        turned = found.step("w", found.column) != 1
        packed = terms * width * (costs.turn if turned else costs.copy)
        packed += terms * width * widening_cycles(found.dtypes[1], found.acc_dtype, common)
    written = block * (costs.out_row + width * (costs.out_element + len(found.epilogue) * 0.1))
    return max(products, lines) + sums + 0.25 * min(products, lines) + packed + written


def line_cycles(held: int, costs: GemmCosts, machine: CpuMachine) -> float:
    """Return the cycles to read a cache line of an array of which `held` bytes are in use."""
    if held <= machine.l1 // 2:
        return 0.0
    if held <= most_of(machine.l2):
        return costs.line
    return costs.line_far if held <= SHARED_CACHES * machine.l2 else costs.line_memory
