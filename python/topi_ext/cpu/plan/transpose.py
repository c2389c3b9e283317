# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.transpose`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

from ...spec.transpose import Transpose
from ..machine import CpuMachine
from .window import Plan

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
    rows, columns : int
        Size of a block of the result.
    parallel : bool
        Whether threads share the blocks.
    """

    lanes: int
    rows: int
    columns: int
    parallel: bool


def transpose_candidates(
    transposition: Transpose, machine: CpuMachine
) -> Iterator[tuple[float, TransposePlan]]:
    """Yield the one plan that there is, and NaN: its cycles are not estimated."""
    column = dict(transposition.sizes)[transposition.y[-1]]
    lanes = min(machine.lanes(transposition.dtype), 1 << (column.bit_length() - 1))
    columns = column if not transposition.epilogue else min(column, _COLUMNS)
    parallel = machine.threads > 1 and transposition.elements >= _PARALLEL_ELEMENTS
    yield nan, TransposePlan(lanes, _ROWS, columns, parallel)
