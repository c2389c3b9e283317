# SPDX-License-Identifier: Apache-2.0
"""PyTorch: random numbers of an exported program as further inputs.

TVM's importer makes the identity of dropout.  Here each random operator becomes an input, which
PyTorch draws before each call by its own generator, in the order of the program: after
``torch.manual_seed`` a step has the numbers of the same step in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    TensorArgument,
)
from torch.fx.node import map_arg

from topi_ext.spec.geometry import fail

Draw = Callable[[], torch.Tensor]
"""Return the numbers of one call."""

_ATEN = torch.ops.aten
_DROPOUT = _ATEN.native_dropout.default

_OF_A_SHAPE = frozenset(
    {
        *("bernoulli.p", "cauchy.default", "exponential.default", "geometric.default"),
        *("log_normal.default", "normal_functional.default", "rand_like.default"),
        *("randint_like.default", "randint_like.low_dtype", "randn_like.default"),
        *("random.default", "random.from", "random.to", "uniform.default"),
    }
)
"""Operators that take the shape of their tensor, and none of its values."""


def drawn_outside(program: Any, op: str) -> tuple[Draw, ...]:
    """Replace the random operators of a program by inputs behind all others.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Decomposed, of known shapes; changed in place.
    op : str
        The name that an error begins with.

    Returns
    -------
    tuple of Draw
        One for each new input, in their order, in which they have to be called.

    Raises
    ------
    ValueError
        One line with an operator whose numbers depend on values of the program.
    """
    graph = program.graph
    draws: list[Draw] = []
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        is_dropout = node.target is _DROPOUT
        draw = _mask(node, op) if is_dropout else _numbers(node, op)
        with graph.inserting_after(last):
            last = graph.placeholder(f"draw_{len(draws)}")
        draws.append(draw)
        last.meta["val"] = node.args[0].meta["val"] if is_dropout else node.meta["val"]
        (_multiply if is_dropout else _replace)(graph, node, last)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    _restate(program, [f"draw_{number}" for number in range(len(draws))])
    return tuple(draws)


def _mask(node: Any, op: str) -> Draw:
    """Return what draws the factors of a dropout, as PyTorch does it on processors."""
    x, p = node.args[:2]
    if any(user.args[1] != 0 for user in node.users):
        raise fail(op, f"{node.target}: its mask must not be read")
    like = _empty(x)
    if p in (0, 1):  # PyTorch draws nothing
        return lambda: like().fill_(1 - p)
    return lambda: like().bernoulli_(1 - p).div_(1 - p)


def _numbers(node: Any, op: str) -> Draw:
    """Return a function that calls a random operator, with tensors of the correct shape as its
    operands.
    """
    name = node.target.__name__
    if node.all_input_nodes and name not in _OF_A_SHAPE:
        where = str(node.meta.get("stack_trace") or "").strip().splitlines()
        line = f" ({where[-1].strip()})" if where else ""
        rule = "draws random numbers by values of the model: draw them outside, as an input"
        raise fail(op, f"{node.target}{line} {rule}")
    call, arguments = node.target, (node.args, node.kwargs)  # the node itself is erased
    tensors = {each: _empty(each) for each in node.all_input_nodes}

    def draw() -> torch.Tensor:
        args, kwargs = map_arg(arguments, lambda each: tensors[each]())
        return call(*args, **kwargs)

    return draw


def _empty(node: Any) -> Draw:
    """Return what makes a tensor of the shape, dtype and strides of a node."""
    value = node.meta["val"]
    shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    return partial(torch.empty_strided, shape, strides, dtype=value.dtype)


def _multiply(graph: Any, node: Any, mask: Any) -> None:
    """Replace a dropout by the product of its input and of a mask."""
    with graph.inserting_before(node):
        product = graph.call_function(_ATEN.mul.Tensor, (node.args[0], mask))
    product.meta.update(node.meta, val=node.args[0].meta["val"])
    for result in list(node.users):
        _replace(graph, result, product)
    graph.erase_node(node)


def _replace(graph: Any, node: Any, other: Any) -> None:
    node.replace_all_uses_with(other)
    graph.erase_node(node)


def _restate(program: Any, names: list[str]) -> None:
    """Let the signature of a program name its new inputs, and what took the place of results."""
    signature = program.graph_signature
    inputs = [InputSpec(InputKind.USER_INPUT, TensorArgument(name), None) for name in names]
    results = next(node for node in program.graph.nodes if node.op == "output").args[0]
    outputs = [
        replace(spec, arg=TensorArgument(node.name)) if hasattr(node, "name") else spec
        for spec, node in zip(signature.output_specs, results)
    ]
    program._graph_signature = ExportGraphSignature([*signature.input_specs, *inputs], outputs)
