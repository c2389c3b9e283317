# SPDX-License-Identifier: Apache-2.0
"""The primitives in which the gradient rules are written: sizes, constants, sums, dtypes.

A rule is ``rule(y, call, dy, bb)``: the variable of the result, the call, the gradient of the
result, and the block builder of TVM's Gradient.  It returns one gradient for each argument, and
None for an argument without a gradient.  :func:`registrable` makes an ``FPrimalGradient`` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any

from topi_ext.compat import (
    as_size,
    call_attr,
    constant_value,
    relax,
    tensor_type_of,
    type_of,
)
from topi_ext.spec.dtypes import FLOATS
from topi_ext.spec.geometry import fail

from .. import ir
from ..ir import HALF, are_same, dtype_of

R = relax()
op = R.op

Rule = Callable[[Any, Any, Any, Any], list[Any]]

_ROW = range(4, 1025)
"""Lengths of a last axis that is summed last: sums of rows are vectors, and fit a cache."""


def registrable(rule: Rule) -> Callable[..., list[Any]]:
    """Return an ``FPrimalGradient``; integers, and arguments with None, get no gradient."""

    @wraps(rule)
    def gradient(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
        gradients = rule(y, call, dy, bb) if _may_be_float(call) else [None] * len(call.args)
        return [
            op.grad.no_grad(arg) if part is None or not _may_be_float(arg) else part
            for arg, part in zip(call.args, gradients)
        ]

    return gradient


def in_float32(rule: Rule) -> Rule:
    """Return `rule` for half precision too: computed in float32, and rounded once."""

    @wraps(rule)
    def widened(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
        if not any(_is_half(arg) for arg in call.args):
            return rule(y, call, dy, bb)
        call32 = bb.normalize(R.Call(call.op, [_wide(arg, bb) for arg in call.args], call.attrs))
        gradients = rule(_wide(y, bb), call32, _wide(dy, bb), bb)
        return [
            op.astype(part, dtype_of(arg)) if part is not None and _is_half(arg) else part
            for arg, part in zip(call.args, gradients)
        ]

    return widened


def _may_be_float(expr: Any) -> bool:
    """Return whether an expression is a tensor of floats, or a tuple, which may hold one."""
    if tensor_type_of(expr) is None:
        return hasattr(type_of(expr), "fields")
    return dtype_of(expr) in FLOATS


def _is_half(expr: Any) -> bool:
    return tensor_type_of(expr) is not None and dtype_of(expr) in HALF


def _wide(expr: Any, bb: Any) -> Any:
    """Return an expression with its half-precision tensors, those of a tuple too, as float32."""
    if tensor_type_of(expr) is None and hasattr(type_of(expr), "fields"):
        return bb.emit(R.Tuple([_wide(part, bb) for part in fields_of(expr, bb)]))
    if not _is_half(expr):
        return expr
    value = constant_value(expr)
    if value is not None and dtype_of(expr) == "float16":
        return R.const(value.numpy().astype("float32"), "float32")
    return bb.emit(op.astype(expr, "float32"))


def op_name(call: Any) -> str:
    """Return the operator's name as error messages have it, without ``relax.``."""
    return str(call.op.name).removeprefix("relax.").removeprefix("nn.").removeprefix("image.")


def shape_of(expr: Any) -> tuple[Any, ...]:
    """Return the sizes of a normalized tensor: integers, and expressions where symbolic."""
    sizes = ir.shape_of(expr)
    if sizes is None:
        raise ValueError(f"gradient: {expr} has an unknown shape, known or symbolic sizes needed")
    return sizes


def known_size(call: Any, size: Any, axis: int) -> int:
    """Return a size that a rule needs as a number.

    Raises
    ------
    ValueError
        One line, for a symbolic size.
    """
    if not isinstance(size, int):
        raise fail(
            op_name(call),
            f"size {size} of axis {axis} is symbolic, the gradient needs a number there",
        )
    return size


def const(value: float, like: Any) -> Any:
    """Return a scalar constant of the dtype of the tensor `like`."""
    return R.const(value, dtype_of(like))


def zeros_like(expr: Any) -> Any:
    """Return zeros of the shape and dtype of a tensor."""
    return op.zeros(R.ShapeExpr(shape_of(expr)), dtype_of(expr))


def number(expr: Any) -> float | None:
    """Return the number that an argument is, or None where it is not a constant."""
    value = constant_value(expr)
    if value is not None:
        array = value.numpy()
        is_plain = array.size == 1 and str(value.dtype) != "bfloat16"
        return float(array.reshape(())) if is_plain else None
    literal = getattr(expr, "value", None)
    literal = getattr(literal, "value", literal)
    return float(literal) if isinstance(literal, (int, float)) else None


def fields_of(expr: Any, bb: Any) -> list[Any]:
    """Return the tensors of a tuple."""
    if isinstance(expr, R.Tuple):
        return list(expr.fields)
    return [bb.emit(R.TupleGetItem(expr, index)) for index in range(len(type_of(expr).fields))]


_LINEAR = ("astype", "broadcast_to", "collapse_sum_to", "negative", "reshape", "sum")


def without_zeros(expr: Any, bb: Any) -> Any:
    """Return an expression without what TVM's Gradient adds for unused fields of tuples.

    Gradient sends a tensor of zeros through every field of a tuple that the loss does not read, and
    adds it to the gradients of the others.
    """
    value = _bound(expr, bb)
    if isinstance(value, R.TupleGetItem):
        fields = _bound(value.tuple_value, bb)
        if isinstance(fields, R.Tuple):
            return without_zeros(fields.fields[value.index], bb)
    elif _name(value) == "relax.add":
        for part, other in (tuple(value.args), tuple(value.args)[::-1]):
            if is_zero(part, bb) and are_same(shape_of(value), shape_of(other)):
                return without_zeros(other, bb)
    return expr


def is_zero(expr: Any, bb: Any) -> bool:
    """Return whether an expression is known to be zeros, as Gradient makes them."""
    value = _bound(without_zeros(expr, bb), bb)
    name = _name(value).removeprefix("relax.")
    if name in _LINEAR:
        return is_zero(value.args[0], bb)
    return name in ("zeros", "zeros_like")


def _bound(expr: Any, bb: Any) -> Any:
    """Return the expression that a variable is bound to; a parameter of a function is itself."""
    while isinstance(expr, R.Var):
        value = bb.lookup_binding(expr)
        if value is None:
            break
        expr = value
    return expr


def _name(expr: Any) -> str:
    return str(getattr(getattr(expr, "op", None), "name", ""))


def axes_of(call: Any, name: str, rank: int) -> list[int]:
    """Return an attribute of axes in ascending order, none of them negative; None means all."""
    axes = call_attr(call, name)
    if axes is None:
        return list(range(rank))
    stated = [axes] if isinstance(axes, int) or not hasattr(axes, "__len__") else axes
    return sorted(int(axis) % rank for axis in stated)


def reshaped(expr: Any, sizes: Sequence[Any]) -> Any:
    """Return a tensor in another shape, of integers or symbolic sizes."""
    return op.reshape(expr, R.ShapeExpr(tuple(sizes)))


def spread(vector: Any, rank: int, axis: int) -> Any:
    """Return a vector as a tensor of `rank` axes, of size 1 but for `axis`."""
    sizes: list[Any] = [1] * rank
    sizes[axis] = shape_of(vector)[0]
    return reshaped(vector, sizes)


def fitted(expr: Any, like: Any, bb: Any) -> Any:
    """Return the gradient of an operand that was broadcast: the sum over the axes that were."""
    sizes = shape_of(like)
    if are_same(shape_of(bb.normalize(expr)), sizes):
        return expr
    return op.collapse_sum_to(expr, R.ShapeExpr(sizes))


def total(expr: Any, axes: Sequence[int], bb: Any) -> Any:
    """Return the sum over axes, which stay with size 1: rows first, then the last axis.

    TVM adds the elements of one result in one variable, one after the other.  Sums of rows are
    vectors, and their partial sums are as many times shorter, so rounding errors are smaller.
    """
    if not axes:
        return expr
    expr = bb.normalize(expr)
    sizes = shape_of(expr)
    last = len(sizes) - 1
    rows = [axis for axis in axes if axis != last]
    several = not all(isinstance(sizes[a], int) for a in rows) or prod(sizes[a] for a in rows) > 1
    if last in axes and several and sizes[last] in _ROW:
        expr, axes = bb.emit(op.sum(expr, rows, keepdims=True)), [last]
    return op.sum(expr, list(axes), keepdims=True)


def share(like: Any, axes: Sequence[int], bb: Any) -> Any:
    """Return 1 / n as a scalar of the dtype of `like`, n its number of elements along `axes`.

    A symbolic size becomes a tensor as the sum of as many ones.
    """
    sizes = [shape_of(like)[axis] for axis in axes]
    known = prod(size for size in sizes if isinstance(size, int))
    share_of_known = const(1.0 / known if known else float("inf"), like)
    symbolic = [size for size in sizes if not isinstance(size, int)]
    if not symbolic:
        return share_of_known
    # Float32 counts to 2^24 exactly; more elements along one axis are rounded as any number.
    counts = [op.sum(op.ones(R.ShapeExpr([size]), dtype_of(like))) for size in symbolic]
    count = counts[0]
    for factor in counts[1:]:
        count = op.multiply(count, factor)
    return bb.emit(op.divide(share_of_known, count))


def mean(expr: Any, axes: Sequence[int], bb: Any) -> Any:
    """Return the mean over axes, which stay with size 1."""
    expr = bb.normalize(expr)
    return op.multiply(total(expr, axes, bb), share(expr, axes, bb))


def positive_axis(call: Any, name: str, rank: int) -> int:
    """Return an attribute that is one axis, not negative."""
    return int(as_size(call_attr(call, name))) % rank


def float_attr(call: Any, name: str) -> float:
    """Return an attribute that is a number."""
    value = call_attr(call, name)
    return float(getattr(value, "value", value))
