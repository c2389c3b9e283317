# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.attention`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from ...spec.attention import Attention
from ..machine import CpuMachine
from .base import Plan
from .estimate import PARALLEL_CYCLES, rows_cycles, rows_of_tile, tile_cycles
from .step_costs import costs_of

MOST_VECTORS = 6
"""Maximum vectors of queries of a task."""

KEYS = (64, 128, 256, 512)
"""Candidates: keys whose scores are computed at a time."""

AnyAttention = TypeVar("AnyAttention", bound=Attention)

NOMINAL = 256
"""Value of symbolic sizes when plans are compared."""


@dataclass(frozen=True)
class AttentionPlan(Plan):
    """Plan of the kernel of attention.

    Attributes
    ----------
    lanes : int
        Elements per vector.
    vectors : int
        Vectors of queries of a task.
    keys : int
        Keys whose scores a task holds at a time.
    key_tile, column_tile : int
        Rows of the register tiles of both products: keys, and columns of the values.
    copies_k, copies_v : bool
        Whether a task copies the rows of keys and of values, or reads them as stored.
    parallel : bool
        Whether threads share the tasks.
    """

    lanes: int
    vectors: int
    keys: int
    key_tile: int
    column_tile: int
    copies_k: bool
    copies_v: bool
    parallel: bool = True

    @property
    def width(self) -> int:
        """Queries of a task."""
        return self.vectors * self.lanes


def attention_candidates(
    problem: Attention, machine: CpuMachine
) -> Iterator[tuple[float, AttentionPlan]]:
    """Yield plans and their cycles; symbolic sizes count as 256."""
    known = of_known_sizes(problem)
    for plan in _candidates(known, machine):
        cycles, of_tasks = _cycles(known, plan, machine)
        parallel = of_tasks >= PARALLEL_CYCLES or not problem.is_static
        yield cycles, replace(plan, parallel=parallel and machine.threads > 1)


def of_known_sizes(problem: AnyAttention) -> AnyAttention:
    """Return the problem with sizes that are numbers, none of them 0."""
    sizes = tuple(
        (a, max(1, size) if isinstance(size, int) else NOMINAL) for a, size in problem.sizes
    )
    return replace(problem, sizes=sizes)


def _candidates(problem: Attention, machine: CpuMachine) -> Iterator[AttentionPlan]:
    queries, keys, columns = (problem.size[a] for a in "mne")
    dtype = problem.acc_dtype
    most = machine.lanes(dtype)
    lanes = min(most, 1 << max(1, (queries - 1).bit_length()))
    copies_k = copies(problem, "d")
    copies_v = problem.dtypes[2] != dtype
    blocks = sorted({min(block, -(-keys // 8) * 8) for block in KEYS})
    for vectors, block in product(range(1, min(-(-queries // lanes), MOST_VECTORS) + 1), blocks):
        key_tile = rows_of_tile(min(keys, block), vectors, machine)
        column_tile = rows_of_tile(columns, vectors, machine)
        yield AttentionPlan(lanes, vectors, block, key_tile, column_tile, copies_k, copies_v)


def copies(problem: Attention, letter: str) -> bool:
    """Return whether rows of keys (d) or of values (e) are copied: if they have another dtype, or
    their elements are not contiguous.
    """
    order, dtype = (
        (problem.k, problem.dtypes[1]) if letter == "d" else (problem.v, problem.dtypes[2])
    )
    return dtype != problem.acc_dtype or problem.extent(order.partition(letter)[2]) != 1


def _cycles(problem: Attention, plan: AttentionPlan, machine: CpuMachine) -> tuple[float, float]:
    """Return the estimated cycles of the kernel, and of all its tasks together."""
    queries, batch = problem.size["m"], problem.extent(problem.outer)
    full, rest = divmod(queries, plan.width)
    whole = _task_cycles(problem, plan, plan.vectors, machine)
    tail = _task_cycles(problem, plan, -(-rest // plan.lanes), machine) if rest else 0.0
    total = batch * (full * whole + tail)
    tasks = batch * (full + (rest > 0))
    rounds = -(-tasks // machine.threads)
    return max(total / machine.threads, rounds * (whole if full else tail)), total


def _task_cycles(
    problem: Attention, plan: AttentionPlan, vectors: int, machine: CpuMachine
) -> float:
    """Return the cycles of a task of `vectors` vectors of queries."""
    costs = costs_of(machine).attention
    keys, inner, columns = (problem.size[a] for a in "nde")
    width = vectors * plan.lanes
    blocks = -(-keys // plan.keys)
    tiles = -(-keys // plan.key_tile)
    scores = tiles * (inner * tile_cycles(plan.key_tile, vectors, machine) + costs.tile)
    values = keys * rows_cycles(columns, plan.column_tile, vectors, machine)
    values += blocks * -(-columns // plan.column_tile) * costs.tile
    values += (blocks - 1) * columns * vectors * costs.rescale
    of_softmax = keys * vectors * costs.exp
    copied = width * (inner + columns) * costs.turn
    copied += keys * (inner * plan.copies_k + columns * plan.copies_v) * costs.copy
    copied += keys * width * costs.turn * sum("m" in mask.order for mask in problem.masks)
    share = 0.5 if problem.causal and keys > plan.keys else 1.0
    cycles: float = costs.all * (costs.task + copied + share * (scores + values + of_softmax))
    return cycles
