# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention, with m queries, n keys, and weights p = softmax(scale q k^T + bias)::

    dv = p^T dy,  dp = dy v^T,  ds = p (dp - sum(p dp)),  dq = scale ds k,  dk = scale ds^T q

The weights are computed again, and stored.  A query that reads no key has zeros as its result and
as its gradients.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

from topi_ext.compat import call_attr, relax
from topi_ext.spec.geometry import fail

from ..ir import dtype_of
from .parts import Rule, const, fitted, in_float32, known_size, op_name, shape_of

R = relax()
op = R.op


@in_float32
def attention(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate attention, of tensors with heads behind positions.

    Raises
    ------
    ValueError
        One line, for attention within a window, and for ``BottomRight`` with symbolic sizes.
    """
    if call_attr(call, "window_size") is not None:
        raise fail(op_name(call), "window_size must be None to have a gradient")
    q, k, v, dy = (_turned(one, bb) for one in (*call.args[:3], dy))
    stated = call_attr(call, "scale")
    scale = const(1 / sqrt(shape_of(q)[-1]) if stated is None else float(stated), q)
    q = bb.emit(op.multiply(q, scale))
    weights = _weights(call, q, k, bb)
    dweights = bb.emit(op.matmul(dy, _transposed(v, bb)))
    inner = bb.emit(op.sum(bb.emit(op.multiply(weights, dweights)), -1, keepdims=True))
    dscores = bb.emit(op.multiply(weights, bb.emit(op.subtract(dweights, inner))))
    found = [
        op.multiply(bb.emit(op.matmul(dscores, k)), scale),
        op.matmul(_transposed(dscores, bb), q),
        op.matmul(_transposed(weights, bb), dy),
    ]
    gradients = [_turned(bb.emit(one), bb) for one in found]
    return [*gradients, *(fitted(dscores, bias, bb) for bias in call.args[3:])]


def _weights(call: Any, q: Any, k: Any, bb: Any) -> Any:
    """Return the weights of the keys, of a scaled query; zeros where a query reads none."""
    scores = bb.emit(op.matmul(q, _transposed(k, bb)))
    for bias in call.args[3:]:
        scores = bb.emit(op.add(scores, bias))
    lowest, causal = const(-inf, scores), call_attr(call, "causal_mask")
    if causal is not None:
        (*_, m, n) = shape_of(scores)
        last = 0
        if str(causal) == "BottomRight":
            last = abs(known_size(call, n, 1) - known_size(call, m, 1))
        ones = bb.emit(op.ones(R.ShapeExpr([m, n]), dtype_of(scores)))
        is_read = bb.emit(op.greater(bb.emit(op.tril(ones, last)), const(0, scores)))
        scores = bb.emit(op.where(is_read, scores, lowest))
    weights = bb.emit(op.nn.softmax(scores, -1))
    is_hidden = bb.emit(op.equal(scores, lowest))
    return bb.emit(op.where(is_hidden, const(0, scores), weights))


def _turned(x: Any, bb: Any) -> Any:
    """Return a tensor with heads and positions exchanged."""
    return bb.emit(op.permute_dims(x, [0, 2, 1, 3]))


def _transposed(x: Any, bb: Any) -> Any:
    """Return the transposed matrices of a tensor."""
    return bb.emit(op.permute_dims(x, [0, 1, 3, 2]))


RULES: dict[str, Rule] = {"relax.nn.attention": attention, "relax.nn.attention_bias": attention}
