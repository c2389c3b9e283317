# SPDX-License-Identifier: Apache-2.0
"""Maximum, average and adaptive pooling, with indices and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from topi_ext.compat import infer_key, relax, tir

from ..ir import dtype_of, sizes_of
from .calls import Call, Converter, per_axis, wide

R = relax()


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    found: dict[str, Converter] = {}
    for rank in (2, 3):
        found[f"avg_pool{rank}d.default"] = partial(_average, rank)
        found[f"avg_pool{rank}d_backward.default"] = partial(_average_backward, rank)
        found[f"max_pool{rank}d_with_indices.default"] = partial(_maximum, rank)
        found[f"max_pool{rank}d_with_indices_backward.default"] = partial(_maximum_backward, rank)
        found[f"adaptive_max_pool{rank}d.default"] = partial(_adaptive_maximum, rank)
        found[f"adaptive_max_pool{rank}d_backward.default"] = partial(
            _adaptive_maximum_backward, rank
        )
        found[f"_adaptive_avg_pool{rank}d.default"] = partial(_adaptive_average, rank)
        found[f"_adaptive_avg_pool{rank}d_backward.default"] = partial(
            _adaptive_average_backward, rank
        )
    return found


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {
        **{f"max_pool{rank}d.default": partial(_maximum_alone, rank) for rank in (1, 2, 3)},
        "avg_pool1d.default": partial(_average, 1),
    }


@dataclass(frozen=True)
class Windows:
    """Kernel, stride, padding and dilation of each spatial axis."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil_mode: bool = False

    @classmethod
    def of(cls, call: Call, rank: int) -> Windows:
        """Read the windows of a call."""
        kernel = per_axis(call["kernel_size"], rank)
        dilation = call.get("dilation", 1)
        return cls(
            call.numbers(kernel),
            call.numbers(per_axis(call["stride"], rank, kernel)),
            call.numbers(per_axis(call["padding"], rank)),
            call.numbers(per_axis(dilation, rank)),
            bool(call["ceil_mode"]),
        )

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the operator in Relax."""
        return {
            "pool_size": self.kernel,
            "strides": self.stride,
            "padding": [*self.padding, *self.padding],
            "dilation": self.dilation,
            "ceil_mode": self.ceil_mode,
        }


def _batched(call: Call, x: Any, rank: int) -> Any:
    """Return a tensor with an axis of images, which a single image lacks."""
    sizes = list(sizes_of(x))
    if 0 in sizes:
        raise call.refusal("no elements")
    return x if len(sizes) == rank + 2 else call.reshape(x, [1, *sizes])


def _as(call: Call, x: Any, value: Any) -> Any:
    """Return a tensor in the shape of a fake tensor."""
    sizes = call.sizes(value.shape)
    return x if len(sizes_of(x)) == len(sizes) else call.reshape(x, sizes)


# ---------------------------------------------------------------- averages


def _averages(call: Call, rank: int, x: Any, results: Sequence[Any]) -> tuple[Any, float]:
    """Return an average pooling, and the factor of its result."""
    windows = Windows.of(call, rank)
    divisor = call.get("divisor_override")
    op = getattr(R.op.nn, f"avg_pool{rank}d")
    if divisor is None:
        counts = bool(call["count_include_pad"])
        return op(x, **windows.attributes, count_include_pad=counts), 1.0
    attributes = windows.attributes
    if windows.ceil_mode:  # whole windows, the last of which may end behind the padding
        reach = zip(results, windows.stride, windows.kernel, windows.padding, sizes_of(x)[2:])
        behind = [max(0, (n - 1) * s + k - p - size) for n, s, k, p, size in reach]
        attributes |= {"padding": [*windows.padding, *behind], "ceil_mode": False}
    return op(x, **attributes, count_include_pad=True), prod(windows.kernel) / divisor


def _times(call: Call, x: Any, factor: float, dtype: str) -> Any:
    return x if factor == 1 else call.emit(R.op.multiply(x, R.const(factor, dtype)))


def _average(rank: int, call: Call) -> Any:
    dtype = call.dtype()
    x = call.tensor(_batched(call, call["self"], rank), wide(dtype))
    pooled, factor = _averages(call, rank, x, call.shape()[-rank:])
    y = _times(call, call.emit(pooled), factor, wide(dtype))
    return _as(call, call.cast(y, dtype), call.value)


def _average_backward(rank: int, call: Call) -> Any:
    dtype = call.dtype()
    x = call.cast(_batched(call, call["self"], rank), wide(dtype))
    dy = call.cast(_batched(call, call["grad_output"], rank), wide(dtype))
    pooled, factor = _averages(call, rank, x, sizes_of(dy)[2:])
    dx = call.emit(call.gradient(pooled, _times(call, dy, factor, wide(dtype))))
    return _as(call, call.cast(dx, dtype), call.value)


def _adaptive_average(rank: int, call: Call) -> Any:
    dtype = call.dtype()
    x = call.tensor(_batched(call, call["self"], rank), wide(dtype))
    size, before = call.numbers(call.shape()[-rank:]), sizes_of(x)[2:]
    is_uneven = any(isinstance(n, int) and n % cells for n, cells in zip(before, size))
    if is_uneven and infer_key() == "FInferStructInfo":  # TVM 0.25 has other cells
        call.numbers(before)
        define, hint = partial(_cell_averages, size), "adaptive_average"
        y = call.builder.emit_te(define, x, primfunc_name_hint=hint)
    else:
        y = call.emit(getattr(R.op.nn, f"adaptive_avg_pool{rank}d")(x, size))
    return _as(call, call.cast(y, dtype), call.value)


def _cell_averages(cells: list[int], x: Any) -> Any:
    """Return averages of cells of unequal sizes, without TVM's operator.

    Cell j of m covers the elements from ``floor(j n / m)`` to ``ceil((j + 1) n / m)``.
    """
    from tvm import te

    sizes = [int(size) for size in x.shape[2:]]
    longest = [-(-n // m) + 1 for n, m in zip(sizes, cells)]
    terms = [te.reduce_axis((0, size), name=f"term{axis}") for axis, size in enumerate(longest)]

    def limits(position: Any) -> list[tuple[Any, Any]]:
        return [
            (tir.floordiv(j * n, m), tir.floordiv((j + 1) * n + m - 1, m))
            for j, n, m in zip(position, sizes, cells)
        ]

    def total(n: Any, c: Any, *position: Any) -> Any:
        begins = limits(position)
        at = [begin + term for (begin, _), term in zip(begins, terms)]
        inside = tir.all(*(index < end for index, (_, end) in zip(at, begins)))
        value = tir.if_then_else(inside, x(n, c, *_clipped(at, sizes)), tir.const(0, x.dtype))
        return te.sum(value, axis=terms)

    shape = [*x.shape[:2], *cells]
    totals = te.compute(shape, total, name="totals")

    def average(n: Any, c: Any, *position: Any) -> Any:
        count = prod(end - begin for begin, end in limits(position))
        return totals(n, c, *position) / tir.Cast(x.dtype, count)

    return te.compute(shape, average, name="averages")


def _adaptive_average_backward(rank: int, call: Call) -> Any:
    dtype = call.dtype()
    x = call.cast(_batched(call, call["self"], rank), wide(dtype))
    dy = call.cast(_batched(call, call["grad_output"], rank), wide(dtype))
    size = call.numbers(sizes_of(dy)[2:])
    dx = call.gradient(getattr(R.op.nn, f"adaptive_avg_pool{rank}d")(x, size), dy)
    return _as(call, call.cast(call.emit(dx), dtype), call.value)


# ---------------------------------------------------------------- maxima


def _maximum_alone(rank: int, call: Call) -> Any:
    x, windows = _batched(call, call["self"], rank), Windows.of(call, rank)
    y = call.emit(getattr(R.op.nn, f"max_pool{rank}d")(x, **windows.attributes))
    return _as(call, y, call.value)


def _maximum(rank: int, call: Call) -> Any:
    return _maxima(call, rank, Windows.of(call, rank))


def _maxima(call: Call, rank: int, windows: Windows) -> Any:
    """Return maxima, and the index of each in its image, if it is used."""
    x = _batched(call, call["self"], rank)
    y = call.emit(getattr(R.op.nn, f"max_pool{rank}d")(x, **windows.attributes))
    values = [_as(call, y, call.value[0]), None]
    if 1 in call.used:
        x, y = (call.cast(tensor, wide(dtype_of(tensor))) for tensor in (x, y))
        define, hint = partial(_places, windows), "max_pool_indices"
        places = call.builder.emit_te(define, x, y, primfunc_name_hint=hint)
        values[1] = _as(call, places, call.value[1])
    return values


def _places(windows: Windows, x: Any, y: Any) -> Any:
    """Return the first place of a window that has its maximum; the last NaN, if there is one.

    The largest score of a window is found: NaN has a positive score, the maximum one from 0 to
    -2^40, other elements a lower one, and padding the smallest integer.
    """
    from tvm import te

    sizes = x.shape[2:]
    is_float = "float" in str(x.dtype)
    other, outside = tir.const(-(1 << 40), "int64"), tir.const(-(1 << 62), "int64")
    taps = [te.reduce_axis((0, k), name=f"tap{axis}") for axis, k in enumerate(windows.kernel)]

    def score(n: Any, c: Any, *position: Any) -> Any:
        at = [
            p * s - before + tap * d
            for p, s, before, d, tap in zip(
                position, windows.stride, windows.padding, windows.dilation, taps
            )
        ]
        flat = _flat(at, sizes)
        value, largest = x(n, c, *_clipped(at, sizes)), y(n, c, *position)
        inner = tir.Select(value == largest, -flat, other - flat)
        if is_float:
            inner = tir.Select(tir.isnan(value), flat + 1, inner)
        return te.max(tir.Select(_inside(at, sizes), inner, outside), axis=taps)

    scores = te.compute(y.shape, score, name="scores")

    def place(*index: Any) -> Any:
        best = scores(*index)
        first = tir.Select(best > other, -best, other - best)
        return tir.Select(best > 0, best - 1, first)

    return te.compute(y.shape, place, name="places")


def _inside(at: Any, sizes: Any) -> Any:
    """Return whether a position is not padding."""
    return tir.all(*(index >= 0 for index in at), *(i < size for i, size in zip(at, sizes)))


def _flat(at: Any, sizes: Any) -> Any:
    """Return a position in an image as one number."""
    flat: Any = tir.const(0, "int64")
    for index, size in zip(at, sizes):
        flat = flat * tir.Cast("int64", size) + tir.Cast("int64", index)
    return flat


def _clipped(at: Any, sizes: Any) -> list[Any]:
    return [tir.max(tir.min(a, size - 1), 0) for a, size in zip(at, sizes)]


def _maximum_backward(rank: int, call: Call) -> Any:
    return _maxima_backward(call, rank, Windows.of(call, rank))


def _maxima_backward(call: Call, rank: int, windows: Windows) -> Any:
    """Return the gradient of the data of a maximum pooling."""
    dtype = call.dtype()
    x = call.cast(_batched(call, call["self"], rank), wide(dtype))
    dy = call.cast(_batched(call, call["grad_output"], rank), wide(dtype))
    is_known = all(isinstance(size, int) for size in sizes_of(x)[2:])
    if rank == 2 and is_known and set(windows.dilation) == {1}:
        forward = R.op.nn.max_pool2d(x, **windows.attributes)
        dx = call.emit(call.gradient(forward, dy))
    else:
        places = _batched(call, call["indices"], rank)
        define, hint = partial(_gathered, windows), "max_pool_backward"
        dx = call.builder.emit_te(define, dy, places, x, primfunc_name_hint=hint)
    return _as(call, call.cast(dx, dtype), call.value)


def _gathered(windows: Windows, dy: Any, places: Any, x: Any) -> Any:
    """Return, for each element, the sum over the windows whose maximum it is."""
    from tvm import te

    sizes, counts, rank = x.shape[2:], dy.shape[2:], len(windows.kernel)
    reach = [
        -(-(d * (k - 1) + 1) // s)
        for d, k, s in zip(windows.dilation, windows.kernel, windows.stride)
    ]
    offsets = [te.reduce_axis((0, r), name=f"offset{axis}") for axis, r in enumerate(reach)]

    def element(n: Any, c: Any, *at: Any) -> Any:
        window = [
            tir.floordiv(at[axis] + windows.padding[axis], windows.stride[axis]) - offsets[axis]
            for axis in range(rank)
        ]
        safe = _clipped(window, counts)
        is_here = tir.all(_inside(window, counts), places(n, c, *safe) == _flat(at, sizes))
        return te.sum(tir.Select(is_here, dy(n, c, *safe), tir.const(0, dy.dtype)), axis=offsets)

    return te.compute(x.shape, element, name="max_pool_backward")


def _cells(call: Call, rank: int, sizes: Any, cells: Any) -> Windows:
    """Return the windows of an adaptive pooling whose cells are of equal size."""
    sizes, cells = call.numbers(sizes), call.numbers(cells)
    if 0 in cells or any(size % count for size, count in zip(sizes, cells)):
        raise call.refusal(f"cells of {sizes} by {cells} differ in size")
    kernel = [size // count for size, count in zip(sizes, cells)]
    return Windows(kernel, kernel, [0] * rank, [1] * rank)


def _adaptive_maximum(rank: int, call: Call) -> Any:
    cells = call.sizes(call.value[0].shape)[-rank:]
    return _maxima(call, rank, _cells(call, rank, call.shape("self")[-rank:], cells))


def _adaptive_maximum_backward(rank: int, call: Call) -> Any:
    cells = call.shape("grad_output")[-rank:]
    return _maxima_backward(call, rank, _cells(call, rank, call.shape("self")[-rank:], cells))
