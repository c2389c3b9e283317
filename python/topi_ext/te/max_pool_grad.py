# SPDX-License-Identifier: Apache-2.0
"""The gradient of maximum pooling of images in TE, for GPUs.

TVM's definition reads windows behind the last one, which has no memory: with 3 taps, a stride of 2
and a padding of 1 that is each last row and column of an even image.  It has no dilation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import te

from ..compat import tir

_BEHIND = tir.max_value("int32")
"""Behind the key of every element."""


class Pool(NamedTuple):
    """A pooling: taps, distance of windows, padding in front, distance of taps, along H and W."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


def max_pool_grad(dy: Any, x: Any, pool: Pool) -> Any:
    """Return the gradient of the data ``x[n, c, h, w]``: that of a window belongs to the first of
    its maxima, or to its last NaN, as in PyTorch.

    The reductions are sums, maxima and minima, which every schedule knows.
    """
    keys = _keys(dy, x, pool)
    counts = [
        -(-((taps - 1) * apart + 1) // step)
        for taps, apart, step in zip(pool.kernel, pool.dilation, pool.stride)
    ]
    back = [te.reduce_axis((0, count), name) for count, name in zip(counts, ("bh", "bw"))]

    def gradient(n: Any, c: Any, h: Any, w: Any) -> Any:
        window = [
            tir.floordiv(at + before, step) - number
            for at, before, step, number in zip((h, w), pool.padding, pool.stride, back)
        ]
        inside = tir.all(
            *(at >= 0 for at in window), *(a < size for a, size in zip(window, dy.shape[2:]))
        )
        key = _key(x(n, c, h, w), _number(x, h, w))
        own = tir.if_then_else(inside, keys(n, c, *window), _BEHIND) == key
        zero = tir.const(0, x.dtype)
        return te.sum(
            tir.if_then_else(inside, tir.Select(own, dy(n, c, *window), zero), zero), back
        )

    return te.compute(x.shape, gradient, name="gradient")


def _number(x: Any, h: Any, w: Any) -> Any:
    """Return the number of an element within its plane."""
    return (h * x.shape[3] + w).astype("int32")


def _key(element: Any, number: Any) -> Any:
    """Return what orders the maxima of a window: its minimum belongs to the last NaN, else to the
    first of them.

    A gradient compares the key of a window once.  TVM computes a value that occurs twice ahead,
    also where a condition guards it.
    """
    return tir.Select(tir.isnan(element), -1 - number, number)


def _keys(dy: Any, x: Any, pool: Pool) -> Any:
    """Return the key of the element that the gradient of each window belongs to."""
    lowest = tir.min_value(x.dtype)

    def reduced(reduce: Any, value: Any, outside: Any, name: str) -> Any:
        """Reduce ``value(element, its number, index of the window)`` of each window."""
        taps = [te.reduce_axis((0, count), f"{name}{i}") for i, count in enumerate(pool.kernel)]

        def window(*at: Any) -> Any:
            n, c, *first = at
            h, w = (
                index * step - before + tap * apart
                for index, step, before, tap, apart in zip(
                    first, pool.stride, pool.padding, taps, pool.dilation
                )
            )
            inside = tir.all(h >= 0, h < x.shape[2], w >= 0, w < x.shape[3])
            chosen = value(x(n, c, h, w), _number(x, h, w), at)
            return reduce(tir.if_then_else(inside, chosen, outside), taps)

        return te.compute(dy.shape, window, name=name)

    # Where all of a window is minus infinity, so is no maximum that starts at the lowest number.
    best = reduced(te.max, lambda element, *_: element, lowest, "best")

    def key(element: Any, number: Any, at: Any) -> Any:
        is_one = tir.any(tir.isnan(element), tir.max(element, lowest) == best(*at))
        return tir.Select(is_one, _key(element, number), _BEHIND)

    return reduced(te.min, key, _BEHIND, "keys")
