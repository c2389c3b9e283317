# SPDX-License-Identifier: Apache-2.0
"""Gradients of reductions and cumulative sums."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import call_attr, relax

from ..ir import dtype_of
from .parts import Rule, axes_of, const, in_float32, mean, op_name, reshaped, shape_of, share, total

R = relax()
op = R.op


def extremum(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate max or min; elements that share the extreme value share the gradient.

    So does ``torch.amax``.
    """
    x = call.args[0]
    axes, kept = _kept(call)
    is_extreme = op.equal(x, bb.emit(reshaped(y, kept)))
    hits = bb.emit(op.astype(is_extreme, dtype_of(x)))
    portion = op.divide(reshaped(dy, kept), total(hits, axes, bb))
    return [op.multiply(hits, bb.emit(portion))]


def average(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a mean, of symbolic sizes too: ``dy / n``."""
    x = call.args[0]
    axes, kept = _kept(call)
    portion = op.multiply(reshaped(dy, kept), share(x, axes, bb))
    return [op.broadcast_to(bb.emit(portion), R.ShapeExpr(shape_of(x)))]


def spread_of_values(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate variance, ``2/n (x - mean) dy``, and standard deviation, a root of it.

    The deviation is subtracted before it is scaled: TVM's own rule of the variance subtracts two
    numbers as large as the mean, and loses digits where that is large.
    """
    x = call.args[0]
    axes, kept = _kept(call)
    deviation = op.subtract(x, bb.emit(mean(x, axes, bb)))
    factor = op.multiply(reshaped(dy, kept), share(x, axes, bb))
    if op_name(call) == "std":
        factor = op.divide(factor, reshaped(y, kept))
    else:
        factor = op.multiply(factor, const(2.0, x))
    return [op.multiply(deviation, bb.emit(factor))]


def collapse_sum(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate the sum that undoes a broadcast: the broadcast."""
    sizes = R.ShapeExpr(shape_of(call.args[0]))
    return [op.broadcast_to(dy, sizes), *[None] * (len(call.args) - 1)]


def cumsum(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a cumulative sum: the cumulative sum from the other end.

    TVM's own rule subtracts it from the total, which loses digits, and ignores `exclusive`.
    """
    x = call.args[0]
    axis = call_attr(call, "axis")
    flat = reshaped(dy, shape_of(y))
    axis = 0 if axis is None else int(axis)
    backward = op.cumsum(op.flip(flat, axis), axis, exclusive=call_attr(call, "exclusive"))
    gradient = reshaped(op.flip(backward, axis), shape_of(x))
    return [op.astype(gradient, dtype_of(x)) if dtype_of(y) != dtype_of(x) else gradient]


def _kept(call: Any) -> tuple[list[int], list[Any]]:
    """Return the axes of a reduction, and the shape of its result if they were kept."""
    sizes = shape_of(call.args[0])
    axes = axes_of(call, "axis", len(sizes))
    return axes, [1 if axis in axes else size for axis, size in enumerate(sizes)]


RULES: dict[str, Rule] = {
    **{f"relax.{name}": in_float32(extremum) for name in ("max", "min")},
    **{f"relax.{name}": in_float32(spread_of_values) for name in ("std", "variance")},
    **{f"relax.collapse_sum_{name}": collapse_sum for name in ("like", "to")},
    "relax.cumsum": in_float32(cumsum),
    "relax.mean": in_float32(average),
}
