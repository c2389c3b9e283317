# SPDX-License-Identifier: Apache-2.0
"""Kernels as direct TIR, one module each; every kernel is tested against the TE definitions.

Each module has ``emit_body(problem, plan, operands)``, which emits the body of its PrimFunc.  A
kernel that has room for a limited number of positions has ``kernel_of(problem, plan, operands)``
instead, which returns an emitter with ``emit()`` and ``fits()``.  Some kernels pack weights, see
:mod:`topi_ext.emit.functions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...emit.functions import Functions
from ...spec.problem import Problem
from .. import emit
from ..emit import Operand
from ..plan.base import Plan
from ..registry import KERNELS


def emit_body(problem: Problem, plan: Plan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc of :func:`build`, whose arguments are `operands`."""
    module = module_of(plan)
    if KERNELS.of_plan(plan).is_bounded:
        module.kernel_of(problem, plan, operands).emit()
    else:
        module.emit_body(problem, plan, operands)


FUNCTIONS = Functions(__name__, KERNELS, emit.body, emit_body)
module_of = FUNCTIONS.module_of
build = FUNCTIONS.build
build_packing = FUNCTIONS.build_packing
packed_weights = FUNCTIONS.packed_weights
