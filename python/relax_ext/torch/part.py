# SPDX-License-Identifier: Apache-2.0
"""A subgraph as a compiled function.

Tensors that are channels last, or whose axes have another order in memory, are passed without
copies: the function takes and returns them transposed, and transposes them itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import sympy
import torch
from torch import fx

from topi_ext.interrupts import keep_interrupts, raise_interrupt
from topi_ext.notices import one_line, warn_once

from ..aten.strides import Order, inverse, order_of
from ..executable_cache import compiled, kept
from ..fusion.fuse import EXPECTED
from . import report
from .aten import AtenImporter, Unsupported, expr_of
from .executables import Executables, Sizes
from .known import ByValues, Values
from .options import Options
from .partition import Subgraph, is_size, operators
from .run import CompiledPart, Operand, Output, Result, SizeSource
from .setup import BACKEND

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
    """Data of the graph that its subgraphs need.

    Attributes
    ----------
    inputs : sequence of fx.Node
        Inputs of the graph, from which sizes may be read.
    frozen : set of fx.Node
        Inputs whose packed form is kept between calls.
    unordered : set of fx.Node
        Values whose strides PyTorch does not see: those that a forward graph saves for its backward
        graph.
    known : mapping of fx.Node to torch.Tensor
        Inputs whose values compiled code contains.
    """

    inputs: Sequence[fx.Node]
    frozen: set[fx.Node]
    unordered: set[fx.Node]
    known: Mapping[fx.Node, torch.Tensor]


Graph = tuple[Sequence[fx.Node], Sequence[fx.Node], Sequence[fx.Node], Sequence[fx.Node]]
"""Nodes, and their inputs, statics and outputs, as :meth:`.aten.AtenImporter.graph` takes them."""


class Modules:
    """Modules of Relax of a subgraph.

    Attributes
    ----------
    first : Values
        Values that the first of them contains.
    symbols : list of str
        Names of the sizes.
    expected : dict of str to int
        Sizes that calls are expected to have, by these names.
    """

    def __init__(
        self, importer: AtenImporter, given: Graph, places: Sequence[fx.Node], first: Values
    ) -> None:
        self._graph, self._lock = partial(importer.graph, *given), importer.lock
        self._places, self.first, self.expected = places, first, dict[str, int]()
        self._cached = lru_cache(maxsize=2)(self._imported)  # of all sizes, and of some
        self._cached(None, first)
        self.symbols = list(importer.symbols)

    def of(self, sizes: Sizes | None, values: Values) -> Any:
        """Return the module for sizes, or for all if they are None, that contains values."""
        with self._lock:
            module = self._cached(sizes, values)
        if sizes is None and self.expected:
            module["main"] = module["main"].with_attr(EXPECTED, self.expected)
        return module

    def _imported(self, sizes: Sizes | None, values: Values) -> Any:
        known = None if sizes is None else dict(zip(self.symbols, sizes))
        return self._graph(dict(zip(self._places, values.arrays)), known)


@dataclass
class ImportedPart:
    """An imported subgraph.

    Attributes
    ----------
    modules : Modules
    hints : tuple of int or None
        The sizes for which the graph was traced, None if one of them is not known.
    runner : CompiledPart
    in_pytorch : callable
        Returns the subgraph itself as a module.
    record : report.Part
    """

    modules: Modules
    hints: Sizes | None
    runner: CompiledPart
    in_pytorch: Callable[[], Any]
    record: report.Part


def import_part(
    importer: AtenImporter, subgraph: Subgraph, context: Context, name: str
) -> ImportedPart:
    """Import a subgraph into Relax.

    Nodes from which sizes have to be read are appended to the inputs of the subgraph.

    Raises
    ------
    Unsupported
        For the nodes that have to stay in PyTorch.
    """
    known = [node for node in subgraph.inputs if node in context.known]
    tensors = [node for node in subgraph.inputs if _is_operand(node) and node not in known]
    static = [node for node in tensors if node in context.frozen]
    operands = [node for node in tensors if node not in context.frozen] + static
    results = [node for node in subgraph.outputs if isinstance(node.meta.get("val"), torch.Tensor)]
    copy = _Copy(subgraph, context.unordered)
    try:
        arguments = [copy.operand(node) for node in operands]
        places = [copy.constant(node) for node in known]
        copy.body()
        outputs = [copy.result(node) for node in results]
        count = len(operands) - len(static)
        given = (copy.nodes, arguments[:count], arguments[count:], outputs)
        values = Values.of([context.known[node] for node in known])
        modules = Modules(importer, given, places, values)
    except Unsupported as error:
        for refusal in (error, *error.others):
            refusal.node = copy.original(refusal.node)
        raise
    symbols, fixed = modules.symbols, subgraph.fixed(known)
    sizes = [_source(symbol, subgraph, context.inputs) for symbol in symbols]
    runner = CompiledPart(
        name=name,
        operands=[
            Operand(subgraph.inputs.index(node), _permutation(copy.order(node)))
            for node in operands
        ],
        static=len(static),
        known=[subgraph.inputs.index(node) for node in known],
        sizes=sizes,
        outputs=[_output(node, results, symbols) for node in subgraph.outputs],
        results=[_result(node, copy.order(node), symbols, node in fixed) for node in results],
    )
    hints = _hints(subgraph, sizes)
    if hints:
        modules.expected = dict(zip(symbols, map(_rounded, hints)))
    record = report.Part(operators(subgraph.nodes), len(static))
    return ImportedPart(modules, hints, runner, subgraph.module, record)


def compile_part(part: ImportedPart, options: Options) -> CompiledPart:
    """Compile an imported part for the sizes for which it was traced, and return its runner."""
    count = options.static_sizes or 0 if part.hints else 0

    def executables(values: Values) -> Executables:
        build, find = (partial(one, part, options, values) for one in (_compiled, _kept))
        return Executables(build, find, count)

    by_values = ByValues(executables, part.modules.first)
    by_values.first.of(part.hints or ())
    part.runner.load(by_values, part.in_pytorch, options.threads)
    return part.runner


def _kept(part: ImportedPart, options: Options, values: Values, sizes: Sizes | None) -> Any:
    """Return the executable of a part for sizes if one is kept, else None."""
    try:
        module, packs = part.modules.of(sizes, values), part.runner.static > 0
    except Unsupported:
        return None
    target = options.compile_target()
    return kept(module, target, options.database, packs_parameters=packs)


@keep_interrupts()
def _compiled(part: ImportedPart, options: Options, values: Values, sizes: Sizes | None) -> Any:
    """Return the executable of a part for sizes, or None if these have to stay in PyTorch.

    Raises
    ------
    Exception
        If it is the first one of the part; with ``unknown="raise"``.
    """
    begin, target = time.perf_counter(), options.compile_target()
    try:
        module, packs = part.modules.of(sizes, values), part.runner.static > 0
        return compiled(module, target, options.database, packs_parameters=packs)
    except Exception as error:
        raise_interrupt()
        if options.raises or not part.runner.is_loaded:
            raise
        stated = "all other sizes" if sizes is None else f"sizes {', '.join(map(str, sizes))}"
        warn_once(f"{BACKEND}: {stated} of a part stay in PyTorch ({one_line(error, 300)})")
        return None
    finally:
        part.record.compiled[sizes] = time.perf_counter() - begin


class _Copy:
    """Copy of a subgraph as a separate graph, with transposes at its inputs and outputs."""

    def __init__(self, subgraph: Subgraph, unordered: set[fx.Node]) -> None:
        self._subgraph = subgraph
        self._unordered = unordered
        self._graph = fx.Graph()
        self._values: dict[fx.Node, fx.Node] = {}
        self.nodes: list[fx.Node] = []
        for node in subgraph.inputs:
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

    def constant(self, node: fx.Node) -> fx.Node:
        """Return what stands for an input whose values are known."""
        self._values[node] = self._placeholder(node, node.meta["val"])
        return self._values[node]

    def body(self) -> None:
        """Copy the nodes."""
        for node in self._subgraph.nodes:
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


def _hints(subgraph: Subgraph, sources: Sequence[SizeSource]) -> Sizes | None:
    """Return the sizes for which a graph was traced, or None if one of them is not known."""
    values = ((subgraph.inputs[argument].meta["val"], axis) for argument, axis in sources)
    sizes = [value if axis is None else value.shape[axis] for value, axis in values]
    hints = [getattr(size.node, "hint", None) for size in sizes]
    known = tuple(int(hint) for hint in hints if isinstance(hint, int))
    return known if len(known) == len(hints) else None


def _rounded(size: int) -> int:
    """Return the power of two below a size: similar sizes then have equal graphs."""
    return 1 << max(size.bit_length() - 1, 0)


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


def _source(symbol: str, subgraph: Subgraph, inputs: Sequence[fx.Node]) -> SizeSource:
    """Return the source of the value of a symbol, which becomes an input of the subgraph."""
    for node in (*subgraph.inputs, *inputs):
        value = node.meta.get("val")
        axis = None
        if isinstance(value, torch.Tensor):
            names = [str(expr_of(size)) for size in value.shape]
            axis = names.index(symbol) if symbol in names else None
        if axis is not None or (is_size(node) and str(expr_of(value)) == symbol):
            if node not in subgraph.inputs:
                subgraph.inputs.append(node)
            return SizeSource(subgraph.inputs.index(node), axis)
    raise Unsupported(subgraph.nodes[0], f"the size {symbol} is that of no input")


def _output(node: fx.Node, results: list[fx.Node], symbols: list[str]) -> Output:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return Output(result=results.index(node))
    if is_size(node):
        return Output(size=_size_function(value, symbols))
    if value is None or isinstance(value, (bool, int, float)):
        return Output(value=value)
    raise Unsupported(node, f"gives a {type(value).__name__}")


def _result(node: fx.Node, order: Order | None, symbols: list[str], is_fixed: bool) -> Result:
    value = node.meta["val"]
    permutation = _permutation(order)
    back = None if permutation is None else inverse(permutation)
    strides = None
    if order is None and order_of(value) is None:
        strides = tuple(_size_function(stride, symbols) for stride in value.stride())
    return Result(back, strides, is_fixed)


def _size_function(size: Any, symbols: list[str]) -> Callable[..., Any]:
    """Return a function of the values of all symbols."""
    if isinstance(size, int):
        return lambda *_: size
    expr = size.node.expr
    free = {str(symbol): symbol for symbol in expr.free_symbols}
    arguments = [free.get(name, sympy.Symbol(name)) for name in symbols]
    return sympy.lambdify(arguments, expr, modules=[_SIZE_FUNCTIONS, "math"])
