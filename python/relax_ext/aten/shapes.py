# SPDX-License-Identifier: Apache-2.0
"""Views, concatenation, and constant tensors.

Shapes of results are read from PyTorch's fake tensors, so symbolic sizes need no arithmetic here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from topi_ext.compat import relax, same_size, simplify

from ..gradients.slices import sliced
from ..ir import dtype_of, sizes_of
from .calls import Call, Converter
from .strides import inverse, order_of

R = relax()

_VIEWS = ("view.default", "squeeze.dims", "unsqueeze.default")
_LARGEST = torch.finfo(torch.float32).max
_SAME = ("alias", "clone", "lift_fresh_copy")


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {
        **dict.fromkeys(_VIEWS, _view),
        **{f"{name}.default": lambda call: call["self"] for name in _SAME},
        "_to_copy.default": lambda call: converted(call, call["self"]),
        "convert_element_type.default": lambda call: converted(call, call["a"]),
        "copy.default": _copied,
        "as_strided.default": _as_strided,
        "as_strided_scatter.default": _as_strided_scatter,
        "expand.default": lambda call: broadcast(call, call["self"], call.shape()),
        "permute.default": lambda call: call.permuted(call["self"], call["dims"]),
        "repeat.default": _repeated,
        "flip.default": _flipped,
        "roll.default": _rolled,
        "cat.default": _concatenated,
        "split_with_sizes.default": _split,
        "full.default": lambda call: filled(call, call["fill_value"]),
        "full_like.default": lambda call: filled(call, call["fill_value"]),
        "scalar_tensor.default": lambda call: filled(call, call["s"]),
        "empty.memory_format": lambda call: filled(call, 0),
        "empty_permuted.default": lambda call: filled(call, 0),
        "new_empty_strided.default": lambda call: filled(call, 0),
        "arange.start_step": _arange,
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {
        "chunk.default": _split,
        "pixel_shuffle.default": _pixel_shuffle,
        "zeros_like.default": lambda call: filled(call, 0),
        "ones_like.default": lambda call: filled(call, 1),
    }


def _view(call: Call) -> Any:
    return call.reshape(call["self"], call.shape())


def _as_strided(call: Call) -> Any:
    """Return all elements of a tensor, in memory order, in another shape."""
    return _in_memory_order(call, call["self"], call.fake("self"), call.value)


def _as_strided_scatter(call: Call) -> Any:
    """Return a tensor with all elements replaced, in memory order."""
    given = (call.raw(name) for name in ("size", "stride"))
    return _in_memory_order(call, call["src"], call.fake("self").as_strided(*given), call.value)


def _in_memory_order(call: Call, x: Any, lies: Any, stated: Any) -> Any:
    """Return the elements of `x`, stored like `lies`, in memory order as a tensor like `stated`."""
    before, after = order_of(lies), order_of(stated)
    is_whole = same_size(prod(call.sizes(lies.shape)), prod(call.sizes(stated.shape)))
    if before is None or after is None or not is_whole or call["storage_offset"]:
        raise call.refusal("strides that do not reach all elements of a dense tensor once")
    sizes = call.sizes(stated.shape)
    flat = call.reshape(call.emit(R.op.permute_dims(x, before)), [sizes[axis] for axis in after])
    return call.emit(R.op.permute_dims(flat, inverse(after)))


def converted(call: Call, x: Any) -> Any:
    """Return a tensor in the dtype of the result; Booleans are true for elements other than 0."""
    dtype = call.dtype()
    if dtype == "bool" and dtype_of(x) != "bool":
        return call.emit(R.op.not_equal(x, R.const(0, dtype_of(x))))
    return call.cast(x, dtype)


def _copied(call: Call) -> Any:
    return broadcast(call, converted(call, call["src"]), call.shape())


def broadcast(call: Call, x: Any, sizes: Sequence[Any]) -> Any:
    """Return a tensor repeated along axes of size 1, and along new axes in front."""
    given = sizes_of(x)
    if len(given) == len(sizes) and all(map(same_size, given, sizes)):
        return x
    return call.emit(R.op.broadcast_to(x, R.ShapeExpr(sizes)))


def _repeated(call: Call) -> Any:
    """Return a tensor side by side with itself; the numbers of repetitions may be symbolic."""
    repeats, shape = list(call["repeats"]), call.shape("self")
    sizes = [1] * (len(repeats) - len(shape)) + shape
    if 0 in call.shape():
        return filled(call, 0)
    apart = [size for pair in zip(repeats, sizes) for size in pair]
    x = call.reshape(call["self"], [n for size in sizes for n in (1, size)])
    return call.reshape(broadcast(call, x, apart), call.shape())


def _pixel_shuffle(call: Call) -> Any:
    """Return images of which each channel's pixels lay in several channels."""
    *batch, c, h, w = call.shape("self")
    factor, first = call["upscale_factor"], len(batch)
    apart = call.reshape(call["self"], [*batch, c // factor**2, factor, factor, h, w])
    axes = [*range(first), *(first + axis for axis in (0, 3, 1, 4, 2))]
    return call.reshape(call.permuted(apart, axes), call.shape())


def _flipped(call: Call) -> Any:
    x = call["self"]
    for axis in call["dims"] if sizes_of(x) else ():
        x = call.emit(R.op.flip(x, axis % len(sizes_of(x))))
    return x


def _rolled(call: Call) -> Any:
    """Return a tensor whose elements are moved along axes, the last ones to the front."""
    x, shifts, dims = call["self"], call.numbers(call["shifts"]), call["dims"]
    if 0 in call.shape() or not call.shape():
        raise call.refusal("no axes or no elements")
    if not dims:
        x, dims = call.reshape(x, [prod(call.shape())]), [0]
    for shift, axis in zip(shifts, dims):
        axis %= len(sizes_of(x))
        (size,) = call.numbers([sizes_of(x)[axis]])
        begin = -shift % size
        if begin:
            ends = (begin, size - begin), (0, begin)
            parts = [sliced(call.builder, x, axis, *part) for part in ends]
            x = call.emit(R.op.concat(parts, axis))
    return call.reshape(x, call.shape())


# ---------------------------------------------------------------- several tensors


def _concatenated(call: Call) -> Any:
    rank, dtype = len(call.shape()), call.dtype()
    parts = [call.tensor(x, dtype) for x in call["tensors"] if len(sizes_of(x)) == rank]
    parts = [x for x in parts if 0 not in sizes_of(x)]
    if not parts:
        return filled(call, 0)
    return parts[0] if len(parts) == 1 else call.emit(R.op.concat(parts, call["dim"] % rank))


def _split(call: Call) -> Any:
    """Return slices along an axis, of the lengths that PyTorch states."""
    x = call["self"]
    axis, begin, parts = call["dim"] % len(sizes_of(x)), 0, []
    for value in call.value:
        length = call.sizes(value.shape)[axis]
        parts.append(sliced(call.builder, x, axis, begin, length))
        begin = simplify(begin + length)
    return parts


# ---------------------------------------------------------------- one value


def filled(call: Call, value: Any) -> Any:
    """Return a tensor of the result's shape and dtype, all of whose elements are `value`."""
    shape, dtype = call.shape(), call.dtype()
    number = call.tensor(value, dtype)
    if isinstance(value, float) and not abs(value) <= _LARGEST:
        return broadcast(call, number, shape)  # relax.full cannot be lowered with these
    return call.emit(R.op.full(R.ShapeExpr(shape), number, dtype))


def _arange(call: Call) -> Any:
    dtype = call.dtype()
    limits = [call[name] for name in ("start", "end", "step")]
    if "int" in dtype and not any(isinstance(limit, float) for limit in limits):
        return call.emit(R.op.arange(*limits, dtype))
    start, _, step = limits
    if not isinstance(start, (int, float)) or not isinstance(step, (int, float)):
        raise call.refusal("a range of floats that follow from sizes")
    (count,) = call.numbers(call.shape())
    return call.cast(R.const(start + step * np.arange(count), "float64"), dtype)
