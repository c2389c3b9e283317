# SPDX-License-Identifier: Apache-2.0
"""Build a PrimFunc from a problem and a plan, by the module of the plan's kernel.

The module of a kernel that takes packed weights has two functions beside its emitter:
``packed_weights(problem, plan)`` returns their size and dtype, or None where the plan reads weights
as they are stored, and ``pack_weights(problem, plan, weight, packed)`` emits the packing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..kernel.registry import Registry
from ..spec.problem import Problem
from .arguments import Packed, arguments, packing_arguments
from .builder import ATTRIBUTES, kernel
from .operands import Operand


@dataclass(frozen=True)
class Functions:
    """The functions that build kernels of one kind of target.

    Attributes
    ----------
    package : str
        The package of the kernels' modules.
    registry : Registry
        The rows of these kernels.
    body : callable
        Opens the body of a function with these declared arguments.
    emit_body : callable
        ``emit_body(problem, plan, operands)`` emits the body of a function.
    """

    package: str
    registry: Registry[Any]
    body: Callable[..., AbstractContextManager[list[Operand]]]
    emit_body: Callable[[Any, Any, Sequence[Operand]], None]

    def module_of(self, plan: Any) -> Any:
        """Return the module of the kernel of `plan`."""
        return import_module(f"{self.package}.{self.registry.of_plan(plan).name}")

    def build(self, problem: Problem, plan: Any) -> Any:
        """Build the PrimFunc ``(data, weight, *operands of the epilogue, out)``, scheduled by
        `plan`.

        For a weight gradient it is ``(x, y, out)``, for a problem with one operand ``(x, *operands
        of the epilogue, out)``.
        """
        packed = self.packed_weights(problem, plan)
        with kernel(ATTRIBUTES) as functions, self.body(*arguments(problem, packed)) as operands:
            operands[0].zero, weight_zero = problem.zero_points
            if not packed:  # the zero point is subtracted from packed weights
                operands[1].zero = weight_zero
            self.emit_body(problem, plan, operands)
        return functions[0]

    def build_packing(self, problem: Problem, plan: Any) -> Any:
        """Build the PrimFunc ``(weight, packed)`` that packs weights for the kernel of the same
        plan.

        The problem and the plan have :meth:`packed_weights`.  The function has loops, not threads
        of a GPU: TVM may run it on the CPU while it compiles.
        """
        packed, pack = self.packed_weights(problem, plan), self.module_of(plan).pack_weights
        if packed is None:
            raise ValueError(f"{problem.kind}: the kernel reads its weight as it is stored")
        with kernel(ATTRIBUTES) as functions:
            with self.body(*packing_arguments(problem, packed)) as operands:
                operands[0].zero = problem.zero_points[1]
                pack(problem, plan, *operands)
        return functions[0]

    def packed_weights(self, problem: Problem, plan: Any) -> Packed | None:
        """Return size and dtype of the packed weights; None where the kernel reads stored ones."""
        if not (problem.prepacked and self.registry.of_plan(plan).prepacks):
            return None
        return self.module_of(plan).packed_weights(problem, plan)
