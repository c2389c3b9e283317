# SPDX-License-Identifier: Apache-2.0
"""Small graphs are left to PyTorch, and only those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relax_ext.torch


def attention(query: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return attention to a memory."""
    return F.scaled_dot_product_attention(query, memory, memory)


def left(function: Callable[..., Any], *inputs: torch.Tensor, **arguments: Any) -> tuple[Any, bool]:
    """Return the results of a compiled function, and whether PyTorch computed them."""
    torch._dynamo.reset()
    relax_ext.torch.report(clear=True)
    found = torch.compile(function, backend="tvm_conv", **arguments)(*inputs)
    graph = relax_ext.torch.report().graphs[0]
    assert bool(graph.parts) != ("the whole graph" in graph.unknown)
    return found, not graph.parts


SMALL = {
    "linear": (nn.Linear(64, 64), (8, 64)),
    "perceptron": (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), (3, 16)),
    "convolution": (nn.Conv2d(16, 16, 3, padding=1), (1, 16, 8, 8)),
    "attention": (attention, (1, 8, 1, 64), (1, 8, 512, 64)),
}
LARGE = {
    "linear": (nn.Linear(512, 512), (64, 512)),
    "convolution": (nn.Conv2d(16, 16, 3), (1, 16, 28, 28)),
    "transposed": (nn.ConvTranspose2d(4, 4, 3), (1, 4, 4, 4)),
    "attention": (attention, (4, 4, 40, 32), (4, 4, 40, 32)),
    "float64": (nn.Linear(8, 8, dtype=torch.float64), (2, 8)),
    "many operators": (nn.Sequential(*[nn.Linear(4, 4) for _ in range(7)]), (2, 4)),
}


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_a_small_graph_is_left(name: str) -> None:
    """Its results are PyTorch's own, bit by bit."""
    function, *shapes = SMALL[name]
    inputs = [torch.randn(shape) for shape in shapes]
    found, is_left = left(function, *inputs)
    assert is_left
    assert torch.equal(found, function(*inputs))


@pytest.mark.parametrize("name", LARGE)
@torch.no_grad()
def test_other_graphs_are_compiled(name: str) -> None:
    """Operators that take PyTorch longer, and many of them, are compiled."""
    function, *shapes = LARGE[name]
    dtype = torch.float64 if name == "float64" else torch.float32
    inputs = [torch.randn(shape, dtype=dtype) for shape in shapes]
    found, is_left = left(function, *inputs)
    assert not is_left
    assert torch.allclose(found, function(*inputs), atol=1e-4)  # sums of 512 terms of float32


@pytest.mark.parametrize(
    "arguments",
    [{"dynamic": True}, {"options": {"unknown": "raise"}}, {"options": {"dtype": "bfloat16"}}],
    ids=str,
)
@torch.no_grad()
def test_a_demand_is_followed(arguments: Any) -> None:
    """Graphs with such options, and of symbolic sizes, whose largest is unknown, are compiled."""
    assert not left(nn.Linear(64, 64), torch.randn(8, 64), **arguments)[1]


@torch.no_grad()
def test_a_size_that_follows_from_values() -> None:
    """It is symbolic although no input is."""

    def places(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).nonzero()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found, is_left = left(places, torch.eye(3))
    assert not is_left
    assert torch.equal(found, torch.eye(3).nonzero())


def test_training_is_as_in_pytorch() -> None:
    """Gradients, running statistics and random numbers are PyTorch's: to look at a graph changes
    none of them.
    """
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.5))
    x, found = torch.randn(3, 2, 8), []
    for compiled in (False, True):
        model[1].reset_running_stats()
        model.zero_grad()
        torch.manual_seed(0)
        y, is_left = left(model, x) if compiled else (model(x), False)
        assert is_left == compiled
        y.square().sum().backward()
        found.append([y.detach(), *(one.clone() for one in model.buffers())])
        found[-1] += [one.grad.clone() for one in model.parameters() if one.grad is not None]
    assert all(map(torch.equal, *found))
    assert len(found[0]) == 8
