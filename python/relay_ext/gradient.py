# SPDX-License-Identifier: Apache-2.0
"""Gradients of the operators, from the table of :mod:`topi_ext.spec.gradients`."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import relay, simplify
from topi_ext.spec.dtypes import accumulator
from topi_ext.spec.geometry import Geometry, fail
from topi_ext.spec.gradients import RULES

from .attrs import Conv, read, short_name
from .ops import conv_call
from .relation import Operand

R = relay()


def gradient(op_name: str, stock: Any, call: Any, dout: Any) -> list[Any]:
    """Return the gradients of `call` in its arguments, as operators that have gradients themselves.

    Symbolic channels or kernel sizes are left to `stock`, TVM's own gradient.
    """
    conv = read(op_name, call.attrs, [Operand.of(arg.checked_type) for arg in call.args])
    if conv is None:
        if stock is not None:
            return stock(call, dout)
        raise fail(short_name(op_name), "the gradient needs constant channels and kernel sizes")
    _need_constant_output_padding(conv)
    given = zip((*conv.roles, conv.result), (*call.args, dout))
    tensors = {role: conv.opened(role, tensor, R) for role, tensor in given}
    # The table takes x before y, Relay's weight gradient y before x.
    roles = sorted(conv.roles) if conv.kind == "conv_weight_grad" else conv.roles
    rule = RULES[conv.kind]
    found = rule(_RelayOps(conv), conv.geometry, *(tensors[role] for role in (*roles, conv.result)))
    gradients = dict(zip(roles, found))
    return [conv.stored(role, gradients[role], R) for role in conv.roles]


def _need_constant_output_padding(conv: Conv) -> None:
    """No attribute of Relay states an output padding that is not a number."""
    if not all(isinstance(simplify(value), int) for value in conv.geometry.output_padding):
        raise fail(conv.op, "the gradient needs known sizes where the stride is not 1")


class _RelayOps:
    """The kinds as Relay calls; every result has the layout and dtype of its role in `conv`."""

    def __init__(self, conv: Conv):
        self._conv = conv

    def conv(self, x: Any, w: Any, geometry: Geometry) -> Any:
        """y from x and w."""
        return self._call("conv", geometry, x=x, w=w)

    def conv_transpose(self, y: Any, w: Any, geometry: Geometry) -> Any:
        """x from y and w."""
        return self._call("conv_transpose", geometry, y=y, w=w)

    def conv_weight_grad(self, x: Any, y: Any, geometry: Geometry) -> Any:
        """w from x and y."""
        return self._call("conv_weight_grad", geometry, x=x, y=y)

    def _call(self, kind: str, geometry: Geometry, **operands: Any) -> Any:
        (result,) = {"x", "w", "y"} - set(operands)
        dtypes = [self._conv.dtypes[role] for role in (*operands, result)]
        tensors = list(operands.values())
        if dtypes[0] != dtypes[1]:
            # Operands of one dtype are what kernels are made for; widening loses nothing.
            wide = accumulator(self._conv.op, *dtypes)
            tensors = [R.cast(tensor, wide) for tensor in tensors]
        return conv_call(kind, tensors, geometry, self._conv.plain, dtypes[2])
