# SPDX-License-Identifier: Apache-2.0
"""Random operators, whose numbers PyTorch draws from its generator.

Most random operators read the shape of their operand and none of its values.  Here they get an
empty tensor of that shape, and a dropout becomes a random mask and a product.  So all numbers of a
graph can be drawn before its first part, in PyTorch's order, and do not partition it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_arg

from ..aten.sizes import expr_of
from ..aten.strides import inverse, order_of
from . import attention

aten = torch.ops.aten

_DROPOUT = aten.native_dropout.default
_AGAIN = torch.ops.higher_order.run_with_rng_state
_SAVED = torch.ops.higher_order.run_and_save_rng_state
_EMPTY = aten.empty_permuted.default
_OF_A_SHAPE = frozenset(
    (
        *("bernoulli.p", "cauchy.default", "exponential.default", "geometric.default"),
        *("log_normal.default", "normal_functional.default", "rand_like.default"),
        *("randint_like.default", "randint_like.low_dtype", "randn_like.default"),
        *("random.default", "random.from", "random.to", "uniform.default"),
    )
)
"""Operators that read the shape of their operand, and none of its values."""


def _draws_in_memory_order() -> bool:
    """Return whether elements of a mask are drawn in memory order; PyTorch 2.5 does not."""
    generator = torch.Generator()
    plain, turned = (
        torch.empty((1, 2, 8, 8), memory_format=layout).bernoulli_(
            0.5, generator=generator.manual_seed(0)
        )
        for layout in (torch.contiguous_format, torch.channels_last)
    )
    return not torch.equal(plain, turned)


IN_MEMORY_ORDER = _draws_in_memory_order()
"""True if channels-last masks are drawn in memory order, so that a mask may be drawn first;
otherwise such a dropout is kept."""


def is_random(node: fx.Node) -> bool:
    """Return whether a node draws random numbers."""
    if node.target in (_AGAIN, _SAVED):
        return True
    if getattr(node.target, "overloadpacket", None) in attention.OPERATORS:
        return False
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_place(node: fx.Node) -> bool:
    """Return whether a node is an empty tensor that states the shape of random numbers."""
    return node.target is _EMPTY and any(map(is_random, node.users))


def state_repeated(graph: fx.Graph) -> None:
    """Set the fake results of random operators that are repeated from a saved generator state.

    They belong to activation checkpoints, and PyTorch does not set all of their fake results.
    """
    for node in graph.nodes:
        if node.target in (_AGAIN, _SAVED):
            args = map_arg(node.args, lambda each: each.meta["val"])
            draw, *rest = args[1:] if node.target is _AGAIN else args
            users = (user for user in node.users if user.args[1] == 1)
            for result in [node] if node.target is _AGAIN else users:
                if "val" not in result.meta:
                    result.meta["val"] = draw(*rest, **node.kwargs)


def detach_draws(graph: fx.Graph) -> None:
    """Remove operands that the graph computes from random operators.

    Parameters
    ----------
    graph : fx.Graph
        A graph of AOTAutograd, forward and backward in one or apart; changed in place.  Operators
        whose shape is not known from its inputs stay as they are.
    """
    for node in list(graph.nodes):
        if node.target is _DROPOUT:
            _replace_dropout(graph, node)
        elif node.op == "call_function" and is_random(node) and node.args:
            operand = node.args[0]
            name = getattr(node.target, "__name__", "")
            if name in _OF_A_SHAPE and operand.op == "call_function":
                with graph.inserting_before(node):
                    empty = _empty(graph, node, operand.meta["val"])
                if empty is not None:
                    node.replace_input_with(operand, empty)


def _replace_dropout(graph: fx.Graph, node: fx.Node) -> None:
    """Replace a dropout by the product of its operand and a mask of 0 or ``1 / (1 - p)``.

    The result is bitwise that of PyTorch outside of graphs.
    """
    x, p, trains = (*node.args, True)[:3]
    if trains is False or not isinstance(p, (int, float)) or p == 0:
        return
    value = node.meta["val"][0]
    with graph.inserting_before(node):
        mask = _mask(graph, node, 1 - p)
        if mask is None:
            return
        call = _caller(graph, node)
        arithmetic = np.float64 if value.dtype is torch.float64 else np.float32
        factor = float(arithmetic(1) / arithmetic(1 - p)) if p < 1 else 0.0
        numbers = call(aten._to_copy.default, (mask,), value, dtype=value.dtype)
        scaled = call(aten.mul.Tensor, (numbers, factor), value)
        product = call(aten.mul.Tensor, (x, scaled), value)
    for result in list(node.users):
        result.replace_all_uses_with(product if result.args[1] == 0 else mask)
        graph.erase_node(result)
    graph.erase_node(node)


def _mask(graph: fx.Graph, node: fx.Node, kept: float) -> fx.Node | None:
    """Add the mask of a dropout that keeps this share, or return None if that is not possible.

    Its elements are drawn in memory order; if none is kept, none is drawn.
    """
    value = node.meta["val"][1]
    order, call = order_of(value), _caller(graph, node)
    if order is None or not (IN_MEMORY_ORDER or order == tuple(range(len(order)))):
        return None
    dense = value.permute(order)
    empty = _empty(graph, node, dense)
    if empty is None:
        return None
    if kept:
        drawn = call(aten.bernoulli.p, (empty, kept), dense)
    else:
        drawn = call(aten.full_like.default, (empty, False), dense)
    return call(aten.permute.default, (drawn, list(inverse(order))), value)


def _caller(graph: fx.Graph, node: fx.Node) -> Callable[..., fx.Node]:
    """Return a function that adds calls with the metadata of `node`."""

    def call(target: Any, args: tuple[Any, ...], value: Any, **kwargs: Any) -> fx.Node:
        added = graph.call_function(target, args, kwargs)
        added.meta = {**node.meta, "val": value}
        added.meta.pop("tensor_meta", None)
        return added

    return call


def _empty(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> fx.Node | None:
    """Add an empty tensor like `value`, or return None if its sizes are not known before."""
    order = order_of(value)
    sizes = [_size(graph, size) for size in value.shape]
    if order is None or None in sizes:
        return None
    call = _caller(graph, node)
    return call(_EMPTY, (sizes, list(order)), value, dtype=value.dtype, device=value.device)


def _size(graph: fx.Graph, size: Any) -> int | fx.Node | None:
    """Return a size as a number, as an input or as the size of one; None for other sizes."""
    if isinstance(size, int):
        return size
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if _is(value, size):
            return node
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        for axis, one in enumerate(shape):
            if _is(one, size):
                call = graph.call_function(aten.sym_size.int, (node, axis))
                call.meta["val"] = one
                return call
    return None


def _is(value: Any, size: Any) -> bool:
    return isinstance(value, torch.SymInt) and expr_of(value) == expr_of(size)
