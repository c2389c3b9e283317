# SPDX-License-Identifier: Apache-2.0
"""PyTorch: assertions about the data of an exported program, made by PyTorch before each call.

TVM compiles no function with an assertion into one dataflow block, which its gradients need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from topi_ext.spec.geometry import fail

Check = Callable[[Sequence[torch.Tensor]], None]
"""Raise for a batch that an assertion refuses."""

_ATEN = torch.ops.aten
_ASSERTIONS = (_ATEN._assert_async.msg, _ATEN._assert_async.default)
_STATED = (_ATEN._assert_tensor_metadata.default,)
"""Assertions about what the program states already."""


def checked_outside(program: Any, inputs: int, op: str) -> Check:
    """Take the assertions out of a program.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Decomposed; changed in place.
    inputs : int
        How many of its arguments are the batch; the others are state.
    op : str
        The name that errors begin with.

    Raises
    ------
    ValueError
        One line with an assertion about the state.
    """
    names = set(program.graph_signature.user_inputs[:inputs])
    places = [node for node in program.graph.nodes if node.op == "placeholder"]
    batch = [node for node in places if node.name in names]
    conditions, messages = fx.Graph(), []
    copies = {node: conditions.placeholder(node.name) for node in batch}
    results = []
    for node in list(program.graph.nodes):
        if node.target in _ASSERTIONS:
            message = node.args[1] if len(node.args) > 1 else "an assertion of the module"
            results.append(_copied(conditions, node.args[0], copies, f"{op}: {message}"))
            messages.append(message)
        if node.target in (*_ASSERTIONS, *_STATED):
            program.graph.erase_node(node)
    conditions.output(tuple(results))
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    run = fx.GraphModule(program.graph_module, conditions)

    def check(tensors: Sequence[torch.Tensor]) -> None:
        for holds, message in zip(run(*tensors), messages):
            if not holds:
                raise fail(op, message)

    return check


def _copied(graph: fx.Graph, node: Any, copies: dict[Any, Any], what: str) -> Any:
    """Return the copy of a node and of all that it reads."""
    if node not in copies:
        if node.op != "call_function":
            raise ValueError(f"{what} is about the weights, and must be about the batch")
        for operand in node.all_input_nodes:
            _copied(graph, operand, copies, what)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return copies[node]
