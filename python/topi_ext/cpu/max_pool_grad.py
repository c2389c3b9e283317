# SPDX-License-Identifier: Apache-2.0
"""The gradient of maximum pooling of images, as a CPU function.

::

    parallel over planes:
        zero                                                        -> result
        for each row of windows:
            for each tap: larger elements and where they are        -> best, place     vectors
            for each window: add its gradient to the place          -> result

The place of a window is that of PyTorch: the first of equal maxima, and the last NaN.  Each plane
is one task, so the results have the same bits on every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from . import emit
from .emit import Array, Expr, Operand

_PARALLEL_ELEMENTS = 1 << 15
"""Fewer elements are left to the calling thread: waking the others takes about as long."""

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class MaxPoolGrad:
    """The gradient of a maximum pooling by its data.

    Attributes
    ----------
    planes : tuple
        N and C; N may be symbolic.
    before, after : tuple of int
        H and W of the data and of the result.  The data of a plane are fewer than 2^31.
    kernel, stride, padding, dilation : tuple of int
        Along H and W; `padding` is that in front.
    dtype : str
        One of `DTYPES`.
    """

    planes: tuple[Any, int]
    before: tuple[int, int]
    after: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    dtype: str

    def windows(self, axis: int, tap: int) -> tuple[int, int]:
        """Return the first window along an axis whose tap meets data, and the end of them."""
        stride, offset = self.stride[axis], self.padding[axis] - tap * self.dilation[axis]
        first = max(0, -(-offset // stride))
        last = min(self.after[axis], (self.before[axis] - 1 + offset) // stride + 1)
        return first, max(first, last)

    @property
    def has_data(self) -> bool:
        """Return whether every window has elements of the data, and not only padding."""
        for axis, count in enumerate(self.after):
            taps = [self.windows(axis, tap) for tap in range(self.kernel[axis])]
            if not all(any(a <= window < b for a, b in taps) for window in range(count)):
                return False
        return True


def max_pool_grad(pool: MaxPoolGrad) -> Any:
    """Build the PrimFunc ``(dy, x, dx)``, all of them NCHW."""
    n, c = pool.planes
    before, after = ((n, c, *sizes) for sizes in (pool.before, pool.after))
    with emit.kernel(emit.ATTRIBUTES) as functions:
        arguments = [
            emit.argument("DY", "NCHW", after, pool.dtype),
            emit.argument("X", "NCHW", before, pool.dtype),
            emit.argument("DX", "NCHW", before, pool.dtype),
        ]
        with emit.body(*arguments) as operands:
            elements = n * c * pool.before[0] * pool.before[1]
            is_parallel = not isinstance(elements, int) or elements >= _PARALLEL_ELEMENTS
            with emit.tasks(n * c, is_parallel) as plane:
                _emit_plane(pool, operands, plane)
    return functions[0]


def _emit_plane(pool: MaxPoolGrad, operands: list[Operand], plane: Expr) -> None:
    dy, x, dx = operands
    (h, w), (rows, columns) = pool.before, pool.after
    base, gradients = emit.opaque_base(plane * (h * w)), emit.opaque_base(plane * (rows * columns))
    emit.fill(dx, base, h * w, emit.constant(0, pool.dtype))
    best, place = emit.scratch(columns, pool.dtype), emit.scratch(columns, "int32")
    for row in emit.loop(rows):
        emit.fill(best, 0, columns, emit.constant(-inf, pool.dtype))
        emit.fill(place, 0, columns, emit.constant(-1, "int32"))
        for tap in emit.loop(pool.kernel[0]):
            y = emit.let(row * pool.stride[0] + tap * pool.dilation[0] - pool.padding[0])
            for _ in emit.only_if(emit.both(y >= 0, y < h)):
                _emit_maxima(pool, (x, emit.opaque_base(base + y * w)), y, (best, place))
        first = emit.opaque_base(gradients + row * columns)
        for column in emit.loop(columns):
            index = emit.let(place[column].astype("int64"))
            for _ in emit.only_if(True if pool.has_data else index >= 0):
                emit.store(dx, base + index, dx[base + index] + dy[first + column])


def _emit_maxima(
    pool: MaxPoolGrad, source: tuple[Operand, Expr], y: Expr, maxima: tuple[Array, Array]
) -> None:
    """Update the maxima of a row of windows by row `y` of the data."""
    (x, start), (best, place) = source, maxima
    for tap in range(pool.kernel[1]):
        first, last = pool.windows(1, tap)
        offset = first * pool.stride[1] + tap * pool.dilation[1] - pool.padding[1]
        for window in emit.loop(last - first):
            column = window * pool.stride[1] + offset
            value, kept = emit.let(x[start + column]), emit.let(best[first + window])
            index = emit.let(place[first + window])
            takes = emit.either(index < 0, value > kept, emit.function("isnan", value))
            takes = emit.let(takes)
            here = emit.wide(y * pool.before[1] + column).astype("int32")
            emit.store(best, first + window, emit.select(takes, value, kept))
            emit.store(place, first + window, emit.select(takes, here, index))
