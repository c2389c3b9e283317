# SPDX-License-Identifier: Apache-2.0
"""From a problem to a kernel for a processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import compat
from ..emit.arguments import Packed
from ..epilogue import Fused
from ..problem import Problem
from ..sizes import Rule
from . import kernels
from .machine import Machine
from .plan.choose import choose
from .plan.window import Plan


@dataclass(frozen=True)
class CpuBackend:
    """Kernels for one processor: equal ones make equal kernels.

    Attributes
    ----------
    machine : Machine
    """

    machine: Machine

    @classmethod
    def of(cls, target: Any) -> CpuBackend | None:
        """That of an llvm target; None where LLVM does not know its triple."""
        features = compat.llvm_features(target)
        return None if features is None else cls(Machine.of_features(*features))

    def build(self, problem: Problem, plan: Plan | None = None) -> Any:
        """The PrimFunc of the kernel with this `plan`; of the fastest one, by estimate, without.

        Any plan that :func:`topi_ext.cpu.plan.choose.candidates` gives for the problem is right.
        """
        plan = choose(problem, self.machine) if plan is None else plan
        return kernels.build(problem, plan)

    @staticmethod
    def fuses(_: Fused) -> bool:
        """Whether kernels do that beside their sums: all of it."""
        return True

    @staticmethod
    def rules(_: Problem) -> list[Rule]:
        """What is asked of sizes, beyond what every kernel asks: nothing."""
        return []

    def build_packing(self, problem: Problem) -> tuple[Any, Packed] | None:
        """The PrimFunc that packs the weights of that kernel, and what it writes; None where the
        kernel reads weights as they are."""
        plan = choose(problem, self.machine)
        packed = kernels.packed_weights(problem, plan)
        return packed and (kernels.build_packing(problem, plan), packed)
