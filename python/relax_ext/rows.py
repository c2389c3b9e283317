# SPDX-License-Identifier: Apache-2.0
"""Softmax and normalizations of whole models: from a call to what it states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_lowercase
from typing import Any

from topi_ext import backend
from topi_ext.compat import (
    call_attr,
    dtype_name,
    known_shape,
    relax,
    tensor_type,
    tensor_type_of,
)
from topi_ext.dtypes import FLOATS
from topi_ext.epilogue import PostOp
from topi_ext.rowwise import MASKED_SOFTMAX, NORMALIZE, SOFTMAX, RowWise

from .anchor import kernel_name
from .axes import Axes, Letters
from .matmul import reshaped
from .patterns import Lookup, masked_softmax
from .target import target_of
from .views import ViewedAnchor, in_letters

R = relax()

_NAMES = ascii_lowercase[:20]

_GROUP, _CHANNEL = "yz"


class RowsAnchor(ViewedAnchor):
    """A softmax, or a normalization.

    Parameters
    ----------
    call : relax.Call
    op : str
        What it is, of :mod:`topi_ext.rowwise`.
    axes : tuple of str
        Letters of each axis.
    sizes : mapping
        Of letters.
    columns : str
        Letters of a row.
    epsilon : float
    """

    def __init__(
        self, call: Any, op: str, axes: Axes, sizes: Any, columns: str, epsilon: float = 0.0
    ) -> None:
        found = tensor_type_of(call)
        self.op, self.columns, self.epsilon = op, columns, epsilon
        self.name, self.dtype = _short(call), dtype_name(found.dtype)
        self.x, self.found, self.shape = call.args[0], found, known_shape(found.shape)
        self.letters = Letters(sizes, (axes,))
        self.target = target_of(found)

    def lowered(self, fuser: Any, steps: Sequence[PostOp], operands: Sequence[Any]) -> Any:
        """See :class:`~relax_ext.anchor.Anchor`."""
        emit, letters = fuser.builder_.emit, self.letters
        given = dtype_name(tensor_type_of(self.x).dtype)
        rowwise = RowWise(
            self.op,
            tuple((a, letters.sizes[a]) for a in "".join(self.axes)),
            letters.current(self.columns),
            (given, self.dtype),
            self.epsilon,
            in_letters(steps, letters),
        ).merged()
        kernel = backend.build(rowwise, self.target)
        sizes = rowwise.shape(rowwise.letters)
        orders = [step.order for step in rowwise.epilogue if step.order]
        made = R.call_tir(
            fuser.builder_.add_func(kernel, kernel_name(self.name, steps)),
            [
                reshaped(emit, fuser.visit_expr(self.x), sizes),
                *(reshaped(emit, one, rowwise.shape(a)) for one, a in zip(operands, orders)),
            ],
            tensor_type(R.ShapeExpr(sizes), self.dtype, len(sizes)),
        )
        return reshaped(emit, emit(made), self.shape)


Begun = tuple[RowsAnchor, list[PostOp], list[Any]]
"""An anchor, and what its operator does behind it: steps, and their operands."""


def read(call: Any, lookup: Lookup) -> Begun | None:
    """Read a call that is computed row by row.

    Returns
    -------
    tuple or None
        None of other operators, of rows that are not the last axes, where a size of the row or of
        an operand is not known, and on targets without such kernels.
    """
    reader = _READERS.get(str(call.op.name))
    found = tensor_type_of(call)
    if reader is None or found is None or not backend.supports(SOFTMAX, target_of(found)):
        return None
    if dtype_name(found.dtype) not in FLOATS or known_shape(found.shape) is None:
        return None
    shape = known_shape(found.shape)
    if not shape or len(shape) > len(_NAMES) or any(_is(size, 0) for size in shape):
        return None
    return reader(call, shape, lookup)


def _short(call: Any) -> str:
    return str(call.op.name).rpartition(".")[2]


def _is(size: Any, number: int) -> bool:
    return isinstance(size, int) and size == number


def _softmax(call: Any, shape: Sequence[Any], _: Lookup) -> Begun | None:
    axis = int(call_attr(call, "axis")) % len(shape)
    if not all(_is(size, 1) for size in shape[axis + 1 :]):
        return None
    axes = tuple(_NAMES[: len(shape)])
    return RowsAnchor(call, SOFTMAX, axes, dict(zip(axes, shape)), axes[axis]), [], []


def _layer_norm(call: Any, shape: Sequence[Any], _: Lookup) -> Begun | None:
    axes = _axes_of(call, shape)
    count = len(shape) - len(axes)
    names = tuple(_NAMES[: len(shape)])
    if axes != list(range(count, len(shape))):
        return None
    columns = "".join(names[count:])
    return _normalization(call, names, dict(zip(names, shape)), columns, columns)


def _instance_norm(call: Any, shape: Sequence[Any], _: Lookup) -> Begun | None:
    channel = int(call_attr(call, "channel_axis")) % len(shape)
    names = tuple(_NAMES[: len(shape)])
    if not _are_behind(channel, call, shape):
        return None
    columns = "".join(names[channel + 1 :])
    return _normalization(call, names, dict(zip(names, shape)), columns, names[channel])


def _group_norm(call: Any, shape: Sequence[Any], _: Lookup) -> Begun | None:
    channel = int(call_attr(call, "channel_axis")) % len(shape)
    channels, groups = shape[channel], int(call_attr(call, "num_groups"))
    if not (_are_behind(channel, call, shape) and isinstance(channels, int)):
        return None
    names = list(_NAMES[: len(shape)])
    names[channel] = _GROUP + _CHANNEL
    sizes = {a: size for a, size in zip(names, shape) if len(a) == 1}
    sizes |= {_GROUP: groups, _CHANNEL: channels // groups}
    columns = _CHANNEL + "".join(names[channel + 1 :])
    return _normalization(call, tuple(names), sizes, columns, _GROUP + _CHANNEL)


def _axes_of(call: Any, shape: Sequence[Any]) -> list[int]:
    return sorted(int(axis) % len(shape) for axis in call_attr(call, "axes"))


def _are_behind(channel: int, call: Any, shape: Sequence[Any]) -> bool:
    """Whether the axes of a norm are those behind the channels; axes of one element don't count."""
    axes = {axis for axis in _axes_of(call, shape) if not _is(shape[axis], 1)}
    behind = {axis for axis in range(channel + 1, len(shape)) if not _is(shape[axis], 1)}
    return axes == behind and len(shape) > channel + 1


def _normalization(call: Any, axes: Axes, sizes: Any, columns: str, varies: str) -> Begun | None:
    """One whose scale and shift vary along these letters."""
    steps, operands = [], []
    for op, flag, operand in zip(("multiply", "add"), ("scale", "center"), call.args[1:3]):
        if call_attr(call, flag):
            steps.append(PostOp(op, varies, varies))
            operands.append(operand)
    epsilon = float(call_attr(call, "epsilon"))
    return RowsAnchor(call, NORMALIZE, axes, sizes, columns, epsilon), steps, operands


def _where(call: Any, shape: Sequence[Any], lookup: Lookup) -> Begun | None:
    softmax = masked_softmax(call, lookup)
    begun = None if softmax is None else _softmax(softmax, shape, lookup)
    if begun is not None:
        begun[0].op = MASKED_SOFTMAX
    return begun


_READERS: dict[str, Callable[[Any, Sequence[Any], Lookup], Begun | None]] = {
    "relax.nn.softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.group_norm": _group_norm,
    "relax.nn.instance_norm": _instance_norm,
    "relax.where": _where,
}
