# SPDX-License-Identifier: Apache-2.0
"""Builds kernels for CUDA."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any

from ..kernel.backend import Backend, Choice
from ..kernel.selection import ALL, Selection
from ..precision import may_use_tf32
from ..spec.conv import Convolution
from ..spec.post_ops import ZeroPoints
from ..spec.problem import Problem
from ..spec.rowwise import RowWise
from ..spec.size_rules import Rule
from . import kernels
from .machine import GRID, GpuMachine
from .plan.estimate import LAUNCH, bytes_time, joining_time
from .select.choose import rated


class CudaBackend(Backend[GpuMachine]):
    """Kernels for GPUs of one architecture."""

    functions = kernels.FUNCTIONS
    unit = "ns"

    @classmethod
    def of(cls, target: Any, selection: Selection = ALL) -> CudaBackend | None:
        """Return the backend of a cuda target with the setting of
        :func:`topi_ext.precision.float32_precision`; None for an unknown architecture.
        """
        machine = GpuMachine.of_arch(str(target.attrs.get("arch", "")))
        if machine is None:
            return None
        machine = replace(machine, multiplies_tf32=machine.has_mma and may_use_tf32())
        return cls(machine, selection)

    def choice(self, problem: Problem) -> Choice:
        """Return the plan with the lowest estimate."""
        nanoseconds, plan = rated(problem, self.machine, self.selection)
        if isinstance(problem, Convolution):
            nanoseconds += joining_time(problem, self.machine)
        return Choice(plan, nanoseconds, "estimate" if self.selection.is_all else "selected")

    def estimated_time(self, problems: Iterable[Convolution], transposed: Iterable[int]) -> float:
        """Return the nanoseconds of kernels and of transposes, given by their bytes."""
        kernels_of = (rated(one, self.machine, self.selection)[0] for one in problems)
        moves = (LAUNCH + bytes_time(2 * moved, self.machine) for moved in transposed)
        return sum(kernels_of) + sum(moves)

    def supports(self, kind: str) -> bool:
        """Return whether there are kernels for a kind of operator; convolutions write their results
        into concatenations.
        """
        return kind == "concat" or super().supports(kind)

    def fuses(self, zero_points: ZeroPoints) -> bool:
        """Return whether kernels support these zero points: only if there are none."""
        return not any(zero_points)

    def rules(self, problem: Problem) -> list[Rule]:
        """Return the rules for sizes that hold in addition to those of every target."""
        if isinstance(problem, RowWise):
            return _row_rules(problem)
        assert isinstance(problem, Convolution)
        if problem.kind == "conv_weight_grad":
            numbered, what = prod(problem.y_sizes) * problem.geometry.groups, "positions of y"
        else:
            numbered = prod(problem.out_sizes) * problem.result_channels
            what = "elements of the result"
        rule = f"{problem.kind}: kernels for cuda number {what} with 32 bits: divide the batch"
        return [(numbered <= GRID, rule)]


def _row_rules(problem: RowWise) -> list[Rule]:
    """Return the rules for sizes of row-wise kernels, which also number columns behind a row."""
    numbered = {"rows": problem.rows, "elements of a row": problem.columns}
    return [
        (
            problem.extent(letters) <= GRID // 2,
            f"{problem.kind}: kernels for cuda number {what} with 32 bits: at most {GRID // 2}",
        )
        for what, letters in numbered.items()
    ]
