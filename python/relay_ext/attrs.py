# SPDX-License-Identifier: Apache-2.0
"""Read geometry, layouts and dtypes from an operator's attributes and operand types.

This is the only place that knows which operand and which attribute plays which role; everything
behind it speaks of the forward convolution's x, w and y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from topi_ext.adapters.call import Call
from topi_ext.compat import as_size, dtype_name
from topi_ext.spec import conv as problem
from topi_ext.spec.conv import RESULT
from topi_ext.spec.dtypes import accumulator
from topi_ext.spec.geometry import Geometry, fail, integer, integers
from topi_ext.spec.layout import SPATIAL, Layout, Layouts

RANKS = (1, 2, 3)

OPERANDS = {**problem.OPERANDS, "conv_weight_grad": "yx"}
"""Roles of the operands of each operator: Relay's weight gradient takes that of y first."""

WEIGHT_GRAD = {
    1: "relay_ext.conv1d_backward_weight",
    2: "nn.conv2d_backward_weight",
    3: "relay_ext.conv3d_backward_weight",
}
"""TVM has the weight gradient for rank 2 only; its other two ranks are operators that we add."""

OWN = {WEIGHT_GRAD[rank]: rank for rank in (1, 3)}

KIND = {
    **{f"nn.conv{rank}d": "conv" for rank in RANKS},
    **{f"nn.conv{rank}d_transpose": "conv_transpose" for rank in RANKS},
    **dict.fromkeys(WEIGHT_GRAD.values(), "conv_weight_grad"),
}
"""All operators that we have rules for, and the kind that each one is."""

STOCK = tuple(name for name in KIND if name not in OWN)

_LAYOUT_ATTRS = ("data_layout", "kernel_layout", "out_layout")
_NAMES = {"conv_weight_grad": ("grad", "data")}


def short_name(op_name: str) -> str:
    """Return the name of the operator in errors, e.g. ``conv2d_transpose``."""
    return op_name.rpartition(".")[2]


def rank_of(op: str) -> int:
    """Return the number of spatial axes of the operator of this short name."""
    return int(op[len("conv")])


@dataclass(frozen=True)
class Conv(Call):
    """One call, read.

    Attributes
    ----------
    geometry : Geometry
        Always known: types of Relay state their shapes.
    multiplier : int
        1, or how many channels of y belong to one of x where the weight of a depthwise convolution
        is stored as ``(c, multiplier, *kernel)``, as TVM does for nn.conv2d: the same memory as
        ``(c * multiplier, 1, *kernel)``.
    """

    geometry: Geometry
    multiplier: int = 1

    @property
    def roles(self) -> str:
        """Roles of the operands."""
        return OPERANDS[self.kind]

    @property
    def plain(self) -> Layouts:
        """The permutations in which kernels get the tensors, which :meth:`opened` makes."""
        orders = {role: layout.order for role, layout in self.layouts.items()}
        if self.multiplier > 1:
            orders["w"] = self.layouts["w"].letters
        return Layouts(**orders)

    def opened(self, role: str, tensor: Any, ir: Any) -> Any:
        """Return the stored tensor `role` without blocks and multiplier, by the operators of
        `ir`.
        """
        tensor = _transformed(ir, tensor, self.layouts[role].text, getattr(self.plain, role))
        if role == "w" and self.multiplier > 1:
            return ir.reshape(tensor, self.geometry.w_shape)
        return tensor

    def stored(self, role: str, tensor: Any, ir: Any) -> Any:
        """Return the inverse of :meth:`opened`."""
        if role == "w" and self.multiplier > 1:
            shape = (self.geometry.c, self.multiplier, *self.geometry.kernel)
            tensor = ir.reshape(tensor, shape)
        return _transformed(ir, tensor, getattr(self.plain, role), self.layouts[role].text)


def read(op_name: str, attrs: Any, operands: Sequence[Any]) -> Conv | None:
    """Read one call of an operator in `KIND`.

    Parameters
    ----------
    operands : sequence
        Whatever has the ``shape`` and ``dtype`` of the two operands: types, TE tensors.

    Returns
    -------
    Conv or None
        None where channels or kernel sizes are symbolic: no geometry states those.

    Raises
    ------
    ValueError
        One line that names the operator, the value and the rule.
    """
    op, kind = short_name(op_name), KIND[op_name]
    names = _NAMES.get(kind, ("data", "weight"))
    roles = OPERANDS[kind] + RESULT[kind]
    window = _window(op, attrs)
    layouts = layouts_of(op, kind, attrs)
    dtypes = _dtypes(op, [dtype_name(operand.dtype) for operand in operands], attrs)
    stated = dict(layouts)  # in the user's letters
    if kind == "conv_transpose":
        stated["w"] = layouts["w"].exchanged
    first, second = (
        _canonical_shape(op, name, stated[role], operand.shape)
        for name, role, operand in zip(names, roles, operands)
    )
    if kind != "conv_weight_grad" and not isinstance(first[1], int):
        first = (first[0], _channels_of_data(op, kind, attrs, window["groups"], second), *first[2:])
    constant = (first[1], *((second[1],) if kind == "conv_weight_grad" else second))
    if any(not isinstance(size, int) for size in constant):
        return None
    multiplier = 1
    if kind == "conv" and 1 < window["groups"] == first[1] == second[0]:
        multiplier = second[1]
        second = (second[0] * multiplier, 1, *second[2:])
    geometry = _geometry(op, kind, attrs, window, first, second)
    _stated(op, kind, attrs, geometry)
    by_role = dict(zip(roles, dtypes))
    conv = Conv(op, kind, layouts, by_role, geometry, first[0], multiplier)
    conv.stored_shape(conv.result)
    return conv


def weight_shape(op_name: str, attrs: Any, data: Sequence[Any]) -> tuple[Any, ...] | None:
    """Stored shape of the weight as the attributes state it, or None if they do not."""
    op, kind = short_name(op_name), KIND[op_name]
    if kind == "conv_weight_grad" or attrs.channels is None or attrs.kernel_size is None:
        return None
    groups = _window(op, attrs)["groups"]
    layouts, channels = layouts_of(op, kind, attrs), _channels(op, attrs)
    given = _canonical_shape(op, "data", layouts[OPERANDS[kind][0]], data)[1]
    if not isinstance(channels, int) or not isinstance(given, int):
        return None
    outer, inner = (channels, given) if kind == "conv" else (given, channels)
    kernel = integers(op, "kernel_size", attrs.kernel_size, (rank_of(op),))
    return layouts["w"].stored_shape(op, (outer, inner // groups, *kernel))


def layouts_of(op: str, kind: str, attrs: Any) -> dict[str, Layout]:
    """Return the layout per role, read from the attributes in the operator's own letters."""
    spatial = SPATIAL[rank_of(op)]
    first, second, third = (str(getattr(attrs, name)) for name in _LAYOUT_ATTRS)
    if kind == "conv_weight_grad":
        # The attributes are those of the convolution that computes it: data is the gradient of y,
        # kernel is x, and out is w.
        letters = ("NC" + spatial, "NC" + spatial, "OI" + spatial)
        third = third or "OI" + spatial
    else:
        kernel = "IO" if kind == "conv_transpose" else "OI"
        letters = ("NC" + spatial, kernel + spatial, "NC" + spatial)
        third = third or first
    found = [
        Layout.parse(op, name, text, canonical)
        for name, text, canonical in zip(_LAYOUT_ATTRS, (first, second, third), letters)
    ]
    if kind == "conv_transpose":
        found[1] = found[1].exchanged
    return dict(zip(OPERANDS[kind] + RESULT[kind], found))


def _dtypes(op: str, operands: list[str], attrs: Any) -> tuple[str, str, str]:
    """Return the dtypes of both operands and of the result, which by default has that of the
    operands.
    """
    first, second = operands
    out = str(attrs.out_dtype or "")
    if out in ("", "same"):
        if first != second:
            raise fail(op, f"dtypes {first} and {second} must be equal unless out_dtype is given")
        out = first
    accumulator(op, first, second, out)
    return first, second, out


def _canonical_shape(op: str, name: str, layout: Layout, shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shape in canonical order with the blocks multiplied in."""
    if len(shape) != len(layout.axes):
        raise fail(
            op, f"{name} has {len(shape)} axes, layout {layout.text!r} has {len(layout.axes)}"
        )
    sizes = [as_size(size) for size in shape]
    for (letter, factor), size in zip(layout.axes, sizes):
        if factor and size != factor:
            raise fail(op, f"block {factor}{letter.lower()} of layout {layout.text!r} is {size}")
    return layout.unblocked_shape(sizes)


def _channels_of_data(op: str, kind: str, attrs: Any, groups: int, weight: Sequence[Any]) -> Any:
    """Return the channels of data that does not state them: what the weight, in canonical order,
    takes.
    """
    if kind == "conv_transpose":
        return weight[0]
    # (c, multiplier) reads like (k, c // groups); `channels`, if stated, tells them apart.
    multiplied = weight[0] * weight[1]
    if weight[1] != 1 and groups == weight[0] and _channels(op, attrs) == multiplied:
        return groups
    return weight[1] * groups


def _window(op: str, attrs: Any) -> dict[str, Any]:
    """Return the attributes of the sliding window; as in TVM, strides and dilation have one per
    axis.
    """
    rank, groups = rank_of(op), integer(op, "groups", attrs.groups)
    if groups < 1:
        raise fail(op, f"groups={groups} must be at least 1")
    return {
        "stride": integers(op, "strides", attrs.strides, (rank,)),
        "padding": integers(op, "padding", attrs.padding, (1, rank, 2 * rank)),
        "dilation": integers(op, "dilation", attrs.dilation, (rank,)),
        "groups": groups,
    }


def _channels(op: str, attrs: Any) -> Any:
    """Return the channels of the result as the attributes state them: a number, symbolic, or
    None.
    """
    is_number = attrs.channels is not None and hasattr(attrs.channels, "value")
    return integer(op, "channels", attrs.channels) if is_number else attrs.channels


def _geometry(
    op: str, kind: str, attrs: Any, window: dict[str, Any], first: Any, second: Any
) -> Geometry:
    if kind == "conv":
        return Geometry.of_conv(op, first, second, **window)
    if kind == "conv_transpose":
        extra = output_padding_of(op, attrs)
        return Geometry.of_conv_transpose(op, first, second, output_padding=extra, **window)
    if attrs.kernel_size is None:
        raise fail(op, "kernel_size=None must be given")
    if isinstance(first[0], int) and isinstance(second[0], int) and first[0] != second[0]:
        raise fail(op, f"batch={first[0]} must equal {second[0]}")
    kernel = integers(op, "kernel_size", attrs.kernel_size, (rank_of(op),))
    return Geometry.of_sizes(op, second, first, kernel, **window)


def _stated(op: str, kind: str, attrs: Any, geometry: Geometry) -> None:
    """Raise if `channels` and `kernel_size` contradict the operands."""
    actual = geometry.c if kind == "conv_transpose" else geometry.k
    channels = _channels(op, attrs)
    if isinstance(channels, int) and channels != actual:
        raise fail(op, f"channels={channels} must equal {actual}, what the operands have")
    if attrs.kernel_size is None:
        return
    kernel = integers(op, "kernel_size", attrs.kernel_size, (geometry.rank,))
    if kernel != geometry.kernel:
        raise fail(op, f"kernel_size={kernel} must equal the weight's {geometry.kernel}")


def ints(values: Any) -> tuple[int, ...]:
    """Return the values of an attribute as Python integers."""
    return tuple(int(value) for value in values)


def padding_of(attrs: Any) -> tuple[int, ...]:
    """Return the padding before every axis, then after: one value means all, one per axis both
    sides.
    """
    values, rank = ints(attrs.padding), len(attrs.strides)
    return values * (2 * rank // len(values))


def output_padding_of(op: str, attrs: Any) -> tuple[int, ...]:
    """Output padding per axis: one value means all.

    Relay's operator of rank 1 takes the first of what it is given, and some callers give it two.
    """
    rank = rank_of(op)
    values = integers(
        op, "output_padding", attrs.output_padding, (1, rank, 2 if rank == 1 else rank)
    )
    return values[:1] * rank if 1 in (rank, len(values)) else values


def _transformed(ir: Any, tensor: Any, source: str, target: str) -> Any:
    return tensor if source == target else ir.layout_transform(tensor, source, target)
