# SPDX-License-Identifier: Apache-2.0
"""TE definitions of the three kinds: the specification that every kernel is tested against.

Each kind is a padded input, one plain reduction and, where the accumulator is wider than the
output, a cast; of ``conv_transpose`` :mod:`topi_ext.te.conv_transpose` is the text.  The reductions
have no condition in them, so that the default GPU rules recognise them; nothing here is meant to be
fast on a CPU.  Sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import te

from ..compat import tir
from ..spec.dtypes import accumulator
from ..spec.geometry import Geometry
from ..spec.layout import SPATIAL, Layouts, permuted, swap_kernel_letters
from .conv_transpose import ConvTranspose, PhaseAxis

Tensor = Any


def conv(x: Tensor, w: Tensor, geometry: Geometry, layouts: Layouts, out_dtype: str) -> Tensor:
    """Convolution, ``y[n,k,p] = sum over c, r of x[n,c,stride*p - pad + dilation*r] * w[k,c,r]``.

    Parameters
    ----------
    x : te.Tensor
        ``(n, c, *x_size)`` stored in the order of ``layouts.x``.
    w : te.Tensor
        ``(k, c // groups, *kernel)`` stored in the order of ``layouts.w``.

    Returns
    -------
    te.Tensor
        y, ``(n, k, *y_size)`` stored in the order of ``layouts.y``, of dtype `out_dtype`.
    """
    acc = accumulator("conv", x.dtype, w.dtype, out_dtype)
    letters = _Letters(geometry.rank)
    padded = _pad(x, geometry, layouts)
    shape = geometry.y_shape(letters.at(x, layouts.x, "N"))

    def element(*stored: Any) -> Any:
        n, k, *p = permuted(letters.data, layouts.y, stored)
        c = te.reduce_axis((0, geometry.c_per_group), "c")
        taps = [te.reduce_axis((0, r), name) for r, name in zip(geometry.kernel, _TAP_NAMES)]
        channel = _first_channel(geometry, k, geometry.k_per_group, geometry.c_per_group) + c
        where = [j * s + r * d for j, r, s, d in zip(p, taps, geometry.stride, geometry.dilation)]
        weight = w(*permuted(layouts.w, letters.kernel, (k, c, *taps)))
        return _sum(padded(n, channel, *where), weight, acc, (c, *taps))

    return _stored(shape, element, letters.data, layouts.y, "conv", out_dtype)


def conv_transpose(
    y: Tensor, w: Tensor, geometry: Geometry, layouts: Layouts, out_dtype: str
) -> Tensor:
    """Transposed convolution: x from y and w, the adjoint of :func:`conv` in x.

    The size of x is the geometry's: rows of output padding are computed like any other.

    Parameters
    ----------
    y : te.Tensor
        ``(n, k, *y_size)`` stored in the order of ``layouts.y``.
    w : te.Tensor
        ``(k, c // groups, *kernel)`` stored in the order of ``layouts.w``.

    Returns
    -------
    te.Tensor
        x, ``(n, c, *x_size)`` stored in the order of ``layouts.x``, of dtype `out_dtype`.
    """
    acc = accumulator("conv_transpose", y.dtype, w.dtype, out_dtype)
    plan = transposed(geometry, layouts)
    return plan.interleave(plan.phases(y, w, acc), out_dtype)


def transposed(geometry: Geometry, layouts: Layouts) -> ConvTranspose:
    """:func:`conv_transpose` as its two steps, which may be functions of their own."""
    window = geometry.kernel, geometry.stride, geometry.dilation, geometry.pad_before
    axes = tuple(map(PhaseAxis, *window, geometry.x_size))
    kernel_layout = swap_kernel_letters(layouts.w)
    return ConvTranspose(axes, geometry.groups, layouts.y, kernel_layout, layouts.x)


def conv_transpose_of_zeros(
    y: Tensor, w: Tensor, geometry: Geometry, layouts: Layouts, out_dtype: str
) -> Tensor:
    """:func:`conv_transpose` as one reduction over y with zeros between its elements.

    Slower by the product of the strides, but what follows sees no interleaving.
    """
    letters = _Letters(geometry.rank)
    y_size = tuple((p - 1) * s + 1 for p, s in zip(geometry.y_size, geometry.stride))

    def element(*stored: Any) -> Any:
        n, k, *j = permuted(letters.data, layouts.y, stored)
        tests = [tir.floormod(i, s) == 0 for i, s in zip(j, geometry.stride) if s > 1]
        p = [tir.floordiv(i, s) for i, s in zip(j, geometry.stride)]
        value = y(*permuted(layouts.y, letters.data, (n, k, *p)))
        return te.if_then_else(te.all(*tests), value, tir.const(0, y.dtype))

    shape = (letters.at(y, layouts.y, "N"), geometry.k, *y_size)
    spread = te.compute(permuted(layouts.y, letters.data, shape), element, name="spread")
    dense = replace(geometry, stride=(1,) * geometry.rank, y_size=y_size)
    return conv_transpose(spread, w, dense, layouts, out_dtype)


def conv_weight_grad(
    x: Tensor, y: Tensor, geometry: Geometry, layouts: Layouts, out_dtype: str
) -> Tensor:
    """Gradient of a convolution with respect to its weight: w from x and y.

    ``w[k,c,r] = sum over n, p of x[n,c,stride*p - pad + dilation*r] * y[n,k,p]``

    Parameters
    ----------
    x : te.Tensor
        ``(n, c, *x_size)`` stored in the order of ``layouts.x``.
    y : te.Tensor
        ``(n, k, *y_size)`` stored in the order of ``layouts.y``.

    Returns
    -------
    te.Tensor
        w, ``(k, c // groups, *kernel)`` stored in the order of ``layouts.w``.
    """
    acc = accumulator("conv_weight_grad", x.dtype, y.dtype, out_dtype)
    letters = _Letters(geometry.rank)
    padded = _pad(x, geometry, layouts)
    n_size = letters.at(y, layouts.y, "N")

    def element(*stored: Any) -> Any:
        k, c, *taps = permuted(letters.kernel, layouts.w, stored)
        n = te.reduce_axis((0, n_size), "n")
        p = [te.reduce_axis((0, size), name) for size, name in zip(geometry.y_size, _Y_NAMES)]
        channel = _first_channel(geometry, k, geometry.k_per_group, geometry.c_per_group) + c
        where = [j * s + r * d for j, r, s, d in zip(p, taps, geometry.stride, geometry.dilation)]
        other = y(*permuted(layouts.y, letters.data, (n, k, *p)))
        return _sum(padded(n, channel, *where), other, acc, (n, *p))

    name = "conv_weight_grad"
    w = _stored(geometry.w_shape, element, letters.kernel, layouts.w, name, out_dtype)
    if isinstance(n_size, (int, tir.IntImm)):
        return w
    # A sum over no batch at all is lowered to no loop: nothing would write the zeros.
    return te.compute(
        w.shape,
        lambda *i: te.if_then_else(n_size > 0, w(*i), tir.const(0, out_dtype)),
        name=name + "_or_zero",
    )


DEFINITIONS: dict[str, Callable[..., Tensor]] = {
    "conv": conv,
    "conv_transpose": conv_transpose,
    "conv_weight_grad": conv_weight_grad,
}

_TAP_NAMES = ("r0", "r1", "r2")
_Y_NAMES = ("p0", "p1", "p2")


class _Letters:
    """Canonical axis letters of data and kernel for a rank."""

    def __init__(self, rank: int):
        self.data = "NC" + SPATIAL[rank]
        self.kernel = "OI" + SPATIAL[rank]

    def at(self, tensor: Tensor, order: str, letter: str) -> Any:
        """Return the size of the axis `letter` of a tensor stored in `order`."""
        return tensor.shape[order.index(letter)]


def _pad(x: Tensor, geometry: Geometry, layouts: Layouts) -> Tensor:
    """x in canonical order with its padding, exactly as long as the windows of y reach."""
    letters = _Letters(geometry.rank)
    size = [
        (p - 1) * s + d * (r - 1) + 1
        for p, s, d, r in zip(geometry.y_size, geometry.stride, geometry.dilation, geometry.kernel)
    ]

    def element(n: Any, c: Any, *i: Any) -> Any:
        where = [j - b for j, b in zip(i, geometry.pad_before)]
        inside = [test for j, limit in zip(where, geometry.x_size) for test in (j >= 0, j < limit)]
        value = x(*permuted(layouts.x, letters.data, (n, c, *where)))
        return te.if_then_else(te.all(*inside), value, tir.const(0, x.dtype))

    n_size = letters.at(x, layouts.x, "N")
    return te.compute((n_size, geometry.c, *size), element, name="padded")


def _first_channel(geometry: Geometry, channel: Any, own: int, other: int) -> Any:
    """First channel on the other side of the group of `channel`.

    Without groups it must not mention `channel`: GPU rules then see a matrix product.
    """
    return 0 if geometry.groups == 1 else channel // own * other


def _sum(a: Any, b: Any, acc: str, axes: Sequence[Any]) -> Any:
    return te.sum(a.astype(acc) * b.astype(acc), axis=list(axes))


def _stored(
    shape: Sequence[Any],
    element: Callable[..., Any],
    letters: str,
    order: str,
    name: str,
    out_dtype: str,
) -> Tensor:
    """Return the reduction stored in `order`, cast where the accumulator is not the output
    dtype.
    """
    result = te.compute(permuted(order, letters, shape), element, name=name)
    if result.dtype == out_dtype:
        return result
    return te.compute(result.shape, lambda *i: result(*i).astype(out_dtype), name=name + "_cast")
