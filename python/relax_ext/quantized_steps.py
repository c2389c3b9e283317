# SPDX-License-Identifier: Apache-2.0
"""Steps behind sums of integers: to float32, and to integers of few bits again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from topi_ext.compat import constant_value, dtype_name, relax, tensor_type_of
from topi_ext.dtypes import FLOATS
from topi_ext.epilogue import QUANTIZED, PostOp

from .constants import value_of
from .patterns import Lookup

R = relax()

Step = tuple[PostOp, Any]
"""A step and its operand, None without one."""


QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"


def takes(dtype: str, steps: Sequence[PostOp], name: str) -> bool:
    """Whether a value of this dtype may go through an operator that keeps it.

    Sums of int32 wrap around wherever they are added, and bytes have been saturated: both are in a
    kernel what they are outside of it.  Other integers are narrowed at its end.
    """
    if dtype in FLOATS:
        return True
    if dtype == "int32":
        return name in ("relax.add", "relax.subtract")
    return is_saturated(steps) and name == "relax.clip"


def is_saturated(steps: Sequence[PostOp]) -> bool:
    """Whether values are integers of few bits already."""
    conversions = [step.op for step in steps if step.op in ("cast", "quantize")]
    return conversions[-1:] == ["quantize"]


def conversion(call: Any, dtype: str, steps: Sequence[PostOp], lookup: Lookup) -> list[Step]:
    """The steps that a call is which makes another dtype of values of this one; none of others."""
    name, to = str(call.op.name), dtype_name(tensor_type_of(call).dtype)
    if name == "relax.astype":
        return [(PostOp("cast"), None)] if (dtype, to) == ("int32", "float32") else []
    if name not in (QUANTIZE, DEQUANTIZE):
        return []
    scale, zero_point = (_number(one, lookup) for one in call.args[1:])
    if scale is None or zero_point is None or not 0 < scale < np.inf:
        return []
    if name == QUANTIZE and dtype == "float32" and to in QUANTIZED:
        quantize = PostOp("quantize", value=zero_point, dtype=to)
        return [(PostOp("divide", value=scale), None), (quantize, None)]
    is_whole = dtype == "int32" or is_saturated(steps)
    if name == DEQUANTIZE and to == "float32" and is_whole:
        shift = [PostOp("subtract", value=zero_point)] if zero_point else []
        return [(step, None) for step in (*shift, PostOp("cast"), PostOp("multiply", value=scale))]
    return []


def _number(expr: Any, lookup: Lookup) -> float | None:
    """The one number that a tensor holds, perhaps several times."""
    value = value_of(expr, lookup)
    if value is None or value.size == 0 or np.any(value != value.flat[0]):
        return None
    return float(value.flat[0])


def simplified(steps: Sequence[Step]) -> list[Step]:
    """The same with the scale of a ``quantize`` in the factors in front of it, where it can be.

    ``(a * sum + b) / scale`` is ``(a / scale) * sum + b / scale``, also through a relu; factors are
    calculated in float64, and rounded once.
    """
    done = list(steps)
    for end in range(len(done)):
        is_scale = done[end][0].op == "divide" and not done[end][0].order
        if is_scale and [step.op for step, _ in done[end + 1 : end + 2]] == ["quantize"]:
            done = _without_division(done, end)
    return _without_ones(done)


def _without_ones(steps: list[Step]) -> list[Step]:
    """Without multiplications by 1; values are still found by the number of steps before them."""
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
    """With the division that is step number `end` in the steps before it; a multiplication by 1 is
    left in its place, so that numbers of steps stay."""
    divisor = steps[end][0].value
    # `x * sigmoid(x)` has its first x as it was.
    earlier = max((step.earlier for step, _ in steps if step.earlier is not None), default=-1)
    made = list(steps)
    made[end] = PostOp("multiply", value=1.0), None
    for place in reversed(range(earlier + 1, end)):
        found = _divided(steps[place], divisor)
        if found is None:
            break
        made[place] = found
        if found[0].op in ("multiply", "divide"):
            return made
    return steps


def is_float32(values: Any) -> bool:
    """Whether numbers of float64 are 0 or within the normal range of float32."""
    size, limits = np.abs(values), np.finfo("float32")
    return bool(np.all((size == 0) | ((size >= limits.tiny) & (size <= limits.max))))


def _divided(one: Step, divisor: float) -> Step | None:
    """A step on values that are all divided already, or that divides them; None where neither is
    possible."""
    step, operand = one
    if step.earlier is not None or step.op in ("cast", "quantize"):
        return None
    if step.op in ("relu", "leaky_relu"):
        return one
    if step.op not in ("multiply", "add", "subtract", "minimum", "maximum"):
        return None
    if not step.order:
        value = step.value / divisor
        is_exact = is_float32(value) or np.isinf(step.value)
        return (replace(step, value=value), None) if is_exact else None
    if step.is_quantized:
        scale = step.scale / divisor
        return (replace(step, scale=scale), operand) if is_float32(scale) else None
    constant = constant_value(operand)
    if constant is None or dtype_name(tensor_type_of(operand).dtype) != "float32":
        return None
    values = constant.numpy().astype("float64") / divisor
    return (step, R.const(values.astype("float32"))) if is_float32(values) else None
