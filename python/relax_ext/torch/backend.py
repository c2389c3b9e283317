# SPDX-License-Identifier: Apache-2.0
"""The backend of ``torch.compile``: graphs of AOTAutograd, compiled in parts.

Parts that do not compile stay in PyTorch, with one warning, unless ``unknown="raise"``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from topi_ext.interrupts import keep_interrupts
from topi_ext.notices import one_line, warn_once
from topi_ext.spec.geometry import fail

from ..registry import registered
from . import report
from .affine import keep_whole
from .checkpoints import separate_updates
from .decompositions import decompositions, whole_upsamples
from .draws import detach_draws
from .executables import STATIC_SIZES, are_stated
from .gathers import sum_gathers
from .graph import GraphCompiler
from .options import Options
from .partition import INDEXED, has_effects, is_product, operators, packet_of
from .precision import lower
from .saved import find_indices_again
from .setup import BACKEND
from .small import is_small

SHOWN = 8
"""Maximum number of operators that a warning names."""


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
        Tensors of the first call.
    options : mapping, optional
        See :class:`.options.Options`.
    mode : str, optional
        Must be omitted: its values are those of inductor.

    Returns
    -------
    callable

    Raises
    ------
    ValueError
        For an unknown option.
    """
    if mode is not None:
        raise fail(BACKEND, f"mode={mode!r} must be left out: there are options={{...}} instead")
    chosen, unordered = Options.of(options), set[str]()
    if chosen.static_sizes is None:
        chosen = replace(chosen, static_sizes=0 if are_stated() else STATIC_SIZES)
    given = (*graph_module.parameters(), *example_inputs)
    needs = (isinstance(one, torch.Tensor) and one.requires_grad for one in given)
    trains = torch.is_grad_enabled() and any(needs)
    if chosen.dtype is None and not chosen.raises and is_small(graph_module):
        kind, why = "forward" if trains else "inference", "it takes PyTorch the time of a call"
        calls = [node for node in graph_module.graph.nodes if node.op.startswith("call_")]
        report.add(report.Graph(kind, len(calls), unknown={"the whole graph": why}))
        return graph_module.forward
    keep_whole(graph_module)
    compiler = aot_autograd(
        fw_compiler=_compiler("forward", chosen, unordered, example_inputs),
        bw_compiler=_compiler("backward", chosen, unordered),
        inference_compiler=_compiler("inference", chosen, unordered, example_inputs),
        decompositions=decompositions(trains=trains and chosen.dtype is None),
        partition_fn=partial(_partitioned, chosen),
    )
    with whole_upsamples():
        return compiler(graph_module, example_inputs)


def _partitioned(options: Options, joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Return the forward and the backward graph of a joint graph."""
    separate_updates(joint.graph)
    _prepare(joint, options)
    forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    if _has_products(joint):
        find_indices_again(forward, backward, kwargs["num_fwd_outputs"])
    return forward, backward


def _has_products(graph_module: fx.GraphModule) -> bool:
    """Return whether there is anything to compile in a graph."""
    return any(map(is_product, graph_module.graph.nodes))


def _prepare(graph_module: fx.GraphModule, options: Options) -> None:
    """Change random numbers and dtypes in a graph before it is partitioned."""
    if _has_products(graph_module):
        detach_draws(graph_module.graph)
        if options.dtype is not None:
            lower(graph_module.graph, options.dtype)
        graph_module.recompile()


def _compiler(
    kind: str, options: Options, unordered: set[str], given: Sequence[Any] = ()
) -> Callable[..., Any]:
    """Return a compiler of AOTAutograd.

    `unordered` names the values that a forward graph saves for its backward graph, and whose
    strides PyTorch does not see.  `given` are the inputs of the first call.
    """

    def compile_graph(graph_module: fx.GraphModule, _: Any) -> Callable[[list[Any]], Any]:
        if kind == "inference":
            _prepare(graph_module, options)
        return _boxed(_compiled(graph_module, kind, options, unordered, given).forward)

    return compile_graph


def _boxed(forward: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """Return a graph that takes a list of arguments, and clears it."""

    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()  # so that each is freed after its last use
        if not torch.is_grad_enabled():
            return forward(*given)
        with torch.no_grad():
            return forward(*given)

    vars(run)["_boxed_call"] = True  # PyTorch copies attributes of functions only
    return run


def compile_whole(
    graph_module: fx.GraphModule, kind: str, options: Options
) -> Callable[..., Sequence[Any]]:
    """Compile a graph of AOTAutograd that only its caller runs, forward and backward in one.

    Random numbers, assertions, and operators at indices, which PyTorch checks, stay in PyTorch.

    Parameters
    ----------
    graph_module : fx.GraphModule
        Changed in place.
    kind : str
        Its kind in :func:`.report.report`.
    options : Options

    Returns
    -------
    callable
        Takes the inputs of the graph, and returns its results.

    Raises
    ------
    Exception
        If another operator cannot be compiled.
    """
    for node in list(graph_module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph_module.graph.erase_node(node)  # the trace has made it
    graph_module.graph.eliminate_dead_code()  # results that nobody reads would be returned
    graph_module.recompile()
    _prepare(graph_module, options)
    options = replace(options, unknown="raise")
    run: Callable[..., Sequence[Any]] = _compiled(
        graph_module, kind, options, set(), allowed=INDEXED
    ).forward
    return run


def _compiled(
    graph_module: fx.GraphModule,
    kind: str,
    options: Options,
    unordered: set[str],
    given: Sequence[Any] = (),
    allowed: Container[Any] = (),
) -> fx.GraphModule:
    """Return the graph with compiled parts; the graph itself if there is nothing to compile.

    Operators `allowed` may stay in PyTorch without a word.
    """
    if _has_products(graph_module):
        sum_gathers(graph_module.graph)
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    record = report.Graph(kind, operators(calls))
    report.add(record)
    if not any(map(is_product, calls)):
        return graph_module
    begin = time.perf_counter()
    try:
        with keep_interrupts():
            _refuse(calls)
            compiled = GraphCompiler(graph_module, options, record, unordered, given).run()
    except Exception as error:
        if options.raises:
            raise
        unordered.clear()
        record.parts.clear()
        record.unknown["the whole graph"] = one_line(error, 300)
        compiled = graph_module
    record.first_s = time.perf_counter() - begin
    silent = {str(node.target) for node in calls if packet_of(node) in allowed}
    _tell(record, record.unknown.keys() - silent, options)
    return compiled


def _refuse(calls: Sequence[fx.Node]) -> None:
    """Raise for graphs that must not be partitioned."""
    if not all(registered().values()):
        raise RuntimeError("relax_ext is unregistered, relax_ext.register() is needed")
    for node in calls:
        if has_effects(node):
            raise RuntimeError(f"{node.target} changes its arguments")


def _tell(record: report.Graph, names: Container[str], options: Options) -> None:
    """Warn of operators by these names that stay in PyTorch, or raise."""
    named = [f"{name} ({why})" for name, why in record.unknown.items() if name in names]
    if not named:
        return
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    text = f"{BACKEND}: {record.kind}: in PyTorch stay {', '.join(named[:SHOWN])}{more}"
    if options.raises:
        raise RuntimeError(text)
    warn_once(text)
