# SPDX-License-Identifier: Apache-2.0
"""Gradients of the operators, from the table of :mod:`topi_ext.spec.gradients`."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import relax
from topi_ext.spec.conv import OPERANDS, RESULT
from topi_ext.spec.dtypes import accumulator
from topi_ext.spec.geometry import Geometry, fail
from topi_ext.spec.gradients import RULES

from . import blocks
from .attrs import Conv, read, short_name
from .ops import conv_call

R = relax()


def gradient(orig_var: Any, call: Any, dout: Any, bb: Any, stock: Any) -> list[Any]:
    """Return the gradients of `call` in its arguments, as operators that have gradients themselves.

    Symbolic channels or kernel sizes are left to `stock`, TVM's own gradient.
    """
    conv = read(call)
    if conv is None and stock is not None:
        return stock(orig_var, call, dout, bb)
    if conv is None or conv.geometry is None:
        raise fail(
            short_name(call), "the gradient needs known shapes, constant channels and kernel sizes"
        )
    roles = OPERANDS[conv.kind] + conv.result
    tensors = {
        role: blocks.merged(tensor, conv.layouts[role], conv.shape(role))
        for role, tensor in zip(roles, (*call.args[:2], dout))
    }
    ops = RelaxOps(conv, tensors.get("x"))
    gradients = RULES[conv.kind](ops, conv.geometry, *tensors.values())
    return [
        *(
            blocks.split(tensor, conv.layouts[role], conv.shape(role))
            for role, tensor in zip(roles, gradients)
        ),
        *(R.op.grad.no_grad(arg) for arg in call.args[2:]),
    ]


class RelaxOps:
    """The kinds as Relax calls; every result has the layout and dtype of its role in `conv`.

    Whatever gradient is an x, some x is at hand that has its shape.
    """

    def __init__(self, conv: Conv, x: Any):
        self._conv = conv
        self._x = x

    def conv(self, x: Any, w: Any, geometry: Geometry) -> Any:
        """y from x and w."""
        return self._call("conv", x, w, geometry)

    def conv_transpose(self, y: Any, w: Any, geometry: Geometry) -> Any:
        """x from y and w."""
        return self._call("conv_transpose", y, w, geometry)

    def conv_weight_grad(self, x: Any, y: Any, geometry: Geometry) -> Any:
        """w from x and y."""
        return self._call("conv_weight_grad", x, y, geometry)

    def _call(self, kind: str, first: Any, second: Any, geometry: Geometry) -> Any:
        dtypes = [self._conv.dtypes[role] for role in OPERANDS[kind] + RESULT[kind]]
        if dtypes[0] != dtypes[1]:
            # Operands of one dtype are what kernels are made for; widening loses nothing.
            wide = accumulator(self._conv.op, *dtypes)
            first, second = R.op.astype(first, wide), R.op.astype(second, wide)
        operands = (first, second)
        return conv_call(kind, operands, geometry, self._conv.plain, dtypes[2], self._x)
