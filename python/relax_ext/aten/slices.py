# SPDX-License-Identifier: Apache-2.0
"""Slices, selections and padding, and their gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

from topi_ext.compat import relax, same_size, simplify, tir

from ..gradients.slices import placed, sliced
from ..ir import sizes_of
from .calls import Call, Converter
from .shapes import converted, filled
from .sizes import expr_of

R = relax()

_TO_THE_END = (1 << 63) - 1
_CONSTANT = "constant"
_PADS = {"reflection_pad": "reflect", "replication_pad": "replicate"}
"""Operators that pad by copies, and their modes in TVM."""


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {
        "slice.Tensor": _slice,
        "slice_backward.default": _slice_backward,
        "slice_scatter.default": _slice_scatter,
        "select.int": _select,
        "unfold.default": _unfold,
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
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {"narrow.default": _narrow, "pad.default": _pad}


def _between(call: Call, size: Any, length: Any) -> tuple[Any, int]:
    """Return the begin of a slice, and its step.

    The length is that of PyTorch, which has limited the bounds already.  So for a symbolic axis one
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
    """Return whether the begin of a slice is known not to be negative."""
    start = expr_of(getattr(start, "meta", {}).get("val", start))
    return start is None or bool(start >= 0 if isinstance(start, int) else start.is_nonnegative)


def _slice(call: Call) -> Any:
    x = call["self"]
    axis = call["dim"] % len(sizes_of(x))
    size, length = call.shape("self")[axis], call.shape()[axis]
    if same_size(size, length):
        return x
    if 0 in call.shape():
        return filled(call, 0)
    begin, step = _between(call, size, length)
    return sliced(call.builder, x, axis, begin, length, step)


def _slice_backward(call: Call) -> Any:
    axis = call["dim"] % len(call.shape())
    if 0 in call.shape("grad_output"):
        return filled(call, 0)
    begin, step = _between(call, call.shape()[axis], call.shape("grad_output")[axis])
    return placed(call.builder, call["grad_output"], axis, begin, step, call.shape()[axis])


def _slice_scatter(call: Call) -> Any:
    """Return a tensor with a slice replaced."""
    x, source = call["self"], converted(call, call["src"])
    axis = call["dim"] % len(call.shape())
    size, length = call.shape()[axis], call.shape("src")[axis]
    if same_size(size, length):
        return source
    if 0 in call.shape("src"):
        return x
    begin, step = _between(call, size, length)
    define = partial(_replaced, axis, step)
    return call.builder.emit_te(define, x, source, begin, primfunc_name_hint="slice_scatter")


def _replaced(axis: int, step: int, x: Any, source: Any, begin: Any) -> Any:
    """Return `x` with `source` along an axis from `begin` on, every `step`."""
    from tvm import te

    def element(*index: Any) -> Any:
        offset = index[axis] - begin
        at = tir.floordiv(offset, step)
        inside = tir.all(offset >= 0, tir.floormod(offset, step) == 0, at < source.shape[axis])
        value = source(*index[:axis], at, *index[axis + 1 :])
        return tir.if_then_else(inside, value, x(*index))

    return te.compute(x.shape, element, name="slice_scatter")


def _index_of(call: Call, size: Any, name: str = "index") -> Any:
    """Return an index from the front."""
    index = call[name]
    if isinstance(index, int):
        return simplify(size + index) if index < 0 else index
    if _is_from_front(call.raw(name)):
        return index
    raise call.refusal("an index that may be negative")


def _narrow(call: Call) -> Any:
    axis = call["dim"] % len(call.shape())
    begin = _index_of(call, call.shape("self")[axis], "start")
    return sliced(call.builder, call["self"], axis, begin, call.shape()[axis])


def _select(call: Call) -> Any:
    axis = call["dim"] % len(call.shape("self"))
    index = _index_of(call, call.shape("self")[axis])
    part = sliced(call.builder, call["self"], axis, index, 1)
    return call.reshape(part, call.shape())


def _select_backward(call: Call) -> Any:
    sizes = call.shape()
    axis = call["dim"] % len(sizes)
    index = _index_of(call, sizes[axis])
    part = call.reshape(call["grad_output"], [*sizes[:axis], 1, *sizes[axis + 1 :]])
    return placed(call.builder, part, axis, index, 1, sizes[axis])


def _unfold(call: Call) -> Any:
    """Return windows along an axis, with their elements along a new last axis."""
    if 0 in call.shape() or not call.shape("self"):
        raise call.refusal("no axes or no elements")
    axis, step = call["dimension"] % len(call.shape("self")), call["step"]
    define = partial(_windows, axis, step)
    return call.builder.emit_te(define, call["self"], call.shape(), primfunc_name_hint="unfold")


def _windows(axis: int, step: int, x: Any, sizes: Any) -> Any:
    from tvm import te

    def element(*index: Any) -> Any:
        *at, tap = index
        return x(*at[:axis], at[axis] * step + tap, *at[axis + 1 :])

    return te.compute(sizes, element, name="unfold")


# ---------------------------------------------------------------- padding


def _widths(call: Call, rank: int) -> list[int]:
    """Return the widths before and after each axis, which must be known numbers."""
    return call.numbers(_pads(call, rank))


def _pads(call: Call, rank: int) -> list[Any]:
    """Return widths before and after each axis; PyTorch states those of the last axis first."""
    name = "pad" if call.raw("pad") is not None else "padding"
    pad = list(call[name])
    pairs = [pad[at : at + 2] for at in range(0, len(pad), 2)][::-1]
    return [0, 0] * (rank - len(pairs)) + [side for pair in pairs for side in pair]


def _pad(call: Call) -> Any:
    is_constant = call["mode"] == _CONSTANT
    return _constant_pad(call) if is_constant else _padded(call["mode"], call)


def _constant_pad(call: Call) -> Any:
    """Return a tensor padded with a number; negative widths crop it."""
    x, sizes = call["self"], call.shape("self")
    widths, value = _widths(call, len(sizes)), call["value"] or 0
    cut = [axis for axis in range(len(sizes)) if min(widths[2 * axis : 2 * axis + 2]) < 0]
    if 0 in call.shape():
        return filled(call, 0)
    for axis in cut:
        begin, behind = (max(0, -width) for width in widths[2 * axis : 2 * axis + 2])
        x = sliced(call.builder, x, axis, begin, simplify(sizes[axis] - begin - behind))
    widths = [max(0, width) for width in widths]
    if not any(widths):
        return x
    dtype = call.dtype()
    if dtype == "bool" or not isinstance(value, (int, float)):
        raise call.refusal(f"pads {dtype} by {value}")
    return call.emit(R.op.nn.pad(x, widths, _CONSTANT, value))


def _padded(mode: str, call: Call) -> Any:
    x, sizes = call["self"], call.shape()
    widths = _pads(call, len(sizes))
    if all(isinstance(width, int) for width in widths):
        if min(widths) < 0:
            given = list(call["pad" if "pad" in call else "padding"])
            raise call.refusal(f"pad={given} must not be negative where mode={mode!r}")
        return call.emit(R.op.nn.pad(x, widths, mode))
    if mode not in _PADS.values():
        raise call.refusal(f"mode={mode!r} of symbolic widths")
    define = partial(_around, mode)
    return call.builder.emit_te(define, x, widths[::2], sizes, primfunc_name_hint="pad")


def _around(mode: str, x: Any, before: Any, sizes: Any) -> Any:
    """Return a tensor padded with copies of its elements; negative widths crop it."""
    from tvm import te

    def source(index: Any, width: Any, size: Any) -> Any:
        at, last = index - width, size - 1
        if mode == "replicate":
            return tir.max(tir.min(at, last), 0)
        return last - tir.abs(last - tir.abs(at))

    def element(*index: Any) -> Any:
        return x(*map(source, index, before, x.shape))

    return te.compute(sizes, element, name="pad")


def _padded_backward(mode: str, call: Call) -> Any:
    x = call["self"]
    widths = _widths(call, len(sizes_of(x)))
    if min(widths) < 0:
        raise call.refusal("a negative width")
    return call.gradient(R.op.nn.pad(x, widths, mode), call["grad_output"])
