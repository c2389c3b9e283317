# SPDX-License-Identifier: Apache-2.0
"""Functions with sizes as numbers, such as the divisor of a mean, are not fused.

If a size is in no shape of a function by itself, TVM passes it as a number.  If TVM fuses such a
function, it states the number as two parameters, and ``FuseTIR`` fails.
"""

from __future__ import annotations

from typing import Any

from topi_ext.compat import buffers_of, tir, uses_var

_OPAQUE = 8
"""TVM's pattern of operators that are not fused."""


def without_fusion(module: Any) -> Any:
    """Mark functions that take a number which is in none of their shapes."""
    for name, func in list(module.functions_items()):
        if isinstance(func, tir.PrimFunc) and _takes_a_number(func):
            module.update_func(name, func.with_attr("op_pattern", _OPAQUE))
    return module


def _takes_a_number(func: Any) -> bool:
    buffers = buffers_of(func)
    sizes = [size for one in buffers.values() for size in one.shape if not isinstance(size, int)]
    numbers = [param for param in func.params if param not in buffers]
    return not all(any(uses_var(size, number) for size in sizes) for number in numbers)
