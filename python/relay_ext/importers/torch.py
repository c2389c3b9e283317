# SPDX-License-Identifier: Apache-2.0
"""PyTorch's convolutions as Relay operators of the same rank, whose stated layouts are true."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from topi_ext.compat import relay
from topi_ext.geometry import fail
from topi_ext.layout import SPATIAL

R = relay()

NEEDS = {"PyTorchOpConverter.create_convert_map": ("self",)}


def corrections(module: ModuleType) -> dict[str, Any]:
    """A table of converters in which those of convolutions are ours."""
    stock = vars(module.PyTorchOpConverter)["create_convert_map"]

    def create_convert_map(self: Any) -> None:
        stock(self)
        self.convert_map.update(_convert_map(self))

    return {"PyTorchOpConverter.create_convert_map": create_convert_map}


def _convert_map(converter: Any) -> dict[str, Any]:
    """Converters ``(inputs, input_types) -> expression`` by the name of the PyTorch operator."""

    def traced(inputs: Sequence[Any], _: Any) -> Any:
        (data, weight, bias, stride, padding, dilation, transposed, extra, groups, *_rest) = inputs
        return _convolution(
            converter, data, weight, bias, stride, padding, dilation, groups, transposed, extra
        )

    def with_mode(inputs: Sequence[Any], _: Any) -> Any:
        return _convolution(converter, *inputs[:7])

    def scripted_transpose(inputs: Sequence[Any], _: Any) -> Any:
        data, weight, bias, stride, padding, extra, groups, dilation = inputs[:8]
        return _convolution(
            converter, data, weight, bias, stride, padding, dilation, groups, True, extra
        )

    return {
        "aten::_convolution": traced,
        "aten::_convolution_mode": with_mode,
        **{f"aten::conv{rank}d": with_mode for rank in SPATIAL},
        **{f"aten::conv_transpose{rank}d": scripted_transpose for rank in SPATIAL},
    }


def _convolution(
    converter: Any,
    data: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    transposed: Any = False,
    extra: Any = 0,
) -> Any:
    shape = [int(size) for size in converter.infer_shape(weight)]
    rank, kernel, groups = len(shape) - 2, shape[2:], int(groups)
    strides, dilations = _per_axis(stride, rank), _per_axis(dilation, rank)
    spatial = SPATIAL[rank]
    attrs = {
        "strides": strides,
        "padding": _both_sides(padding, kernel, strides, dilations),
        "dilation": dilations,
        "groups": groups,
        "kernel_size": kernel,
        "data_layout": "NC" + spatial,
    }
    if transposed:
        name = f"conv{rank}d_transpose"
        attrs.update(channels=shape[1] * groups, kernel_layout="IO" + spatial)
        attrs.update(output_padding=_per_axis(extra, rank))
    else:
        name = f"conv{rank}d"
        attrs.update(channels=shape[0], kernel_layout="OI" + spatial)
    result = getattr(R.nn, name)(data, weight, **attrs)
    return R.nn.bias_add(result, bias) if isinstance(bias, R.Expr) else result


def _per_axis(value: Any, rank: int) -> tuple[int, ...]:
    values = tuple(int(v) for v in value) if isinstance(value, (list, tuple)) else (int(value),)
    return values * rank if len(values) == 1 else values


def _both_sides(padding: Any, kernel: Any, strides: Any, dilations: Any) -> tuple[int, ...]:
    """Padding before every axis, then after; PyTorch puts the odd element of "same" behind."""
    if not isinstance(padding, str):
        return _per_axis(padding, len(kernel)) * 2
    if padding == "valid":
        return (0,) * (2 * len(kernel))
    if padding != "same" or any(stride != 1 for stride in strides):
        raise fail("aten::convolution", f"padding={padding!r} with stride={strides} is unknown")
    totals = [d * (k - 1) for d, k in zip(dilations, kernel)]
    before = tuple(total // 2 for total in totals)
    return before + tuple(total - b for total, b in zip(totals, before))
