# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.attention_few`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from ...kernel.registry import require
from ...spec.attention import Attention
from ..machine import CpuMachine
from .attention import copies, of_known_sizes
from .base import Plan
from .estimate import (
    PARALLEL_CYCLES,
    candidate_splits,
    rows_cycles,
    rows_of_tile,
    tile_cycles,
    usable_registers,
)
from .step_costs import costs_of

MOST_QUERIES = 16
"""Maximum queries of a head: for more, each query has a lane (:mod:`.attention`)."""

KEYS = (64, 128)
"""Candidates: keys whose scores are computed at a time; the values of more would leave the cache
before all queries have read them."""

FEWEST_LANES = 4
"""Minimum lanes of vectors of the head size and of columns."""

MOST_VECTORS = 8
"""Maximum vectors of the head size, and of columns, of a register tile."""


@dataclass(frozen=True)
class AttentionFewPlan(Plan):
    """Plan of the kernel of attention of few queries.

    Attributes
    ----------
    lanes : int
        Elements per vector of scores.
    inner_lanes, column_lanes : int
        Elements per vector of the head size, and of columns, which they divide.
    inner_vectors : int
        Vectors of the head size that are multiplied key by key, in the order of memory.
    keys : int
        Keys whose scores a task holds at a time.
    query_tile, column_vectors : int
        Register tile of the sums of values.
    splits : int
        Shares of the keys of a head, each a task of its own.
    copies_k, copies_v : bool
        Whether a task copies the rows of keys and of values, or reads them as stored.
    parallel : bool
        Whether threads share the tasks.
    """

    lanes: int
    inner_lanes: int
    column_lanes: int
    inner_vectors: int
    keys: int
    query_tile: int
    column_vectors: int
    splits: int
    copies_k: bool
    copies_v: bool
    parallel: bool = True

    @property
    def pitch(self) -> int:
        """Elements of memory for the scores of a query."""
        most = max(self.lanes, self.inner_lanes)
        return -(-self.keys // most) * most


def attention_few_candidates(
    problem: Attention, machine: CpuMachine
) -> Iterator[tuple[float, AttentionFewPlan]]:
    """Yield plans for few queries and their cycles; symbolic sizes count as 256."""
    queries = problem.size["m"]
    is_few = isinstance(queries, int) and queries <= MOST_QUERIES
    require(is_few, f"queries must be a known number of at most {MOST_QUERIES}")
    require(not problem.sums, "sums of a row are not returned")
    known = of_known_sizes(problem)
    for plan in _candidates(known, machine):
        if plan.splits > 1 and not all(isinstance(problem.size[a], int) for a in problem.outer):
            continue
        cycles, of_tasks = _cycles(known, plan, machine)
        parallel = of_tasks >= PARALLEL_CYCLES or not problem.is_static
        yield cycles, replace(plan, parallel=parallel and machine.threads > 1)


def _candidates(problem: Attention, machine: CpuMachine) -> Iterator[AttentionFewPlan]:
    queries, keys, inner, columns = (problem.size[a] for a in "mnde")
    lanes = machine.lanes(problem.acc_dtype)
    of_inner, of_columns = (min(lanes, size & -size) for size in (inner, columns))
    fewest = min(FEWEST_LANES, lanes)
    require(min(of_inner, of_columns) >= fewest, f"sizes of a head must be multiples of {fewest}")
    inner_vectors = _vectors(inner // of_inner, usable_registers(machine) - of_inner - 1)
    copied = copies(problem, "d"), copies(problem, "e")
    for vectors, block in product({1, 2, 4, MOST_VECTORS}, KEYS):
        vectors = min(vectors, columns // of_columns)
        tile, keys_ = rows_of_tile(queries, vectors, machine), min(block, -(-keys // 8) * 8)
        for splits in candidate_splits(problem.extent(problem.outer), -(-keys // keys_), machine):
            yield AttentionFewPlan(
                lanes, of_inner, of_columns, inner_vectors, keys_, tile, vectors, splits, *copied
            )


def _vectors(count: int, registers: int) -> int:
    """Return the largest number of vectors that divides `count` and fits into the registers."""
    most = max(1, min(MOST_VECTORS, registers))
    return max(number for number in range(1, most + 1) if count % number == 0)


def _cycles(problem: Attention, plan: AttentionFewPlan, machine: CpuMachine) -> tuple[float, float]:
    """Return the estimated cycles of the kernel, and of all its tasks together."""
    batch, costs = problem.extent(problem.outer), costs_of(machine).attention
    task = _task_cycles(problem, plan, machine)
    rounds = -(-batch * plan.splits // machine.threads)
    vectors = problem.size["e"] // plan.column_lanes
    merged = batch * problem.size["m"] * vectors * 4 * (plan.splits if plan.splits > 1 else 0)
    return costs.all * (rounds * task + merged), costs.all * batch * plan.splits * task


def _task_cycles(problem: Attention, plan: AttentionFewPlan, machine: CpuMachine) -> float:
    """Return the cycles of a task."""
    costs = costs_of(machine).attention
    queries, keys, inner, columns = (problem.size[a] for a in "mnde")
    blocks = -(-keys // plan.keys)
    blocks = -(-blocks // plan.splits)
    keys = min(keys, blocks * plan.keys)
    tiles = -(-keys // plan.inner_lanes)
    one = tile_cycles(plan.inner_lanes, 1, machine) * (inner // plan.inner_lanes)
    scores = tiles * queries * (one + plan.inner_lanes * costs.fold)
    full, rest = divmod(columns // plan.column_lanes, plan.column_vectors)
    values = full * rows_cycles(queries, plan.query_tile, plan.column_vectors, machine)
    values += rows_cycles(queries, plan.query_tile, rest, machine) if rest else 0.0
    passes = -(-queries // plan.query_tile)
    values += (passes - 1) * columns // plan.column_lanes * costs.again
    of_softmax = queries * -(-keys // plan.lanes) * costs.exp
    of_softmax += blocks * queries * (columns // plan.column_lanes) * costs.rescale
    copied = queries * (inner + columns)
    copied += keys * (inner * plan.copies_k + columns * plan.copies_v) * costs.copy
    copied += keys * queries * costs.copy * sum("n" in mask.order for mask in problem.masks)
    cycles: float = costs.few_task + copied + scores + keys * values + of_softmax
    return cycles
