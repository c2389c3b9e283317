# SPDX-License-Identifier: Apache-2.0
"""Gradients of operators that arrange elements: slices, padding, repetitions, stacks."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import call_attr, known_shape, relax, simplify, type_of
from topi_ext.spec.geometry import fail

from ..ir import are_same
from .parts import Rule, known_size, number, op_name, reshaped, shape_of
from .slices import placed

R = relax()
op = R.op


_END = 2**31 - 1
"""An end that stands for the end of the axis, whatever its size, in exported programs."""


def same_elements(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate another shape of the same elements."""
    return [reshaped(dy, shape_of(call.args[0])), *[None] * (len(call.args) - 1)]


def strided_slice(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a slice: zeros where it reads nothing.

    Raises
    ------
    ValueError
        One line, for symbolic bounds, and for symbolic sizes of an axis that is sliced.
    """
    x, *bounds = call.args[:5]
    sizes = shape_of(x)
    axes, begins, ends, *steps = ([number(part) for part in bound.fields] for bound in bounds)
    strides = steps[0] if steps else [1] * len(axes)
    for axis, begin, end, stride in zip(axes, begins, ends, strides):
        if axis is None or begin is None or end is None or stride is None:
            raise fail(op_name(call), "axes, bounds and strides must be numbers for a gradient")
        axis, begin, stride = int(axis) % len(sizes), int(begin), int(stride)
        if begin == 0 and stride == 1 and end >= _END:
            continue
        size = known_size(call, sizes[axis], axis)
        count = known_size(call, shape_of(y)[axis], axis)
        first = max(begin + size if begin < 0 else begin, 0)
        if stride < 0:
            first = min(first, size - 1) + stride * (count - 1)
            dy = bb.emit(op.flip(dy, axis))
        dy = placed(bb, dy, axis, first, abs(stride), size)
    dy = dy if are_same(shape_of(dy), sizes) else reshaped(dy, sizes)
    return [dy, *[None] * (len(call.args) - 1)]


def pad(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate padding: what a border copies gets the border's gradient too.

    Raises
    ------
    ValueError
        One line, for a symbolic size of an axis that is padded by copies.
    """
    x = call.args[0]
    sizes, mode = shape_of(x), str(call_attr(call, "pad_mode"))
    widths = [int(width) for width in call_attr(call, "pad_width")]
    for axis, (before, after) in enumerate(zip(widths[::2], widths[1::2])):
        if not (before or after):
            continue
        size = sizes[axis]
        inside = op.strided_slice(dy, [axis], [before], [simplify(size + before)])
        if mode != "constant":
            size = known_size(call, size, axis)
            for begin, width, end in ((0, before, "before"), (before + size, after, "after")):
                if width:
                    border = op.strided_slice(dy, [axis], [begin], [begin + width])
                    copied = _copied(call, mode, bb.emit(border), (axis, size, end), bb)
                    inside = op.add(inside, copied)
        dy = bb.emit(inside)
    return [dy, *[None] * (len(call.args) - 1)]


def _copied(call: Any, mode: str, border: Any, side: tuple[int, int, str], bb: Any) -> Any:
    """Return the gradient of a border before or after an axis, where its elements come from."""
    axis, size, end = side
    width = shape_of(border)[axis]
    if mode == "replicate":
        edge = bb.emit(op.sum(border, [axis], keepdims=True))
        return placed(bb, edge, axis, 0 if end == "before" else size - 1, 1, size)
    if mode == "reflect":
        begin = 1 if end == "before" else size - 1 - width
        border = bb.emit(op.flip(border, axis))
    elif mode == "circular":
        begin = size - width if end == "before" else 0
    else:
        raise fail(op_name(call), f"pad_mode={mode} has no gradient")
    return placed(bb, border, axis, begin, 1, size)


def tile(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate repetitions of a tensor: their sum."""
    sizes = shape_of(call.args[0])
    repeats = [int(count) for count in call_attr(call, "repeats")]
    rank = max(len(repeats), len(sizes))
    repeats = [1] * (rank - len(repeats)) + repeats
    padded = [1] * (rank - len(sizes)) + list(sizes)
    apart = [size for pair in zip(repeats, padded) for size in pair]
    axes = [2 * axis for axis, count in enumerate(repeats) if count != 1]
    summed = op.sum(reshaped(dy, apart), axes) if axes else dy
    return [reshaped(summed, sizes)]


def repeat(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate repetitions of elements: the sum of neighbours."""
    sizes, count = shape_of(call.args[0]), int(call_attr(call, "repeats"))
    axis = call_attr(call, "axis")
    if axis is None:
        return [op.sum(reshaped(dy, [*sizes, count]), [len(sizes)])]
    axis = int(axis) % len(sizes)
    apart = reshaped(dy, [*sizes[: axis + 1], count, *sizes[axis + 1 :]])
    return [op.sum(apart, [axis + 1])]


def flip(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate the reversal of an axis."""
    return [op.flip(dy, int(call_attr(call, "axis")))]


def stack(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a stack: its layers."""
    tensors = type_of(call.args[0]).fields
    axis = int(call_attr(call, "axis") or 0) % len(shape_of(y))
    sizes = [size for a, size in enumerate(shape_of(y)) if a != axis]
    layers = [op.strided_slice(dy, [axis], [index], [index + 1]) for index in range(len(tensors))]
    return [R.Tuple([bb.emit(reshaped(bb.emit(layer), sizes)) for layer in layers])]


def concat(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a concatenation: its parts.  TVM's own rule fails at a tuple of one.

    Raises
    ------
    ValueError
        One line, for symbolic sizes along the axis.
    """
    tensors = type_of(call.args[0]).fields
    axis = int(call_attr(call, "axis") or 0) % len(shape_of(y))
    if len(tensors) == 1:
        return [R.Tuple([dy])]
    ends, end = [], 0
    for tensor in tensors[:-1]:
        end += known_size(call, known_shape(tensor.shape)[axis], axis)
        ends.append(end)
    return [op.split(dy, ends, axis)]


def triangle(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate the upper or lower triangle: the triangle of the gradient."""
    return [getattr(op, op_name(call))(dy, call.args[1]), None]


RULES: dict[str, Rule] = {
    **{f"relax.{name}": same_elements for name in ("flatten", "nn.batch_flatten", "squeeze")},
    "relax.concat": concat,
    "relax.flip": flip,
    "relax.nn.pad": pad,
    "relax.repeat": repeat,
    "relax.stack": stack,
    "relax.strided_slice": strided_slice,
    "relax.tile": tile,
    "relax.tril": triangle,
    "relax.triu": triangle,
}
