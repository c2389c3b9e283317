# SPDX-License-Identifier: Apache-2.0
"""Softmax and normalizations of whole models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from topi_ext.compat import call_attr, dtype_name, tensor_type_of
from topi_ext.fusion import rows
from topi_ext.fusion.rows import Normalized
from topi_ext.spec.rowwise import MASKED_SOFTMAX

from ..ir import are_same, dtype_of, shape_of
from .match import Match
from .patterns import Lookup, masked_softmax, named


def read(call: Any, lookup: Lookup) -> Match | None:
    """Read a call that is computed row by row.

    Returns
    -------
    Match or None
        None for other operators, for rows that are not the last axes, and where a size of the row
        or of an operand is not known.
    """
    found, shape = tensor_type_of(call), shape_of(call)
    if shape is None or not rows.can_be_rows(shape, dtype_name(found.dtype)):
        return None
    if call.op.name in _NORMS:
        return _read_norm(call, shape)
    softmax = masked_softmax(call, lookup) if call.op.name == "relax.where" else call
    if named(softmax, "relax.nn.softmax") is None:
        return None
    if softmax is not call and not are_same(shape, shape_of(softmax) or ()):
        return None  # `where` broadcasts it
    axis = int(call_attr(softmax, "axis")) % len(shape)
    anchor = rows.softmax(_short(softmax), shape, axis, _dtypes(softmax))
    if anchor is None:
        return None
    if softmax is not call:
        anchor = replace(anchor, op=MASKED_SOFTMAX)
    return Match(anchor, (softmax.args[0],), tensor_type_of(softmax))


def _read_norm(call: Any, shape: Sequence[Any]) -> Match | None:
    """Read a normalization, whose scale and shift are post-ops."""
    axes = [int(axis) % len(shape) for axis in call_attr(call, "axes")]
    normalized = _NORMS[str(call.op.name)](call, shape, axes)
    if normalized is None:
        return None
    steps = [
        (normalized.post_op(op), operand)
        for op, flag, operand in zip(("multiply", "add"), ("scale", "center"), call.args[1:3])
        if call_attr(call, flag)
    ]
    epsilon = float(call_attr(call, "epsilon"))
    anchor = normalized.anchor(_short(call), shape, _dtypes(call), epsilon)
    return Match(anchor, (call.args[0],), tensor_type_of(call), steps)


def _instance_norm(call: Any, shape: Sequence[Any], axes: Sequence[int]) -> Normalized | None:
    return rows.instance_norm(shape, axes, _channel(call, shape))


def _group_norm(call: Any, shape: Sequence[Any], axes: Sequence[int]) -> Normalized | None:
    groups = int(call_attr(call, "num_groups"))
    return rows.group_norm(shape, axes, _channel(call, shape), groups)


_NORMS: dict[str, Callable[[Any, Sequence[Any], Sequence[int]], Normalized | None]] = {
    "relax.nn.layer_norm": lambda _, shape, axes: rows.layer_norm(shape, axes),
    "relax.nn.group_norm": _group_norm,
    "relax.nn.instance_norm": _instance_norm,
}


def _channel(call: Any, shape: Sequence[Any]) -> int:
    return int(call_attr(call, "channel_axis")) % len(shape)


def _short(call: Any) -> str:
    return str(call.op.name).rpartition(".")[2]


def _dtypes(call: Any) -> tuple[str, str]:
    """Return the dtypes of the operand and of the result."""
    given, result = (dtype_of(one) for one in (call.args[0], call))
    return given, result
