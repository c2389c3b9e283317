# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.resize`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan, prod

from ...spec.resize import Resize
from ..machine import CpuMachine
from .window import Plan

_OF_TASK = 1 << 13
"""Elements of a task, about."""


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
    """Yield the one plan that there is, and NaN: its cycles are not estimated."""
    height, width = resize.after
    rows = max(1, min(height, _OF_TASK // width))
    parallel = machine.threads > 1 and prod(resize.planes) * height * width > 2 * _OF_TASK
    yield nan, ResizePlan(rows, parallel)
