# SPDX-License-Identifier: Apache-2.0
"""Normalizations without what TVM's lowering ignores: the flags of scale and shift, and the order
of the axes.

TVM multiplies and adds although `scale` or `center` is False, and reads weights of axes in another
order than the ascending one beyond their end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from topi_ext.compat import call_attr, dtype_name, known_shape, relax, tensor_type_of

R = relax()

NORMS = {
    "relax.nn.layer_norm": ("epsilon",),
    "relax.nn.group_norm": ("epsilon", "num_groups", "channel_axis"),
    "relax.nn.instance_norm": ("epsilon", "channel_axis"),
    "relax.nn.rms_norm": ("epsilon",),
}
"""Attributes besides axes and flags."""

_OF_AXES = ("relax.nn.layer_norm", "relax.nn.rms_norm")
"""Norms whose weights have the normalized axes."""


class Explicit(NamedTuple):
    """A norm with all weights, and its axes in ascending order.

    Attributes
    ----------
    call : relax.Call
    order : tuple of int
        The axes of the original weights, in the order of those of `call`.
    flags : tuple of bool
        Whether the original call uses each weight; `call` has ones and zeros in place of others.
    """

    call: Any
    order: tuple[int, ...]
    flags: tuple[bool, ...]


def explicit(bb: Any, call: Any) -> Explicit:
    """Return a norm in the form that TVM lowers as documented; its own call if it has that form."""
    name, (x, *weights) = str(call.op.name), call.args
    rank = tensor_type_of(x).ndim
    axes = [int(axis) % rank for axis in call_attr(call, "axes")]
    order, flags = tuple(range(len(axes))), (True,) * len(weights)
    if name in _OF_AXES:
        order = tuple(sorted(order, key=axes.__getitem__))
    if len(weights) > 1:
        flags = tuple(bool(call_attr(call, flag)) for flag in ("scale", "center"))
    is_ascending = list(order) == sorted(order)
    if all(flags) and is_ascending:
        return Explicit(call, order, flags)
    if not is_ascending:
        weights = [bb.emit(R.op.permute_dims(weight, list(order))) for weight in weights]
    neutral = (R.op.ones, R.op.zeros)
    weights = [
        weight if is_used else bb.emit(_filled(make, weight))
        for weight, is_used, make in zip(weights, flags, neutral)
    ]
    stated = {attribute: call_attr(call, attribute) for attribute in NORMS[name]}
    made = getattr(R.op.nn, name.rpartition(".")[2])(x, *weights, axes=sorted(axes), **stated)
    return Explicit(bb.normalize(made), order, flags)


def _filled(make: Any, like: Any) -> Any:
    found = tensor_type_of(like)
    return make(R.ShapeExpr(known_shape(found.shape)), dtype_name(found.dtype))
