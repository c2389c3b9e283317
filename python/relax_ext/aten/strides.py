# SPDX-License-Identifier: Apache-2.0
"""Strides of PyTorch's tensors: the order of axes in memory, and tensors with stated strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .sizes import expr_of

Order = tuple[int, ...]
"""Axes of a tensor in memory order, the outermost first."""


def order_of(value: torch.Tensor) -> Order | None:
    """Return the memory order of a tensor without gaps, or None for other tensors.

    Symbolic strides are compared as expressions, so that no guard is added.
    """
    strides = [expr_of(stride) for stride in value.stride()]
    shape = [expr_of(size) for size in value.shape]
    if 0 in shape:
        return tuple(range(len(shape)))
    axes = sorted(range(len(shape)), key=lambda axis: (-_hint(value.stride()[axis]), axis))
    expected: Any = 1
    for axis in reversed(axes):
        if shape[axis] == 1:
            continue
        if strides[axis] != expected:
            return None
        expected = expected * shape[axis]
    return _natural(axes, shape)


def _natural(axes: Sequence[int], shape: Sequence[Any]) -> Order:
    """Return an order in which axes of one element have the places of the tensor's own order."""
    wide = [axis for axis in axes if shape[axis] != 1]
    if wide == sorted(wide):
        return tuple(range(len(shape)))
    return tuple(axes)


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def is_permuted(node: fx.Node) -> bool:
    """Return whether a value is a dense tensor whose axes have another order in memory."""
    value = node.meta.get("val")
    order = order_of(value) if isinstance(value, torch.Tensor) else None
    return order is not None and order != tuple(range(len(order)))


def in_order(tensor: torch.Tensor, order: Order) -> torch.Tensor:
    """Return a tensor with this memory order: the same tensor, if it has it."""
    return tensor.permute(order).contiguous().permute(inverse(order))


def inverse(order: Sequence[int]) -> Order:
    """Return the inverse of an order."""
    return tuple(order.index(axis) for axis in range(len(order)))


def restrided(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a copy with these strides; axes with stride 0 are expanded."""
    shape = tensor.shape
    for axis, stride in enumerate(strides):
        if stride == 0 and shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
    return copy.copy_(tensor).expand(shape)
