# SPDX-License-Identifier: Apache-2.0
"""PyTorch: slices and indices of exported programs.

TVM's converters read before the tensor where an index is negative, combine several indices as a
grid, and take the length of ``narrow`` for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from topi_ext.compat import known_shape, relax, type_of
from topi_ext.spec.geometry import fail

from .torch_arithmetic import Emit, as_dtype, dtype_of

R = relax()


def converters() -> dict[str, Callable[[Emit, Any], Any]]:
    """Return ``convert(emit, arguments)`` by the name of an operator."""
    return {
        "chunk.default": _chunks,
        "index.Tensor": _indexed,
        "index_put.default": _put,
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


def _indexed_axes(a: Any) -> list[int]:
    """Return which axes a call indexes by tensors."""
    axes = [axis for axis, index in enumerate(a.indices) if index is not None]
    if any("int" not in dtype_of(a.indices[axis]) for axis in axes):
        raise fail("index", "indices must be integers: the size of a masked result is not known")
    return axes


def _places(emit: Emit, a: Any, axes: Sequence[int]) -> list[Any]:
    """Return indices from zero on, of axes of known size."""
    sizes = known_shape(type_of(a.self).shape)
    if not all(isinstance(sizes[axis], int) for axis in axes):
        raise fail("index", f"sizes={sizes} of indexed axes must be known at import")
    return [
        emit(R.op.floor_mod(a.indices[axis], R.const(sizes[axis], dtype_of(a.indices[axis]))))
        for axis in axes
    ]


def _put(emit: Emit, a: Any) -> Any:
    """Return the data with values at places: one index of each element, for each axis."""
    axes, sizes = _indexed_axes(a), known_shape(type_of(a.self).shape)
    places = dict(zip(axes, _places(emit, a, axes)))
    shapes = [known_shape(type_of(place).shape) for place in places.values()]
    if not all(isinstance(size, int) for shape in (sizes, *shapes) for size in shape):
        raise fail("index_put", f"sizes={sizes} must be known at import")
    together = np.broadcast_shapes(*shapes)
    others = [axis for axis in range(len(sizes)) if axis not in axes]
    first = axes[0] if axes[-1] - axes[0] < len(axes) else 0
    whole = [sizes[axis] for axis in others]
    whole[first:first] = together
    for number, axis in enumerate(others):
        at = number if number < first else number + len(together)
        places[axis] = R.const(np.arange(sizes[axis]).reshape([-1, *[1] * (len(whole) - at - 1)]))
    behind = [1] * (len(others) - first)
    for axis, shape in zip(axes, shapes):
        places[axis] = emit(R.op.reshape(places[axis], [*shape, *behind]))

    def flat(tensor: Any) -> Any:
        return emit(R.op.reshape(emit(R.op.broadcast_to(tensor, whole)), (-1,)))

    indices = R.Tuple([flat(as_dtype(emit, places[axis], "int64")) for axis in range(len(sizes))])
    return emit(R.op.index_put(a.self, indices, flat(a.values), a.accumulate))


def _indexed(emit: Emit, a: Any) -> Any:
    """Return the elements at tensors of indices, which may be negative."""
    x, axes = a.self, _indexed_axes(a)
    if len(axes) == 1:
        return emit(R.op.take(x, a.indices[axes[0]], axes[0], mode="wrap"))
    sizes, places = known_shape(type_of(x).shape), _places(emit, a, axes)
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
