# SPDX-License-Identifier: Apache-2.0
"""The backend of ``torch.compile``: graphs of AOTAutograd, compiled in parts.

Whatever fails to compile stays in PyTorch, with one warning, unless ``unknown="raise"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from topi_ext.notices import one_line, warn_once
from topi_ext.spec.geometry import fail

from ..registry import registered
from . import report
from .aten import AtenImporter, Unsupported
from .decompositions import decompositions, whole_upsamples
from .options import Options
from .part import ImportedPart, compile_part, import_part
from .partition import Cut, has_effects, is_product
from .setup import BACKEND

SHOWN = 8
"""Operators that a warning names."""


def tvm_conv(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo for inference and for training.

    Parameters
    ----------
    graph_module : fx.GraphModule
    example_inputs : sequence
        Fake tensors.
    options : mapping, optional
        See :class:`.options.Options`.
    mode : str, optional
        Must be left out: its values are those of inductor.

    Returns
    -------
    callable

    Raises
    ------
    ValueError
        One line, where an option is not known.
    """
    if mode is not None:
        raise fail(BACKEND, f"mode={mode!r} must be left out: there are options={{...}} instead")
    chosen = Options.of(options)
    compiler = aot_autograd(
        fw_compiler=_compiler("forward", chosen),
        bw_compiler=_compiler("backward", chosen),
        inference_compiler=_compiler("inference", chosen),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    with whole_upsamples():
        return compiler(graph_module, example_inputs)


def _compiler(kind: str, options: Options) -> Callable[..., Any]:
    def compile_graph(graph_module: fx.GraphModule, _: Any) -> Callable[[list[Any]], Any]:
        return _boxed(_compiled(graph_module, kind, options).forward)

    return compile_graph


def _boxed(forward: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()  # so that each is freed after its last use
        with torch.no_grad():
            return forward(*given)

    run._boxed_call = True
    return run


def _compiled(graph_module: fx.GraphModule, kind: str, options: Options) -> fx.GraphModule:
    """Return the graph with compiled parts; the graph itself where there is nothing to compile."""
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    record = report.Graph(kind, len(calls))
    report.add(record)
    if not any(map(is_product, calls)):
        return graph_module
    try:
        _refuse(calls)
        compiled = _Graph(graph_module, _frozen(graph_module, kind, options), options, record).run()
    except Exception as error:
        if options.raises:
            raise
        record.parts.clear()
        record.in_pytorch["the whole graph"] = one_line(error, 300)
        compiled = graph_module
    if record.in_pytorch:
        _tell(record, options)
    return compiled


def _refuse(calls: Sequence[fx.Node]) -> None:
    """Raise for graphs that must not be cut."""
    if not all(registered().values()):
        raise RuntimeError("relax_ext is unregistered, relax_ext.register() is needed")
    for node in calls:
        if has_effects(node):
            raise RuntimeError(f"{node.target} changes its arguments")


def _tell(record: report.Graph, options: Options) -> None:
    """Warn of what stays in PyTorch, or raise."""
    named = [f"{name} ({why})" for name, why in record.in_pytorch.items()]
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    text = f"{BACKEND}: {record.kind}: in PyTorch stay {', '.join(named[:SHOWN])}{more}"
    if options.raises:
        raise RuntimeError(text)
    warn_once(text)


def _frozen(graph_module: fx.GraphModule, kind: str, options: Options) -> set[fx.Node]:
    """Return the inputs of an inference graph that are parameters or buffers."""
    if not options.freeze or kind != "inference":
        return set()
    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    places = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    indices = getattr(metadata, "static_input_indices", None) or []
    return {places[index] for index in indices if index < len(places)}


class _Graph:
    """A graph while it is compiled."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        frozen: set[fx.Node],
        options: Options,
        record: report.Graph,
    ) -> None:
        self.graph_module = graph_module
        self.frozen = frozen
        self.options = options
        self.record = record
        self.refused: dict[fx.Node, str] = {}
        self.importer = AtenImporter()
        for node in graph_module.graph.nodes:
            if node.op == "get_attr" and "val" not in node.meta:
                node.meta["val"] = getattr(graph_module, node.target)

    def run(self) -> fx.GraphModule:
        """Compile what can be, and return the graph that runs it."""
        while True:
            cut = Cut(self.graph_module.graph, self.supports)
            try:
                imported = self.imported(cut)
                break
            except Unsupported as error:
                if error.node in self.refused or not isinstance(error.node, fx.Node):
                    raise
                self.refused[error.node] = error.why
        for node in cut.in_pytorch:
            why = self.refused.get(node)
            if why is not None:
                self.record.in_pytorch[str(node.target)] = why
        functions = {}
        for stage, part in imported.items():
            try:
                functions[stage] = compile_part(part, self.options)
                self.record.parts.append(part.record)
            except Exception as error:
                if self.options.raises:
                    raise
                named = f"a part of {part.record.operators} operators"
                self.record.in_pytorch[named] = one_line(error, 300)
        return cut.joined(self.graph_module, functions)

    def imported(self, cut: Cut) -> dict[int, ImportedPart]:
        """Import the pieces of a graph."""
        sources = [node for node in self.graph_module.graph.nodes if node.op == "placeholder"]
        return {
            stage: import_part(piece, self.frozen, sources, f"tvm_conv_{stage}")
            for stage, piece in cut.pieces.items()
        }

    def supports(self, node: fx.Node) -> bool:
        """Return whether a node can be compiled, and remember why not."""
        if node in self.refused:
            return False
        why = self.importer.supports(node)
        if why is not None:
            self.refused[node] = why
        return why is None
