# SPDX-License-Identifier: Apache-2.0
"""Types of the operators' results."""

from __future__ import annotations

from typing import Any

from topi_ext.tvm_compat import simplify, tensor_type, tensor_type_of

from .attrs import read


def infer(call: Any, bb: Any, stock: Any) -> Any:
    """Type of the result of `call`.

    Where a shape is not known the result has a dtype and a number of axes.  Symbolic channels or
    kernel sizes are left to `stock`, TVM's own inference.
    """
    conv = read(call)
    if conv is None:
        return stock(call, bb)
    layout, dtype = conv.layouts[conv.result], conv.dtypes[conv.result]
    devices = [tensor_type_of(arg).vdevice for arg in call.args[:2]]
    vdevice = devices[0] or devices[1]
    if conv.geometry is None:
        return tensor_type(None, dtype, len(layout.axes), vdevice)
    shape = conv.stored_shape(conv.result)
    return tensor_type([simplify(size) for size in shape], dtype, len(shape), vdevice)
