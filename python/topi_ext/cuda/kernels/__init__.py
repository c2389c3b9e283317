# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels as TIR, one module each; tests compare every one with PyTorch on an emulator.

Each module has ``emit_body(problem, plan, operands)``, which emits the body of its PrimFunc as one
or more launches.  Some can pack weights, see :mod:`topi_ext.emit.functions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...emit.functions import Functions
from ...spec.conv import Convolution
from ...spec.problem import Problem
from .. import emit
from ..emit import Operand
from ..parts.concat import Copy, copy_others, divided
from ..plan.tiles import Plan
from ..registry import KERNELS


def emit_body(problem: Problem, plan: Plan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc of :func:`build`, whose arguments are `operands`."""
    others: list[Copy] = []
    if isinstance(problem, Convolution) and problem.is_part:
        operands, others = divided(problem, operands)
    module_of(plan).emit_body(problem, plan, operands)
    if others:
        copy_others(others)


FUNCTIONS = Functions(__name__, KERNELS, emit.body, emit_body)
module_of = FUNCTIONS.module_of
build = FUNCTIONS.build
build_packing = FUNCTIONS.build_packing
packed_weights = FUNCTIONS.packed_weights
