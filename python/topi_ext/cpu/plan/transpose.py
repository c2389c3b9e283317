# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.transpose`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

from ...spec.transpose import Transpose
from ..machine import CpuMachine
from .base import Plan

_ROWS = 64

_COLUMNS = 256
"""Columns of a tile, which stays in the first cache together with its input."""

_PARALLEL_ELEMENTS = 1 << 15


@dataclass(frozen=True)
class TransposePlan(Plan):
    """Division of a transpose into tasks.

    Attributes
    ----------
    lanes : int
        Elements per vector.
    rows : int
        Rows of a block of the result.
    columns : int or None
        Columns of a block; None for all of them, which are symbolic.
    parallel : bool
        Whether threads share the blocks.
    """

    lanes: int
    rows: int
    columns: int | None
    parallel: bool


def transpose_candidates(
    transposition: Transpose, machine: CpuMachine
) -> Iterator[tuple[float, TransposePlan]]:
    """Yield the one plan that there is, and NaN: its cycles are not estimated.

    Symbolic sizes are taken for large ones.
    """
    lanes, columns = (
        machine.lanes(transposition.dtype),
        dict(transposition.sizes)[transposition.y[-1]],
    )
    if isinstance(columns, int):
        lanes = min(lanes, 1 << (columns.bit_length() - 1))
        columns = min(columns, _COLUMNS) if transposition.epilogue else columns
    else:
        columns = _COLUMNS if transposition.epilogue else None
    elements = transposition.elements
    is_few = isinstance(elements, int) and elements < _PARALLEL_ELEMENTS
    yield nan, TransposePlan(lanes, _ROWS, columns, machine.threads > 1 and not is_few)
