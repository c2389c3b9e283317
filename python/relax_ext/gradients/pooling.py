# SPDX-License-Identifier: Apache-2.0
"""Gradients of max and average pooling in one to three dimensions.

The gradient of an average is a transposed convolution of one channel with ones.  That of a maximum
is added where the maximum is, the first one of its window, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from topi_ext.compat import call_attr, relax, simplify, tir
from topi_ext.spec.geometry import fail

from ..ir import dtype_of
from ..op.ops import conv_transpose
from .parts import Rule, in_float32, known_size, op_name, reshaped, shape_of

R = relax()
op = R.op


_BACKWARD = (
    *("pool_size", "strides", "padding", "dilation", "ceil_mode", "count_include_pad"),
    *("layout", "out_layout"),
)
"""Attributes that a pooling and its gradient in TVM have in common."""


@dataclass(frozen=True)
class Windows:
    """The windows of a pooling, in the order batch, channels, spatial axes.

    Attributes
    ----------
    order : list of int
        Axes of the data in this order.
    lead : tuple
        Batch and channels.
    sizes, counts : tuple
        Spatial sizes of the data, and numbers of windows.
    kernel, stride, dilation, before, after : tuple of int
        Values for each spatial axis; padding before and after it as the call states it.
    """

    order: list[int]
    lead: tuple[Any, ...]
    sizes: tuple[Any, ...]
    counts: tuple[Any, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, x: Any, y: Any, call: Any) -> Windows:
        """Read the windows of a call from data to result.

        Raises
        ------
        ValueError
            One line, for layouts in blocks, and where the result has another layout.
        """
        layout = str(call_attr(call, "layout"))
        rank = len(layout) - 2
        canonical = "NC" + "DHW"[3 - rank :]
        out_layout = str(call_attr(call, "out_layout")) or layout
        if sorted(layout) != sorted(canonical) or out_layout != layout:
            raise fail(
                op_name(call),
                f"layout={layout}, out_layout={out_layout} must be equal permutations of "
                f"{canonical} to have a gradient",
            )
        order = [layout.index(letter) for letter in canonical]
        sizes, counts = ([shape_of(one)[axis] for axis in order] for one in (x, y))
        padding = _integers(call, "padding")
        return cls(
            order,
            tuple(sizes[:2]),
            tuple(sizes[2:]),
            tuple(counts[2:]),
            _integers(call, "pool_size"),
            _integers(call, "strides"),
            _integers(call, "dilation"),
            padding[:rank],
            padding[rank:],
        )

    @property
    def images(self) -> Any:
        """Number of images of one channel."""
        return self.lead[0] * self.lead[1]

    def behind(self) -> list[Any]:
        """Return how far windows reach beyond each axis; negative where they end before it."""
        return [
            simplify((count - 1) * step + dilation * (kernel - 1) + 1 - size - before)
            for size, count, kernel, step, dilation, before in zip(
                self.sizes, self.counts, self.kernel, self.stride, self.dilation, self.before
            )
        ]

    def canonical(self, expr: Any, bb: Any) -> Any:
        """Return a tensor of the call's layout with the axes in the order of this class."""
        is_same = self.order == sorted(self.order)
        return expr if is_same else bb.emit(op.permute_dims(expr, self.order))

    def restored(self, images: Any, bb: Any) -> Any:
        """Return images of one channel, of the data's size, in the layout and shape of the data."""
        data = reshaped(images, [*self.lead, *self.sizes])
        if self.order == sorted(self.order):
            return data
        return op.permute_dims(bb.emit(data), [self.order.index(a) for a in range(len(self.order))])


def _integers(call: Any, name: str) -> tuple[int, ...]:
    return tuple(int(value) for value in call_attr(call, name))


def average_pool(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate an average pooling.

    Raises
    ------
    ValueError
        One line, for a symbolic size of an axis whose windows count unequally many elements.
    """
    windows = Windows.of(call.args[0], y, call)
    shares = _shares(call, windows)
    dy = op.multiply(windows.canonical(dy, bb), R.const(shares, dtype_of(dy)))
    images = bb.emit(reshaped(bb.emit(dy), [windows.images, 1, *windows.counts]))
    letters = "DHW"[3 - len(windows.kernel) :]
    ones = R.const(np.ones((1, 1, *windows.kernel)), dtype_of(images))
    behind = [b if isinstance(b, int) else a for a, b in zip(windows.after, windows.behind())]
    size: Any = list(windows.sizes)
    if not all(isinstance(one, int) for one in size):
        shape = R.ShapeExpr([windows.images, 1, *windows.sizes])
        size = bb.emit(op.zeros(shape, dtype_of(images)))
    gradient = conv_transpose(
        images,
        ones,
        size,
        windows.stride,
        (*windows.before, *behind),
        windows.dilation,
        data_layout=f"NC{letters}",
        kernel_layout=f"IO{letters}",
    )
    return [windows.restored(bb.emit(gradient), bb)]


def _shares(call: Any, windows: Windows) -> np.ndarray:
    """Return 1 / n for each window, n the number of elements that it counts.

    As in ``topi.nn.pool``: with `count_include_pad` the padding that the call states, else the
    data alone.
    """
    with_padding = bool(call_attr(call, "count_include_pad"))
    is_padded = any((*windows.before, *windows.after)) and not with_padding
    if not is_padded and not call_attr(call, "ceil_mode"):
        return np.asarray(1.0 / prod(windows.kernel))
    shares = np.ones(())
    for axis, kernel in enumerate(windows.kernel):
        size = known_size(call, windows.sizes[axis], windows.order[axis + 2])
        count = known_size(call, windows.counts[axis], windows.order[axis + 2])
        low, high = 0, size
        if with_padding:
            low, high = -windows.before[axis], size + windows.after[axis]
        starts = np.arange(count) * windows.stride[axis] - windows.before[axis]
        positions = starts[:, None] + np.arange(kernel) * windows.dilation[axis]
        counted = ((low <= positions) & (positions < high)).sum(1)
        shares = shares[..., None] / np.maximum(counted, 1)
    return shares


def max_pool(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a max pooling: the gradients of the results, added at their positions.

    Raises
    ------
    ValueError
        One line, for symbolic spatial sizes.
    """
    windows = Windows.of(call.args[0], y, call)
    positions = _positions(call.args[0], y, call, windows, bb)
    updates = _rows(dy, windows, bb)
    shape = R.ShapeExpr([windows.images, prod(windows.sizes)])
    zeros = bb.emit(op.zeros(shape, dtype_of(dy)))
    return [windows.restored(bb.emit(op.scatter_elements(zeros, positions, updates, 1, "add")), bb)]


def max_pool2d(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate by TVM's own operator without dilation, with which that does not compile."""
    if set(_integers(call, "dilation")) != {1}:
        return max_pool(y, call, dy, bb)
    attributes = {name: call_attr(call, name) for name in _BACKWARD}
    return [op.grad.max_pool2d_backward(dy, call.args[0], **attributes)]


def max_pool2d_backward(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate the gradient of a max pooling in its first argument: read at the positions."""
    x = call.args[1]
    attributes = {name: call_attr(call, name) for name in _BACKWARD}
    maxima = bb.emit(op.nn.max_pool2d(x, **attributes))
    windows = Windows.of(x, maxima, call)
    rows = bb.emit(reshaped(windows.canonical(dy, bb), [windows.images, prod(windows.sizes)]))
    positions = _positions(x, maxima, call, windows, bb)
    values = bb.emit(op.gather_elements(rows, positions, 1))
    values = reshaped(values, [*windows.lead, *windows.counts])
    order = [windows.order.index(axis) for axis in range(len(windows.order))]
    return [op.permute_dims(bb.emit(values), order), None]


def _rows(expr: Any, windows: Windows, bb: Any) -> Any:
    """Return one row of each image, of what belongs to the windows."""
    return bb.emit(reshaped(windows.canonical(expr, bb), [windows.images, prod(windows.counts)]))


def _positions(x: Any, y: Any, call: Any, windows: Windows, bb: Any) -> Any:
    """Return where in its image each window has its first maximum, in rows of int32."""
    for axis, size in zip(windows.order[2:], windows.sizes):
        known_size(call, size, axis)
    x, y = windows.canonical(x, bb), windows.canonical(y, bb)
    strides = [prod(windows.sizes[axis + 1 :]) for axis in range(len(windows.sizes))]
    offsets = [
        sum(index * step * stride for index, step, stride in zip(tap, windows.dilation, strides))
        for tap in product(*map(range, windows.kernel))
    ]
    origins = np.zeros(windows.counts, "int32")
    for axis, count in enumerate(windows.counts):
        along = (np.arange(count) * windows.stride[axis] - windows.before[axis]) * strides[axis]
        shape = [-1 if a == axis else 1 for a in range(origins.ndim)]
        origins += along.reshape(shape).astype("int32")
    positions = op.add(_first_maximum(x, y, windows, offsets, bb), R.const(origins, "int32"))
    # The last tap stands for windows without a maximum, those of NaN; it may be padding.
    positions = bb.emit(op.clip(positions, 0, prod(windows.sizes) - 1))
    return bb.emit(reshaped(positions, [windows.images, prod(windows.counts)]))


def _first_maximum(x: Any, y: Any, windows: Windows, labels: Sequence[int], bb: Any) -> Any:
    """Return the label of the first tap of each window that has the maximum, an int32."""
    behind = [max(0, size) for size in windows.behind()]
    widths = [0] * 4 + [size for pair in zip(windows.before, behind) for size in pair]
    if any(widths):
        lowest = float(tir.min_value(dtype_of(x)).value)
        x = bb.emit(op.nn.pad(x, widths, pad_value=lowest))
    if len(labels) == 1:
        return op.full(R.ShapeExpr([*windows.lead, *windows.counts]), R.const(labels[0], "int32"))
    first: Any = R.const(labels[-1], "int32")
    taps = product(*map(range, windows.kernel))
    for tap, label in reversed(list(zip(taps, labels))[:-1]):
        is_maximum = op.equal(_tap(x, windows, tap), y)
        first = op.where(is_maximum, R.const(label, "int32"), first)
    return first


def _tap(x: Any, windows: Windows, tap: Sequence[int]) -> Any:
    """Return what one tap of all windows reads of the padded data."""
    begin = [t * d for t, d in zip(tap, windows.dilation)]
    end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, windows.counts, windows.stride)]
    axes = list(range(2, 2 + len(begin)))
    return op.strided_slice(x, axes, begin, end, list(windows.stride))


RULES: dict[str, Rule] = {
    **{f"relax.nn.avg_pool{rank}d": in_float32(average_pool) for rank in (1, 2, 3)},
    **{f"relax.nn.max_pool{rank}d": in_float32(max_pool) for rank in (1, 3)},
    "relax.nn.max_pool2d": in_float32(max_pool2d),
    "relax.grad.max_pool2d_backward": max_pool2d_backward,
}
