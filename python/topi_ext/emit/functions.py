# SPDX-License-Identifier: Apache-2.0
"""From a problem and a plan to a PrimFunc, by the module of the plan's kernel.

Kernels that may find their weights packed have two functions beside what emits them:
``packed_weights(problem, plan)``, what these are, or None where the plan reads weights as they are,
and ``pack_weights(problem, plan, weight, packed)``, which emits how they become that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from ..spec.problem import Problem
from .arguments import Packed, arguments, packing_arguments
from .builder import ATTRIBUTES, kernel
from .operands import Operand


@dataclass(frozen=True)
class Functions:
    """Functions of one kind of target.

    Attributes
    ----------
    package : str
        Of the kernels' modules.
    kernel_of : callable
        The row of the registry that a plan belongs to.
    body : callable
        Opens the body of a function, of declared arguments.
    emit_body : callable
        ``emit_body(problem, plan, operands)``: what a function does.
    """

    package: str
    kernel_of: Callable[[Any], Any]
    body: Callable[..., AbstractContextManager[list[Operand]]]
    emit_body: Callable[[Any, Any, Sequence[Operand]], None]

    def module_of(self, plan: Any) -> Any:
        """The module of the kernel that `plan` is one of."""
        return import_module(f"{self.package}.{self.kernel_of(plan).name}")

    def build(self, problem: Problem, plan: Any) -> Any:
        """The PrimFunc ``(data, weight, *operands of the epilogue, out)``, of a weight gradient
        ``(x, y, out)``, of one operand ``(x, *operands of the epilogue, out)``, scheduled by
        `plan`."""
        packed = self.packed_weights(problem, plan)

        def emit_it(operands: Sequence[Operand]) -> None:
            operands[0].zero, weight_zero = problem.zero_points
            if not packed:  # those are less it
                operands[1].zero = weight_zero
            self.emit_body(problem, plan, operands)

        return self._prim_func(partial(arguments, problem, packed), emit_it)

    def build_packing(self, problem: Problem, plan: Any) -> Any:
        """The PrimFunc ``(weight, packed)`` that packs weights for the kernel of the same plan.

        Of a problem and a plan that have :meth:`packed_weights`.  It has loops, not threads of a
        GPU: TVM may run it on the processor while it compiles.
        """
        packed, pack = self.packed_weights(problem, plan), self.module_of(plan).pack_weights

        def emit_it(operands: Sequence[Operand]) -> None:
            operands[0].zero = problem.zero_points[1]
            pack(problem, plan, *operands)

        return self._prim_func(partial(packing_arguments, problem, packed), emit_it)

    def packed_weights(self, problem: Problem, plan: Any) -> Packed | None:
        """What the kernel finds in place of its weights; None where it reads them as they are."""
        if not (problem.prepacked and self.kernel_of(plan).prepacks):
            return None
        return self.module_of(plan).packed_weights(problem, plan)

    def _prim_func(
        self, declare: Callable[[], Sequence[Any]], emit_it: Callable[[Sequence[Operand]], None]
    ) -> Any:
        """The function with the arguments that `declare` declares, and what is emitted."""
        with kernel(ATTRIBUTES) as made:
            with self.body(*declare()) as operands:
                emit_it(operands)
        return made[0]
