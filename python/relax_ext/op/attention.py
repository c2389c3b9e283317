# SPDX-License-Identifier: Apache-2.0
"""The operators that trained attention needs: attention with the sums of its softmax, and its
gradients.

=========  ================================================================
tensor     axes
=========  ================================================================
q, y       batch, queries, heads, head size
k, v       batch, keys, heads, head size
sums       batch, queries, heads: ``log sum exp`` of the scores
mask       broadcast to batch, heads, queries, keys; it is added to scores
=========  ================================================================

They exist only on targets that have their kernels; nothing is known of a gradient of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import tvm

from topi_ext import backend
from topi_ext.compat import (
    call_attr,
    dtype_name,
    known_shape,
    own_op,
    relax,
    same_size,
    tensor_type,
    tensor_type_of,
    tuple_type,
)
from topi_ext.spec.attention import ADD, TOP_LEFT, Attention, Mask
from topi_ext.spec.attention_grad import AttentionGrad
from topi_ext.spec.dtypes import accumulator
from topi_ext.spec.geometry import fail

from ..target import target_of

R = relax()

SUMS = "relax.relax_ext.attention_sums"
GRAD = "relax.relax_ext.attention_grad"

_MASK_AXES = "ahmn"
_COUNT = {SUMS: 3, GRAD: 6}
"""Operands before the mask."""


def attention_sums(
    q: Any, k: Any, v: Any, mask: Any = None, *, scale: float, causal: bool = False
) -> Any:
    """Return the tuple of attention, in the dtype of q, and its sums, in float32 at least."""
    return _call(SUMS, [q, k, v], mask, scale, causal)


def attention_grad(
    operands: Sequence[Any],
    y: Any,
    dy: Any,
    sums: Any,
    mask: Any = None,
    *,
    scale: float,
    causal: bool = False,
) -> Any:
    """Return the tuple of the gradients in q, k and v.

    Parameters
    ----------
    operands : sequence of relax.Expr
        q, k and v.
    y, sums : relax.Expr
        The results of :func:`attention_sums`.
    dy : relax.Expr
        The gradient of y.
    mask : relax.Expr, optional
    scale : float
    causal : bool
        Whether query i reads keys up to i.
    """
    return _call(GRAD, [*operands, y, dy, sums], mask, scale, causal)


def _call(op: str, operands: list[Any], mask: Any, scale: float, causal: bool) -> Any:
    attrs = tvm.ir.make_node("ir.DictAttrs", scale=float(scale), causal=int(causal))
    return R.Call(tvm.ir.Op.get(op), [*operands, *([] if mask is None else [mask])], attrs)


def infer(call: Any, _: Any) -> Any:
    """Return the types of the results of either operator."""
    q, k, v = map(tensor_type_of, call.args[:3])
    if call.op.name == GRAD:
        return tuple_type([_typed(each, known_shape(each.shape), each.dtype) for each in (q, k, v)])
    (a, m, h, _), (*_, e) = known_shape(q.shape), known_shape(v.shape)
    sums = accumulator("attention_sums", dtype_name(q.dtype), dtype_name(k.dtype), "float32")
    return tuple_type([_typed(q, (a, m, h, e), q.dtype), _typed(q, (a, m, h), sums)])


def _typed(like: Any, shape: Sequence[Any], dtype: Any) -> Any:
    return tensor_type(list(shape), dtype_name(dtype) or str(dtype), len(shape), like.vdevice)


def legalize(bb: Any, call: Any) -> Any:
    """Lower a call to its kernel.

    Raises
    ------
    ValueError
        If the target has none.
    """
    found, operands = tensor_type_of(call.args[0]), list(call.args)
    count = _COUNT[call.op.name]
    masks: tuple[Mask, ...] = ()
    if len(operands) > count:
        operands[count], masks = _mask(bb, operands[count])
        operands.insert(3, operands.pop())  # masks are after q, k and v
    problem = _problem(call, masks)
    kernel = backend.build(problem, target_of(found))
    if kernel is None:
        reason = backend.supports(problem.kind, target_of(found)).reason
        raise fail(problem.kind, reason)
    name = bb.add_func(kernel, problem.kind)
    return R.call_tir(name, operands, list(infer(call, bb).fields))


def _problem(call: Any, masks: tuple[Mask, ...]) -> Attention:
    """Return the problem of a call."""
    q, k, v = map(tensor_type_of, call.args[:3])
    (a, m, h, d), (_, n, _, _), (*_, e) = (known_shape(each.shape) for each in (q, k, v))
    found = Attention(
        tuple(zip("ahmnde", (a, h, m, n, d, e))),
        *("amhd", "anhd", "anhe", "amhe"),
        (dtype_name(q.dtype), dtype_name(k.dtype), dtype_name(v.dtype), dtype_name(q.dtype)),
        scale=float(call_attr(call, "scale")),
        masks=masks,
        causal=TOP_LEFT if call_attr(call, "causal") else "",
        zeros_empty=True,
        sums="amh",
    )
    if call.op.name == SUMS:
        return found
    stated = {field.name: getattr(found, field.name) for field in fields(found)}
    return AttentionGrad(**stated, dy="amhe", dq="amhd", dk="anhd", dv="anhe")


def _mask(bb: Any, mask: Any) -> tuple[Any, tuple[Mask, ...]]:
    """Return a mask without axes of size 1, and its description."""
    found = tensor_type_of(mask)
    shape = known_shape(found.shape)
    axes = list(zip(_MASK_AXES[len(_MASK_AXES) - len(shape) :], shape))
    kept = [(letter, size) for letter, size in axes if not same_size(size, 1)]
    if len(kept) < len(axes):
        mask = bb.emit(R.op.reshape(mask, R.ShapeExpr([size for _, size in kept])))
    order = "".join(letter for letter, _ in kept)
    return mask, (Mask(ADD, order, dtype_name(found.dtype)),)


own_op(SUMS, "Attention with the sums of its softmax", ("q", "k", "v"))
own_op(GRAD, "Gradients of attention", ("q", "k", "v", "y", "dy", "sums"))
