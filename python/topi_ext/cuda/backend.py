# SPDX-License-Identifier: Apache-2.0
"""Builds kernels for CUDA: selection, PrimFuncs, and packing of weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ..emit.arguments import Packed
from ..kernel.choice import Choice, info
from ..kernel.info import with_info
from ..kernel.selection import ALL, Selection
from ..precision import may_use_tf32
from ..spec.conv import Convolution
from ..spec.post_ops import ZeroPoints
from ..spec.problem import Problem
from ..spec.rowwise import RowWise
from ..spec.size_rules import Rule
from . import kernels
from .machine import GRID, GpuMachine
from .plan.cost import LAUNCH, bytes_time, joining_time
from .plan.tiles import Plan
from .registry import KERNELS
from .select.choose import candidates, rated


@dataclass(frozen=True)
class CudaBackend:
    """Kernels for GPUs of one architecture.  Equal backends build equal kernels.

    Attributes
    ----------
    machine : GpuMachine
    selection : Selection
        Kernels that may be chosen.
    """

    machine: GpuMachine
    selection: Selection = ALL

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

    def build(self, problem: Problem, plan: Plan | None = None) -> Any:
        """Return the PrimFunc of the kernel with this `plan`, by default the one with the lowest
        estimate.

        Raises
        ------
        ValueError
            If positions or elements cannot be numbered with 32 bits.  For symbolic sizes the
            function checks this at run time.
        """
        for holds, line in self.rules(problem):
            if holds is False:
                raise ValueError(line)
        choice = self.choice(problem) if plan is None else Choice(plan, None, "given")
        func = kernels.build(problem, choice.plan)
        return with_info(func, info(problem, KERNELS.label(choice.plan), choice, unit="ns"))

    def estimated_time(self, problems: Iterable[Convolution], transposed: Iterable[int]) -> float:
        """Return the nanoseconds of kernels and of transposes, given by their bytes."""
        kernels_of = (rated(one, self.machine, self.selection)[0] for one in problems)
        moves = (LAUNCH + bytes_time(2 * moved, self.machine) for moved in transposed)
        return sum(kernels_of) + sum(moves)

    def candidates(self, problem: Problem) -> Iterator[tuple[float, Plan]]:
        """Yield every plan that is compared for a problem, with its estimated cost."""
        return candidates(problem, self.machine)

    @staticmethod
    def supports(kind: str) -> bool:
        """Return whether there are kernels for a kind of operator; convolutions write their results
        into concatenations.
        """
        return kind == "concat" or KERNELS.serves(kind)

    @staticmethod
    def fuses(zero_points: ZeroPoints) -> bool:
        """Return whether kernels support these zero points: only if there are none."""
        return not any(zero_points)

    @staticmethod
    def rules(problem: Problem) -> list[Rule]:
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

    def build_packing(
        self, problem: Problem, plan: Plan | None = None
    ) -> tuple[Any, Packed] | None:
        """Return the PrimFunc that packs weights for that kernel, and the packed form; None if the
        kernel reads weights as they are stored.
        """
        plan = self.choice(problem).plan if plan is None else plan
        packed = kernels.packed_weights(problem, plan)
        return packed and (kernels.build_packing(problem, plan), packed)


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
