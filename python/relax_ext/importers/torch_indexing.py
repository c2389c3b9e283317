# SPDX-License-Identifier: Apache-2.0
"""PyTorch: slices and indices of exported programs.

TVM's converters read before the tensor where an index is negative, combine several indices as a
grid, and take the length of ``narrow`` for its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topi_ext.compat import known_shape, relax, type_of
from topi_ext.geometry import fail

from .torch_arithmetic import Emit, dtype_of

R = relax()


def converters() -> dict[str, Callable[[Emit, Any], Any]]:
    """Return ``convert(emit, arguments)`` by the name of an operator."""
    return {
        "chunk.default": _chunks,
        "index.Tensor": _indexed,
        "narrow.default": _narrowed,
        "select.int": _selected,
        "take.default": _taken,
    }


def _narrowed(emit: Emit, a: Any) -> Any:
    return emit(R.op.strided_slice(a.self, [a.dim], [a.start], [a.start + a.length]))


def _selected(emit: Emit, a: Any) -> Any:
    return emit(R.op.take(a.self, R.const(a.index, "int64"), a.dim, mode="wrap"))


def _taken(emit: Emit, a: Any) -> Any:
    flat = emit(R.op.reshape(a.self, (-1,)))
    return emit(R.op.take(flat, a.index, 0, mode="wrap"))


def _chunks(emit: Emit, a: Any) -> Any:
    """Return chunks of equal size, the last of which may be smaller."""
    size = known_shape(type_of(a.self).shape)[a.dim]
    if not isinstance(size, int):
        raise fail("chunk", f"size={size} must be known at import")
    each = -(-size // a.chunks)
    return emit(R.op.split(a.self, list(range(each, size, each)), a.dim))


def _indexed(emit: Emit, a: Any) -> Any:
    """Return the elements at tensors of indices, which may be negative."""
    x, axes = a.self, [axis for axis, index in enumerate(a.indices) if index is not None]
    indices = [a.indices[axis] for axis in axes]
    if any("int" not in dtype_of(index) for index in indices):
        raise fail("index", "indices must be integers: the size of a masked result is not known")
    if len(axes) == 1:
        return emit(R.op.take(x, indices[0], axes[0], mode="wrap"))
    sizes = known_shape(type_of(x).shape)
    if not all(isinstance(sizes[axis], int) for axis in axes):
        raise fail("index", f"sizes={sizes} of indexed axes must be known at import")
    places = [
        emit(R.op.floor_mod(index, R.const(sizes[axis], dtype_of(index))))
        for axis, index in zip(axes, indices)
    ]
    others = [axis for axis in range(len(sizes)) if axis not in axes]
    if axes[-1] >= len(axes):
        x = emit(R.op.permute_dims(x, axes + others))
    y = emit(R.op.index_tensor(x, places))
    before = axes[0] if axes[-1] - axes[0] < len(axes) else 0
    if not before:
        return y
    rank = max(len(known_shape(type_of(place).shape)) for place in places)
    order = [*range(rank, rank + before), *range(rank), *range(rank + before, rank + len(others))]
    return emit(R.op.permute_dims(y, order))
