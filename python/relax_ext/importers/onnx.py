# SPDX-License-Identifier: Apache-2.0
"""ONNX: ``output_shape`` of ConvTranspose, and ``auto_pad`` of Conv whatever is known of sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

from topi_ext.compat import known_shape, simplify, tir, type_of
from topi_ext.geometry import fail
from topi_ext.padding import reach, read

_CONVERTER = ("cls", "bb", "inputs", "attr", "params")
NEEDS = {"Conv._impl_v11": _CONVERTER, "ConvTranspose._impl_v1": _CONVERTER}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Converters that state padding as numbers, then call TVM's."""
    steps = {"Conv._impl_v11": _state_same, "ConvTranspose._impl_v1": _state_output_shape}
    return {path: classmethod(_after(step, module, path)) for path, step in steps.items()}


def _after(step: Callable[..., None], module: ModuleType, path: str) -> Callable[..., Any]:
    class_name, name = path.split(".")
    stock = vars(getattr(module, class_name))[name].__func__

    def convert(cls: type, bb: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        # The node's own: TVM may convert it again, and its inputs are others' outputs.
        inputs, attr = copy.copy(inputs), dict(attr)
        step(bb, inputs, attr)
        return stock(cls, bb, inputs, attr, params)

    return convert


def _state_same(bb: Any, inputs: Any, attr: dict[str, Any]) -> None:
    """SAME of a convolution as ``pads``; where these depend on a size that only run time knows,
    the data is padded before.  TVM's own rule cannot calculate with such sizes."""
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
    """Padding before and after with which there are ``ceil(size / stride)`` results."""
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


def _state_output_shape(bb: Any, inputs: Any, attr: dict[str, Any]) -> None:
    """``output_shape`` as ``pads`` and ``output_padding``; TVM's own converter drops it."""
    del bb
    if "output_shape" not in attr:
        return
    shape = known_shape(type_of(inputs[0]).shape) or (None,)
    kernel = known_shape(type_of(inputs[1]).shape) or (None,)
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
