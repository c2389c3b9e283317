# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.rowwise`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

from ...spec.geometry import Size
from ...spec.rowwise import NORMALIZE, RowWise
from ..machine import CpuMachine
from .window import Plan

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
    """How rows are shared.

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
    """Yield the one plan that there is, and NaN: its cycles are not estimated.

    Symbolic sizes are taken for large ones.
    """
    yield nan, _plan(rowwise, machine)


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
