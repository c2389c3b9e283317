# SPDX-License-Identifier: Apache-2.0
"""Indices of maximum pooling, which a forward graph need not compute for its backward graph.

The kernel of the gradient compares the data with the maxima.  PyTorch's operator takes indices, so
AOTAutograd saves them: 8 bytes for each maximum, of a kernel that takes longer than the pooling.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

_POOL = torch.ops.aten.max_pool2d_with_indices.default
_GRADIENT = torch.ops.aten.max_pool2d_with_indices_backward.default


def find_indices_again(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
    """Let a backward graph pool again for the indices that its compiled kernels do not read.

    Parameters
    ----------
    forward, backward : fx.GraphModule
        Changed in place.  What one saves for the other has the same name in both.
    results : int
        Number of results of the forward graph, before the values that it saves.
    """
    (output,) = forward.graph.find_nodes(op="output")
    values = list(output.args[0])
    saved = {getattr(value, "name", "") for value in values[results:]}
    dropped = set()
    for node in backward.graph.find_nodes(op="placeholder"):
        if node.name in saved and node.users and all(_is_unread(node, user) for user in node.users):
            for gradient in list(node.users):
                _pool_again(gradient)
            backward.graph.erase_node(node)
            dropped.add(node.name)
    if not dropped:
        return
    kept = [value for value in values[results:] if getattr(value, "name", "") not in dropped]
    output.args = ((*values[:results], *kept),)
    for module in (forward, backward):
        module.recompile()


def _is_unread(node: fx.Node, user: fx.Node) -> bool:
    """Return whether a user is a gradient whose kernel does not read these indices."""
    if user.target is not _GRADIENT or user.args[-1] is not node:
        return False
    data, dilation = user.args[1], user.args[5]
    are_known = all(isinstance(size, int) for size in data.meta["val"].shape)  # type: ignore[union-attr]
    return are_known and set(dilation) == {1}  # type: ignore[arg-type]


def _pool_again(gradient: fx.Node) -> None:
    """Replace the indices that a gradient takes by those of the pooling, repeated."""
    maxima, data, *windows, indices = gradient.args
    with gradient.graph.inserting_before(gradient):
        pool = gradient.graph.call_function(_POOL, (data, *windows))
        again = gradient.graph.call_function(operator.getitem, (pool, 1))
    pool.meta = {"val": (maxima.meta["val"], indices.meta["val"])}  # type: ignore[union-attr]
    again.meta = {"val": indices.meta["val"]}  # type: ignore[union-attr]
    gradient.args = (maxima, data, *windows, again)
