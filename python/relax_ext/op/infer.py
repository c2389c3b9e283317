# SPDX-License-Identifier: Apache-2.0
"""Types of the operators' results."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import dtype_name, relax, simplify, tensor_type, tensor_type_of

from .attrs import read

R = relax()


def infer(call: Any, bb: Any, stock: Any) -> Any:
    """Return the type of the result of `call`.

    Where a shape is not known the result has a dtype and a number of axes.  Symbolic channels or
    kernel sizes are left to `stock`, TVM's own inference.
    """
    conv = read(call, _dtype_before_legalization(call, bb))
    if conv is None:
        return stock(call, bb)
    layout, dtype = conv.layouts[conv.result], conv.dtypes[conv.result]
    devices = [tensor_type_of(arg).vdevice for arg in call.args[:2]]
    vdevice = devices[0] or devices[1]
    if conv.geometry is None:
        return tensor_type(None, dtype, len(layout.axes), vdevice)
    shape = conv.stored_shape(conv.result)
    return tensor_type([simplify(size) for size in shape], dtype, len(shape), vdevice)


def _dtype_before_legalization(call: Any, bb: Any) -> str:
    """Return the dtype of the result where legalization has widened an operand to float32; else
    ``""``.

    TVM legalizes a batch norm of half precision to a kernel that gives float32.  What comes behind
    was emitted for the dtype that the other operand has, and is still to give that.
    """
    found = [tensor_type_of(arg) for arg in call.args[:2]]
    dtypes = ["" if ty is None else dtype_name(ty.dtype) for ty in found]
    for arg, dtype, other in zip(call.args, dtypes, reversed(dtypes)):
        is_wide = dtype == "float32" and other in ("float16", "bfloat16")
        if is_wide and _is_legalized(arg, bb):
            return other
    return ""


def _is_legalized(arg: Any, bb: Any) -> bool:
    """Return whether a kernel gives this operand."""
    value = bb.lookup_binding(arg) if isinstance(arg, R.Var) else arg
    if isinstance(value, R.TupleGetItem):
        value = bb.lookup_binding(value.tuple_value)
    return isinstance(value, R.Call) and str(getattr(value.op, "name", "")) == "relax.call_tir"
