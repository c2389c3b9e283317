# SPDX-License-Identifier: Apache-2.0
"""Convolutions and attention in NumPy: slow, obvious, and what everything else is compared with.

The three kinds of convolutions are one sum. :func:`meetings` lists which position of x meets which
tap of w for which position of y, straight from the definition ::

    sum over n, p, c, k, r of   x[n,c,stride*p - pad_before + dilation*r] * w[k,c,r] * y[n,k,p]

and each kind adds up the products over the indices that its result does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attention import ADD, BOTTOM_RIGHT, KEEP, KEY, MULTIPLY, QUERY, Attention
from .attention_grad import AttentionGrad
from .geometry import Geometry
from .layout import SPATIAL, Layouts
from .post_ops import NO_ZERO_POINTS, ZeroPoints

Array = NDArray[Any]
Index = tuple[int, ...]


@dataclass(frozen=True)
class Reference:
    """The operators as functions of NumPy arrays; an implementation of ``gradients.Ops``.

    Integers are summed in int64, everything else in float64, and the result keeps that dtype.

    Parameters
    ----------
    layouts : Layouts, optional
        How x, w and y are stored, operands and results alike; by default NCHW, OIHW and NCHW, or
        the same for another rank.
    zero_points : tuple of int
        Numbers subtracted from elements of the first and second operand, but not from padding.
    """

    layouts: Layouts | None = None
    zero_points: ZeroPoints = NO_ZERO_POINTS

    def conv(self, x: Array, w: Array, geometry: Geometry) -> Array:
        """Convolution: y, ``(n, k, *y_size)``, from x ``(n, c, *x_size)`` and w."""
        x, w = self._both("xw", x, w, geometry)
        y = np.zeros((*geometry.y_size, x.shape[-2], geometry.k), np.result_type(x, w))
        for p, r, i in meetings(geometry):
            for cs, ks in groups(geometry):
                y[p][:, ks] += x[i][:, cs] @ w[r][ks].T
        return self._closed("y", y, geometry)

    def conv_transpose(self, y: Array, w: Array, geometry: Geometry) -> Array:
        """Transposed convolution: x, ``(n, c, *x_size)``, from y ``(n, k, *y_size)`` and w."""
        y, w = self._both("yw", y, w, geometry)
        x = np.zeros((*geometry.x_size, y.shape[-2], geometry.c), np.result_type(y, w))
        for p, r, i in meetings(geometry):
            for cs, ks in groups(geometry):
                x[i][:, cs] += y[p][:, ks] @ w[r][ks]
        return self._closed("x", x, geometry)

    def conv_weight_grad(self, x: Array, y: Array, geometry: Geometry) -> Array:
        """Weight gradient: w, ``(k, c // groups, *kernel)``, from x and y."""
        x, y = self._both("xy", x, y, geometry)
        w = np.zeros((*geometry.kernel, geometry.k, geometry.c_per_group), np.result_type(x, y))
        for p, r, i in meetings(geometry):
            for cs, ks in groups(geometry):
                w[r][ks] += y[p][:, ks].T @ x[i][:, cs]
        return self._closed("w", w, geometry)

    def _both(self, roles: str, a: Array, b: Array, geometry: Geometry) -> tuple[Array, Array]:
        """Return both operands less their zero points, opened."""
        a, b = (self._opened(role, array, geometry) for role, array in zip(roles, (a, b)))
        return a - self.zero_points[0], b - self.zero_points[1]

    def _opened(self, role: str, array: Array, geometry: Geometry) -> Array:
        """Return the tensor `role`, wide, spatial axes first: ``array[position]`` is a matrix."""
        stored, opened = self._orders(role, geometry)
        wide = np.int64 if np.issubdtype(array.dtype, np.integer) else np.float64
        opened_array: Array = array.astype(wide).transpose([stored.index(a) for a in opened])
        return opened_array

    def _closed(self, role: str, array: Array, geometry: Geometry) -> Array:
        """Return the inverse of `_opened`."""
        stored, opened = self._orders(role, geometry)
        closed: Array = array.transpose([opened.index(letter) for letter in stored])
        return closed

    def _orders(self, role: str, geometry: Geometry) -> tuple[str, str]:
        layouts = self.layouts or Layouts.canonical(geometry.rank)
        matrix = "OI" if role == "w" else "NC"
        return getattr(layouts, role), SPATIAL[geometry.rank] + matrix


def meetings(geometry: Geometry) -> Iterator[tuple[Index, Index, Index]]:
    """Yield every (position of y, tap of w, position of x) that meet; what lies in the padding is
    out.
    """
    for p in np.ndindex(geometry.y_size):
        for r in np.ndindex(geometry.kernel):
            i = tuple(
                s * p_ - before + d * r_
                for p_, r_, s, before, d in zip(
                    p, r, geometry.stride, geometry.pad_before, geometry.dilation
                )
            )
            if all(0 <= i_ < size for i_, size in zip(i, geometry.x_size)):
                yield p, r, i


def groups(geometry: Geometry) -> Iterator[tuple[slice, slice]]:
    """Yield the channels of x and of y that belong to each group."""
    c, k = geometry.c_per_group, geometry.k_per_group
    for g in range(geometry.groups):
        yield slice(g * c, (g + 1) * c), slice(g * k, (g + 1) * k)


def attention(problem: Attention, q: Array, k: Array, v: Array, *masks: Array) -> Array:
    """Return ``softmax(scale * q k^T + masks) v`` in float64, of operands as the problem stores
    them."""
    scores, weights, _ = _weights(problem, q, k, masks)
    result: Array = np.einsum(f"{scores},{problem.v}->{problem.y}", weights, np.float64(v))
    return result


def attention_sums(problem: Attention, q: Array, k: Array, *masks: Array) -> Array:
    """Return the logarithms of the sums of the exponentials of all scores of a query."""
    scores, _, sums = _weights(problem, q, k, masks)
    result: Array = np.einsum(f"{scores[:-1]}->{problem.sums}", sums)
    return result


def attention_grad(
    problem: AttentionGrad, q: Array, k: Array, v: Array, *masks: Array, dy: Array
) -> tuple[Array, Array, Array]:
    """Return the gradients of attention in query, key and value, in float64."""
    scores, weights, _ = _weights(problem, q, k, masks)
    q, k, v, dy = (np.asarray(operand, np.float64) for operand in (q, k, v, dy))
    batch = np.ones(problem.shape(problem.outer))
    changes = np.einsum(f"{problem.outer},{problem.dy},{problem.v}->{scores}", batch, dy, v)
    changes = weights * (changes - (weights * changes).sum(-1, keepdims=True)) * problem.scale
    return (
        np.einsum(f"{scores},{problem.k}->{problem.dq}", changes, k),
        np.einsum(f"{scores},{problem.q}->{problem.dk}", changes, q),
        np.einsum(f"{scores},{problem.dy}->{problem.dv}", weights, dy),
    )


def _weights(
    problem: Attention, q: Array, k: Array, masks: Sequence[Array]
) -> tuple[str, Array, Array]:
    """Return the letters of all scores, the weights, and the logarithms of their sums."""
    scores = problem.outer + QUERY + KEY
    q, k = (np.asarray(operand, np.float64) for operand in (q, k))
    shape = problem.shape(scores)
    batch = np.ones(problem.shape(problem.outer))
    terms = f"{problem.outer},{problem.q},{problem.k}->{scores}"
    weights = problem.scale * np.einsum(terms, batch, q, k)
    for stated, mask in zip(problem.masks, masks):
        order = [a for a in scores if a in stated.order]
        turned = mask.transpose([stated.order.index(a) for a in order])
        mask = turned.reshape([size if a in order else 1 for a, size in zip(scores, shape)])
        if stated.op in (ADD, MULTIPLY):
            weights = weights + mask if stated.op == ADD else weights * mask
        else:
            weights = np.where(mask == (stated.op == KEEP), weights, stated.fill)
    if problem.causal:
        last = abs(shape[-1] - shape[-2]) if problem.causal == BOTTOM_RIGHT else 0
        is_read = np.arange(shape[-1]) <= np.arange(shape[-2])[:, None] + last
        weights = np.where(is_read, weights, -np.inf)
    with np.errstate(invalid="ignore"):
        largest = weights.max(-1, keepdims=True, initial=-np.inf)
        weights = np.exp(weights - largest)
        total = weights.sum(-1, keepdims=True)
        sums = np.where(largest == -np.inf, -np.inf, largest + np.log(total))
        weights = weights / total
    if problem.zeros_empty:
        weights = np.where(largest == -np.inf, 0.0, weights)
    return scores, weights, sums[..., 0]
