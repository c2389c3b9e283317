# SPDX-License-Identifier: Apache-2.0
"""Move 1x1 convolutions before the resizes that enlarge their images.

A resize is linear in each plane, a 1x1 convolution without bias is linear in the channels of each
position.  So they commute, and the smaller image needs fewer products::

    conv(resize(x), w)                = resize(conv(x, w))
    conv(concat(x0, resize(x1)), w)   = conv(x0, w[:, :c0]) + resize(conv(x1, w[:, c0:]))

The second form is what decoders do that merge feature maps of several sizes.  It also needs no
concatenation, and the sum is a post-op of the resize.  Rounding differs: channels are summed before
positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topi_ext.compat import at_most, call_attr, constant_value, relax, same_size

from ..op.attrs import read
from .patterns import Function, named
from .views import shape_of

R = relax()

RESIZE = "relax.image.resize2d"
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Modes without values from outside of the image."""

DTYPES = ("float32", "float64")
"""Sums of narrower types would be rounded between the parts."""


class Part(NamedTuple):
    """Input channels of a convolution.

    Attributes
    ----------
    data : relax.Expr
        Their image, before the resize.
    channels : int
        Number of channels.
    resize : relax.Call or None
        What enlarges the image.
    """

    data: Any
    channels: int
    resize: Any


def before_resizes(module: Any) -> Any:
    """Return `module` with 1x1 convolutions moved before resizes where that saves products."""
    mutator = _Mover(module)
    for name, func in list(module.functions_items()):
        if isinstance(func, R.Function):
            mutator.rewrite(name, func)
    return mutator.builder_.get()


@R.expr_functor.mutator
class _Mover(R.PyExprMutator):  # type: ignore[misc]
    """Replaces convolutions; resizes and concatenations that nothing else reads are dead then."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.function = Function({}, {})

    def rewrite(self, name: Any, func: Any) -> None:
        """Put the function into the builder's module."""
        self.function = Function.of(func)
        if any(parts_of(value, self.function) for value in self.function.values.values()):
            moved = R.analysis.remove_all_unused(self.visit_expr(func))
            self.builder_.update_func(name, moved)

    def visit_call_(self, call: Any) -> Any:
        """Replace a convolution that is worth it."""
        parts = parts_of(call, self.function)
        if not parts:
            return super().visit_call_(call)
        weight, total, first = self.visit_expr(call.args[1]), None, 0
        for data, channels, resize in parts:
            some = _sliced(weight, first, first + channels)
            result = R.Call(call.op, [self.visit_expr(data), some], call.attrs)
            if resize is not None:
                enlarged = [self.builder_.emit(result), *resize.args[1:]]
                result = R.Call(resize.op, enlarged, resize.attrs)
            emit = self.builder_.emit
            total = result if total is None else R.op.add(emit(total), emit(result))
            first += channels
        return total


def parts_of(call: Any, function: Function) -> list[Part]:
    """Return the parts of a convolution that is worth moving, else none."""
    conv = named(call, "relax.nn.conv2d")
    outputs = None if conv is None else _outputs(conv)
    if conv is None or outputs is None:
        return []
    joined = named(function.only_read_by(conv.args[0], conv), "relax.concat")
    fields = [] if joined is None else _fields(joined)
    reader, fields = (joined, fields) if fields else (conv, [conv.args[0]])
    parts = [_part(field, reader, outputs, function) for field in fields]
    return parts if any(part.resize is not None for part in parts) else []


def _outputs(conv: Any) -> int | None:
    """Return the number of output channels of a plain 1x1 convolution, else None."""
    found = read(conv)
    if found is None or found.geometry is None or set(found.dtypes.values()) - set(DTYPES):
        return None
    geometry = found.geometry
    is_1x1 = geometry.kernel == geometry.stride == (1, 1) and geometry.groups == 1
    is_padded = any((*geometry.pad_before, *geometry.pad_after))
    layouts = [str(call_attr(conv, f"{name}_layout")) for name in ("data", "kernel", "out")]
    is_plain = is_1x1 and not is_padded and layouts == ["NCHW", "OIHW", "NCHW"]
    return geometry.k if is_plain else None


def _fields(joined: Any) -> list[Any]:
    """Return the operands of a concatenation of channels; none of another concatenation."""
    axis, operands = call_attr(joined, "axis"), joined.args[0]
    is_read = axis is not None and int(axis) in (1, -3) and isinstance(operands, R.Tuple)
    return list(operands.fields) if is_read else []


def _part(field: Any, reader: Any, outputs: int, function: Function) -> Part:
    """Return the part that reads a tensor of the convolution's size."""
    channels = int(shape_of(field)[1])
    resize = named(function.only_read_by(field, reader), RESIZE)
    if resize is None or not _saves_products(resize, channels, outputs):
        return Part(field, channels, None)
    return Part(resize.args[0], channels, resize)


def _saves_products(resize: Any, channels: int, outputs: int) -> bool:
    """Return whether a resize is one that enlarges images, and has no more channels afterwards."""
    is_linear = str(call_attr(resize, "coordinate_transformation_mode")) in COORDINATES
    if not is_linear or str(call_attr(resize, "layout")) != "NCHW" or outputs > channels:
        return False
    before, after = (shape_of(one)[2:] for one in (resize.args[0], resize))
    return all(map(at_most, before, after)) and not all(map(same_size, before, after))


def _sliced(weight: Any, first: int, last: int) -> Any:
    """Return the weights of some input channels; of a constant they are a constant."""
    if shape_of(weight)[1] == last - first:
        return weight
    value = constant_value(weight)
    if value is not None:
        return R.const(np.ascontiguousarray(value.numpy()[:, first:last]))
    return R.op.strided_slice(weight, [1], [first], [last])
