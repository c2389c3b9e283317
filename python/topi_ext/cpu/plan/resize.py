# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.resize`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan, prod

from ...spec.resize import Resize
from ..machine import CpuMachine
from .base import Plan

_OF_TASK = 1 << 13
"""Elements of a task, about."""

_WIDTH = 256
"""Assumed width of symbolic images."""


@dataclass(frozen=True)
class ResizePlan(Plan):
    """Division of a resize into tasks.

    Attributes
    ----------
    rows : int
        Rows of the result in a task.
    parallel : bool
        Whether threads share the tasks.
    """

    rows: int
    parallel: bool


def resize_candidates(resize: Resize, machine: CpuMachine) -> Iterator[tuple[float, ResizePlan]]:
    """Yield the one plan that there is, and NaN: its cycles are not estimated.

    Symbolic sizes are taken for large ones.
    """
    height, width = resize.after
    rows = _OF_TASK // (width if isinstance(width, int) else _WIDTH)
    rows = max(1, min(height, rows) if isinstance(height, int) else rows)
    is_few = resize.is_static and prod(resize.planes) * height * width <= 2 * _OF_TASK
    yield nan, ResizePlan(rows, machine.threads > 1 and not is_few)
