# SPDX-License-Identifier: Apache-2.0
"""A piece of a graph as a compiled function.

Tensors that are channels last, or whose axes have another order in memory, are passed without
copies: the function takes and returns them transposed, and transposes them itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import tvm
from torch import fx

from ..aten.strides import Order, inverse, order_of
from ..pipeline import pipeline, with_packed_parameters
from . import report
from .aten import AtenImporter, Unsupported, expr_of
from .options import Options
from .partition import Piece, is_size, operators
from .run import Operand, Output, Result, Runner, SizeSource

_SIZE_FUNCTIONS = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "ToFloat": float,
    "CeilToInt": math.ceil,
    "FloorToInt": math.floor,
    "TruncToInt": math.trunc,
    "Max": max,
    "Min": min,
}
"""Functions of PyTorch's expressions of sizes."""


@dataclass(frozen=True)
class Context:
    """Data of the graph that its pieces need.

    Attributes
    ----------
    inputs : sequence of fx.Node
        Inputs of the graph, from which sizes may be read.
    frozen : set of fx.Node
        Inputs whose packed form is kept between calls.
    unordered : set of fx.Node
        Values whose strides PyTorch does not see: those that a forward graph saves for its backward
        graph.
    """

    inputs: Sequence[fx.Node]
    frozen: set[fx.Node]
    unordered: set[fx.Node]


@dataclass
class ImportedPart:
    """An imported piece of a graph: a module of Relax, its runner, and its record."""

    module: Any
    runner: Runner
    record: report.Part


def import_part(importer: AtenImporter, piece: Piece, context: Context, name: str) -> ImportedPart:
    """Import a piece of a graph into Relax.

    Nodes from which sizes have to be read are appended to the inputs of the piece.

    Raises
    ------
    Unsupported
        For the nodes that have to stay in PyTorch.
    """
    begin = time.perf_counter()
    tensors = [node for node in piece.inputs if _is_operand(node)]
    static = [node for node in tensors if node in context.frozen]
    operands = [node for node in tensors if node not in context.frozen] + static
    results = [node for node in piece.outputs if isinstance(node.meta.get("val"), torch.Tensor)]
    copy = _Copy(piece, context.unordered)
    try:
        arguments = [copy.operand(node) for node in operands]
        copy.body()
        outputs = [copy.result(node) for node in results]
        count = len(operands) - len(static)
        module = importer.graph(copy.nodes, arguments[:count], arguments[count:], outputs)
    except Unsupported as error:
        for refusal in (error, *error.others):
            refusal.node = copy.original(refusal.node)
        raise
    symbols = list(importer.symbols)
    sizes = [_source(symbol, piece, context.inputs) for symbol in symbols]
    runner = Runner(
        name=name,
        operands=[
            Operand(piece.inputs.index(node), _permutation(copy.order(node))) for node in operands
        ],
        static=len(static),
        sizes=sizes,
        outputs=[_output(node, results, symbols) for node in piece.outputs],
        results=[_result(node, copy.order(node), symbols) for node in results],
    )
    record = report.Part(operators(piece.nodes), len(static), time.perf_counter() - begin)
    return ImportedPart(module, runner, record)


def compile_part(part: ImportedPart, options: Options) -> Runner:
    """Compile an imported part and return its runner."""
    begin = time.perf_counter()
    target = options.compile_target()
    module = part.module
    if part.runner.static:
        module = with_packed_parameters(module, target, options.database)
    passes = pipeline(target, options.database)
    part.runner.load(tvm.compile(module, target, relax_pipeline=passes), options.threads)
    part.record.compile_s = time.perf_counter() - begin
    return part.runner


class _Copy:
    """Copy of a piece as a separate graph, with transposes at its inputs and outputs."""

    def __init__(self, piece: Piece, unordered: set[fx.Node]) -> None:
        self._piece = piece
        self._unordered = unordered
        self._graph = fx.Graph()
        self._values: dict[fx.Node, fx.Node] = {}
        self.nodes: list[fx.Node] = []
        for node in piece.inputs:
            if isinstance(node.meta.get("val"), torch.SymInt):
                self.nodes.append(self._placeholder(node, node.meta["val"]))
                self._values[node] = self.nodes[-1]

    def operand(self, node: fx.Node) -> fx.Node:
        """Return the argument for an input, in memory order."""
        permutation, value = _permutation(self.order(node)), node.meta["val"]
        argument = self._placeholder(node, value.permute(permutation) if permutation else value)
        self._values[node] = argument
        if permutation:
            self._values[node] = self._transposed(argument, inverse(permutation), value)
        return argument

    def body(self) -> None:
        """Copy the nodes."""
        for node in self._piece.nodes:
            self._values[node] = self._graph.node_copy(node, self._values.__getitem__)
            self.nodes.append(self._values[node])

    def result(self, node: fx.Node) -> fx.Node:
        """Return the value that is returned for an output, in memory order."""
        order, value = _permutation(self.order(node)), self._values[node]
        return self._transposed(value, order, node.meta["val"].permute(order)) if order else value

    def order(self, node: fx.Node) -> Order | None:
        """Return the order of a value in memory, None if it is not dense."""
        value = node.meta["val"]
        is_free = node in self._unordered or not isinstance(value, torch.Tensor)
        return None if is_free else order_of(value)

    def original(self, node: Any) -> Any:
        """Return the node of which a node of this graph is the copy."""
        return next((old for old, new in self._values.items() if new is node), node)

    def _placeholder(self, node: fx.Node, value: Any) -> fx.Node:
        copy = self._graph.placeholder(node.name)
        copy.meta = {**node.meta, "val": value}
        return copy

    def _transposed(self, node: fx.Node, order: Order, value: torch.Tensor) -> fx.Node:
        call = self._graph.call_function(torch.ops.aten.permute.default, (node, list(order)))
        call.meta = {"val": value}
        self.nodes.append(call)
        return call


def _permutation(order: Order | None) -> Order | None:
    """Return an order that is not that of the axes themselves, else None."""
    return None if order is None or order == tuple(range(len(order))) else order


def _is_operand(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, (torch.Tensor, torch.SymFloat)):
        return True
    if isinstance(value, (torch.SymInt, int)):
        return False
    raise Unsupported(node, f"is a {type(value).__name__}")


def _source(symbol: str, piece: Piece, inputs: Sequence[fx.Node]) -> SizeSource:
    """Return the source of the value of a symbol, which becomes an input of the piece."""
    for node in (*piece.inputs, *inputs):
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
        return Output(size=_size_function(value, symbols))
    if value is None or isinstance(value, (bool, int, float)):
        return Output(value=value)
    raise Unsupported(node, f"gives a {type(value).__name__}")


def _result(node: fx.Node, order: Order | None, symbols: list[str]) -> Result:
    value = node.meta["val"]
    permutation = _permutation(order)
    back = None if permutation is None else inverse(permutation)
    strides = None
    if order is None and order_of(value) is None:
        strides = tuple(_size_function(stride, symbols) for stride in value.stride())
    return Result(back, strides)


def _size_function(size: Any, symbols: list[str]) -> Callable[..., Any]:
    """Return a function of the values of all symbols."""
    if isinstance(size, int):
        return lambda *_: size
    expr = size.node.expr
    free = {str(symbol): symbol for symbol in expr.free_symbols}
    arguments = [free.get(name, sympy.Symbol(name)) for name in symbols]
    return sympy.lambdify(arguments, expr, modules=[_SIZE_FUNCTIONS, "math"])
