# SPDX-License-Identifier: Apache-2.0
"""The logarithm of a softmax, with one logarithm for each sum.

TVM computes the logarithm of a sum again for each element that is divided by it.
"""

from __future__ import annotations

from typing import Any

from topi_ext.compat import call_attr, dtype_name, op_attr, tensor_type_of


def once(bb: Any, call: Any) -> Any:
    """Lower ``x - m - log(sum(exp(x - m)))`` with ``m = max(x)``, along one axis."""
    if dtype_name(tensor_type_of(call).dtype) not in ("float32", "float64"):
        return op_attr(call.op.name, "FLegalize")(bb, call)  # which comes back in float32
    axis = int(call_attr(call, "axis"))
    return bb.call_te(_log_softmax, call.args[0], axis, primfunc_name_hint="log_softmax")


def _log_softmax(x: Any, axis: int) -> Any:
    from tvm import topi

    largest = topi.max(x, axis, keepdims=True)
    total = topi.sum(topi.exp(topi.subtract(x, largest)), axis, keepdims=True)
    return topi.subtract(topi.subtract(x, largest), topi.log(total))
