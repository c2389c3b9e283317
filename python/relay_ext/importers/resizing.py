# SPDX-License-Identifier: Apache-2.0
"""Resizes of ONNX and PyTorch by the factors that a model states.

TVM resizes by the ratio of the sizes, which is another factor where the result is rounded down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from topi_ext.adapters.resizing import FIRST, Taps, of_onnx, of_torch, reads_sizes
from topi_ext.compat import relay
from topi_ext.spec.geometry import fail

from .normalization import cast, dtype_of

R = relay()

_UPSAMPLES = {
    "aten::upsample_nearest2d": "nearest_neighbor",
    "aten::upsample_nearest3d": "nearest_neighbor",
    "aten::upsample_bilinear2d": "linear",
    "aten::upsample_trilinear3d": "linear",
    "aten::upsample_bicubic2d": "cubic",
}


def along(x: Any, rank: int, axis: int, terms: Taps) -> Any:
    """Return a tensor whose elements along `axis` are the sums of `terms`."""
    dtype, result = dtype_of(x), None
    for indices, weights in terms:
        part = R.take(x, R.const(indices.astype("int64")), axis, mode="clip")
        if np.any(weights != 1):
            shape = [-1] + [1] * (rank - axis - 1)
            part = R.multiply(part, R.const(weights.reshape(shape).astype(dtype)))
        result = part if result is None else R.add(result, part)
    return result


def onnx_converter(
    name: str,
) -> Callable[[ModuleType, dict[str, Any]], Callable[[Any, dict[str, Any], Any], Any]]:
    """Return the converter of Resize, or of Upsample, which came before it."""

    def make(module: ModuleType, stock: dict[str, Any]) -> Callable[..., Any]:
        def convert(inputs: Any, attr: dict[str, Any], params: Any) -> Any:
            before = [_size(n) for n in module.infer_shape(inputs[0])]
            operands = [*inputs, None, None, None]
            if len(inputs) <= 2:  # Upsample, or the first Resize
                stated = {**attr, **FIRST}
                scales, sizes = attr.get("scales") or _numbers(module, operands[1], params), None
            else:
                stated = attr
                scales, sizes = (_numbers(module, x, params) for x in operands[2:4])
            is_cropped = attr.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
            if is_cropped or (scales or sizes) is None or None in before[2:]:
                if scales and any(n is None and s % 1 for n, s in zip(before, scales)):
                    raise fail(name, f"scales={list(scales)} needs sizes known at import")
                return stock[name](inputs, attr, params)
            resize = of_onnx(before, scales, sizes, stated)
            if resize.is_by_ratio:
                if resize.mode == "half_pixel_symmetric":  # by ratio, it is the other one
                    attr = {**attr, "coordinate_transformation_mode": b"half_pixel"}
                return stock[name](inputs, attr, params)
            x, dtype = inputs[0], dtype_of(inputs[0])
            if resize.method != "nearest" and "float" not in dtype:
                raise fail(name, f"mode={resize.method!r} must be 'nearest' of {dtype}")
            x = cast(x, "float32") if dtype == "float16" else x
            for axis in resize.axes:
                x = along(x, len(before), axis, resize.taps(axis))
            return cast(x, dtype)

        return convert

    return make


def _size(size: Any) -> int | None:
    return int(size) if isinstance(size, int) or hasattr(size, "value") else None


def _numbers(module: ModuleType, operand: Any, params: Mapping[str, Any]) -> list[Any] | None:
    """Return the numbers of an operand; None if there are none, or only run time knows them."""
    if operand is None:
        return None
    if isinstance(operand, R.Var) and operand.name_hint in params:
        return list(params[operand.name_hint].numpy().reshape(-1)) or None
    operand = module.fold_constant(operand)
    if not isinstance(operand, R.Constant):
        return None
    return operand.data.numpy().reshape(-1).tolist() or None


def torch_converters(
    converter: Any, stock: Mapping[str, Callable[[Any, Any], Any]]
) -> dict[str, Callable[[Any, Any], Any]]:
    """Return the converters of ``interpolate`` by the name of the operator."""
    return {name: _upsample(converter, stock[name], method) for name, method in _UPSAMPLES.items()}


def _upsample(converter: Any, stock: Callable[[Any, Any], Any], method: str) -> Any:
    def convert(inputs: Sequence[Any], types: Sequence[str]) -> Any:
        corners = method != "nearest_neighbor" and bool(inputs[2])
        scales = inputs[2 if method == "nearest_neighbor" else 3]
        if inputs[1] is not None or corners or not isinstance(scales, list):
            return stock(inputs, types)
        sizes = [_size(size) for size in converter.infer_shape(inputs[0])[2:]]
        if any(n is None and scale % 1 for n, scale in zip(sizes, scales)):
            raise fail("interpolate", f"scale_factor={scales} needs sizes known at import")
        x, dtype = inputs[0], str(converter.infer_type(inputs[0]).dtype)
        known = [size for size in sizes if size is not None]
        is_exact = all((size or 1) * scale % 1 == 0 for size, scale in zip(sizes, scales))
        if len(known) < len(sizes) or is_exact or "float" not in dtype:
            return stock(inputs, types)
        x = cast(x, "float32") if dtype == "float16" else x
        after = [int(n * scale) for n, scale in zip(known, scales)]
        by_sizes = reads_sizes(after)
        for axis, (n, target, scale) in enumerate(zip(known, after, scales), 2):
            terms = of_torch(method, n, target, False, scale, by_sizes)
            x = along(x, len(known) + 2, axis, terms)
        return cast(x, dtype)

    return convert
