# SPDX-License-Identifier: Apache-2.0
"""Kernels as direct TIR, one page each; every one is tested on an emulator against PyTorch.

Each module has ``emit_body(problem, plan, operands)``, what its PrimFunc does; those that may find
their weights packed have ``packed_weights`` and ``pack_weights`` too, as those of processors have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from ...emit.arguments import (
    Packed,
    conv_arguments,
    packed_weight,
    stored_weight,
    weight_grad_arguments,
)
from ...problem import Problem
from .. import emit
from ..emit import ATTRIBUTES, Operand
from ..plan.base import Plan
from ..registry import kernel_of


def module_of(plan: Plan) -> Any:
    """The module of the kernel that `plan` is one of."""
    return import_module(f".{kernel_of(plan).name}", __package__)


def build(problem: Problem, plan: Plan) -> Any:
    """The PrimFunc ``(data, weight, *operands of the epilogue, out)``, of a weight gradient
    ``(x, y, out)``, of as many launches as it takes."""
    if problem.face == "conv_weight_grad":
        arguments = partial(weight_grad_arguments, problem)
    else:
        arguments = partial(conv_arguments, problem, packed_weights(problem, plan))
    return _prim_func(arguments, partial(module_of(plan).emit_body, problem, plan))


def build_packing(problem: Problem, plan: Plan) -> Any:
    """The PrimFunc ``(weight, packed)`` that packs weights for the kernel of the same plan.

    It has loops, not threads: TVM runs it on the processor while it compiles.
    """
    packed, pack = packed_weights(problem, plan), module_of(plan).pack_weights
    return _prim_func(
        lambda: [stored_weight(problem), packed_weight(packed)],
        lambda operands: pack(problem, plan, *operands),
    )


def packed_weights(problem: Problem, plan: Plan) -> Packed | None:
    """What the kernel finds in place of its weights; None where it reads them as they are."""
    if not (problem.prepacked and kernel_of(plan).prepacks):
        return None
    return module_of(plan).packed_weights(problem, plan)


def _prim_func(
    declare: Callable[[], Sequence[Any]], emit_it: Callable[[Sequence[Operand]], None]
) -> Any:
    """The function with the arguments that `declare` declares, and the body that is emitted."""
    with emit.kernel(ATTRIBUTES) as made:
        with emit.body(*declare()) as operands:
            emit_it(operands)
    return made[0]
