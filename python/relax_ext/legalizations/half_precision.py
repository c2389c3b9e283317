# SPDX-License-Identifier: Apache-2.0
"""Operators of several steps: float16 and bfloat16 operands are computed in float32.

TVM adds numbers of half precision in half precision: the sum of 36,864 ones is 2,048 in
float16 and 256 in bfloat16.  It rounds each step of a function to half precision: tanh of
6e-5 and gelu of -4 are 0 in float16.  Of batch normalization it infers another dtype than it
computes.
"""

from __future__ import annotations

from typing import Any

from topi_ext.compat import dtype_name, is_gpu, relax, tensor_type_of, type_of

from ..ir import HALF, dtype_of
from ..target import target_of

R = relax()


def widened(bb: Any, call: Any, stock: Any) -> Any:
    """Compute an operator of half-precision operands in float32, and round its results once."""
    if not _has_half(call):
        return stock(bb, call)
    wide = bb.emit(R.Call(call.op, [_wide(bb, arg) for arg in call.args], call.attrs))
    return _narrowed(bb, wide, call)


def widened_product(bb: Any, call: Any, stock: Any) -> Any:
    """Accumulate a matrix product of half-precision operands in float32."""
    if dtype_name(tensor_type_of(call).dtype) not in HALF:
        return stock(bb, call)
    target = target_of(tensor_type_of(call))
    operands = call.args
    if target is None or not is_gpu(target):
        # On GPUs TVM's schedules for tensor cores need operands of half precision.
        operands = [_wide(bb, arg) for arg in operands]
    wide = bb.emit(R.op.matmul(*operands, out_dtype="float32"))
    return _narrowed(bb, wide, call)


def _has_half(call: Any) -> bool:
    return any(dtype_of(arg) in HALF for arg in _flat(call))


def _flat(call: Any) -> list[Any]:
    """Return the operands of a call, those inside of tuples included."""
    flat: list[Any] = []
    for arg in call.args:
        flat += arg.fields if isinstance(arg, R.Tuple) else [arg]
    return flat


def _wide(bb: Any, arg: Any) -> Any:
    if isinstance(arg, R.Tuple):
        return R.Tuple([_wide(bb, field) for field in arg.fields])
    return bb.emit(R.op.astype(arg, "float32")) if dtype_of(arg) in HALF else arg


def _narrowed(bb: Any, wide: Any, call: Any) -> Any:
    """Return the results in the dtypes of the results of `call`."""
    found = tensor_type_of(call)
    if found is not None:
        return R.op.astype(wide, dtype_name(found.dtype))
    dtypes = [dtype_name(field.dtype) for field in type_of(call).fields]
    results = [bb.emit(R.TupleGetItem(wide, i)) for i in range(len(dtypes))]
    return R.Tuple([bb.emit(R.op.astype(r, dtype)) for r, dtype in zip(results, dtypes)])


_REDUCTIONS = (
    *("sum", "mean", "variance", "std", "prod", "collapse_sum_to", "collapse_sum_like"),
    *(f"nn.{kind}avg_pool{rank}d" for kind in ("", "adaptive_") for rank in (1, 2, 3)),
    *("nn.softmax", "nn.log_softmax", "nn.nll_loss", "nn.cross_entropy_with_logits"),
    *("nn.batch_norm", "nn.layer_norm", "nn.group_norm", "nn.instance_norm", "einsum"),
)
_FUNCTIONS = (
    *("tanh", "sigmoid", "rsqrt", "tan", "asin", "acos", "atan", "sinh", "cosh"),
    *("asinh", "acosh", "atanh", "atan2", "power", "isnan", "isinf", "isfinite"),
    *("nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus", "nn.selu", "nn.leakyrelu"),
)
"""Functions whose lowering rounds more than once, or does not know half precision."""

RULES = {
    **{f"relax.{name}": widened for name in (*_REDUCTIONS, *_FUNCTIONS)},
    "relax.matmul": widened_product,
}
