# SPDX-License-Identifier: Apache-2.0
"""From a problem to a kernel for a processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import compat
from ..emit.arguments import Packed
from ..epilogue import Fused
from ..plan_database import Database, current
from ..problem import Problem
from ..product import Product
from ..resize import Resize
from ..rowwise import RowWise
from ..sizes import Rule
from ..transposition import Transposition
from . import kernels
from .machine import Machine
from .measured import measured
from .plan.choose import choose
from .plan.rowwise import plan_rowwise
from .plan.window import Plan
from .resize import build as build_resize
from .rowwise import build as build_rowwise
from .transposition import build as build_transposition


@dataclass(frozen=True)
class CpuBackend:
    """Kernels for one processor: equal ones make equal kernels.

    Attributes
    ----------
    machine : Machine
    processor : str
        Its name, as the target has it.
    database : Database, optional
        Plans that were measured: taken before those that are fastest by estimate.
    """

    machine: Machine
    processor: str = ""
    database: Database | None = None

    @classmethod
    def of(cls, target: Any) -> CpuBackend | None:
        """That of an llvm target; None where LLVM does not know its triple."""
        features = compat.llvm_features(target)
        if features is None:
            return None
        return cls(Machine.of_features(*features), compat.processor(target), current())

    def plan(self, problem: Problem | Product) -> Plan:
        """That which was measured to be the fastest; where none was, by estimate."""
        if isinstance(problem, Product):
            return choose(problem, self.machine)
        found = measured(problem, self.machine, self.processor, self.database)
        return found or choose(problem, self.machine)

    def build(self, problem: Problem | Product, plan: Plan | None = None) -> Any:
        """The PrimFunc of the kernel with this `plan`; of the fastest one without.

        Any plan that :func:`topi_ext.cpu.plan.choose.candidates` gives for the problem is right.
        """
        plan = self.plan(problem) if plan is None else plan
        return kernels.build(problem, plan)

    def build_rowwise(self, rowwise: RowWise) -> Any:
        """The PrimFunc of a softmax or normalization, merged."""
        return build_rowwise(rowwise, plan_rowwise(rowwise, self.machine))

    def build_transposition(self, transposition: Transposition) -> Any:
        """The PrimFunc of a transpose, merged."""
        return build_transposition(transposition, self.machine)

    def build_resize(self, resize: Resize) -> Any:
        """The PrimFunc of a resize."""
        return build_resize(resize, self.machine)

    @staticmethod
    def fuses(_: Fused) -> bool:
        """Whether kernels do that beside their sums: all of it."""
        return True

    @staticmethod
    def rules(_: Problem) -> list[Rule]:
        """What is asked of sizes, beyond what every kernel asks: nothing."""
        return []

    def build_packing(
        self, problem: Problem | Product, plan: Plan | None = None
    ) -> tuple[Any, Packed] | None:
        """The PrimFunc that packs the weights of that kernel, and what it writes; None where the
        kernel reads weights as they are."""
        plan = self.plan(problem) if plan is None else plan
        packed = kernels.packed_weights(problem, plan)
        return packed and (kernels.build_packing(problem, plan), packed)
