# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions in a lower precision than that of their operands.

``options={"dtype": "bfloat16"}`` casts the float32 operands of each product, convolution and
gradient of them, and casts the result back; other operators stay float32.  PyTorch's autocast does
the same, and keeps the lower precision until an operator needs float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .partition import is_product

_CAST = torch.ops.aten._to_copy.default


def lower(graph: fx.Graph, dtype: torch.dtype) -> None:
    """Compute the products of float32 operands in `dtype`.

    Parameters
    ----------
    graph : fx.Graph
        A graph of AOTAutograd, forward and backward in one or apart; changed in place.
    dtype : torch.dtype
    """
    lowered: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if not is_product(node) or not _is_float32(node):
            continue
        for operand in node.all_input_nodes:
            if _is_tensor(operand):
                if operand not in lowered:
                    lowered[operand] = _lowered(graph, operand, dtype)
                node.replace_input_with(operand, lowered[operand])
        for result in filter(_is_tensor, [node] if _is_tensor(node) else list(node.users)):
            lowered[_widened(graph, result, dtype)] = result
        if not _is_tensor(node):
            node.meta["val"] = tuple(
                None if value is None else value.to(dtype) for value in node.meta["val"]
            )


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_float32(node: fx.Node) -> bool:
    tensors = filter(_is_tensor, node.all_input_nodes)
    return all(operand.meta["val"].dtype is torch.float32 for operand in tensors)


def _lowered(graph: fx.Graph, operand: fx.Node, dtype: torch.dtype) -> fx.Node:
    """Return an operand in `dtype`, cast where it is defined."""
    place = operand.next
    while place.op == "placeholder":
        place = place.next
    with graph.inserting_before(place):
        return _cast(graph, operand, operand.meta["val"].to(dtype))


def _widened(graph: fx.Graph, result: fx.Node, dtype: torch.dtype) -> fx.Node:
    """Change a result to `dtype`, and return it in float32, which all its users read."""
    value = result.meta["val"]
    with graph.inserting_after(result):
        wide = _cast(graph, result, value)
    result.replace_all_uses_with(wide, delete_user_cb=lambda user: user is not wide)
    result.meta = {**_without_stale(result.meta), "val": value.to(dtype)}
    return wide


def _cast(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> fx.Node:
    cast = graph.call_function(_CAST, (node,), {"dtype": value.dtype})
    cast.meta = {**_without_stale(node.meta), "val": value}
    return cast


def _without_stale(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a node without its old dtype."""
    return {key: value for key, value in meta.items() if key != "tensor_meta"}
