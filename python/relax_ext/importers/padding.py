# SPDX-License-Identifier: Apache-2.0
"""How frameworks speak of padding, as the numbers that TVM's operators take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topi_ext.compat import simplify, tir


def reach(kernel: int, dilation: int) -> int:
    """How many inputs a dilated kernel spans."""
    return dilation * (kernel - 1) + 1


def natural(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Size of a transposed convolution's result without padding."""
    return (size - 1) * stride + reach(kernel, dilation)


def same(size: Any, kernel: int, stride: int, dilation: int) -> Any:
    """Padding of both sides together with which a convolution has ``ceil(size / stride)`` outputs;
    an expression where it depends on a size that is one."""
    outputs = (size + stride - 1) // stride
    total = simplify((outputs - 1) * stride + reach(kernel, dilation) - size)
    return max(total, 0) if isinstance(total, int) else tir.max(total, 0)


def split(total: Any, upper: bool) -> tuple[Any, Any]:
    """Padding before and after; an odd one is larger after where `upper`, else before."""
    smaller = total // 2
    return (smaller, total - smaller) if upper else (total - smaller, smaller)


def fit(result: int, wanted: int, before: int) -> tuple[int, int]:
    """Padding after and output padding that make a `result` without padding the `wanted` one."""
    after = result - before - wanted
    return max(after, 0), max(-after, 0)


def per_axis(values: Any, rank: int) -> tuple[Any, ...]:
    """One value per axis, from one for all or one each."""
    several = tuple(values) if isinstance(values, Sequence) else (values,)
    return several * rank if len(several) == 1 else several
