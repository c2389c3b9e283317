# SPDX-License-Identifier: Apache-2.0
"""Graphs that PyTorch runs as fast as anything that is called in its place.

A call of a compiled graph passes AOTAutograd, which takes as long as some operators of PyTorch.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..aten.sizes import SYMBOLIC
from .attention import FORWARD

OPERATORS = 6
"""Maximum number of operators.  Eager calls of these take about 40 microseconds, as AOTAutograd."""

FLOPS = 8_000_000
"""Maximum multiplications and additions of matrix products, which take eager 60 microseconds."""

SLOWER = {torch.ops.aten.convolution: 8, torch.ops.aten._convolution: 8, FORWARD: 4}
"""Times that those of other operators count: eager's small ones take so much longer."""

_ATEN = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_FREE = (operator.getitem, getattr)
_TRANSPOSED = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
"""Names of functions for which PyTorch takes several times as long as for convolutions."""


def is_small(graph_module: fx.GraphModule) -> bool:
    """Return whether PyTorch runs a graph of Dynamo in about the time of its call.

    Symbolic sizes are never small.
    """
    nodes = graph_module.graph.nodes
    calls = [node for node in nodes if node.op.startswith("call_") and node.target not in _FREE]
    others = {"call_module", "get_attr"} & {node.op for node in nodes}  # such as checkpoints
    written = any(isinstance(node.target, _ATEN) for node in calls)  # by quantizers
    names = {getattr(node.target, "__name__", "") for node in calls}
    if others or written or len(calls) > OPERATORS or names & _TRANSPOSED:
        return False
    if not all(map(_is_static, tree_leaves([_value(node) for node in nodes]))):
        return False
    inputs = [_value(node) for node in nodes if node.op == "placeholder"]
    if not inputs or not all(isinstance(one, FakeTensor) for one in inputs):
        return False
    if {one.dtype for one in inputs if one.dtype.is_floating_point} != {torch.float32}:
        return False  # eager is slower by far
    counter = FlopCounterMode(display=False, custom_mapping={FORWARD: _of_attention})
    with inputs[0].fake_mode, counter, torch.no_grad():
        graph_module(*(one.detach().clone() for one in inputs))
    counts = counter.get_flop_counts().get("Global", {}).items()
    work = sum(count * SLOWER.get(what, 1) for what, count in counts)
    return 0 < work <= FLOPS


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _is_static(value: Any) -> bool:
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return not any(isinstance(size, SYMBOLIC) for size in sizes)


def _of_attention(*shapes: Any, **_: Any) -> int:
    flops: int = sdpa_flop_count(*shapes[:3])
    return flops
