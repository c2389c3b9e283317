# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.attention_grad`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from ...spec.attention import COLUMN, INNER
from ...spec.attention_grad import AttentionGrad
from ..machine import CpuMachine
from .attention import of_known_sizes
from .base import Plan
from .estimate import PARALLEL_CYCLES, rows_cycles, rows_of_tile
from .step_costs import costs_of

MOST_VECTORS = 6
"""Maximum vectors of queries of a block, and of elements of a register tile."""

KEYS = (32, 64)
"""Candidates: keys whose scores a block holds at a time."""


@dataclass(frozen=True)
class AttentionGradPlan(Plan):
    """Plan of the kernel of the gradients of attention.

    Attributes
    ----------
    lanes : int
        Elements per vector of queries.
    inner_lanes, column_lanes : int
        Elements per vector of the head size, and of columns.
    vectors : int
        Vectors of queries of a block.
    keys : int
        Keys whose scores a block holds at a time.
    key_tile, inner_tile : int
        Rows of the register tiles whose lanes are queries: keys, and elements of the head size.
    inner_vectors, column_vectors : int
        Vectors of the register tiles whose lanes are elements of the head size, and columns.
    inner_keys, column_keys : int
        Rows of the latter: keys.
    copies : tuple of str
        Names of the operands, of q, k, v and dy, whose rows are copied.
    parallel : bool
        Whether threads share the tasks.
    """

    lanes: int
    inner_lanes: int
    column_lanes: int
    vectors: int
    keys: int
    key_tile: int
    inner_tile: int
    inner_vectors: int
    inner_keys: int
    column_vectors: int
    column_keys: int
    copies: tuple[str, ...]
    parallel: bool = True

    @property
    def width(self) -> int:
        """Queries of a block."""
        return self.vectors * self.lanes

    def lanes_of(self, letter: str) -> int:
        """Return the elements per vector of the head size or of columns."""
        return self.tile_of(letter)[0]

    def tile_of(self, letter: str) -> tuple[int, int, int]:
        """Return lanes, vectors and rows of the register tile of keys or values."""
        if letter == INNER:
            return self.inner_lanes, self.inner_vectors, self.inner_keys
        return self.column_lanes, self.column_vectors, self.column_keys


def attention_grad_candidates(
    problem: AttentionGrad, machine: CpuMachine
) -> Iterator[tuple[float, AttentionGradPlan]]:
    """Yield plans and their cycles; symbolic sizes count as 256."""
    known = of_known_sizes(problem)
    for plan in _candidates(known, machine):
        task = _task_cycles(known, plan, machine)
        tasks = known.extent(known.own)
        parallel = tasks * task >= PARALLEL_CYCLES or not problem.is_static
        cycles = -(-tasks // machine.threads) * task
        yield cycles, replace(plan, parallel=parallel and machine.threads > 1)


def _candidates(problem: AttentionGrad, machine: CpuMachine) -> Iterator[AttentionGradPlan]:
    queries, keys, inner, columns = (problem.size[a] for a in "mnde")
    most = machine.lanes(problem.acc_dtype)
    lanes, inner_lanes, column_lanes = (
        min(most, 1 << max(1, (size - 1).bit_length())) for size in (queries, inner, columns)
    )
    inner_vectors, column_vectors = (
        _vectors(-(-size // each)) for size, each in ((inner, inner_lanes), (columns, column_lanes))
    )
    copied = copies(problem, inner_lanes, column_lanes)
    blocks = sorted({min(block, -(-keys // 8) * 8) for block in KEYS})
    for vectors, block in product(range(1, min(-(-queries // lanes), MOST_VECTORS) + 1), blocks):
        yield AttentionGradPlan(
            lanes, inner_lanes, column_lanes, vectors, block,
            rows_of_tile(min(keys, block), vectors, machine), rows_of_tile(inner, vectors, machine),
            inner_vectors, rows_of_tile(min(keys, block), inner_vectors, machine),
            column_vectors, rows_of_tile(min(keys, block), column_vectors, machine), copied,
        )  # fmt: skip


def _vectors(count: int) -> int:
    """Return the number of vectors of a tile, so that tiles are about equal."""
    tiles = -(-count // MOST_VECTORS)
    return -(-count // tiles)


def copies(problem: AttentionGrad, inner_lanes: int, column_lanes: int) -> tuple[str, ...]:
    """Return which operands have rows that kernels cannot read as stored: of another dtype, with
    elements apart, or, where lanes run over them, with a part of a vector.
    """
    operands = (
        ("q", problem.q, INNER, problem.dtypes[0], inner_lanes),
        ("k", problem.k, INNER, problem.dtypes[1], 1),
        ("v", problem.v, COLUMN, problem.dtypes[2], 1),
        ("dy", problem.dy, COLUMN, problem.dtypes[3], column_lanes),
    )
    return tuple(
        name
        for name, order, letter, dtype, lanes in operands
        if dtype != problem.acc_dtype
        or problem.extent(order.partition(letter)[2]) != 1
        or problem.size[letter] % lanes
    )


def _task_cycles(problem: AttentionGrad, plan: AttentionGradPlan, machine: CpuMachine) -> float:
    """Return the cycles of all queries that share a head's keys."""
    shared = problem.extent("".join(a for a in problem.outer if a not in problem.own))
    keys, inner, columns = (problem.size[a] for a in "nde")
    full, rest = divmod(problem.size["m"], plan.width)
    blocks = full * _block_cycles(problem, plan, plan.vectors, machine)
    blocks += _block_cycles(problem, plan, -(-rest // plan.lanes), machine) if rest else 0.0
    costs = costs_of(machine).attention
    cycles: float = costs.task + shared * blocks + 2 * keys * (inner + columns) * costs.copy
    return cycles


def _block_cycles(
    problem: AttentionGrad, plan: AttentionGradPlan, vectors: int, machine: CpuMachine
) -> float:
    """Return the cycles of a block of `vectors` vectors of queries."""
    costs = costs_of(machine).attention
    keys, inner, columns = (problem.size[a] for a in "nde")
    width, blocks = vectors * plan.lanes, -(-keys // plan.keys)
    by_queries = rows_cycles(keys, plan.key_tile, vectors, machine) * (inner + columns)
    by_queries += keys * rows_cycles(inner, plan.inner_tile, vectors, machine)
    tiles = 2 * -(-keys // plan.key_tile) + blocks * -(-inner // plan.inner_tile)
    by_keys = 0.0
    for size, lanes, most, rows in (
        (inner, plan.inner_lanes, plan.inner_vectors, plan.inner_keys),
        (columns, plan.column_lanes, plan.column_vectors, plan.column_keys),
    ):
        of_row = -(-size // lanes)
        passes = -(-of_row // most)
        by_keys += passes * width * rows_cycles(keys, rows, most, machine)
        tiles += passes * -(-keys // rows)
    elements = keys * vectors * costs.exp + tiles * 2 * costs.tile
    copied = width * (2 * inner + 3 * columns) * costs.turn
    copied += keys * width * costs.turn * sum("m" in mask.order for mask in problem.masks)
    share = 0.5 if problem.causal and keys > plan.keys else 1.0
    cycles: float = copied + share * (by_queries + by_keys + elements)
    return cycles
