# SPDX-License-Identifier: Apache-2.0
"""Batch norms inside of activation checkpoints, which the backward graph computes again.

A batch norm also updates its running statistics.  If it is repeated as one operator, the backward
graph needs the earlier running statistics, which PyTorch has overwritten by then.  So the update
becomes operators of its own, which are not repeated.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_UPDATES = aten._native_batch_norm_legit_functional.default


def separate_updates(graph: fx.Graph) -> None:
    """Separate the updates of running statistics from the batch norms that are repeated.

    Parameters
    ----------
    graph : fx.Graph
        A joint graph of AOTAutograd; changed in place.
    """
    for node in list(graph.nodes):
        if node.target is _UPDATES and "recompute" in node.meta and node.args[5] is True:
            _separate(graph, node)


def _separate(graph: fx.Graph, node: fx.Node) -> None:
    arguments: Any = node.args
    x, weight, bias, mean, variance, training, momentum, epsilon = arguments

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        added = graph.call_function(target, args, kwargs)
        values = fx.node.map_arg(args, lambda each: each.meta["val"])
        added.meta = {"val": target(*values, **kwargs)}
        return added

    with graph.inserting_before(node):
        wide = call(aten._to_copy.default, x, dtype=mean.meta["val"].dtype)
        axes = [axis for axis in range(x.meta["val"].dim()) if axis != 1]
        both = call(aten.var_mean.correction, wide, axes, correction=1)
        fields = [call(operator.getitem, both, number) for number in (1, 0)]
        updated = [
            call(
                aten.add.Tensor,
                call(aten.mul.Tensor, new, momentum),
                call(aten.mul.Tensor, old, 1 - momentum),
            )
            for new, old in zip(fields, (mean, variance))
        ]
    for user in list(node.users):
        number: Any = user.args[1]
        if number >= 3:
            user.replace_all_uses_with(updated[number - 3])
            graph.erase_node(user)
    node.target = aten._native_batch_norm_legit.no_stats
    node.args = (x, weight, bias, training, momentum, epsilon)
    node.meta["val"] = node.meta["val"][:3]
