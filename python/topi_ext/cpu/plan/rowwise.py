# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.rowwise`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

from ...spec.dtypes import byte_width
from ...spec.geometry import Size
from ...spec.rowwise import NORMALIZE, RowWise
from ..machine import CACHE_LINE, CpuMachine
from .base import Plan
from .estimate import most_of
from .step_costs import costs_of

_PARALLEL_ELEMENTS = 1 << 13
"""Fewer are left to the calling thread: waking the others takes about as long."""

_OF_TASK = 1 << 12
"""Elements of a task at least: it may have many rows."""

_PARTS = 16
"""Into how many parts a row is divided where there are fewer rows than that."""

_OF_PART = 1 << 13
"""Elements of a part at least."""


@dataclass(frozen=True)
class RowwisePlan(Plan):
    """Division of rows among tasks.

    Attributes
    ----------
    lanes : int
        Elements per vector.
    rows : int
        Rows of a task.
    parts : int
        Into how many parts each row is divided, whose statistics are made first.
    parallel : bool
        Whether threads share the tasks.
    """

    lanes: int
    rows: int = 1
    parts: int = 1
    parallel: bool = True


def rowwise_candidates(
    rowwise: RowWise, machine: CpuMachine
) -> Iterator[tuple[float, RowwisePlan]]:
    """Yield the one plan that there is and its cycles.

    Symbolic sizes are taken for large ones, and their cycles are not estimated: NaN.
    """
    plan = _plan(rowwise, machine)
    yield _cycles(rowwise, plan, machine) if rowwise.is_static else nan, plan


def _cycles(rowwise: RowWise, plan: RowwisePlan, machine: CpuMachine) -> float:
    """Return estimated cycles: of vectors, and of what comes from behind the second cache."""
    costs, common = costs_of(machine).rowwise, costs_of(machine).common
    rows, length = rowwise.extent(rowwise.rows), rowwise.extent(rowwise.columns)
    vectors, rest = divmod(length, plan.lanes)
    vector = costs.normalize if rowwise.op == NORMALIZE else costs.softmax
    total = rows * (costs.row + vectors * vector + rest * costs.element)
    size = rows * length * sum(map(byte_width, rowwise.dtypes))
    if size > most_of(machine.l2):
        total += size / CACHE_LINE * common.l3_line
    cycles: float = total / (machine.threads if plan.parallel else 1)
    return cycles


def _plan(rowwise: RowWise, machine: CpuMachine) -> RowwisePlan:
    lanes = machine.lanes(rowwise.acc_dtype)
    rows, length = rowwise.extent(rowwise.rows), rowwise.extent(rowwise.columns)
    is_few = _known(rows * length, _PARALLEL_ELEMENTS) < _PARALLEL_ELEMENTS
    parallel = machine.threads > 1 and not is_few
    if parallel and rowwise.op == NORMALIZE and isinstance(length, int):
        parts = min(_PARTS, length // _OF_PART)
        if parts > 1 and isinstance(rows, int) and rows < _PARTS:
            return RowwisePlan(lanes, 1, parts)
    return RowwisePlan(lanes, max(1, _OF_TASK // _known(length, 256)), 1, parallel)


def _known(size: Size, otherwise: int) -> int:
    return size if isinstance(size, int) else otherwise
