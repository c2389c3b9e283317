# SPDX-License-Identifier: Apache-2.0
"""Operators without a gradient: comparisons, logic, indices, steps, and computed constants.

TVM's Gradient also differentiates what depends on no parameter, and fails where an operator has no
rule at all.
"""

from __future__ import annotations

from typing import Any

from topi_ext.compat import relax
from topi_ext.spec.geometry import fail

from ..ir import dtype_of
from .parts import Rule, float_attr, op_name, reshaped, shape_of, total

R = relax()

NAMES: tuple[str, ...] = (
    *("arange", "eye", "eye_like", "grad.no_grad", "hamming_window", "one_hot", "shape_of", "size"),
    *("argmax", "argmin", "argsort", "bucketize", "nonzero", "shape_to_tensor"),
    *("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
    *("ceil", "floor", "floor_divide", "round", "sign", "trunc"),
    *("isfinite", "isinf", "isnan"),
    *("logical_and", "logical_not", "logical_or", "logical_xor"),
)


def no_gradient(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Return no gradient of any argument."""
    return [None] * len(call.args)


def full(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Return the sum of the gradient for the value; TVM's own rule drops it."""
    value = call.args[1]
    summed = total(dy, range(len(shape_of(y))), bb)
    return [None, R.op.astype(reshaped(summed, shape_of(value)), dtype_of(value))]


def dropout(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Pass the gradient of a dropout of rate 0; raise for others.

    Raises
    ------
    ValueError
        For another rate, one line.
    """
    rate = float_attr(call, "rate")
    if rate:
        raise fail(
            op_name(call),
            f"rate={rate} has no gradient: TVM computes dropout as the identity; "
            "multiply by a mask that is an input, or set the rate to 0",
        )
    return [R.TupleGetItem(dy, 0)]


RULES: dict[str, Rule] = {
    **{f"relax.{name}": no_gradient for name in NAMES},
    "relax.full": full,
    "relax.full_like": full,
    "relax.nn.dropout": dropout,
}
