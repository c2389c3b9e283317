# SPDX-License-Identifier: Apache-2.0
"""Gathers of one element of each row, such as those of a loss of classes, as sums.

A gather stays in PyTorch, which checks its indices, and so divides a graph.  The sum reads the rows
alone, wherever the indices point, and an assertion raises for indices out of range.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def sum_gathers(graph: fx.Graph) -> None:
    """Replace gathers of one element of each row by sums and assertions.

    Parameters
    ----------
    graph : fx.Graph
        A graph of AOTAutograd; changed in place.
    """
    for node in graph.find_nodes(op="call_function", target=aten.gather.default):
        x, axis, index = node.args[:3]
        rows = list(x.meta["val"].shape)
        if not rows or not x.meta["val"].is_floating_point():
            continue
        count, rows[axis] = rows[axis], 1
        if isinstance(count, int) and list(index.meta["val"].shape) == rows:
            with graph.inserting_before(node):
                node.replace_all_uses_with(_summed(graph, x, axis, index, count))
            graph.erase_node(node)


def _summed(graph: fx.Graph, x: fx.Node, axis: int, index: fx.Node, count: int) -> fx.Node:
    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        added = graph.call_function(target, args, kwargs)
        values = fx.node.map_arg(args, lambda each: each.meta["val"])
        with x.meta["val"].fake_mode:
            added.meta = {"val": target(*values, **kwargs)}
        return added

    shape = [1] * x.meta["val"].dim()
    shape[axis] = count
    numbers = call(aten.view.default, call(aten.arange.start_step, 0, count), shape)
    zero = call(aten.full.default, [], 0.0, dtype=x.meta["val"].dtype)
    chosen = call(aten.where.self, call(aten.eq.Tensor, index, numbers), x, zero)
    outside = call(
        aten.logical_or.default, call(aten.lt.Scalar, index, 0), call(aten.ge.Scalar, index, count)
    )
    are_within = call(aten.logical_not.default, call(aten.any.default, outside))
    what = f"an index is out of bounds for dimension {axis} with size {count}"
    graph.call_function(aten._assert_async.msg, (are_within, what))
    return call(aten.sum.dim_IntList, chosen, [axis], True)
