# SPDX-License-Identifier: Apache-2.0
"""Build CPU kernels for problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import compat
from ..kernel.backend import Backend, Choice
from ..kernel.database import Database, current
from ..kernel.selection import ALL, Selection
from ..spec.problem import Problem
from . import kernels
from .machine import CpuMachine
from .plan.base import Plan
from .select.choose import candidates, rated
from .select.lookup import measured


@dataclass(frozen=True)
class CpuBackend(Backend[CpuMachine]):
    """Kernels for one processor: equal ones make equal kernels.

    Attributes
    ----------
    processor : str
        Its name, as the target has it.
    database : Database, optional
        Plans that were measured: taken before those that are fastest by estimate.
    """

    processor: str = ""
    database: Database | None = None

    functions = kernels.FUNCTIONS

    @classmethod
    def of(cls, target: Any, selection: Selection = ALL) -> CpuBackend | None:
        """Return the backend of an llvm target; None if LLVM does not know its triple."""
        features = compat.llvm_features(target)
        if features is None:
            return None
        machine = CpuMachine.of_features(*features)
        return cls(machine, selection, compat.processor(target), current())

    def choice(self, problem: Problem) -> Choice:
        """See :class:`~topi_ext.kernel.backend.Backend`: a measured plan is preferred."""
        if self.selection.is_all:
            found = measured(problem, self.machine, self.processor, self.database)
            if found is not None:
                return Choice(found, None, "measured")
        cycles, plan = rated(problem.planned(), self.machine, self.selection)
        return Choice(plan, cycles, "estimate" if self.selection.is_all else "selected")

    def candidates(self, problem: Problem) -> Iterator[tuple[float, Plan]]:
        """See :func:`~.select.choose.candidates`."""
        return candidates(problem, self.machine)
