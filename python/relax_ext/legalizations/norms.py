# SPDX-License-Identifier: Apache-2.0
"""Normalizations without scale or shift, or of axes in another order than the ascending one, which
TVM computes otherwise; and RMS norms of axes that are not the last, which it does not compile."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import call_attr, relax, tensor_type_of

from ..op.norms import NORMS, explicit

R = relax()

RMS = "relax.nn.rms_norm"


def norm(bb: Any, call: Any, stock: Any) -> Any:
    """Lower a norm in the form that TVM lowers as documented."""
    found = explicit(bb, call).call
    if not found.same_as(call):
        return bb.emit(found)  # which is lowered in turn
    if call.op.name == RMS:
        return _of_last_axes(bb, call, stock)
    return stock(bb, call)


def _of_last_axes(bb: Any, call: Any, stock: Any) -> Any:
    """Lower an RMS norm with the normalized axes moved behind the others."""
    x, weight = call.args
    rank = tensor_type_of(x).ndim
    axes = [int(axis) % rank for axis in call_attr(call, "axes")]
    order = [axis for axis in range(rank) if axis not in axes] + axes
    if order == list(range(rank)):
        return stock(bb, call)
    last, epsilon = list(range(-len(axes), 0)), call_attr(call, "epsilon")
    moved = bb.emit(R.op.permute_dims(x, order))
    result = bb.emit(R.op.nn.rms_norm(moved, weight, last, epsilon))
    return R.op.permute_dims(result, [order.index(axis) for axis in range(rank)])


RULES = dict.fromkeys(NORMS, norm)
