# SPDX-License-Identifier: Apache-2.0
"""Compilation of a graph of AOTAutograd: partition, import and compile parts, join them again."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext

from topi_ext.interrupts import raise_interrupt
from topi_ext.notices import one_line

from ..aten.strides import is_permuted
from . import attention, report
from .aten import AtenImporter, Unsupported
from .draws import is_place, is_random, state_repeated
from .known import is_quantization
from .options import Options
from .part import Context, ImportedPart, compile_part, import_part
from .partition import ASSERTIONS, Partition, Subgraph, is_size, is_view, packet_of

MOST_FAILED = 8
"""Operators that fail to compile alone, after which the others of their part are not tried."""


class GraphCompiler:
    """Compiler of one graph.

    Parameters
    ----------
    graph_module : fx.GraphModule
    options : Options
    record : report.Graph
        Record of the parts, and of the operators that stay in PyTorch.
    unordered : set of str
        Names of values that a forward graph saves for its backward graph and whose strides PyTorch
        does not see.  A forward graph adds them, a backward graph reads them.
    given : sequence
        The inputs of the first call.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        options: Options,
        record: report.Graph,
        unordered: set[str],
        given: Sequence[Any] = (),
    ) -> None:
        self._module = graph_module
        self._options = options
        self._record = record
        self._unordered = unordered
        self._given = given
        self._refused: dict[fx.Node, str] = {}
        self._failed = 0
        self._importer = AtenImporter()
        state_repeated(graph_module.graph)
        _drop_statements(graph_module.graph)
        nodes = list(graph_module.graph.nodes)
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        self._results = next(node for node in nodes if node.op == "output").args[0]
        for node in nodes:
            if node.op == "get_attr" and "val" not in node.meta:
                node.meta["val"] = getattr(graph_module, node.target)

    def run(self) -> fx.GraphModule:
        """Compile the parts that can be compiled, and return the graph that runs them.

        Raises
        ------
        Exception
            If no part can be compiled; with ``unknown="raise"`` if an operator cannot.
        """
        context = Context(self._inputs, self._frozen(), self._kept(), self._known())
        compiled: dict[Any, ImportedPart] = {}
        while True:
            partition, imported = self._imported(context)
            refused = len(self._refused)
            for stage, part in imported.items():
                subgraph = partition.subgraphs[stage]
                if subgraph.key not in compiled and self._compiled(part, subgraph, context):
                    compiled[subgraph.key] = part
            if len(self._refused) == refused:
                break
        parts = {stage: compiled[subgraph.key] for stage, subgraph in partition.subgraphs.items()}
        self._record.parts += [part.record for part in parts.values()]
        for node in partition.in_pytorch:
            is_builtin = isinstance(node.target, BuiltinFunctionType)
            if is_builtin or is_size(node) or is_place(node):
                continue
            if node.target in ASSERTIONS:
                continue
            if is_random(node):
                self._record.random[str(node.target)] = "draws random numbers"
                continue
            if packet_of(node) in attention.OPERATORS:
                self._record.attention[str(node.target)] = "training stores no scores in it"
                continue
            why = self._refused.get(node, "belongs to what cannot be compiled")
            self._record.unknown[str(node.target)] = why
        if self._record.kind == "forward":
            self._unordered.update(node.name for node in context.unordered)
        functions = {stage: part.runner for stage, part in parts.items()}
        return partition.joined(self._module, functions, context.unordered)

    def _imported(self, context: Context) -> tuple[Partition, dict[int, ImportedPart]]:
        """Import the subgraphs of the graph; partition it again without the nodes that fail."""
        while True:
            partition = Partition(self._module.graph, self._supports)
            parts: dict[int, ImportedPart] = {}
            refused = len(self._refused)
            for stage, subgraph in partition.subgraphs.items():
                try:
                    parts[stage] = self._import(subgraph, context, stage)
                except Unsupported as error:
                    for refusal in (error, *error.others):
                        for node in refused_nodes(refusal.node, subgraph):
                            self._refused[node] = refusal.why
            if len(self._refused) == refused:
                return partition, parts

    def _import(self, subgraph: Subgraph, context: Context, stage: int) -> ImportedPart:
        return import_part(self._importer, subgraph, context, f"tvm_conv_{stage}")

    def _compiled(self, part: ImportedPart, subgraph: Subgraph, context: Context) -> bool:
        """Return whether a part can be compiled; otherwise its operators that cannot are refused.

        Raises
        ------
        Exception
            With ``unknown="raise"`` if it cannot.
        """
        try:
            compile_part(part, self._options)
            return True
        except Exception as error:
            raise_interrupt()
            if self._options.raises:
                raise
            self._refused.update(self._culprits(subgraph, context, one_line(error, 300)))
            return False

    def _culprits(self, subgraph: Subgraph, context: Context, why: str) -> dict[fx.Node, str]:
        """Return the operators of a subgraph without which it can be compiled, and the reasons.

        Halves of the subgraph are compiled until single operators are left.  If both halves can be
        compiled apart, the second one begins with such an operator.  Where many operators have
        failed, the reason is another one, and all others are refused without a try.
        """
        if len(subgraph.nodes) == 1 or self._failed >= MOST_FAILED:
            self._failed += 1
            return dict.fromkeys(subgraph.nodes, why)
        culprits: dict[fx.Node, str] = {}
        halves = subgraph.halves()
        for half in halves:
            try:
                compile_part(self._import(half, context, 0), self._options)
            except Unsupported:
                continue
            except Exception as error:
                raise_interrupt()
                culprits.update(self._culprits(half, context, one_line(error, 300)))
        return culprits or {halves[-1].nodes[0]: why}

    def _supports(self, node: fx.Node) -> bool:
        if node in self._refused or is_place(node):
            return False
        why = self._importer.supports(node)
        if why is not None:
            self._refused[node] = why
        return why is None

    def _frozen(self) -> set[fx.Node]:
        """Return the inputs of an inference graph that are parameters or buffers."""
        freezes = self._options.freeze and self._record.kind == "inference"
        return self._stay() if freezes else set()

    def _stay(self) -> set[fx.Node]:
        """Return the inputs of a forward or inference graph that are parameters or buffers."""
        metadata = _metadata()
        indices = (metadata and metadata.static_input_indices) or []
        return {self._inputs[index] for index in indices if index < len(self._inputs)}

    def _known(self) -> dict[fx.Node, torch.Tensor]:
        """Return the inputs whose values code may contain: parameters of quantization."""
        if len(self._given) != len(self._inputs):
            return {}
        stay, given = self._stay(), zip(self._inputs, self._given)
        return {node: one for node, one in given if node in stay and is_quantization(node, one)}

    def _kept(self) -> set[fx.Node]:
        """Return the values between forward and backward graph whose axes have another order."""
        if self._record.kind == "backward":
            nodes = [node for node in self._inputs if node.name in self._unordered]
        elif self._record.kind == "forward":
            metadata = _metadata()
            count = metadata.num_forward_returns if metadata else len(self._results)
            seen = set(self._results[:count])
            kept = [node for node in self._results[count:] if isinstance(node, fx.Node)]
            nodes = [node for node in kept if node not in seen and node.op == "call_function"]
        else:
            return set()
        return {node for node in nodes if is_permuted(node) and not _has_own_order(node)}


def _has_own_order(node: fx.Node) -> bool:
    """Return whether a value has the strides that PyTorch states without a copy: a view, or a
    result of attention."""
    source = node.args[0] if node.target is operator.getitem else None
    is_attention = isinstance(source, fx.Node) and packet_of(source) in attention.OPERATORS
    return is_attention or is_view(node)


def _drop_statements(graph: fx.Graph) -> None:
    """Remove assertions of dtypes, devices and layouts, which held when PyTorch traced the graph.

    Each would read a value that a kernel need not write, such as the probabilities of attention.
    """
    for node in graph.find_nodes(
        op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
    ):
        graph.erase_node(node)


def refused_nodes(node: Any, subgraph: Subgraph) -> list[fx.Node]:
    """Return the nodes of a subgraph that stay in PyTorch: `node`, or those that read an input.

    If the node is not known, all nodes of the subgraph, so that the next try has fewer.
    """
    if node in subgraph.nodes:
        return [node]
    readers = [each for each in subgraph.nodes if node in each.all_input_nodes]
    return readers or subgraph.nodes


def _metadata() -> Any:
    """Return AOTAutograd's metadata of the graph that it compiles; None outside of it."""
    context = TracingContext.try_get()
    return context and context.fw_metadata
