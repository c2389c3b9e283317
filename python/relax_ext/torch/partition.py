# SPDX-License-Identifier: Apache-2.0
"""Partition of a graph into compiled parts and nodes that stay in PyTorch.

Nodes are grouped by stages.  A node that stays in PyTorch has the stage of the values that it
reads; nodes that read its results have the next one.  The nodes of one stage that can be compiled
form one part, which runs before the nodes of that stage that stay in PyTorch.  Nodes that stay in
PyTorch and read only inputs of the graph have a stage before the first part.  Nodes that draw
random numbers keep their order.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..aten.strides import in_order, order_of
from . import attention
from .draws import is_random

aten = torch.ops.aten

PRODUCTS = {
    *(aten.convolution, aten.convolution_backward),
    *(aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten._int_mm),
    *attention.OPERATORS,
}
"""Operators for which a part is compiled."""

ASSERTIONS = {aten._assert_async.msg, aten._assert_async.default}
"""Assertions about values, which PyTorch makes."""

INDEXED = {
    *(aten.embedding, aten.embedding_dense_backward, aten.gather, aten.index, aten.index_add),
    *(aten.index_put, aten.index_select, aten.scatter, aten.scatter_add, aten.scatter_reduce),
}
"""Operators at indices, which PyTorch checks."""

VIEWS = {
    *(aten.alias, aten.detach, aten.expand, aten.permute, aten.select, aten.slice, aten.squeeze),
    *(aten.t, aten.transpose, aten.unsqueeze, aten.view, aten._unsafe_view),
}
"""Operators whose result shares the memory of their argument."""


_FIRST = -1
"""The stage before the first part."""


def packet_of(node: fx.Node) -> Any:
    """Return the operator of a node, without its overload; None for other functions."""
    return getattr(node.target, "overloadpacket", None) if node.op == "call_function" else None


def is_product(node: fx.Node) -> bool:
    """Return whether a node is a convolution, its gradient or a matrix product."""
    return packet_of(node) in PRODUCTS


def is_view(node: fx.Node) -> bool:
    """Return whether a node only views its argument."""
    return packet_of(node) in VIEWS


def is_size(node: fx.Node) -> bool:
    """Return whether a node is a number that follows from sizes."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat))


def operators(nodes: Iterable[fx.Node]) -> int:
    """Return how many of these nodes compute something, without views, fields and sizes."""
    calls = (node for node in nodes if node.op == "call_function")
    return sum(
        not is_view(node) and not is_size(node) and node.target is not operator.getitem
        for node in calls
    )


@dataclass
class Subgraph:
    """Nodes of a graph that can be compiled as one function.

    Attributes
    ----------
    nodes : list of fx.Node
        In the order of the graph.
    inputs : list of fx.Node
        Values from outside that the nodes read.
    outputs : list of fx.Node
        Values of the nodes that other nodes or `views` read.
    views : list of fx.Node
        Views that other nodes read: PyTorch creates them from outputs and inputs.
    """

    nodes: list[fx.Node]
    inputs: list[fx.Node]
    outputs: list[fx.Node]
    views: list[fx.Node]

    @property
    def key(self) -> tuple[tuple[fx.Node, ...], ...]:
        """Return what tells this subgraph from another one of the same graph."""
        return tuple(self.nodes), tuple(self.outputs)

    def fixed(self, known: Sequence[fx.Node] = ()) -> set[fx.Node]:
        """Return the nodes that follow from no tensor outside but `known` ones, such as zeros of
        known shape.
        """
        found = set(known)
        for node in self.nodes:
            if all(read in found or is_size(read) for read in node.all_input_nodes):
                found.add(node)
        return found

    def module(self) -> fx.GraphModule:
        """Return the subgraph as a module of its own."""
        graph = fx.Graph()
        values = {node: graph.placeholder(node.name) for node in self.inputs}
        for node in self.nodes:
            values[node] = graph.node_copy(node, values.__getitem__)
        graph.output(tuple(values[node] for node in self.outputs))
        return fx.GraphModule({}, graph)

    def halves(self) -> list[Subgraph]:
        """Return the subgraph in two, one after the other; fields stay with their tuples."""
        first = set(self.nodes[: len(self.nodes) // 2])
        for node in self.nodes:
            if node.target is operator.getitem and node.args[0] in first:
                first.add(node)
        parts = (
            [node for node in self.nodes if (node in first) == is_first] for is_first in (1, 0)
        )
        return [_subgraph(nodes) for nodes in parts if nodes]


class Partition:
    """A partitioned graph.

    Attributes
    ----------
    subgraphs : dict of int to Subgraph
        Subgraphs with a product, by stage.
    """

    def __init__(self, graph: fx.Graph, supports: Callable[[fx.Node], bool]) -> None:
        self._graph = graph
        calls = [node for node in graph.nodes if node.op == "call_function"]
        self._can = _compilable(calls, supports)
        self._stages = _stages(calls, self._can)
        _sink(calls, self._can, self._stages)
        by_stage: dict[int, list[fx.Node]] = defaultdict(list)
        for node in calls:
            if node in self._can:
                by_stage[self._stages[node]].append(node)
        self.subgraphs = {
            stage: _subgraph(nodes)
            for stage, nodes in sorted(by_stage.items())
            if any(map(is_product, nodes))
        }

    @property
    def in_pytorch(self) -> list[fx.Node]:
        """Return the nodes that cannot be compiled."""
        calls = (node for node in self._graph.nodes if node.op == "call_function")
        return [node for node in calls if node not in self._can]

    def joined(
        self,
        root: torch.nn.Module,
        functions: Mapping[int, Callable[..., Sequence[Any]]],
        unordered: set[fx.Node],
    ) -> fx.GraphModule:
        """Return the graph in which functions replace subgraphs.

        Parameters
        ----------
        root : torch.nn.Module
            Module with the attributes that the graph reads.
        functions : mapping of int to callable
            By stage; each takes the inputs of a subgraph and returns its outputs.  Nodes of other
            subgraphs stay in PyTorch.
        unordered : set of fx.Node
            Values that functions take and return with another order of axes in memory than stated.
            Nodes that stay in PyTorch get them as stated.
        """
        new, values, ordered = fx.Graph(), dict[fx.Node, fx.Node](), dict[fx.Node, fx.Node]()

        def stated(node: fx.Node) -> fx.Node:
            if node not in unordered:
                return values[node]
            if node not in ordered:
                order = order_of(node.meta["val"])
                ordered[node] = new.call_function(in_order, (values[node], order))
            return ordered[node]

        def copy(nodes: Iterable[fx.Node]) -> None:
            for node in nodes:
                is_call = node.op == "call_function"
                values[node] = new.node_copy(node, stated if is_call else values.__getitem__)

        nodes = list(self._graph.nodes)
        copy(node for node in nodes if node.op in ("placeholder", "get_attr"))
        by_stage: dict[int, tuple[list[fx.Node], list[fx.Node]]] = defaultdict(lambda: ([], []))
        for node, stage in self._stages.items():
            by_stage[stage][node not in self._can].append(node)
        for stage, (subgraph, others) in sorted(by_stage.items()):
            if stage in functions:
                _call(new, functions[stage], self.subgraphs[stage], values)
                copy(self.subgraphs[stage].views)
            else:
                copy(subgraph)
            copy(others)
        copy(node for node in nodes if node.op == "output")
        return fx.GraphModule(root, new)


def _call(
    graph: fx.Graph, function: Any, subgraph: Subgraph, values: dict[fx.Node, fx.Node]
) -> None:
    arguments = tuple(values[node] for node in subgraph.inputs)
    call = graph.create_node("call_function", function, arguments, name=function.__name__)
    for number, node in enumerate(subgraph.outputs):
        values[node] = graph.call_function(operator.getitem, (call, number))


def _subgraph(nodes: list[fx.Node]) -> Subgraph:
    """Return the subgraph of these nodes, with its inputs and outputs."""
    group = set(nodes)
    views: set[fx.Node] = set()
    inside: set[fx.Node] = set()
    for node in reversed(nodes):
        if is_view(node) and any(user not in group or user in views for user in node.users):
            views.add(node)
        if node not in views or inside.intersection(node.users):
            inside.add(node)
    kept = [node for node in nodes if node in inside]
    read = dict.fromkeys(arg for node in kept for arg in node.all_input_nodes)
    outputs = [
        node
        for node in kept
        if node not in views and any(user not in group or user in views for user in node.users)
    ]
    inputs = [node for node in read if node not in inside]
    return Subgraph(kept, inputs, outputs, [node for node in nodes if node in views])


def has_effects(node: fx.Node) -> bool:
    """Return whether a node changes its arguments."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _is_ordered(node: fx.Node) -> bool:
    """Return whether a node has to keep its place: it draws random numbers, or is unknown."""
    if getattr(node.target, "_schema", None) is None:
        return node.target is not operator.getitem and not is_size(node)
    return is_random(node)


def _compilable(calls: list[fx.Node], supports: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """Return the nodes that can be compiled; a tuple only together with all its read fields."""
    can = {node for node in calls if supports(node)}
    for node in calls:
        if isinstance(node.meta.get("val"), (tuple, list)):
            group = [node, *node.users]
            fields = all(user.target is operator.getitem for user in node.users)
            if not fields or not can.issuperset(group):
                can.difference_update(group)
    return can


def _stages(calls: list[fx.Node], can: set[fx.Node]) -> dict[fx.Node, int]:
    """Return the stage of each node; nodes that keep their order get no earlier stage."""
    stages: dict[fx.Node, int] = {}
    ordered = _FIRST
    for node in calls:
        stage = 0 if node in can and not _is_input_size(node) else _FIRST
        for read in node.all_input_nodes:
            if read in stages:
                stage = max(stage, stages[read] + (node in can and read not in can))
        if node not in can and _is_ordered(node):
            stage = ordered = max(stage, ordered)
        stages[node] = stage
    return stages


def _is_input_size(node: fx.Node) -> bool:
    """Return whether a node is the size of an axis of an input."""
    is_size_of = node.target is aten.sym_size.int
    return is_size_of and all(read.op == "placeholder" for read in node.all_input_nodes)


def _sink(calls: list[fx.Node], can: set[fx.Node], stages: dict[fx.Node, int]) -> None:
    """Move what restates graph inputs to the stage that reads it first: views, casts and
    dequantizations of weights, which kernels of that stage compute themselves.
    """
    restated: set[fx.Node] = set()
    for node in calls:
        is_cast = packet_of(node) is aten._to_copy or "dequantize" in str(node.target)
        read = (one for one in node.all_input_nodes if one.op == "call_function")
        if node in can and (is_view(node) or is_cast) and restated.issuperset(read):
            restated.add(node)
    for node in reversed(calls):
        if node in restated and node.users and all(user in can for user in node.users):
            stages[node] = min(stages[user] for user in node.users)
