# SPDX-License-Identifier: Apache-2.0
"""Matrix products of bytes in whole models, where both operands are dequantized.

The scale and the zero point of the first operand may be known only when the model runs.  Then sums
are of its bytes themselves, and what the zero point adds to each column is subtracted behind them.
So it is with rows of any number, of which no kernel subtracts zero points from weights as stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from topi_ext.compat import relax, tensor_type_of
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
    data = None
    if x is None or not all(isinstance(size, int) for shape in shapes for size in shape):
        data = _dequantize(call.args[X], scope.lookup)
    if data is not None:
        if w.zero_point or len(shapes[W]) != 2:
            return None
        x = Bytes(data.args[0], dtype_of(data.args[0]), 0, np.ones(1))
    if x is None or x.scale is None:
        return None
    shapes[W] = tuple(shapes[W][axis] for axis in order)
    anchor = ProductAnchor.of(shapes, _SUMS)
    factor = factor_of(x.scale, w.scale, order[-1])
    if anchor is None or factor is None or dtype_of(call) != "float32":
        return None
    anchor = replace(
        anchor, dtypes=(x.dtype, w.dtype, "float32"), zero_points=(x.zero_point, w.zero_point)
    )
    steps = _steps(anchor, factor, data, (w.tensor, order[-2]))
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

    With the call that dequantizes the data, they do so: the shift is its zero point times the sums
    of the weight along an axis.
    """
    cast = PostOp("cast"), None
    if dequantize is None and factor.size == 1:
        return [cast, (PostOp("multiply", value=float(factor.reshape(()))), None)]
    columns = anchor.shape[-1]
    step = anchor.post_op("multiply", (columns,))
    if step is None:
        return None
    factors = np.broadcast_to(factor, columns).astype("float32")
    multiply = replace(step, dtype="float32")
    if dequantize is None:
        return [cast, (multiply, factors)]
    _, scale, zero_point = dequantize.args
    sums = R.op.sum(R.op.astype(weight[0], "int32"), weight[1])
    shift = R.op.multiply(R.op.astype(zero_point, "int32"), sums)
    subtract = replace(step, op="subtract", dtype="int32")
    return [(subtract, shift), cast, (multiply, R.op.multiply(scale, R.const(factors)))]
