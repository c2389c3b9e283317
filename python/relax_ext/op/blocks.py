# SPDX-License-Identifier: Apache-2.0
"""Blocked layouts such as ``NCHW4c``, removed and restored by reshape and permute_dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topi_ext.compat import relax, simplify
from topi_ext.spec.layout import Layout, permuted

R = relax()


def merged(tensor: Any, layout: Layout, shape: Sequence[Any]) -> Any:
    """Return a tensor stored in `layout` with its blocks merged: stored in ``layout.order``.

    Parameters
    ----------
    shape : sequence
        Its shape in the canonical order.
    """
    if layout.is_plain:
        return tensor
    beside = R.op.permute_dims(tensor, _blocks_beside_axes(layout))
    return R.op.reshape(beside, permuted(layout.order, layout.letters, shape))


def split(tensor: Any, layout: Layout, shape: Sequence[Any]) -> Any:
    """Return the inverse of :func:`merged`."""
    if layout.is_plain:
        return tensor
    stored = layout.stored_shape("split", shape, simplify)
    order = _blocks_beside_axes(layout)
    beside = R.op.reshape(tensor, [stored[axis] for axis in order])
    return R.op.permute_dims(beside, [order.index(axis) for axis in range(len(order))])


def _blocks_beside_axes(layout: Layout) -> list[int]:
    """Return the permutation of the stored axes that puts the blocks of an axis after it."""
    return [
        position
        for letter in layout.order
        for blocked in (False, True)
        for position, (name, factor) in enumerate(layout.axes)
        if name == letter and bool(factor) == blocked
    ]
