# SPDX-License-Identifier: Apache-2.0
"""ONNX: ``output_shape`` of ConvTranspose, and ``auto_pad`` of Conv whatever is known of sizes.

Clip between constants is the operator of that name, which kernels take in; TVM's converter makes
functions of it, which no pass sees through.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import inf, isnan
from types import ModuleType
from typing import Any

from topi_ext.compat import (
    constant_value,
    dtype_name,
    known_shape,
    relax,
    simplify,
    tir,
    type_of,
)
from topi_ext.padding import reach, read
from topi_ext.spec.dtypes import FLOATS
from topi_ext.spec.geometry import fail

R = relax()

_CONVERTER = ("cls", "bb", "inputs", "attr", "params")
NEEDS = {
    "Conv._impl_v11": _CONVERTER,
    "ConvTranspose._impl_v1": _CONVERTER,
    "Clip._impl_v1": _CONVERTER,
    "Clip._impl_v11": _CONVERTER,
    "Clip._impl_v13": _CONVERTER,
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Converters that state padding as numbers, then call TVM's."""
    steps = {"Conv._impl_v11": _state_same, "ConvTranspose._impl_v1": _state_output_shape}
    made = {path: classmethod(_after(step, module, path)) for path, step in steps.items()}
    for opset, limits in ((1, _stated), (11, _constants), (13, _constants)):
        path = f"Clip._impl_v{opset}"
        made[path] = classmethod(_clipping(limits, _stock(module, path)))
    return made


def _stock(module: ModuleType, path: str) -> Callable[..., Any]:
    class_name, name = path.split(".")
    return vars(getattr(module, class_name))[name].__func__


def _after(step: Callable[..., None], module: ModuleType, path: str) -> Callable[..., Any]:
    stock = _stock(module, path)

    def convert(cls: type, bb: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        # The node's own: TVM may convert it again, and its inputs are others' outputs.
        inputs, attr = copy.copy(inputs), dict(attr)
        step(bb, inputs, attr)
        return stock(cls, bb, inputs, attr, params)

    return convert


def check_bias(op: str, bias: Any, channels: Any) -> None:
    """Raise if a bias does not have one element for each output channel."""
    shape = None if bias is None else known_shape(type_of(bias).shape)
    if shape is None or not all(isinstance(size, int) for size in (*shape, channels)):
        return
    if shape != (channels,):
        raise fail(
            op, f"bias of shape {list(shape)} must have one element per output channel, {channels}"
        )


def _check_conv_bias(inputs: Any) -> None:
    kernel = known_shape(type_of(inputs[1]).shape)
    check_bias("Conv", inputs[2], None if kernel is None else kernel[0])


def _state_same(bb: Any, inputs: Any, attr: dict[str, Any]) -> None:
    """SAME of a convolution as ``pads``; where these depend on a size that only run time knows,
    the data is padded before.  TVM's own rule cannot calculate with such sizes."""
    _check_conv_bias(inputs)
    sizes = known_shape(type_of(inputs[0]).shape)
    kernel = known_shape(type_of(inputs[1]).shape)
    is_same = attr.get("auto_pad") in (b"SAME_UPPER", b"SAME_LOWER", "SAME_UPPER", "SAME_LOWER")
    if not is_same or sizes is None or kernel is None:
        return
    window = {name: attr[name] for name in ("strides", "dilations") if name in attr}
    is_known = all(isinstance(size, int) for size in sizes[2:])
    if is_known or max(window.get("strides", [1])) == 1:
        size = sizes[2:] if is_known else None
        call = read(
            "onnx", "conv", size=size, kernel_size=kernel[2:], auto_pad=attr["auto_pad"], **window
        )
        attr["pads"] = list(call.attributes["padding"])
    else:
        from tvm import topi

        before, after = _pads_at_run_time(sizes[2:], kernel[2:], attr)
        inputs[0] = bb.emit_te(topi.nn.pad, inputs[0], [0, 0, *before], [0, 0, *after], 0.0)
        attr["pads"] = [0] * (2 * len(before))
    del attr["auto_pad"]


def _pads_at_run_time(
    sizes: Any, kernel: Any, attr: dict[str, Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the padding before and after with which there are ``ceil(size / stride)`` results."""
    rank = len(kernel)
    strides, dilations = (attr.get(name, [1] * rank) for name in ("strides", "dilations"))
    pairs = []
    for n, stride, rows in zip(sizes, strides, reach(kernel, dilations)):
        total = tir.max(simplify(((n + stride - 1) // stride - 1) * stride + rows - n), 0)
        half = total // 2
        is_upper = attr["auto_pad"] in (b"SAME_UPPER", "SAME_UPPER")
        pairs.append((half, total - half) if is_upper else (total - half, half))
    before, after = zip(*pairs)
    return before, after


Limits = tuple[Any, Any]
"""Below and above: a number, or None for none."""


def _clipping(limits: Callable[[Any, Any], Limits | None], stock: Callable[..., Any]) -> Any:
    """Return the converter of Clip, whose limits `limits` finds; TVM's where it finds none."""

    def convert(cls: type, bb: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        found = limits(inputs, attr)
        dtype = dtype_name(type_of(inputs[0]).dtype)
        if found is None or dtype not in FLOATS:
            return stock(cls, bb, inputs, attr, params)
        low, high = found
        if None not in found and low <= high:
            return bb.normalize(R.op.clip(inputs[0], low, high))
        result = inputs[0]
        for op, limit in ((R.op.maximum, low), (R.op.minimum, high)):
            # Where limits cross, ONNX has the upper one, and TVM's clip the lower one.
            if limit is not None:
                result = bb.normalize(op(result, R.const(limit, dtype)))
        return result

    return convert


def _stated(inputs: Any, attr: dict[str, Any]) -> Limits:
    del inputs
    return _limit(attr.get("min"), -inf), _limit(attr.get("max"), inf)


def _constants(inputs: Any, attr: dict[str, Any]) -> Limits | None:
    del attr
    limits = []
    for one, unlimited in ((inputs[1], -inf), (inputs[2], inf)):
        value = None if one is None else constant_value(one)
        if one is not None and (value is None or value.numpy().size != 1):
            return None
        number = None if value is None else value.numpy().reshape(()).item()
        limits.append(_limit(number, unlimited))
    low, high = limits
    return low, high


def _limit(value: float | None, unlimited: float) -> float | None:
    """Return a limit that limits; NaN is none, as in onnxruntime."""
    return None if value is None or isnan(value) or value == unlimited else float(value)


def _state_output_shape(bb: Any, inputs: Any, attr: dict[str, Any]) -> None:
    """``output_shape`` as ``pads`` and ``output_padding``; TVM's own converter drops it."""
    del bb
    shape = known_shape(type_of(inputs[0]).shape) or (None,)
    kernel = known_shape(type_of(inputs[1]).shape) or (None, None)
    if isinstance(kernel[1], int):
        check_bias("ConvTranspose", inputs[2], kernel[1] * attr.get("group", 1))
    if "output_shape" not in attr:
        return
    if not all(isinstance(size, int) for size in (*shape[2:], *kernel[2:])):
        raise fail(
            "ConvTranspose", f"output_shape={attr['output_shape']} needs sizes known at import"
        )
    names = ("strides", "dilations", "output_padding", "output_shape", "auto_pad")
    given = {name: attr[name] for name in names if name in attr}
    call = read("onnx", "conv_transpose", size=shape[2:], kernel_size=kernel[2:], **given)
    for name in ("output_shape", "auto_pad"):
        attr.pop(name, None)
    attr["pads"] = list(call.attributes["padding"])
    attr["output_padding"] = list(call.attributes["output_padding"])
