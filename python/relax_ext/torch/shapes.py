# SPDX-License-Identifier: Apache-2.0
"""Views, slices, padding, concatenation, and tensors of one value.

Shapes of results are read from PyTorch's fake tensors, so symbolic sizes need no arithmetic here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from topi_ext.compat import relax, same_size, simplify, tir

from .calls import Call, Converter, dtype_of, shape_of
from .sizes import expr_of

R = relax()

_TO_THE_END = (1 << 63) - 1
_VIEWS = ("view.default", "squeeze.dims", "unsqueeze.default")
_SAME = ("alias", "clone", "lift_fresh_copy")
_PADS = {"reflection_pad": "reflect", "replication_pad": "replicate"}
"""Operators that pad by copies, and their modes in TVM."""


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {
        **dict.fromkeys(_VIEWS, _view),
        **{f"{name}.default": lambda call: call["self"] for name in _SAME},
        "_to_copy.default": lambda call: _converted(call, call["self"]),
        "convert_element_type.default": lambda call: _converted(call, call["a"]),
        "copy.default": _copied,
        "expand.default": lambda call: broadcast(call, call["self"], call.shape()),
        "permute.default": lambda call: call.emit(R.op.permute_dims(call["self"], call["dims"])),
        "repeat.default": _repeated,
        "flip.default": _flipped,
        "roll.default": _rolled,
        "slice.Tensor": _slice,
        "slice_backward.default": _slice_backward,
        "slice_scatter.default": _slice_scatter,
        "select.int": _select,
        "select_backward.default": _select_backward,
        "constant_pad_nd.default": _constant_pad,
        **{
            f"{name}{rank}d.default": partial(_padded, mode)
            for name, mode in _PADS.items()
            for rank in (1, 2, 3)
        },
        **{
            f"{name}{rank}d_backward.default": partial(_padded_backward, mode)
            for name, mode in _PADS.items()
            for rank in (1, 2, 3)
        },
        "cat.default": _concatenated,
        "split_with_sizes.default": _split,
        "full.default": lambda call: _filled(call, call["fill_value"]),
        "full_like.default": lambda call: _filled(call, call["fill_value"]),
        "scalar_tensor.default": lambda call: _filled(call, call["s"]),
        "empty.memory_format": lambda call: _filled(call, 0),
        "new_empty_strided.default": lambda call: _filled(call, 0),
        "arange.start_step": _arange,
    }


def _view(call: Call) -> Any:
    return call.reshape(call["self"], call.shape())


def _converted(call: Call, x: Any) -> Any:
    """Return a tensor in the dtype of the result; a truth value is whether an element is not 0."""
    dtype = call.dtype()
    if dtype == "bool" and dtype_of(x) != "bool":
        return call.emit(R.op.not_equal(x, R.const(0, dtype_of(x))))
    return call.cast(x, dtype)


def _copied(call: Call) -> Any:
    return broadcast(call, _converted(call, call["src"]), call.shape())


def broadcast(call: Call, x: Any, sizes: Sequence[Any]) -> Any:
    """Return a tensor repeated along axes of size 1, and along new axes in front."""
    given = shape_of(x)
    if len(given) == len(sizes) and all(map(same_size, given, sizes)):
        return x
    return call.emit(R.op.broadcast_to(x, R.ShapeExpr(sizes)))


def _repeated(call: Call) -> Any:
    """Return a tensor side by side with itself; the numbers of repetitions may be symbolic."""
    repeats, shape = list(call["repeats"]), call.shape("self")
    sizes = [1] * (len(repeats) - len(shape)) + shape
    if 0 in call.shape():
        return _filled(call, 0)
    apart = [size for pair in zip(repeats, sizes) for size in pair]
    x = call.reshape(call["self"], [n for size in sizes for n in (1, size)])
    return call.reshape(broadcast(call, x, apart), call.shape())


def _flipped(call: Call) -> Any:
    x = call["self"]
    for axis in call["dims"]:
        x = call.emit(R.op.flip(x, axis % len(shape_of(x))))
    return x


def _rolled(call: Call) -> Any:
    """Return a tensor whose elements are moved along axes, the last ones to the front."""
    x, shifts, dims = call["self"], call.numbers(call["shifts"]), call["dims"]
    if 0 in call.shape() or not dims:
        raise call.refusal("no axes or no elements")
    for shift, axis in zip(shifts, dims):
        axis %= len(shape_of(x))
        (size,) = call.numbers([shape_of(x)[axis]])
        begin = -shift % size
        if begin:
            ends = (begin, size - begin), (0, begin)
            parts = [sliced(call, x, axis, *part) for part in ends]
            x = call.emit(R.op.concat(parts, axis))
    return x


# ---------------------------------------------------------------- slices


def sliced(call: Call, x: Any, axis: int, begin: Any, length: Any, step: int = 1) -> Any:
    """Return `length` elements of an axis from `begin` on, every `step`; sizes may be symbolic."""
    end = simplify(begin + (length - 1) * step + 1)
    if isinstance(begin, int) and isinstance(end, int):
        return call.emit(R.op.strided_slice(x, [axis], [begin], [end], [step]))

    # TVM has no type for a slice of symbolic bounds.
    define = partial(_cut, axis, step)
    return call.importer.block_builder.emit_te(define, x, begin, length, primfunc_name_hint="slice")


def _cut(axis: int, step: int, x: Any, begin: Any, length: Any) -> Any:
    from tvm import te

    def element(*index: Any) -> Any:
        return x(*index[:axis], index[axis] * step + begin, *index[axis + 1 :])

    return te.compute([*x.shape[:axis], length, *x.shape[axis + 1 :]], element, name="slice")


def _between(call: Call, size: Any, length: Any) -> tuple[Any, int]:
    """Return where a slice begins, and its step.

    The length is that of PyTorch, which has limited the bounds already.  So of a symbolic axis one
    bound is enough: a begin that counts from the front, or an end at the end of the axis.
    """
    start, end, step = call["start"], call["end"], call["step"]
    start = 0 if start is None else start
    if isinstance(size, int) and isinstance(start, int):
        return slice(start, None, 1).indices(size)[0], step
    if _is_from_front(call.raw("start")):
        return start, step
    if step == 1 and (end is None or (isinstance(end, int) and end >= _TO_THE_END)):
        return simplify(size - length), step
    raise call.refusal("a slice of a symbolic axis that begins from its end")


def _is_from_front(start: Any) -> bool:
    """Return whether the begin of a slice is known to be no negative number."""
    start = expr_of(getattr(start, "meta", {}).get("val", start))
    return start is None or bool(start >= 0 if isinstance(start, int) else start.is_nonnegative)


def _slice(call: Call) -> Any:
    x = call["self"]
    axis = call["dim"] % len(shape_of(x))
    size, length = call.shape("self")[axis], call.shape()[axis]
    if same_size(size, length):
        return x
    if 0 in call.shape():
        return _filled(call, 0)
    begin, step = _between(call, size, length)
    return sliced(call, x, axis, begin, length, step)


def placed(call: Call, x: Any, axis: int, begin: Any, step: int) -> Any:
    """Return zeros of the result's shape with `x` along an axis from `begin` on, every `step`."""
    sizes, size = list(shape_of(x)), call.shape()[axis]
    length = sizes[axis]
    if step > 1:
        apart = call.reshape(x, [*sizes[: axis + 1], 1, *sizes[axis + 1 :]])
        width = [0, 0] * (axis + 1) + [0, step - 1] + [0, 0] * (len(sizes) - axis - 1)
        wide = call.emit(R.op.nn.pad(apart, width))
        sizes[axis] = simplify(length * step)
        x = call.reshape(wide, sizes)
        length = simplify((length - 1) * step + 1)
        x = sliced(call, x, axis, 0, length)
    before, behind = begin, simplify(size - begin - length)
    if not (isinstance(before, int) and isinstance(behind, int)):
        define = partial(_between_zeros, axis)
        return call.importer.block_builder.emit_te(define, x, begin, size, primfunc_name_hint="pad")
    width = [0, 0] * axis + [before, behind] + [0, 0] * (len(sizes) - axis - 1)
    return call.emit(R.op.nn.pad(x, width)) if before or behind else x


def _between_zeros(axis: int, x: Any, begin: Any, size: Any) -> Any:
    """Return zeros with `x` along an axis from `begin` on."""
    from tvm import te

    def element(*index: Any) -> Any:
        at = index[axis] - begin
        inside = tir.all(at >= 0, at < x.shape[axis])
        value = x(*index[:axis], at, *index[axis + 1 :])
        return tir.if_then_else(inside, value, tir.const(0, x.dtype))

    return te.compute([*x.shape[:axis], size, *x.shape[axis + 1 :]], element, name="pad")


def _slice_backward(call: Call) -> Any:
    axis = call["dim"] % len(call.shape())
    if 0 in call.shape("grad_output"):
        return _filled(call, 0)
    begin, step = _between(call, call.shape()[axis], call.shape("grad_output")[axis])
    return placed(call, call["grad_output"], axis, begin, step)


def _slice_scatter(call: Call) -> Any:
    """Return a tensor with a slice of neighbours replaced."""
    x, source = call["self"], _converted(call, call["src"])
    axis = call["dim"] % len(call.shape())
    size, length = call.shape()[axis], call.shape("src")[axis]
    if same_size(size, length):
        return source
    if 0 in call.shape("src"):
        return x
    begin, step = _between(call, size, length)
    if step != 1:
        raise call.refusal("step must be 1")
    parts = []
    for low, high in ((0, begin), (simplify(begin + length), size)):
        if not same_size(low, high):
            parts.append(sliced(call, x, axis, low, simplify(high - low)))
    at = 0 if same_size(begin, 0) else 1
    parts.insert(at, source)
    return call.emit(R.op.concat(parts, axis))


def _index_of(call: Call, size: Any) -> Any:
    index = call["index"]
    if not isinstance(index, int) or (index < 0 and not isinstance(size, int)):
        raise call.refusal("an index from the end of a symbolic axis")
    return index % size if index < 0 else index


def _select(call: Call) -> Any:
    axis = call["dim"] % len(call.shape("self"))
    index = _index_of(call, call.shape("self")[axis])
    part = sliced(call, call["self"], axis, index, 1)
    return call.reshape(part, call.shape())


def _select_backward(call: Call) -> Any:
    sizes = call.shape()
    axis = call["dim"] % len(sizes)
    index = _index_of(call, sizes[axis])
    part = call.reshape(call["grad_output"], [*sizes[:axis], 1, *sizes[axis + 1 :]])
    return placed(call, part, axis, index, 1)


# ---------------------------------------------------------------- padding


def _widths(call: Call, rank: int) -> list[int]:
    """Return widths before and after each axis; PyTorch states those of the last axis first."""
    name = "pad" if call.raw("pad") is not None else "padding"
    pad = call.numbers(call[name])
    pairs = [pad[at : at + 2] for at in range(0, len(pad), 2)][::-1]
    return [0, 0] * (rank - len(pairs)) + [side for pair in pairs for side in pair]


def _constant_pad(call: Call) -> Any:
    """Return a tensor with a number around it; negative widths cut off."""
    x, sizes = call["self"], call.shape("self")
    widths, value = _widths(call, len(sizes)), call["value"]
    cut = [axis for axis in range(len(sizes)) if min(widths[2 * axis : 2 * axis + 2]) < 0]
    if 0 in call.shape():
        return _filled(call, 0)
    for axis in cut:
        begin, behind = (max(0, -width) for width in widths[2 * axis : 2 * axis + 2])
        x = sliced(call, x, axis, begin, simplify(sizes[axis] - begin - behind))
    widths = [max(0, width) for width in widths]
    if not any(widths):
        return x
    dtype = call.dtype()
    if dtype == "bool" or not isinstance(value, (int, float)):
        raise call.refusal(f"pads {dtype} by {value}")
    return call.emit(R.op.nn.pad(x, widths, "constant", value))


def _padded(mode: str, call: Call) -> Any:
    x = call["self"]
    widths = _widths(call, len(shape_of(x)))
    if min(widths) < 0:
        raise call.refusal("a negative width")
    return call.emit(R.op.nn.pad(x, widths, mode))


def _padded_backward(mode: str, call: Call) -> Any:
    x = call["self"]
    widths = _widths(call, len(shape_of(x)))
    if min(widths) < 0:
        raise call.refusal("a negative width")
    return call.gradient(R.op.nn.pad(x, widths, mode), call["grad_output"])


# ---------------------------------------------------------------- several tensors


def _concatenated(call: Call) -> Any:
    rank, dtype = len(call.shape()), call.dtype()
    parts = [call.tensor(x, dtype) for x in call["tensors"] if len(shape_of(x)) == rank]
    filled = [x for x in parts if 0 not in shape_of(x)]
    if not filled:
        return _filled(call, 0)
    if len(filled) == 1:
        return filled[0]
    return call.emit(R.op.concat(filled, call["dim"] % rank))


def _split(call: Call) -> Any:
    """Return slices along an axis, of the lengths that PyTorch states."""
    x = call["self"]
    axis, begin, parts = call["dim"] % len(shape_of(x)), 0, []
    for value in call.value:
        length = call.sizes(value.shape)[axis]
        parts.append(sliced(call, x, axis, begin, length))
        begin = simplify(begin + length)
    return parts


# ---------------------------------------------------------------- one value


def _filled(call: Call, value: Any) -> Any:
    """Return a tensor of the result's shape and dtype, all of whose elements are `value`."""
    shape, dtype = call.shape(), call.dtype()
    filled = call.tensor(value, dtype)
    if isinstance(value, float) and not math.isfinite(value):
        return broadcast(call, filled, shape)  # which relax.full cannot be lowered with
    return call.emit(R.op.full(R.ShapeExpr(shape), filled, dtype))


def _arange(call: Call) -> Any:
    dtype = call.dtype()
    limits = [call[name] for name in ("start", "end", "step")]
    if "int" not in dtype or any(isinstance(limit, float) for limit in limits):
        raise call.refusal("a range of floats")
    return call.emit(R.op.arange(*limits, dtype))
