# SPDX-License-Identifier: Apache-2.0
"""Rules for the post-ops of a fused chain.

Post-ops behind sums of integers go to float32, and to integers of few bits again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from ..spec.dtypes import FLOATS
from ..spec.post_ops import CONVERSIONS, QUANTIZED, PostOp

Step = tuple[PostOp, Any]
"""A post-op and its operand: None, an array whose values are known, or an expression of an IR."""

COMMUTATIVE = ("add", "multiply")
LIMITS = ("minimum", "maximum", "relu")


def takes(dtype: str, steps: Sequence[PostOp], op: str) -> bool:
    """Return whether a value of this dtype may go through an operator that keeps the dtype.

    Sums of int32 wrap around in the kernel as they do outside of it, and bytes have been saturated.
    Other integers are narrowed at the end of the kernel.
    """
    if dtype in FLOATS:
        return True
    if dtype == "int32":
        return op in ("add", "subtract", *LIMITS)
    return are_integers(steps) and op in ("clip", *LIMITS)


def are_integers(steps: Sequence[PostOp]) -> bool:
    """Return whether these post-ops end in integers again."""
    conversions = [step.op for step in steps if step.op in CONVERSIONS]
    return conversions[-1:] in (["quantize"], ["truncate"])


def narrows(steps: Sequence[PostOp], dtype: str) -> bool:
    """Return whether int32 behind these post-ops is within the range of a dtype of few bits."""
    low, high = QUANTIZED.get(dtype, (0, 0))
    limits = list(takewhile(lambda step: step.op in LIMITS, reversed(steps)))
    is_within = all(not step.order and low <= step.value <= high for step in limits)
    is_below = any(step.op == "minimum" for step in limits)
    return is_within and is_below and any(step.op != "minimum" for step in limits)


def with_number(op: str, number: float) -> PostOp | None:
    """Return the post-op whose operand is a number, or None.

    TVM replaces ``x * 0`` by 0 also where x is not finite.
    """
    return None if (op, number) == ("multiply", 0) else PostOp(op, value=number)


def clip(low: float, high: float, steps: Sequence[PostOp]) -> list[PostOp]:
    """Return the post-ops of a clip behind `steps`; none where the kernel cannot compute it."""
    if low > high or (are_integers(steps) and (low % 1 or high % 1)):
        return []
    return [PostOp("maximum", value=low), PostOp("minimum", value=high)]


def cast(dtype: str, to: str) -> list[PostOp]:
    """Return the post-ops of a cast from one dtype to another; none where there are none."""
    return [PostOp("cast")] if (dtype, to) == ("int32", "float32") else []


def truncate(dtype: str, to: str, steps: Sequence[PostOp]) -> list[PostOp]:
    """Return the post-ops of a cast of whole numbers to int32; none of other casts."""
    is_whole = [step.op for step in steps[-1:]] == ["floor"]
    return [PostOp("truncate")] if is_whole and (dtype, to) == ("float32", "int32") else []


def quantize(dtype: str, to: str, scale: float | None, zero_point: float | None) -> list[PostOp]:
    """Return the post-ops of a quantize; none where scale or zero point are not known."""
    if scale is None or zero_point is None or not 0 < scale < np.inf:
        return []
    if dtype != "float32" or to not in QUANTIZED:
        return []
    return [PostOp("divide", value=scale), PostOp("quantize", value=zero_point, dtype=to)]


def dequantize(
    dtype: str,
    to: str,
    scale: float | None,
    zero_point: float | None,
    steps: Sequence[PostOp],
) -> list[PostOp]:
    """Return the post-ops of a dequantize behind `steps`; see :func:`quantize`."""
    if scale is None or zero_point is None or not 0 < scale < np.inf:
        return []
    if to != "float32" or not (dtype == "int32" or are_integers(steps)):
        return []
    shift = [PostOp("subtract", value=zero_point)] if zero_point else []
    return [*shift, PostOp("cast"), PostOp("multiply", value=scale)]


def multiplied(factor: np.ndarray) -> Step:
    """Return the post-op that multiplies by a number, or by one number for each channel."""
    if factor.size == 1:
        return PostOp("multiply", value=float(factor.reshape(()))), None
    return PostOp("multiply", "C", "C", dtype="float32"), factor.astype("float32")


def simplified(steps: Sequence[Step]) -> list[Step]:
    """Return post-ops with the scale of a quantize merged into the factors in front of it.

    ``(a * sum + b) / scale`` is ``(a / scale) * sum + b / scale``, also through a relu.  Factors
    are computed in float64 and rounded once.
    """
    merged = list(steps)
    for end in range(len(merged)):
        is_scale = merged[end][0].op == "divide" and not merged[end][0].order
        if is_scale and [step.op for step, _ in merged[end + 1 : end + 2]] == ["quantize"]:
            merged = _without_division(merged, end)
    return _without_ones(merged)


def _without_ones(steps: list[Step]) -> list[Step]:
    """Return post-ops without multiplications by 1, and `earlier` renumbered accordingly."""
    kept: list[Step] = []
    number = [0]
    for step, operand in steps:
        if step.earlier is not None:
            step = replace(step, earlier=number[step.earlier])
        if step.op != "multiply" or step.order or step.earlier is not None or step.value != 1.0:
            kept.append((step, operand))
        number.append(len(kept))
    return kept


def _without_division(steps: list[Step], end: int) -> list[Step]:
    """Return post-ops with the division at index `end` moved into those before it.

    A multiplication by 1 takes its index, so that the other indices stay.
    """
    divisor = steps[end][0].value
    # `x * sigmoid(x)` reads its first x undivided.
    earlier = max((step.earlier for step, _ in steps if step.earlier is not None), default=-1)
    moved = list(steps)
    moved[end] = PostOp("multiply", value=1.0), None
    for index in reversed(range(earlier + 1, end)):
        step = _divided(steps[index], divisor)
        if step is None:
            break
        moved[index] = step
        if step[0].op in ("multiply", "divide"):
            return moved
    return steps


def is_normal(values: Any, dtype: str = "float32") -> bool:
    """Return whether float64 numbers are 0 or within the normal range of a dtype."""
    size, limits = np.abs(values), np.finfo(dtype)
    return bool(np.all((size == 0) | ((size >= limits.tiny) & (size <= limits.max))))


def _divided(step_and_operand: Step, divisor: float) -> Step | None:
    """Return a step that acts on divided values, or that divides them; None if there is none."""
    step, operand = step_and_operand
    if step.earlier is not None or step.op in CONVERSIONS:
        return None
    if step.op in ("relu", "leaky_relu"):
        return step_and_operand
    if step.op not in ("multiply", "add", "subtract", "minimum", "maximum"):
        return None
    if not step.order:
        value = step.value / divisor
        is_exact = is_normal(value) or np.isinf(step.value)
        return (replace(step, value=value), None) if is_exact else None
    if step.is_quantized:
        scale = step.scale / divisor
        return (replace(step, scale=scale), operand) if is_normal(scale) else None
    if not isinstance(operand, np.ndarray) or operand.dtype != "float32":
        return None
    values = operand.astype("float64") / divisor
    return (step, values.astype("float32")) if is_normal(values) else None
