# SPDX-License-Identifier: Apache-2.0
"""ONNX: ``output_shape`` of ConvTranspose, and ``auto_pad`` of Conv whatever is known of sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

from topi_ext.compat import known_shape, type_of
from topi_ext.geometry import fail

from .padding import fit, natural, same, split

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
    mode = _auto_pad(attr)
    sizes = known_shape(type_of(inputs[0]).shape)
    kernel = known_shape(type_of(inputs[1]).shape)
    if not mode.startswith("SAME") or sizes is None or kernel is None:
        return
    strides, dilations = _windows(attr, len(kernel) - 2)
    pads = [
        split(same(*axis), mode == "SAME_UPPER")
        for axis in zip(sizes[2:], kernel[2:], strides, dilations)
    ]
    before, after = map(list, zip(*pads))
    if not all(isinstance(pad, int) for pad in before + after):
        from tvm import topi

        inputs[0] = bb.emit_te(topi.nn.pad, inputs[0], [0, 0, *before], [0, 0, *after], 0.0)
        before, after = [0] * len(before), [0] * len(after)
    del attr["auto_pad"]
    attr["pads"] = before + after


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
    rank = len(kernel) - 2
    wanted = [int(size) for size in attr.pop("output_shape")][-rank:]
    strides, dilations = _windows(attr, rank)
    extra = attr.get("output_padding", [0] * rank)
    mode = _auto_pad(attr)
    attr.pop("auto_pad", None)
    pads = []
    for axis, target, more in zip(zip(shape[2:], kernel[2:], strides, dilations), wanted, extra):
        result = natural(*axis)
        # The standard's text: NOTSET is as SAME_LOWER here, and output padding counts as padded.
        before, _ = split(max(result + more - target, 0), mode == "SAME_UPPER")
        pads.append((before, *fit(result, target, before)))
    before, after, attr["output_padding"] = map(list, zip(*pads))
    attr["pads"] = before + after


def _auto_pad(attr: dict[str, Any]) -> str:
    mode = attr.get("auto_pad", b"NOTSET")
    return mode.decode() if isinstance(mode, bytes) else mode


def _windows(attr: dict[str, Any], rank: int) -> tuple[list[int], list[int]]:
    return attr.get("strides", [1] * rank), attr.get("dilations", [1] * rank)
