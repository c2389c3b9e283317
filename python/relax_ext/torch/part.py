# SPDX-License-Identifier: Apache-2.0
"""A piece of a graph as a compiled function: what goes in, what comes out, and how it is compiled.

``Signature`` says which value of PyTorch is which argument or result; :mod:`.run` calls the
compiled function by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import tvm
from torch import fx

from topi_ext.compat import relax

from ..pipeline import pipeline, with_packed_parameters
from . import report
from .aten import AtenImporter, Unsupported, expr_of
from .options import Options
from .partition import Piece, is_size
from .run import Output, Runner, SizeSource

R = relax()

_SIZE_FUNCTIONS = {
    **{"FloorDiv": lambda a, b: a // b, "CleanDiv": lambda a, b: a // b},
    **{"Mod": lambda a, b: a % b, "PythonMod": lambda a, b: a % b},
    **{"IntTrueDiv": lambda a, b: a / b, "FloatTrueDiv": lambda a, b: a / b},
    **{"ToFloat": float, "Max": max, "Min": min},
}
"""Functions of PyTorch's expressions of sizes."""

_VIEWS = {
    *("alias", "detach", "expand", "permute", "select", "slice", "squeeze", "t", "transpose"),
    *("unsqueeze", "view", "_unsafe_view"),
}
"""Operators of PyTorch whose result may share memory with their argument."""


@dataclass
class ImportedPart:
    """A piece of a graph, imported.

    Attributes
    ----------
    module : tvm.IRModule
    runner : Runner
        Of this signature; without a compiled function.
    record : report.Part
    """

    module: Any
    runner: Runner
    record: report.Part


def import_part(
    piece: Piece, frozen: set[fx.Node], sources: Sequence[fx.Node], name: str
) -> ImportedPart:
    """Import a piece of a graph into Relax.

    Parameters
    ----------
    piece : Piece
        Nodes from which sizes have to be read are appended to its inputs.
    frozen : set of fx.Node
        Inputs whose packed form is kept between calls.
    sources : sequence of fx.Node
        Inputs of the graph, from which sizes may be read.
    name : str

    Raises
    ------
    Unsupported
        With the node that has to stay in PyTorch.
    """
    begin = time.perf_counter()
    tensors = [node for node in piece.inputs if _is_operand(node)]
    static = [node for node in tensors if node in frozen]
    dynamic = [node for node in tensors if node not in frozen]
    results = list(dict.fromkeys(node for node in piece.outputs if _is_result(node)))
    importer = AtenImporter()
    sizes = _size_nodes(piece)
    module = importer.graph([*sizes, *piece.nodes], dynamic, static, results)
    symbols = list(importer.symbols)
    size_sources = [_source(symbol, piece, sources) for symbol in symbols]
    places = {node: number for number, node in enumerate(piece.inputs)}
    runner = Runner(
        name,
        [places[node] for node in dynamic],
        [places[node] for node in static],
        size_sources,
        [_output(node, results, symbols) for node in piece.outputs],
        [_layout(node) for node in results],
        [_memory_of(node) for node in results],
    )
    for node in (*dynamic, *static):
        runner.owners.append(_memory_of(node))
    record = report.Part(len(piece.nodes), len(static), time.perf_counter() - begin)
    return ImportedPart(module, runner, record)


def compile_part(part: ImportedPart, options: Options) -> Runner:
    """Compile an imported part and return what runs it."""
    begin = time.perf_counter()
    target = options.compile_target()
    module = part.module
    if part.runner.static:
        module = with_packed_parameters(module, target, options.database)
    executable = tvm.compile(
        module, target, relax_pipeline=pipeline(target, options.database)
    )
    part.runner.load(executable, options.threads)
    part.record.compile_s = time.perf_counter() - begin
    return part.runner


def _is_operand(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, (torch.Tensor, torch.SymFloat)):
        return True
    if isinstance(value, (torch.SymInt, int)):
        return False
    raise Unsupported(node, f"is a {type(value).__name__}")


def _is_result(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _size_nodes(piece: Piece) -> list[fx.Node]:
    """Return the sizes that nodes of a piece read from outside."""
    return [node for node in piece.inputs if isinstance(node.meta.get("val"), torch.SymInt)]


def _source(symbol: str, piece: Piece, sources: Sequence[fx.Node]) -> SizeSource:
    """Return where the value of a symbol is read, which becomes an input of the piece."""
    for node in (*piece.inputs, *sources):
        value = node.meta.get("val")
        axis = None
        if isinstance(value, torch.Tensor):
            names = [str(expr_of(size)) for size in value.shape]
            axis = names.index(symbol) if symbol in names else None
        if axis is not None or (is_size(node) and str(expr_of(value)) == symbol):
            if node not in piece.inputs:
                piece.inputs.append(node)
            return SizeSource(piece.inputs.index(node), axis)
    raise Unsupported(piece.nodes[0], f"the size {symbol} is that of no input")


def _output(node: fx.Node, results: list[fx.Node], symbols: list[str]) -> Output:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return Output(result=results.index(node))
    if is_size(node):
        return Output(size=_size_function(value.node.expr, symbols))
    if value is None or isinstance(value, (bool, int, float)):
        return Output(value=value)
    raise Unsupported(node, f"gives a {type(value).__name__}")


def _size_function(expr: Any, symbols: list[str]) -> Callable[..., Any]:
    """Return a function of the values of all symbols."""
    free = {str(symbol): symbol for symbol in expr.free_symbols}
    arguments = [free.get(name, sympy.Symbol(name)) for name in symbols]
    return sympy.lambdify(arguments, expr, modules=[_SIZE_FUNCTIONS, "math"])


def _layout(node: fx.Node) -> tuple[int, ...] | None:
    """Return the order of a result's axes in memory, the outermost first; None for their own."""
    value = node.meta["val"]
    if value.is_contiguous():
        return None
    strides = value.stride()
    return tuple(sorted(range(value.ndim), key=lambda axis: -int(_hint(strides[axis]))))


def _hint(size: Any) -> int:
    return int(size) if isinstance(size, int) else int(size.node.hint)


def _memory_of(node: fx.Node) -> fx.Node:
    """Return the node whose memory PyTorch's own result of `node` may share."""
    while node.op == "call_function" and node.target.__name__.partition(".")[0] in _VIEWS:
        node = node.args[0]
    return node
