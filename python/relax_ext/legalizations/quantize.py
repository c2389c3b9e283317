# SPDX-License-Identifier: Apache-2.0
"""Quantization to integers: NaN becomes the smallest integer, as in ONNX Runtime and our kernels.

TVM's lowering gives the largest one, because its ``min(NaN, 127)`` is 127.
"""

from __future__ import annotations

from typing import Any

from topi_ext.compat import call_attr, constant_value, dtype_name, relax, tensor_type_of, tir

R = relax()


def quantize(bb: Any, call: Any, stock: Any) -> Any:
    """Lower ``saturate(round(x / scale) + zero_point)``."""
    dtype = dtype_name(tensor_type_of(call).dtype)
    if "int" not in dtype:
        return stock(bb, call)
    axis = int(call_attr(call, "axis"))
    wide = "float64" if dtype_name(tensor_type_of(call.args[0]).dtype) == "float64" else "float32"

    def define(x: Any, scale: Any, zero_point: Any) -> Any:
        from tvm import te

        low, high = (limit(dtype).astype(wide) for limit in (tir.min_value, tir.max_value))

        def element(*index: Any) -> Any:
            factor, offset = (_at(one, index, axis).astype(wide) for one in (scale, zero_point))
            value = te.round(x[index].astype(wide) / factor) + offset
            # TVM's min and max give their second operand where either is NaN.
            return tir.Max(tir.Min(high, value), low).astype(dtype)

        return te.compute(x.shape, element, name="quantized")

    scale, zero_point = map(_number_or_tensor, call.args[1:])
    return bb.call_te(define, call.args[0], scale, zero_point, primfunc_name_hint="quantize")


def _number_or_tensor(expr: Any) -> Any:
    """Return a constant of one element as a number, other expressions as they are."""
    value = constant_value(expr)
    if value is None or value.numpy().size != 1 or str(value.dtype) == "bfloat16":
        return expr
    return tir.const(value.numpy().reshape(()).item(), str(value.dtype))


def _at(operand: Any, index: Any, axis: int) -> Any:
    """Return the scale or zero point of an element: one for all, or one for each place of the
    axis.
    """
    if not hasattr(operand, "shape"):
        return operand
    if all(isinstance(size, tir.IntImm) and size.value == 1 for size in operand.shape):
        return operand[(0,) * len(operand.shape)]
    return operand[index[axis]]


RULES = {"relax.quantize": quantize}
