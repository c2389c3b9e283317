# SPDX-License-Identifier: Apache-2.0
"""Scatters that write one element of each row, computed by comparing indices, and lookups.

An index out of range writes nothing.  Gathers and general scatters stay in PyTorch, which checks
their indices; TVM would access memory outside of the tensor.  Imported programs alone have lookups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from topi_ext.compat import relax, same_size

from ..ir import dtype_of, sizes_of
from .calls import Call, Converter
from .shapes import broadcast

R = relax()


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {"scatter.value": _scatter, "scatter.src": _scatter}


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {"index.Tensor": _indexed, "index_put.default": _put, "take.default": _taken}


def _scatter(call: Call) -> Any:
    """Return a tensor with one element of each row replaced: gradients of losses and maxima."""
    x, index = call["self"], call["index"]
    sizes, given = list(sizes_of(x)), list(sizes_of(index))
    if not sizes:
        raise call.refusal("no axes")
    axis = call["dim"] % len(sizes)
    rows = [*sizes[:axis], 1, *sizes[axis + 1 :]]
    if not all(map(same_size, given, rows)):
        raise call.refusal("must write one element of each row")
    (size,) = call.numbers([sizes[axis]])
    places = np.arange(size, dtype="int64").reshape([-1] + [1] * (len(sizes) - axis - 1))
    is_here = call.emit(R.op.equal(index, R.const(places, "int64")))
    if "value" in call:
        source = call.tensor(call["value"], call.dtype())
    else:
        if not all(map(same_size, sizes_of(call["src"]), rows)):
            raise call.refusal("must read one element of each row")
        source = broadcast(call, call["src"], sizes)
    return call.emit(R.op.where(is_here, source, x))


# ---------------------------------------------------------------- lookups, negative indices too


def _taken(call: Call) -> Any:
    flat = call.emit(R.op.reshape(call["self"], (-1,)))
    return call.emit(R.op.take(flat, call["index"], 0, mode="wrap"))


def _indexed_axes(call: Call) -> list[int]:
    """Return which axes a call indexes by tensors."""
    axes = [axis for axis, index in enumerate(call["indices"]) if index is not None]
    if any("int" not in dtype_of(call["indices"][axis]) for axis in axes):
        raise call.refusal("indices must be integers: the size of a masked result is not known")
    return axes


def _places(call: Call, axes: Sequence[int]) -> list[Any]:
    """Return indices from zero on, of axes of known size."""
    sizes = sizes_of(call["self"])
    if not all(isinstance(sizes[axis], int) for axis in axes):
        raise call.refusal(f"sizes={sizes} of indexed axes must be known at import")
    indices = [call["indices"][axis] for axis in axes]
    return [
        call.emit(R.op.floor_mod(index, R.const(sizes[axis], dtype_of(index))))
        for axis, index in zip(axes, indices)
    ]


def _put(call: Call) -> Any:
    """Return the data with values at places: one index of each element, for each axis."""
    axes, sizes = _indexed_axes(call), sizes_of(call["self"])
    places = dict(zip(axes, _places(call, axes)))
    shapes = [sizes_of(place) for place in places.values()]
    if not all(isinstance(size, int) for shape in (sizes, *shapes) for size in shape):
        raise call.refusal(f"sizes={sizes} must be known at import")
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
        places[axis] = call.emit(R.op.reshape(places[axis], [*shape, *behind]))

    def flat(tensor: Any) -> Any:
        return call.emit(R.op.reshape(call.emit(R.op.broadcast_to(tensor, whole)), (-1,)))

    indices = R.Tuple([flat(call.cast(places[axis], "int64")) for axis in range(len(sizes))])
    return call.emit(
        R.op.index_put(call["self"], indices, flat(call["values"]), call["accumulate"])
    )


def _indexed(call: Call) -> Any:
    """Return the elements at tensors of indices, which may be negative."""
    x, axes = call["self"], _indexed_axes(call)
    if len(axes) == 1:
        return call.emit(R.op.take(x, call["indices"][axes[0]], axes[0], mode="wrap"))
    sizes, places = sizes_of(x), _places(call, axes)
    others = [axis for axis in range(len(sizes)) if axis not in axes]
    if axes[-1] >= len(axes):
        x = call.emit(R.op.permute_dims(x, axes + others))
    y = call.emit(R.op.index_tensor(x, places))
    before = axes[0] if axes[-1] - axes[0] < len(axes) else 0
    if not before:
        return y
    rank = max(len(sizes_of(place)) for place in places)
    order = [*range(rank, rank + before), *range(rank), *range(rank + before, rank + len(others))]
    return call.emit(R.op.permute_dims(y, order))
