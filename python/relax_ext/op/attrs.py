# SPDX-License-Identifier: Apache-2.0
"""Read a call of an operator: its geometry, layouts and dtypes.

This is the only place that knows which operand and which attribute plays which role; everything
behind it speaks of the forward convolution's x, w and y.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from topi_ext.adapters.call import Call
from topi_ext.compat import (
    call_attr,
    dtype_name,
    known_shape,
    tensor_type_of,
    type_of,
)
from topi_ext.spec.conv import OPERANDS, RESULT
from topi_ext.spec.dtypes import accumulator
from topi_ext.spec.geometry import Geometry, any_of, fail, integer, integers, is_several
from topi_ext.spec.layout import SPATIAL, Layout

STOCK = {
    f"relax.nn.conv{rank}d{suffix}": kind
    for kind, suffix in (("conv", ""), ("conv_transpose", "_transpose"))
    for rank in (1, 2, 3)
}
"""Operators of TVM that we take over, and the kind that each one is."""

CONV_TRANSPOSE = "relax.relax_ext.conv_transpose"
CONV_WEIGHT_GRAD = "relax.relax_ext.conv_weight_grad"

OWN = {CONV_TRANSPOSE: "conv_transpose", CONV_WEIGHT_GRAD: "conv_weight_grad"}
"""Operators that we add; TVM's printer wants names under ``relax.``."""

KIND = {**STOCK, **OWN}


def short_name(call: Any) -> str:
    """Return the name of the operator in errors, e.g. ``conv2d_transpose``."""
    return str(call.op.name).rpartition(".")[2]


@dataclass(frozen=True)
class Conv(Call):
    """One call, read."""

    @property
    def is_blocked(self) -> bool:
        """Return whether some tensor is stored in blocks."""
        return any(not layout.is_plain for layout in self.layouts.values())


def read(call: Any, out_dtype: str = "") -> Conv | None:
    """Read a call of an operator in `KIND`.

    Parameters
    ----------
    out_dtype : str
        Dtype of its result where it is known, but the call does not state it.

    Returns
    -------
    Conv or None
        None where channels or kernel sizes of an operator of TVM are symbolic: no geometry states
        those.

    Raises
    ------
    ValueError
        One line that names operator, value and rule, for whatever makes no convolution.
    """
    op, kind = short_name(call), KIND[call.op.name]
    names = _NAMES.get(call.op.name, ("data", "weight"))
    roles = OPERANDS[kind] + RESULT[kind]
    rank = _rank(op, call)
    layouts = _layouts(op, kind, call, rank)
    types = [_tensor(op, name, arg) for name, arg in zip(names, tensors(call))]
    dtypes = _dtypes(op, types, dtype_name(call_attr(call, "out_dtype")) or out_dtype)
    stated = dict(layouts)  # in the user's letters
    if kind == "conv_transpose":
        stated["w"] = layouts["w"].exchanged
    shapes = [
        _canonical_shape(op, name, stated[role], found)
        for name, role, found in zip(names, roles, types)
    ]
    by_role = dict(zip(roles, dtypes))
    if None in shapes:
        return Conv(op, kind, layouts, by_role, None, None)
    blocks = (_block_sizes(layouts[role], found) for role, found in zip(roles, types))
    constants = (*_constants(kind, shapes), *chain.from_iterable(blocks))
    if any(not isinstance(size, int) for size in constants):
        if call.op.name in OWN:
            raise fail(op, "channels and kernel sizes must be constant")
        return None
    geometry = _geometry(op, kind, call, rank, *shapes)
    conv = Conv(op, kind, layouts, by_role, geometry, shapes[0][0])
    conv.stored_shape(conv.result)
    return conv


def tensors(call: Any) -> list[Any]:
    """Return the arguments of a call without the size that our conv_transpose takes as a shape."""
    sized = call.op.name == CONV_TRANSPOSE and tensor_type_of(call.args[2]) is None
    return list(call.args[:2] if sized else call.args)


_NAMES = {CONV_TRANSPOSE: ("data", "weight", "size"), CONV_WEIGHT_GRAD: ("x", "y")}
_LAYOUT_ATTRS = ("data_layout", "kernel_layout", "out_layout")


def _rank(op: str, call: Any) -> int:
    """Return the number of spatial axes: of an operator of TVM in its name, of ours as attributes
    state it.
    """
    if call.op.name in STOCK:
        return int(op[len("conv")])
    if call.op.name == CONV_TRANSPOSE:
        return rank_of_layout(op, call_attr(call, "data_layout"))
    return len(kernel_size_of(op, call_attr(call, "kernel_size")))


def rank_of_layout(op: str, layout: Any) -> int:
    """Return the number of spatial axes that a layout of data has.

    Raises
    ------
    ValueError
        One line, if it is no layout of 1, 2 or 3 of them.
    """
    rank = sum(letter.isupper() for letter in str(layout)) - 2
    if rank not in SPATIAL:
        known = " or ".join(repr("NC" + spatial) for spatial in SPATIAL.values())
        raise fail(op, f"data_layout={layout!r} must be a permutation of {known}, perhaps blocked")
    return rank


def kernel_size_of(op: str, value: Any) -> tuple[int, ...]:
    """Return the kernel size that an attribute states: one value per spatial axis."""
    if not is_several(value):
        raise fail(op, f"kernel_size={value!r} must have {any_of(tuple(SPATIAL))}, one per axis")
    return integers(op, "kernel_size", value, tuple(SPATIAL))


def _layouts(op: str, kind: str, call: Any, rank: int) -> dict[str, Layout]:
    """Return the layout per role, read from the attributes in the operator's own letters."""
    spatial = SPATIAL[rank]
    data, kernel, out = (str(call_attr(call, name)) for name in _LAYOUT_ATTRS)
    is_transposed = kind == "conv_transpose"
    found = [
        Layout.parse(op, "data_layout", data, "NC" + spatial),
        Layout.parse(op, "kernel_layout", kernel, ("IO" if is_transposed else "OI") + spatial),
        Layout.parse(op, "out_layout", out or data, "NC" + spatial),
    ]
    if is_transposed:
        found[1] = found[1].exchanged
    return dict(zip("ywx" if kind == "conv_transpose" else "xwy", found))


def _tensor(op: str, name: str, arg: Any) -> Any:
    found = tensor_type_of(arg)
    if found is None:
        raise TypeError(f"{op}: {name} has type {type_of(arg)}, must be a tensor")
    return found


def _dtypes(op: str, types: list[Any], out: str) -> tuple[str, str, str]:
    """Return the dtypes of both operands and of the result, which by default has that of the
    operands.
    """
    first, second = (dtype_name(found.dtype) for found in types[:2])
    if not out and first and second and first != second:
        raise TypeError(
            f"{op}: dtypes {first} and {second} must be equal unless out_dtype is given"
        )
    out = out or (first if second else "")
    if first and second:
        accumulator(op, first, second, out)
    return first, second, out


def _canonical_shape(op: str, name: str, layout: Layout, found: Any) -> Any:
    """Return the shape in canonical order with the blocks multiplied in, or None if it is not
    known.
    """
    if found.ndim not in (-1, len(layout.axes)):
        raise fail(
            op, f"{name} has {found.ndim} axes, layout {layout.text!r} has {len(layout.axes)}"
        )
    shape = known_shape(found.shape)
    if shape is None:
        return None
    for (letter, factor), size in zip(layout.axes, shape):
        if factor and isinstance(size, int) and size != factor:
            raise fail(op, f"block {factor}{letter.lower()} of layout {layout.text!r} is {size}")
    return layout.unblocked_shape(shape)


def _block_sizes(layout: Layout, found: Any) -> list[Any]:
    shape = known_shape(found.shape)
    return [size for (_, factor), size in zip(layout.axes, shape) if factor]


def _constants(kind: str, shapes: list[Any]) -> tuple[Any, ...]:
    """Return the sizes that a geometry needs as integers: channels and kernel."""
    data_channels = [shape[1] for shape in shapes]
    return (*data_channels, *(() if kind == "conv_weight_grad" else shapes[1]))


def _geometry(
    op: str, kind: str, call: Any, rank: int, first: Any, second: Any, like: Any = None
) -> Geometry:
    stated = {
        "stride": call_attr(call, "strides"),
        "padding": call_attr(call, "padding"),
        "dilation": call_attr(call, "dilation"),
        "groups": integer(op, "groups", call_attr(call, "groups")),
    }
    if kind == "conv":
        return Geometry.of_conv(op, first, second, **stated)
    if kind == "conv_weight_grad":
        _equal(op, "batches {} of x and {} of y must be equal", first[0], second[0])
        kernel = kernel_size_of(op, call_attr(call, "kernel_size"))
        return Geometry.of_sizes(op, first, second, kernel, **stated)
    if call.op.name != CONV_TRANSPOSE:
        extra = call_attr(call, "output_padding")
        return Geometry.of_conv_transpose(op, first, second, output_padding=extra, **stated)
    c = second[1] * stated["groups"]
    if like is None:
        size = known_shape(call.args[2])
        if size is None:
            raise fail(op, f"size={call.args[2]} must be a tensor or a shape of known sizes")
        if len(size) != rank:
            raise fail(op, f"size={size} must have {any_of((rank,))}, one per spatial axis")
        like = (first[0], c, *size)
    _equal(op, "batches {} of data and {} of size must be equal", first[0], like[0])
    _equal(op, "weight input channels={} must equal data channels={}", second[0], first[1])
    _equal(op, "weight output channels*groups={} must equal channels={} of size", c, like[1])
    return Geometry.of_sizes(op, like, first, second[2:], size_name="size", **stated)


def _equal(op: str, rule: str, first: Any, second: Any) -> None:
    if isinstance(first, int) and isinstance(second, int) and first != second:
        raise fail(op, rule.format(first, second))
