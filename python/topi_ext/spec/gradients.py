# SPDX-License-Identifier: Apache-2.0
"""The gradient table: the three kinds are closed under differentiation, to any order.

The trilinear form is linear in each of its tensors, so the gradient of one kind in one operand is
the kind that is left over.  The geometry is the same in all of them: it knows both sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from .geometry import Geometry

T = TypeVar("T")


class Ops(Protocol[T]):
    """The kinds over some kind of tensor: arrays, graph expressions."""

    def conv(self, x: T, w: T, geometry: Geometry) -> T:
        """Return y from x and w."""

    def conv_transpose(self, y: T, w: T, geometry: Geometry) -> T:
        """Return x from y and w."""

    def conv_weight_grad(self, x: T, y: T, geometry: Geometry) -> T:
        """Return w from x and y."""


def conv(ops: Ops[T], geometry: Geometry, x: T, w: T, dy: T) -> tuple[T, T]:
    """Return the gradients of ``y = conv(x, w)`` in x and w."""
    return ops.conv_transpose(dy, w, geometry), ops.conv_weight_grad(x, dy, geometry)


def conv_transpose(ops: Ops[T], geometry: Geometry, y: T, w: T, dx: T) -> tuple[T, T]:
    """Return the gradients of ``x = conv_transpose(y, w)`` in y and w."""
    return ops.conv(dx, w, geometry), ops.conv_weight_grad(dx, y, geometry)


def conv_weight_grad(ops: Ops[T], geometry: Geometry, x: T, y: T, dw: T) -> tuple[T, T]:
    """Return the gradients of ``w = conv_weight_grad(x, y)`` in x and y."""
    return ops.conv_transpose(y, dw, geometry), ops.conv(x, dw, geometry)


RULES: dict[str, Callable[..., tuple[object, object]]] = {
    "conv": conv,
    "conv_transpose": conv_transpose,
    "conv_weight_grad": conv_weight_grad,
}
