# SPDX-License-Identifier: Apache-2.0
"""The PrimFuncs of kernels: what is declared around a body, and around what packs weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

Body = Callable[[Sequence[Operand]], None]
"""Emits the body of a PrimFunc, of its arguments."""


def conv_function(problem: Problem, body: Body, packed: Packed | None = None) -> Any:
    """The PrimFunc ``(data, weight, *operands of the epilogue, out)`` with this body.

    Parameters
    ----------
    packed : Packed, optional
        What the weights are, if they come packed.
    """
    with emit.kernel(ATTRIBUTES) as made:
        with emit.body(*conv_arguments(problem, packed)) as operands:
            body(operands)
    return made[0]


def weight_grad_function(problem: Problem, body: Body) -> Any:
    """The PrimFunc ``(x, y, out)`` with this body, of a weight gradient."""
    with emit.kernel(ATTRIBUTES) as made:
        with emit.body(*weight_grad_arguments(problem)) as operands:
            body(operands)
    return made[0]


def packing_function(problem: Problem, packed: Packed, body: Body) -> Any:
    """The PrimFunc ``(weight, packed)`` with this body, which packs weights."""
    with emit.kernel(ATTRIBUTES) as made:
        with emit.body(stored_weight(problem), packed_weight(packed)) as operands:
            body(operands)
    return made[0]
