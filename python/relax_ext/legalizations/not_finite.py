# SPDX-License-Identifier: Apache-2.0
"""Expressions that TVM folds to a constant although NaN or infinity gives another result.

These are products with a constant 0, and comparisons of a tensor with itself, which test for NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topi_ext.compat import constant_value, dtype_name, relax, tensor_type_of
from topi_ext.spec.dtypes import FLOATS

R = relax()


def multiply(bb: Any, call: Any, stock: Any) -> Any:
    """Lower a product with a constant 0 by reading the constant as a tensor."""
    values = [constant_value(arg) for arg in call.args]
    if not any(value is not None and _is_zero(value.numpy()) for value in values):
        return stock(bb, call)

    def define(a: Any, b: Any) -> Any:
        from tvm import topi

        return topi.multiply(a, b)

    return bb.call_te(define, *call.args, primfunc_name_hint="multiply")


def compare(bb: Any, call: Any, stock: Any) -> Any:
    """Lower the comparison of a tensor with itself by a test for NaN."""
    x, other = call.args
    found = tensor_type_of(x)
    if not x.same_as(other) or found is None or dtype_name(found.dtype) not in FLOATS:
        return stock(bb, call)
    wide = x if dtype_name(found.dtype) in ("float32", "float64") else R.op.astype(x, "float32")
    is_nan = bb.emit(R.op.isnan(bb.emit(wide)))
    return is_nan if call.op.name == "relax.not_equal" else R.op.logical_not(is_nan)


def _is_zero(values: np.ndarray) -> bool:
    return values.size == 1 and values.dtype.kind == "f" and not values.any()


RULES = {
    "relax.multiply": multiply,
    **{f"relax.{op}": compare for op in ("equal", "not_equal", "less_equal", "greater_equal")},
}
