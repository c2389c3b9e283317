# SPDX-License-Identifier: Apache-2.0
"""Quantized convolutions: kernels of integers with zero points, run and compared, and in NumPy what
an epilogue makes of integer sums: steps in float32, one rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm

from helpers.compare import numpy_dtype
from helpers.faces import FaceCase
from helpers.kernels import guarded
from topi_ext.backend import Packing
from topi_ext.spec.post_ops import QUANTIZED, PostOp

OPERANDS = [
    (("uint8", "int8", "int32"), (128, 0)),
    (("int8", "int8", "int32"), (-128, 3)),
    (("uint8", "uint8", "int32"), (3, 255)),
    (("int8", "uint8", "int32"), (127, 128)),
    (("uint8", "int8", "uint8"), (0, -7)),
    (("int8", "int8", "int8"), (0, 0)),
]
"""Dtypes and zero points, of which some are as far away as they can be."""


def run(
    kernel: Callable[..., Any],
    case: FaceCase,
    zero_points: tuple[int, int],
    rng: np.random.Generator,
    packed: tuple[Callable[..., Any], Packing] | None = None,
) -> None:
    """Run between guards and compare; weights go through the function that packs them, if any."""
    values = case.arrays(rng)
    data, weight = (case.stored(role, v) for role, v in zip(case.roles, values))
    if packed:
        pack, packing = packed
        into = tvm.runtime.tensor(np.full(packing.elements, 99, numpy_dtype(packing.dtype)))
        pack(tvm.runtime.tensor(weight), into)
        weight = into.numpy()
    out, whole = guarded(np.full(case.stored_shape(case.roles[2]), 77, case.dtypes[2]), 55)
    kernel(*(guarded(v, 99)[0] for v in (data, weight)), out)
    case.check(out.numpy(), *(v.astype("float64") - z for v, z in zip(values, zero_points)))
    assert (whole[:64] == 55).all() and (whole[-64:] == 55).all(), f"{case}: wrote outside"


_BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
}


def requantized(value: np.ndarray, zero_point: int, dtype: str) -> np.ndarray:
    """Float32 as integers: halves to the even number, saturated, NaN as the smallest number."""
    low, high = QUANTIZED[dtype]
    clamped = np.fmin(np.fmax(value, np.float32(low - zero_point)), np.float32(high - zero_point))
    return (np.rint(clamped) + zero_point).astype(dtype)


def finished(
    sums: np.ndarray, steps: Sequence[PostOp], operands: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the result of an epilogue for integer sums; operands broadcast against them."""
    value, given = sums.astype(np.int32), iter(operands)
    for step in steps:
        if step.op == "cast":
            value = value.astype(np.float32)
        elif step.op == "quantize":
            value = requantized(value, int(step.value), step.dtype).astype(np.int32)
        elif step.op == "floor":
            value = np.floor(value)
        elif step.op == "truncate":
            value = value.astype(np.int32)
        elif step.op in _BINARY:
            other = next(given) if step.order else np.array(step.value)
            if step.is_quantized:
                other = (other.astype(np.int32) - step.zero_point) * np.float32(step.scale)
            value = _BINARY[step.op](value, other.astype(value.dtype))
        elif step.op in ("relu", "leaky_relu"):
            value = np.where(value < 0, value * value.dtype.type(step.value), value)
        else:
            raise NotImplementedError(step.op)
    return value
