# SPDX-License-Identifier: Apache-2.0
"""Decompositions of PyTorch's fused attention on CPUs, forward and backward.

PyTorch's own decomposition of the forward operator returns the weights instead of the logarithms of
their sums, which the backward operator reads, so gradients would be incorrect.

With scores ``s = scale q k^T + mask``, ``l = log sum exp(s)`` and ``p = exp(s - l)``, the result is
``o = p v``.  Its gradients are (Dao et al., *FlashAttention*, 2022, appendix B.2)

    dv = p^T do,   ds = p (do v^T - sum(do o)),   dq = scale ds k,   dk = scale ds^T q
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..aten.strides import in_order, order_of

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
OPERATORS = frozenset((FORWARD, BACKWARD))
"""The operators, which draw no random numbers on CPUs, although one of them has that tag."""

_LARGE = 1 << 20
"""Number of scores from which on training in half precision uses PyTorch's operator: the cache of a
core cannot hold them, and a decomposition would store them."""


def whole(decomposition: Callable[..., Any], first: int) -> Callable[..., Any]:
    """Return a decomposition for graphs that are trained, which keeps attention whole: then its
    gradient computes scores again, and neither graph stores them.

    In half precision only large attention, and that of symbolic sizes, stays whole, in PyTorch.
    Argument number `first` is the query, the next one the key.
    """

    @wraps(decomposition)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        query, key = args[first : first + 2]
        if query.dtype not in (torch.float16, torch.bfloat16):
            return NotImplemented
        scores = math.prod(query.shape[:-1]) * key.shape[-2]
        is_large = not isinstance(scores, int) or scores >= _LARGE
        return NotImplemented if is_large else decomposition(*args, **kwargs)

    return chosen


def _scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    """Return the scores in float32 at least."""
    scores = _wide(q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        shape = (q.shape[-2], k.shape[-2])
        earlier = torch.ones(shape, dtype=torch.bool, device=q.device).tril()
        scores = torch.where(earlier, scores, -math.inf)
    return scores if mask is None else scores + mask


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _is_like_query() -> bool:
    """Return whether the axes of a result have the order of the query's; earlier releases of
    PyTorch put positions outside of heads.
    """
    query = torch.empty(1, 2, 3, 4)
    return bool(FORWARD(query, query, query)[0].is_contiguous())


_IS_LIKE_QUERY = _is_like_query()


def _layout(x: Tensor, operand: Tensor) -> Tensor:
    """Return a tensor with the strides of PyTorch's results."""
    order = order_of(torch.empty_like(operand)) if _IS_LIKE_QUERY else (0, 2, 1, 3)
    return in_order(x, order or (0, 1, 2, 3))


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Return the result and the logarithms of the sums; with dropout the operator is kept."""
    if dropout_p:
        return NotImplemented
    scores = _scores(query, key, is_causal, attn_mask, scale)
    sums = scores.logsumexp(-1)
    weights = scores.softmax(-1)
    if attn_mask is not None:  # by PyTorch's operators, which are fused to one kernel
        is_shown = torch.logical_not(scores == -math.inf).any(-1, keepdim=True)
        weights = torch.where(torch.logical_not(is_shown), torch.zeros_like(weights), weights)
    return _layout(weights.to(value.dtype) @ value, query), sums


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Return the gradients of query, key and value; with dropout the operator is kept."""
    if dropout_p:
        return NotImplemented
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _scores(query, key, is_causal, attn_mask, scale)
    sums = logsumexp.unsqueeze(-1)
    weights = torch.where(sums == -math.inf, 0.0, (scores - sums).exp())
    dtype = query.dtype
    shares = (_wide(grad_out) * _wide(out)).sum(-1, keepdim=True)
    of_scores = (weights * (_wide(grad_out @ value.mT) - shares) * factor).to(dtype)
    gradients = (of_scores @ key, of_scores.mT @ query, weights.to(dtype).mT @ grad_out)
    return tuple(map(_layout, gradients, (query, key, value)))
