# SPDX-License-Identifier: Apache-2.0
"""PyTorch's convolutions as Relay operators of the same rank, whose stated layouts are true; the
importer itself."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tvm

from topi_ext.compat import relay
from topi_ext.spec.geometry import fail
from topi_ext.spec.layout import SPATIAL

from .torch_operators import convert_map
from .torch_script import simplified

R = relay()

NEEDS = {
    "PyTorchOpConverter.create_convert_map": ("self",),
    "from_pytorch": (
        *("script_module", "input_infos", "custom_convert_map", "default_dtype"),
        *("use_parser_friendly_name", "keep_quantized_weight", "export_renamed_c_graph_path"),
        "preserve_pytorch_scopes",
    ),
    "_convert_data_type": ("input_type", "default_dtype"),
    "_get_constant": ("node",),
    "_get_tensor_and_var": ("torch_tensor", "name"),
}
PACKAGE_NEEDS = {"from_pytorch": NEEDS["from_pytorch"]}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Return a table of converters in which those of convolutions are ours; bfloat16; constant
    lists; and scripted modules.
    """
    table = vars(module.PyTorchOpConverter)["create_convert_map"]
    data_type, constant = module._convert_data_type, module._get_constant
    tensor_and_var = module._get_tensor_and_var

    def create_convert_map(self: Any) -> None:
        table(self)
        self.convert_map.update({**_convert_map(self), **convert_map(self)})

    def _convert_data_type(input_type: Any, default_dtype: Any = None) -> str:
        if str(input_type).lower() in ("bfloat16", "torch.bfloat16"):
            return "bfloat16"
        return data_type(input_type, default_dtype)

    def _get_constant(node: Any) -> Any:
        kind = node.output().type().kind()
        if kind == "ListType":  # of a frozen module
            return node.output().toIValue()
        if kind in ("TensorType", "CompleteTensorType") and node.t("value").dim():
            tensor = node.t("value").cpu()
            if _is_bfloat16(tensor):
                return R.const(_bfloat16(tensor))
            if str(tensor.dtype) == "torch.float64":  # which TVM would make float32 of
                return R.const(tvm.nd.array(tensor.numpy()))
        return constant(node)

    def _get_tensor_and_var(torch_tensor: Any, name: str) -> tuple[Any, Any]:
        if not _is_bfloat16(torch_tensor):
            return tensor_and_var(torch_tensor, name)
        tensor = _bfloat16(torch_tensor)
        return tensor, R.var(name, shape=tensor.shape, dtype=tensor.dtype)

    return {
        "PyTorchOpConverter.create_convert_map": create_convert_map,
        "_convert_data_type": _convert_data_type,
        "_get_constant": _get_constant,
        "_get_tensor_and_var": _get_tensor_and_var,
        **package_corrections(module),
    }


def package_corrections(module: ModuleType) -> dict[str, Any]:
    """Return the importer itself, which the package of all importers holds a second time."""
    stock = module.from_pytorch

    @functools.wraps(stock)
    def from_pytorch(script_module: Any, input_infos: Any, *args: Any, **options: Any) -> Any:
        return stock(simplified(script_module, input_infos), input_infos, *args, **options)

    return {"from_pytorch": from_pytorch}


def _is_bfloat16(tensor: Any) -> bool:
    return str(tensor.dtype) == "torch.bfloat16"


def _bfloat16(tensor: Any) -> Any:
    """Return a tensor of TVM; NumPy has no bfloat16."""
    import torch

    bits = tensor.detach().cpu().contiguous().view(torch.int16).numpy().view("uint16")
    return tvm.nd.empty(bits.shape, "bfloat16").copyfrom(bits)


def _convert_map(converter: Any) -> dict[str, Any]:
    """Converters ``(inputs, input_types) -> expression`` by the name of the PyTorch operator."""

    stock_pad = converter.convert_map["aten::pad"]

    def pad(inputs: Sequence[Any], types: Any) -> Any:
        if len(inputs) > 2 and inputs[2] == "circular":
            return _circular(converter, inputs[0], inputs[1])
        return stock_pad(inputs, types)

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
        "aten::pad": pad,
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
    has_batch = len(converter.infer_shape(data)) == rank + 2
    data = data if has_batch else R.expand_dims(data, 0)
    result = getattr(R.nn, name)(data, weight, **attrs)
    result = R.nn.bias_add(result, bias) if isinstance(bias, R.Expr) else result
    return result if has_batch else R.squeeze(result, [0])


def _circular(converter: Any, data: Any, pads: Sequence[Any]) -> Any:
    """Return the padding by what is at the other end; `pads` are (before, after) from the last axis
    on.
    """
    shape = converter.infer_shape(data)
    sides = [int(pad.data.numpy()) if isinstance(pad, R.Constant) else int(pad) for pad in pads]
    if min(sides, default=0) < 0:
        raise fail("aten::pad", f"pad={sides} must be at least 0 where the mode is circular")
    for which, (before, after) in enumerate(zip(sides[::2], sides[1::2]), 1):
        axis = len(shape) - which
        size = int(shape[axis])
        spans = ((size - before, size), (0, size), (0, after))
        if before or after:
            rows = (
                R.strided_slice(data, [first], [last], axes=[axis])
                for first, last in spans
                if first < last
            )
            data = R.concatenate(list(rows), axis)
    return data


def _per_axis(value: Any, rank: int) -> tuple[int, ...]:
    values = tuple(int(v) for v in value) if isinstance(value, (list, tuple)) else (int(value),)
    return values * rank if len(values) == 1 else values


def _both_sides(padding: Any, kernel: Any, strides: Any, dilations: Any) -> tuple[int, ...]:
    """Return the padding before every axis, then after; PyTorch puts the odd element of "same"
    behind.
    """
    if not isinstance(padding, str):
        return _per_axis(padding, len(kernel)) * 2
    if padding == "valid":
        return (0,) * (2 * len(kernel))
    if padding != "same" or any(stride != 1 for stride in strides):
        raise fail("aten::convolution", f"padding={padding!r} with stride={strides} is unknown")
    totals = [d * (k - 1) for d, k in zip(dilations, kernel)]
    before = tuple(total // 2 for total in totals)
    return before + tuple(total - b for total, b in zip(totals, before))
