# SPDX-License-Identifier: Apache-2.0
"""Attention of exported programs that are not decomposed, in the operator of Relax."""

from __future__ import annotations

from math import inf, prod
from typing import Any

from topi_ext.compat import relax

from ..ir import dtype_of, sizes_of
from .calls import Call, Converter
from .shapes import broadcast

R = relax()


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {"scaled_dot_product_attention.default": attention}


def attention(call: Call) -> Any:
    """Return attention, of which heads and images may be left out."""
    if call["dropout_p"]:
        raise call.refusal("dropout_p must be 0: the result is random")
    query, dtype = call.shape("query"), call.dtype("query")
    *batch, heads, rows, _ = [1] * (3 - len(query)) + query
    q, k, v = (_by_position(call, call[name], prod(batch)) for name in ("query", "key", "value"))
    if call["enable_gqa"]:
        k, v = (call.emit(R.op.repeat(x, heads // sizes_of(x)[2], 2)) for x in (k, v))
    keys, mask = sizes_of(k)[1], call["attn_mask"]
    if mask is not None:
        if len(sizes_of(mask)) != 4 or len(query) != 4:
            mask = broadcast(call, mask, [*query[:-1], keys])
            mask = call.reshape(mask, [prod(batch), heads, rows, keys])
        mask = broadcast(call, mask, [*sizes_of(mask)[:2], rows, keys])
    is_chosen = None if mask is None or dtype_of(mask) != "bool" else mask
    if is_chosen is not None:
        mask = call.emit(R.op.where(is_chosen, R.const(0, dtype), R.const(-inf, dtype)))
    causal = "TopLeft" if call["is_causal"] else None
    y = call.emit(R.op.nn.attention(q, k, v, mask, call["scale"], causal))
    y = call.permuted(y, (0, 2, 1, 3))
    if is_chosen is not None:  # a row without any key is 0
        count = call.emit(R.op.max(call.cast(is_chosen, "int8"), [-1], keepdims=True))
        y = call.emit(R.op.where(call.cast(count, "bool"), y, R.const(0, dtype)))
    return call.reshape(y, [*query[:-1], sizes_of(v)[-1]])


def _by_position(call: Call, x: Any, batch: Any) -> Any:
    """Return an operand as (batch, positions, heads, elements)."""
    heads, rows, inner = [1, *sizes_of(x)][-3:]
    return call.permuted(call.reshape(x, [batch, heads, rows, inner]), (0, 2, 1, 3))
