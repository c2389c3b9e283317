# SPDX-License-Identifier: Apache-2.0
"""Kernels as direct TIR, one page each; every one is tested against the TE definitions.

Each module has ``build(problem, plan)``, its PrimFunc, and one of two: ``emit_body(problem, plan,
operands)``, what that does, or, of kernels with room for so many positions only,
``kernel_of(problem, plan, operands)``, with ``emit()`` and ``fits()``.  Kernels that may find their
weights packed have ``is_prepacked``, ``build_packing`` and ``packed_weights``, all of a problem and
a plan.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..plan.window import Plan
from ..registry import kernel_of


def module_of(plan: Plan) -> Any:
    """The module of the kernel that `plan` is one of."""
    return import_module(f".{kernel_of(plan).name}", __package__)
