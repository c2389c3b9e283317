# SPDX-License-Identifier: Apache-2.0
"""PyTorch's normalizations, poolings and arithmetic, with the arguments that TVM's converters drop.

Operators with random results are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from topi_ext.compat import relay
from topi_ext.spec.geometry import fail
from topi_ext.spec.layout import SPATIAL

from .normalization import arithmetic_dtype, by_batch, cast, dtype_of
from .resizing import torch_converters

R = relay()

Convert = Callable[[Any, Any], Any]


def convert_map(converter: Any) -> dict[str, Convert]:
    """Return converters ``(inputs, input_types) -> expression`` by the name of the operator.

    Parameters
    ----------
    converter : PyTorchOpConverter
        TVM's, whose table has its own converters still.
    """
    stock = dict(converter.convert_map)
    poolings = {f"aten::{k}_pool{rank}d": rank for rank in SPATIAL for k in ("max", "avg")}
    poolings["aten::max_pool2d_with_indices"] = 2
    return {
        "aten::batch_norm": _batch_norm(converter, stock["aten::batch_norm"]),
        "aten::layer_norm": _affine(stock["aten::layer_norm"], lambda inputs: inputs[1]),
        "aten::group_norm": _affine(
            stock["aten::group_norm"], lambda inputs: [converter.infer_shape(inputs[0])[1]]
        ),
        **{
            f"aten::{name}": _dropout(f"aten::{name}", stock[f"aten::{name}"])
            for name in ("dropout", "feature_dropout", "alpha_dropout")
        },
        **{name: _pooling(name, converter, stock[name], rank) for name, rank in poolings.items()},
        **{
            name: _without_indices(name, converter, stock[name])
            for name in (f"aten::adaptive_max_pool{rank}d" for rank in SPATIAL)
        },
        "aten::add": _add(converter, stock["aten::add"]),
        "aten::div": _div(converter, stock["aten::div"]),
        "aten::gelu": _gelu(converter, stock["aten::gelu"]),
        "aten::elu": _elu(stock["aten::elu"]),
        "aten::cumsum": _cumsum(converter, stock["aten::cumsum"]),
        **{
            f"aten::{name}": _corrected(f"aten::{name}", stock[f"aten::{name}"])
            for name in ("var", "std", "var_mean")
        },
        **torch_converters(converter, stock),
        **{name: _clamp(converter, stock[name], at) for name, at in _BOUNDS.items()},
    }


# ------------------------------------------------------------------------------ normalizations


def _batch_norm(converter: Any, stock: Convert) -> Convert:
    """``training`` is read, statistics may be missing, and dtypes may differ."""

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        data, *vectors = inputs[:5]
        by_its_batch = inputs[5] or not isinstance(inputs[3], R.Expr)
        given = [vector for vector in vectors if isinstance(vector, R.Expr)]
        # The converter knows the types of what is before; others would infer them anew.
        result = str(converter.infer_type(data).dtype)
        if not by_its_batch and {dtype_of(vector) for vector in given} <= {result}:
            return stock(inputs, types)
        dtype = arithmetic_dtype([R.const(0, result), *given])
        data = data if dtype == result else R.cast(data, dtype)
        vectors = [cast(v, dtype) if isinstance(v, R.Expr) else None for v in vectors]
        if not by_its_batch:
            normalized = stock([data, *vectors, *inputs[5:]], [dtype, *types[1:]])
        else:
            rank = len(converter.infer_shape(data))
            normalized = by_batch(
                data, *vectors[:2], axis=1, rank=rank, epsilon=float(inputs[7])
            ).data
        return normalized if dtype == result else R.cast(normalized, result)

    return convert


def _affine(stock: Convert, shape: Callable[[Sequence[Any]], Sequence[int]]) -> Convert:
    """Return a normalization without factors and summands is one with 1 and 0."""

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        inputs, dtype = list(inputs), types[0]
        sizes = [int(size) for size in shape(inputs)]
        for at, missing in ((2, R.ones), (3, R.zeros)):
            if not isinstance(inputs[at], R.Expr):
                inputs[at] = missing(sizes, dtype)
        return stock(inputs, types)

    return convert


def _dropout(name: str, stock: Convert) -> Convert:
    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        if inputs[2] and float(inputs[1]):
            raise fail(name, "train=True must be False: the result is random; call eval()")
        return stock(inputs, types)

    return convert


# ----------------------------------------------------------------------------------- poolings


class _Axis(NamedTuple):
    """The windows of a pooling along one axis."""

    size: int
    kernel: int
    stride: int
    pad: int
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def span(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    @property
    def rounded(self) -> int:
        """Number of windows that TVM makes."""
        steps = (self.size + 2 * self.pad - self.span) / self.stride
        return (math.ceil(steps) if self.ceil_mode else math.floor(steps)) + 1

    @property
    def windows(self) -> int:
        """Number of windows of PyTorch, which drops one that begins behind the data."""
        begins_behind = (self.rounded - 1) * self.stride >= self.size + self.pad
        return self.rounded - (self.ceil_mode and begins_behind)

    @property
    def pad_after(self) -> int:
        """Return how far the last window extends beyond the data."""
        return max(self.pad, (self.windows - 1) * self.stride + self.span - self.size - self.pad)


def _axes(converter: Any, inputs: Sequence[Any], is_max: bool) -> list[_Axis]:
    """Return the axes of a pooling; none where their sizes are unknown."""
    kernel = converter.convert_const_list(list(inputs[1]))
    shape = converter.infer_shape(inputs[0])[-len(kernel) :]
    if not all(isinstance(size, int) for size in shape):
        return []
    stride = converter.convert_const_list(list(inputs[2])) or kernel
    dilation = inputs[4] if is_max else [1] * len(kernel)
    ceil_mode = [bool(inputs[5 if is_max else 4])] * len(kernel)
    return [_Axis(*axis) for axis in zip(shape, kernel, stride, inputs[3], dilation, ceil_mode)]


def _cropped(result: Any, axes: Sequence[_Axis]) -> Any:
    """Return the result without the windows that PyTorch does not have."""
    if all(axis.windows == axis.rounded for axis in axes):
        return result
    ends = [axis.windows for axis in axes]
    ones, spatial = [1] * len(ends), [*range(2, 2 + len(ends))]
    return R.strided_slice(result, [0] * len(ends), ends, ones, axes=spatial)


def _pooling(name: str, converter: Any, stock: Convert, rank: int) -> Convert:
    """Windows as PyTorch places them, any divisor, and data without a batch."""
    is_max = "max" in name
    stock = _without_indices(name, converter, stock)

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        inputs = list(inputs)
        axes = _axes(converter, inputs, is_max)
        has_batch = len(converter.infer_shape(inputs[0])) == rank + 2
        if not has_batch:
            inputs[0] = R.expand_dims(inputs[0], 0)
        if not is_max and len(inputs) == 7 and inputs[6] is not None:
            made = _divided(name, inputs, types, axes, stock)
        else:
            made = stock(inputs, types)
        result, *indices = made if isinstance(made, tuple) else (made,)
        result = _cropped(result, axes)
        result = result if has_batch else R.squeeze(result, [0])
        return (result, *indices) if indices else result

    return convert


def _without_indices(name: str, converter: Any, stock: Convert) -> Convert:
    """TVM gives no positions of maxima: it fails later, or drops that result."""

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        node = converter.current_op[-1]
        if node.outputsSize() > 1 and node.outputsAt(1).uses():
            raise fail(name, "return_indices=True must be False")
        return stock(inputs, types)

    return convert


def _divided(
    name: str, inputs: Sequence[Any], types: Any, axes: Sequence[_Axis], stock: Convert
) -> Any:
    """Return the mean of windows with their padding, times their size, divided by what is
    stated.
    """
    if not axes:
        raise fail(name, f"divisor_override={inputs[6]} needs sizes known at import")
    if "float" not in types[0]:
        raise fail(name, f"divisor_override={inputs[6]} must be None of {types[0]}")
    pads = [(0, 0), (0, 0), *((axis.pad, axis.pad_after) for axis in axes)]
    data = R.nn.pad(inputs[0], pads)
    mean = stock([data, *inputs[1:3], [0] * len(axes), False, True], types)
    factor = math.prod(axis.kernel for axis in axes) / float(inputs[6])
    return R.multiply(mean, R.const(factor, types[0]))


# --------------------------------------------------------------------------------- arithmetic


def _add(converter: Any, stock: Convert) -> Convert:
    """``a + alpha * b``; lists are joined by the same operator."""

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        if types[0] == "ListType" or len(inputs) < 3 or _is_one(inputs[2]):
            return stock(inputs, types)
        data, other, alpha = converter.pytorch_promote_types(inputs[:3], types[:3])
        return R.add(data, R.multiply(alpha, other))

    return convert


def _is_one(value: Any) -> bool:
    value = value.data.numpy() if isinstance(value, R.Constant) else value
    return not isinstance(value, R.Expr) and value == 1


def _div(converter: Any, stock: Convert) -> Convert:
    """``rounding_mode``, which keeps integers what they are."""

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        mode = inputs[2] if len(inputs) > 2 else None
        if mode is None:
            return stock(inputs, types)
        data, other = converter.pytorch_promote_types(inputs[:2], types[:2])
        if "int" in str(converter.infer_type(data).dtype):
            return (R.floor_divide if mode == "floor" else R.divide)(data, other)
        return (R.floor if mode == "floor" else R.trunc)(R.divide(data, other))

    return convert


def _gelu(converter: Any, stock: Convert) -> Convert:
    """``approximate="tanh"`` is another formula."""

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        if len(inputs) < 2 or inputs[1] != "tanh":
            return stock(inputs, types)
        data = inputs[0]
        dtype = str(converter.infer_type(data).dtype)

        def const(value: float) -> Any:
            return R.const(value, dtype)

        cube = R.multiply(const(0.044715), R.multiply(data, R.multiply(data, data)))
        inner = R.multiply(const(math.sqrt(2 / math.pi)), R.add(data, cube))
        return R.multiply(R.multiply(const(0.5), data), R.add(const(1.0), R.tanh(inner)))

    return convert


def _elu(stock: Convert) -> Convert:
    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        for name, value in zip(("scale", "input_scale"), inputs[2:4]):
            if not _is_one(value):
                raise fail("aten::elu", f"{name}={value} must be 1")
        return stock(inputs, types)

    return convert


def _cumsum(converter: Any, stock: Convert) -> Convert:
    """Integers and truth values are added up in int64."""

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        if inputs[2] is not None or "float" in str(converter.infer_type(inputs[0]).dtype):
            return stock(inputs, types)
        return R.cumsum(inputs[0], axis=inputs[1], dtype="int64")

    return convert


def _corrected(name: str, stock: Convert) -> Convert:
    """Return a variance whose ``correction`` is stated: None is 1, and so is ``unbiased=True``."""

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        inputs = list(inputs)
        if len(inputs) == 4 and not isinstance(inputs[2], bool):
            correction = 1 if inputs[2] is None else inputs[2]
            if correction not in (0, 1):
                raise fail(name, f"correction={correction} must be 0 or 1")
            inputs[2] = bool(correction)
        return stock(inputs, types)

    return convert


_BOUNDS = {"aten::clamp": (1, 2), "aten::clamp_min": (1, None), "aten::clamp_max": (None, 1)}
"""Positions of the lower and the upper bound among the inputs."""


def _clamp(converter: Any, stock: Convert, at: tuple[int | None, int | None]) -> Convert:
    """One bound only: TVM puts the other at the end of the dtype, which int64 does not survive.

    Of numbers that cross, the upper bound counts; in TVM it is the lower.
    """

    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        low, high = (None if i is None or i >= len(inputs) else i for i in at)
        low, high = (i if i is not None and inputs[i] is not None else None for i in (low, high))
        which = high if low is None else low
        if low is not None and high is not None:
            bounds = inputs[low], inputs[high]
            if all(isinstance(bound, (int, float)) for bound in bounds):
                inputs = [min(bounds) if i == low else one for i, one in enumerate(inputs)]
            return stock(inputs, types)
        if which is None:
            return stock(inputs, types)
        operands = [inputs[0], inputs[which]], [types[0], types[which]]
        data, bound = converter.pytorch_promote_types(*operands)
        return (R.minimum if low is None else R.maximum)(data, bound)

    return convert
