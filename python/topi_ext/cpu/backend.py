# SPDX-License-Identifier: Apache-2.0
"""Build CPU kernels for problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import compat
from ..emit.arguments import Packed
from ..kernel.choice import Choice, info
from ..kernel.info import with_info
from ..kernel.selection import ALL, Selection
from ..spec.post_ops import ZeroPoints
from ..spec.problem import Problem
from ..spec.size_rules import Rule
from ..tuning.database import Database, current
from ..tuning.lookup import measured
from . import kernels
from .machine import CpuMachine
from .plan.window import Plan
from .registry import KERNELS
from .select.choose import candidates, rated


@dataclass(frozen=True)
class CpuBackend:
    """Kernels for one processor: equal ones make equal kernels.

    Attributes
    ----------
    machine : CpuMachine
    processor : str
        Its name, as the target has it.
    database : Database, optional
        Plans that were measured: taken before those that are fastest by estimate.
    selection : Selection
        Kernels that may be chosen.
    """

    machine: CpuMachine
    processor: str = ""
    database: Database | None = None
    selection: Selection = ALL

    @classmethod
    def of(cls, target: Any, selection: Selection = ALL) -> CpuBackend | None:
        """Return the backend of an llvm target; None if LLVM does not know its triple."""
        features = compat.llvm_features(target)
        if features is None:
            return None
        machine = CpuMachine.of_features(*features)
        return cls(machine, compat.processor(target), current(), selection)

    def plan(self, problem: Problem) -> Plan:
        """Return the plan that was measured to be fastest, or the cheapest by estimate."""
        plan: Plan = self.choice(problem).plan
        return plan

    def choice(self, problem: Problem) -> Choice:
        """Return the plan with its origin and its estimate."""
        if self.selection.is_all:
            found = measured(problem, self.machine, self.processor, self.database)
            if found is not None:
                return Choice(found, None, "measured")
        cycles, plan = rated(problem.planned(), self.machine, self.selection)
        return Choice(plan, cycles, "estimate" if self.selection.is_all else "selected")

    def build(self, problem: Problem, plan: Plan | None = None) -> Any:
        """Return the PrimFunc of the kernel with this `plan`; of the fastest one without.

        Any plan that :func:`topi_ext.cpu.select.choose.candidates` gives for the problem is right.
        """
        choice = self.choice(problem) if plan is None else Choice(plan, None, "given")
        func = kernels.build(problem, choice.plan)
        return with_info(func, info(problem, KERNELS.label(choice.plan), choice))

    def candidates(self, problem: Problem) -> Iterator[tuple[float, Plan]]:
        """Yield every plan that is compared for a problem, with its estimated cost."""
        return candidates(problem, self.machine)

    @staticmethod
    def supports(kind: str) -> bool:
        """Return whether there are kernels for a kind of operator."""
        return KERNELS.serves(kind)

    @staticmethod
    def fuses(_: ZeroPoints) -> bool:
        """Return whether kernels subtract zero points: all of them do."""
        return True

    @staticmethod
    def rules(_: Problem) -> list[Rule]:
        """Return the additional rules of this target for sizes: none."""
        return []

    def build_packing(
        self, problem: Problem, plan: Plan | None = None
    ) -> tuple[Any, Packed] | None:
        """Return the PrimFunc that packs the weights of that kernel, and what it writes; None where
        the kernel reads weights as they are.
        """
        plan = self.plan(problem) if plan is None else plan
        packed = kernels.packed_weights(problem, plan)
        return packed and (kernels.build_packing(problem, plan), packed)
