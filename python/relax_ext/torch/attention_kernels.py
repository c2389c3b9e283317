# SPDX-License-Identifier: Apache-2.0
"""Converters of PyTorch's fused attention on CPUs, forward and backward, to kernels that do not
store scores; graphs without gradients have :mod:`.attention` instead.

In PyTorch heads are outside of positions, and in the operators of :mod:`relax_ext.op.attention`
inside, as PyTorch stores its results.
"""

from __future__ import annotations

import math
from typing import Any

from topi_ext.compat import relax, type_of

from ..aten.calls import Call, Converter
from ..op.attention import attention_grad, attention_sums
from .attention import BACKWARD, FORWARD

R = relax()

_DTYPES = ("float32", "float64")


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {FORWARD.default.__name__: _forward, BACKWARD.default.__name__: _backward}


def _forward(call: Call) -> Any:
    mask, attributes = _read(call)
    q, k, v = (_turned(call, call[name]) for name in ("query", "key", "value"))
    both = call.emit(attention_sums(q, k, v, mask, **attributes))
    return [_turned(call, R.TupleGetItem(both, number)) for number in range(2)]


def _backward(call: Call) -> Any:
    mask, attributes = _read(call)
    operands = [_turned(call, call[name]) for name in ("query", "key", "value")]
    y, dy, sums = (_turned(call, call[name]) for name in ("out", "grad_out", "logsumexp"))
    gradients = call.emit(attention_grad(operands, y, dy, sums, mask, **attributes))
    return [_turned(call, R.TupleGetItem(gradients, number)) for number in range(3)]


def _read(call: Call) -> tuple[Any, dict[str, Any]]:
    """Return the mask and the attributes of a call.

    Raises
    ------
    Unsupported
        For a call without a kernel.
    """
    inner = call.numbers([call.shape(name)[-1] for name in ("query", "key", "value")])
    dtypes = {call.dtype(name) for name in ("query", "key", "value")}
    if call["dropout_p"]:
        raise call.refusal("dropout")
    if len(dtypes) > 1 or not dtypes <= set(_DTYPES):
        raise call.refusal(f"dtypes {sorted(dtypes)} must be one of {', '.join(_DTYPES)}")
    scale = call["scale"]
    factor = 1 / math.sqrt(inner[0]) if scale is None else scale
    return call["attn_mask"], {"scale": factor, "causal": call["is_causal"]}


def _turned(call: Call, x: Any) -> Any:
    """Return a tensor with both axes in the middle exchanged."""
    x = x if isinstance(x, R.Var) else call.emit(x)
    return call.permuted(x, (0, 2, 1, 3)[: type_of(x).ndim])
