# SPDX-License-Identifier: Apache-2.0
"""Gradients of operators of TVM for which it has none, or a wrong one."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import relax, type_of

R = relax()


def concat_gradient(orig_var: Any, call: Any, dout: Any, bb: Any, stock: Any) -> list[Any]:
    """Return the gradient of a concatenation; of one tensor too.

    TVM splits the gradient into as many parts.  A split into one part is no tuple but a tensor, at
    which ``Gradient`` ends in an InternalError ("Expected nested to match tuple").
    """
    if len(type_of(call.args[0]).fields) == 1:
        return [R.Tuple([dout])]
    return stock(orig_var, call, dout, bb)


def stop_gradient(orig_var: Any, call: Any, dout: Any, bb: Any, stock: Any) -> list[Any]:
    """Return no gradient: that of ``relax.op.grad.no_grad``, for which TVM has no rule."""
    return [R.op.grad.no_grad(call.args[0])]


GRADIENTS = {"relax.concat": concat_gradient, "relax.grad.no_grad": stop_gradient}
"""By operator: a rule that takes TVM's own, or None, as `stock`."""
