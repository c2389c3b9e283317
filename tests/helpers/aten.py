# SPDX-License-Identifier: Apache-2.0
"""Functions of PyTorch through AOTAutograd and the importer of aten graphs.

A smaller backend than ``tvm_conv``: whole graphs, and an error for each operator that would stay
in PyTorch.  A function of several cases is one forward and one backward graph, so that they are
compiled together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
import tvm
from functorch.compile import aot_function, make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from tvm import relax

import relax_ext
from relax_ext.aten.sizes import symbols_of
from relax_ext.torch.aten import AtenImporter, Unsupported, expr_of
from relax_ext.torch.decompositions import decompositions, whole_upsamples
from relax_ext.torch.run import ready

# Vectors of this processor take longer to compile, and are tested elsewhere.
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1})


class Graphs:
    """The compiler of AOTAutograd's graphs, and what it has seen.

    Attributes
    ----------
    operators : set of str
        Names of the operators in all graphs.
    modules : list of tvm.IRModule
        The modules that the importer made.
    only_records : bool
        Whether PyTorch computes the graphs.
    only_imports : bool
        Whether PyTorch computes the graphs after they are imported.
    """

    def __init__(self, only_records: bool = False, only_imports: bool = False) -> None:
        self.only_records, self.only_imports = only_records, only_imports
        self.operators: set[str] = set()
        self.modules: list[tvm.IRModule] = []

    def __call__(self, graph: Any, _: Any) -> Callable[..., Any]:
        nodes = list(graph.graph.nodes)
        calls = [node for node in nodes if node.op == "call_function"]
        constants = {n: getattr(graph, n.target) for n in nodes if n.op == "get_attr"}
        for node, constant in constants.items():
            node.meta["val"] = constant
        places = [node for node in nodes if node.op == "placeholder"]
        outputs = next(node for node in nodes if node.op == "output").args[0]
        self.operators |= {getattr(node.target, "__name__", "") for node in calls}
        if self.only_records:
            return make_boxed_func(graph.forward)
        importer = AtenImporter()
        for node in calls:
            if importer.supports(node) is not None:
                raise Unsupported(node, str(importer.supports(node)))
        inputs = [*places, *constants]
        tensors = [node for node in inputs if isinstance(node.meta["val"], torch.Tensor)]
        results = [n for n in outputs if n is not None and isinstance(n.meta["val"], torch.Tensor)]
        module = importer.graph(calls, tensors, [], results)
        self.modules.append(module)
        if self.only_imports:
            return make_boxed_func(graph.forward)
        run = compiled(module)
        sizes = {name: _source(name, places) for name in symbols_of(n.meta["val"] for n in places)}

        def call(*args: Any) -> list[Any]:
            given = {**dict(zip(places, args)), **constants}
            known = {
                name: given[node] if axis is None else given[node].shape[axis]
                for name, (node, axis) in sizes.items()
            }
            shape = [known[name] for name in importer.symbols]
            shape = [tvm.runtime.ShapeTuple(shape)] if shape else []
            computed = zip(results, run(*shape, *(given[node] for node in tensors)))
            found = {node: _strided(result, node, known) for node, result in computed}
            return [_output(node, given | found, known) for node in outputs]

        return make_boxed_func(call)


def _source(name: str, places: Sequence[Any]) -> tuple[Any, int | None]:
    """Return the placeholder and the axis, None for a number, that state a size."""
    for node in places:
        value = node.meta["val"]
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        for axis, size in enumerate(sizes):
            if str(expr_of(size)) == name:
                return node, axis if isinstance(value, torch.Tensor) else None
    raise AssertionError(f"no placeholder states {name}")


def _number(size: Any, sizes: dict[str, int]) -> int:
    """Return a size, or a stride, as a number."""
    expr = sympy.sympify(expr_of(size))
    return int(expr.subs({symbol: sizes[str(symbol)] for symbol in expr.free_symbols}))


def _strided(result: torch.Tensor, node: Any, sizes: dict[str, int]) -> torch.Tensor:
    """Return a result with the strides that PyTorch states."""
    strides = [_number(stride, sizes) for stride in node.meta["val"].stride()]
    if list(result.stride()) == strides or 0 in strides:
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype).copy_(result)


def _output(node: Any, found: dict[Any, Any], sizes: dict[str, int]) -> Any:
    if node is None or node in found:
        return node if node is None else found[node]
    return _number(node.meta["val"], sizes)


def compiled(module: tvm.IRModule) -> Callable[..., list[torch.Tensor]]:
    """Return the function of a module, of torch tensors, through the pipeline."""
    executable = tvm.compile(module, TARGET, relax_pipeline=relax_ext.pipeline(TARGET))
    function = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def run(*args: Any) -> list[torch.Tensor]:
        given = [ready(a) if isinstance(a, torch.Tensor) else a for a in args]
        return [torch.utils.dlpack.from_dlpack(result) for result in function(*given)]

    return run


def through(function: Callable[..., Any], graphs: Graphs) -> Callable[..., Any]:
    """Return a function of tensors, compiled by `graphs` when it is first called."""
    compiled_function = aot_function(
        function,
        fw_compiler=graphs,
        bw_compiler=graphs,
        inference_compiler=graphs,
        decompositions=decompositions(),
    )

    def call(*args: Any) -> Any:
        with whole_upsamples():
            return compiled_function(*args)

    return call


def backend(graphs: Graphs) -> Callable[..., Any]:
    """Return a backend of ``torch.compile``, for symbolic sizes."""
    compiler = aot_autograd(
        fw_compiler=graphs,
        bw_compiler=graphs,
        inference_compiler=graphs,
        decompositions=decompositions(),
    )

    def compile_graph(graph: Any, inputs: Any) -> Any:
        with whole_upsamples():
            return compiler(graph, inputs)

    return compile_graph
