# SPDX-License-Identifier: Apache-2.0
"""Softmax and normalizations by the row-wise kernels, which sum in several accumulators."""

from __future__ import annotations

from typing import Any

from ..fusion.match import lowered
from ..fusion.rows import read


def row_kernel(bb: Any, call: Any, stock: Any) -> Any:
    """Lower a call by a row-wise kernel where there is one."""
    match = read(call, lambda _: None)
    if match is None or not match.is_supported:
        return stock(bb, call)
    steps = [step for step, _ in match.steps]
    operands = [operand for _, operand in match.steps]
    return lowered(bb, match, match.anchor, steps, operands)


RULES = dict.fromkeys(
    ("relax.nn.softmax", "relax.nn.layer_norm", "relax.nn.group_norm", "relax.nn.instance_norm"),
    row_kernel,
)
