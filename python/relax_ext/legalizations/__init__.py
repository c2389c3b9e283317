# SPDX-License-Identifier: Apache-2.0
"""Lowerings of operators around convolutions that TVM's own lowering computes incorrectly.

========================  =====================================================================
:mod:`.half_precision`    reductions and products of float16 and bfloat16 accumulate in float32
:mod:`.sums`              float32 sums of many elements are computed in rows or blocks
:mod:`.rows`              softmax and normalizations by the row-wise kernels
:mod:`.norms`             norms without scale or shift, and of any axes
:mod:`.attention`         attention by its kernel
:mod:`.pools`             gradients of maximum poolings, with dilation too
:mod:`.quantize`          NaN becomes the smallest integer
:mod:`.not_finite`        ``x * 0`` and ``x != x`` of infinite numbers and NaN
========================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import attention, half_precision, norms, not_finite, pools, quantize, rows, sums

__all__ = ["LEGALIZATIONS"]

_MODULES = (half_precision, sums, rows, norms, attention, pools, quantize, not_finite)

LEGALIZATIONS: Mapping[str, tuple[Callable[..., Any], ...]] = {
    op: tuple(module.RULES[op] for module in _MODULES if op in module.RULES)
    for op in sorted({op for module in _MODULES for op in module.RULES})
}
"""Rules ``rule(bb, call, stock)`` by operator: each rule calls the next one as its `stock`."""
