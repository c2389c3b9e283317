# SPDX-License-Identifier: Apache-2.0
"""Quantizations of torchao that AOTAutograd would decompose into arithmetic.

``torchao.quantize_affine`` and ``dequantize_affine`` of all of a tensor, or of each place of one
axis, are PyTorch's ``quantized_decomposed.*_per_tensor`` and ``*_per_channel``, which stay whole.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import fx

from ..aten.quantized import ALL, axis_of

_NAMES = {
    "torchao.quantize_affine": ("quantize", "output_dtype"),
    "torchao.dequantize_affine": ("dequantize", "input_dtype"),
}
"""By operator of torchao, the name of PyTorch's, and the argument that is the dtype of integers."""

_DTYPES = (torch.int8, torch.uint8)


def keep_whole(graph_module: fx.GraphModule) -> None:
    """Replace torchao's operators in a graph of Dynamo where PyTorch has the same ones."""
    changed = 0
    for node in list(graph_module.graph.nodes):
        name = str(node.target).removesuffix(".default")
        if node.op != "call_function" or name not in _NAMES:
            continue
        found = _counterpart(node, *_NAMES[name])
        if found is not None:
            node.target, node.args, node.kwargs = found
            changed += 1
    if changed:
        graph_module.recompile()


def _counterpart(node: fx.Node, name: str, stated: str) -> tuple[Any, Any, Any] | None:
    """Return PyTorch's operator and its arguments, or None."""
    import_module("torch.ao.quantization.fx._decomposed")  # registers the operators
    target: Any = node.target
    schema = getattr(target, "default", target)._schema.arguments
    given = {
        **{argument.name: argument.default_value for argument in schema},
        **dict(zip((argument.name for argument in schema), node.args)),
        **node.kwargs,
    }
    x, dtype, parameters = given["input"], given[stated], (given["scale"], given["zero_point"])
    examples = [one for one in map(_example, (x, *parameters)) if one is not None]
    if len(examples) != 3 or dtype not in _DTYPES or examples[0].dtype not in _INPUTS:
        return None
    limits, axis = torch.iinfo(dtype), axis_of(examples[0].shape, given["block_size"])
    low, high = (
        default if given[limit] is None else given[limit]
        for limit, default in (("quant_min", limits.min), ("quant_max", limits.max))
    )
    if axis is None or any(one.dim() != 1 for one in examples[1:] if axis != ALL):
        return None
    form = "per_tensor" if axis == ALL else "per_channel"
    packet = getattr(torch.ops.quantized_decomposed, f"{name}_{form}")
    axes = () if axis == ALL else (axis,)
    result = given["output_dtype"]
    is_stated = name == "dequantize" and isinstance(result, torch.dtype)
    more = {"out_dtype": result} if is_stated else {}
    overload = packet.tensor if axis == ALL else packet.default
    return overload, (x, *parameters, *axes, low, high, dtype), more


_INPUTS = (torch.float32, *_DTYPES)
"""Half precision is quantized in half precision by torchao alone."""


def _example(value: Any) -> torch.Tensor | None:
    """Return the fake tensor of an argument."""
    found = value.meta.get("example_value") if isinstance(value, fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None
