# SPDX-License-Identifier: Apache-2.0
"""Batch normalization in half precision, which TVM lowers to another type than it has inferred.

TVM's ``topi.nn.batch_norm`` adds a float32 epsilon, so that its result is float32 where the
operator says float16 or bfloat16: the next one gets a type that it was not made for, or refuses it.
Half-precision decoders have one behind nearly every convolution.
"""

from __future__ import annotations

from typing import Any

from topi_ext.compat import dtype_name, relax, type_of

R = relax()

OP = "relax.nn.batch_norm"


def legalize(bb: Any, call: Any, stock: Any) -> Any:
    """Lower `call` by `stock`, TVM's own lowering: in float32 where its data is narrower."""
    dtype = dtype_name(type_of(call.args[0]).dtype)
    if dtype not in ("float16", "bfloat16"):
        return stock(bb, call)
    wide = [bb.emit(R.op.astype(arg, "float32")) for arg in call.args]
    results = bb.emit(stock(bb, bb.normalize(R.Call(call.op, wide, call.attrs))))
    narrow = (R.op.astype(R.TupleGetItem(results, i), dtype) for i in range(3))
    return R.Tuple([bb.emit(result) for result in narrow])
