# SPDX-License-Identifier: Apache-2.0
"""Expressions that TVM computes incorrectly of NaN, infinity or constants.

It folds products with a constant 0, and comparisons of a tensor with itself, which test for NaN.
It fails at divisions by a constant 0, and at conversions of a constant beyond an integer dtype.
On CPUs its code of ``x != y`` is false where either is NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topi_ext.compat import constant_value, dtype_name, relax, tensor_type_of, tir
from topi_ext.spec.dtypes import FLOATS

R = relax()


def with_zero(bb: Any, call: Any, stock: Any) -> Any:
    """Lower a product or quotient with a constant 0 by reading the constant as a tensor."""
    values = [constant_value(arg) for arg in call.args]
    if not any(value is not None and _is_zero(value.numpy()) for value in values):
        return stock(bb, call)

    def define(a: Any, b: Any) -> Any:
        from tvm import topi

        return getattr(topi, name)(a, b)

    name = call.op.name.rpartition(".")[2]
    return bb.call_te(define, *call.args, primfunc_name_hint=name)


def compare(bb: Any, call: Any, stock: Any) -> Any:
    """Lower a comparison of floats: a tensor and itself by a test for NaN, ``x != y`` as the
    complement of ``x == y``.
    """
    x, other = call.args
    found = tensor_type_of(x)
    if found is None or dtype_name(found.dtype) not in FLOATS:
        return stock(bb, call)
    is_unequal = call.op.name == "relax.not_equal"
    if x.same_as(other):
        is_nan = bb.emit(R.op.isnan(x))
        return is_nan if is_unequal else R.op.logical_not(is_nan)
    if not is_unequal:
        return stock(bb, call)
    equal = bb.emit(R.op.equal(x, other))
    return bb.call_te(_complement, equal, primfunc_name_hint="not_equal")


def _complement(condition: Any) -> Any:
    """Negate by a selection: TVM's simplifier turns ``not x == y`` into ``x != y`` again."""
    from tvm import te

    no, yes = (tir.const(value, "bool") for value in (False, True))
    return te.compute(condition.shape, lambda *index: tir.Select(condition(*index), no, yes))


def convert(bb: Any, call: Any, stock: Any) -> Any:
    """Convert a constant integer, which wraps around."""
    value, dtype = constant_value(call.args[0]), dtype_name(tensor_type_of(call).dtype)
    if value is None or "int" not in dtype or "int" not in str(value.dtype):
        return stock(bb, call)
    return R.const(value.numpy().astype(dtype))


def _is_zero(values: np.ndarray) -> bool:
    return values.size == 1 and values.dtype.kind == "f" and not values.any()


RULES = {
    **dict.fromkeys(("relax.multiply", "relax.divide"), with_zero),
    "relax.astype": convert,
    **{f"relax.{op}": compare for op in ("equal", "not_equal", "less_equal", "greater_equal")},
}
