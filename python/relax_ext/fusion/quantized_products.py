# SPDX-License-Identifier: Apache-2.0
"""Matrix products of bytes in whole models, where both operands are dequantized.

The scale and the zero point of the first operand may be known only when the model runs.  What a
zero point adds to each column is subtracted behind sums of the bytes themselves, but for constant
weights: these are packed ahead, where kernels subtract zero points themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from topi_ext.compat import constant_value, relax, tensor_type_of
from topi_ext.fusion.post_ops import Step
from topi_ext.fusion.products import ProductAnchor, W, X
from topi_ext.spec.conv import BYTE_RANGES
from topi_ext.spec.post_ops import PostOp

from ..ir import dtype_of, shape_of
from .constants import DEQUANTIZE, call_of
from .match import Match
from .matmul import is_readable
from .operands import stored
from .patterns import Lookup, Scope
from .quantized import Bytes, factor_of, operand_of
from .views import PERMUTE, order_of, shapes_of

R = relax()

_SUMS = ("int32", "int32", "int32")


def product_of_bytes(call: Any, scope: Scope) -> Match | None:
    """Read a matrix product of fractions as one of bytes.

    Returns
    -------
    Match or None
        None where an operand is not dequantized, or by scales that differ along what is summed or
        between rows; where the scale of the second operand is not known; and for zero points for
        which the target has no kernels.
    """
    weight, order = _before_transpose(call.args[W], scope.lookup)
    shapes, found = shapes_of(call.args[X], weight, call), tensor_type_of(call)
    x, w = operand_of(call.args[X], scope.lookup), operand_of(weight, scope.lookup)
    if shapes is None or w is None or w.scale is None:
        return None
    is_constant, behind = constant_value(w.tensor) is not None, None
    if w.zero_point and not is_constant:
        return None
    if x is None or (x.zero_point and not is_constant):
        behind = _dequantize(call.args[X], scope.lookup)
        if behind is None or w.zero_point or len(shapes[W]) != 2:
            return None
        scale = np.ones(1) if x is None else x.scale
        x = Bytes(behind.args[0], dtype_of(behind.args[0]), 0, scale)
    if x.scale is None:
        return None
    shapes[W] = tuple(shapes[W][axis] for axis in order)
    anchor = ProductAnchor.of(shapes, _SUMS)
    factor = factor_of(x.scale, w.scale, order[-1])
    if anchor is None or factor is None or dtype_of(call) != "float32":
        return None
    anchor = replace(
        anchor, dtypes=(x.dtype, w.dtype, "float32"), zero_points=(x.zero_point, w.zero_point)
    )
    steps = _steps(anchor, factor, behind, (w.tensor, order[-2]))
    if steps is None:
        return None
    if order != sorted(order):
        anchor = anchor.transposed_from(W, order)
    values, anchor = stored(x.tensor, X, anchor, scope.outside, is_readable)
    weights, anchor = stored(w.tensor, W, anchor, scope.outside, is_readable)
    return Match(anchor, (values, weights), found, steps)


def _before_transpose(weight: Any, lookup: Lookup) -> tuple[Any, list[int]]:
    """Return an operand before its transpose, and which of its axes each axis is."""
    call, rank = call_of(weight, lookup), len(shape_of(weight) or ())
    if call is not None and call.op.name == PERMUTE:
        return call.args[0], order_of(call, rank)
    return weight, list(range(rank))


def _dequantize(expr: Any, lookup: Lookup) -> Any:
    """Return the call that dequantizes bytes by one scale, of no axes."""
    call = call_of(expr, lookup)
    if call is None or call.op.name != DEQUANTIZE or dtype_of(call.args[0]) not in BYTE_RANGES:
        return None
    return call if all(shape_of(one) == () for one in call.args[1:]) else None


def _steps(
    anchor: ProductAnchor, factor: np.ndarray, dequantize: Any, weight: tuple[Any, int]
) -> list[Step] | None:
    """Return the steps behind sums, ``factor * (sums - shift)``; None of one column.

    With the call that dequantizes the data there is a shift, its zero point times the sums of the
    weight along an axis; and its scale is a factor where it is not known yet.
    """
    cast = PostOp("cast"), None
    if dequantize is None and factor.size == 1:
        return [cast, (PostOp("multiply", value=float(factor.reshape(()))), None)]
    columns = anchor.shape[-1]
    step = anchor.post_op("multiply", (columns,))
    if step is None:
        return None
    multiply = replace(step, dtype="float32")
    factors: Any = np.ascontiguousarray(np.broadcast_to(factor, columns).astype("float32"))
    if dequantize is None:
        return [cast, (multiply, factors)]
    _, scale, zero_point = dequantize.args
    sums = R.op.sum(R.op.astype(weight[0], "int32"), weight[1])
    shift = R.op.multiply(R.op.astype(zero_point, "int32"), sums)
    if constant_value(scale) is None:
        factors = R.op.multiply(scale, R.const(factors))
    return [(replace(step, op="subtract", dtype="int32"), shift), cast, (multiply, factors)]
