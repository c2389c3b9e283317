# SPDX-License-Identifier: Apache-2.0
"""Random numbers of compiled graphs: PyTorch's, to the last bit, and drawn before the first part.

Data and weights are whole numbers, so that convolutions are exact; nothing is added to a product,
which compiled code would round once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.torch_backend import Function, compiled
from relax_ext.torch import Report, draws, report


def conv(ins: int = 3, outs: int = 4) -> nn.Module:
    layer = nn.Conv2d(ins, outs, 3, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(layer.weight.numel()).view(layer.weight.shape) % 5 - 2)
    return layer


def image(batch: int = 2) -> torch.Tensor:
    return (torch.arange(batch * 96).view(batch, 3, 4, 8) % 7 - 3.0).requires_grad_()


def dropouts(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """Draw numbers thrice; the last draw reads an input."""
    y = F.dropout(m[1](F.dropout(m[0](x), 0.5)), 0.3)
    return torch.cat([y, F.dropout(x, 0.7)])


def several(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    y = m[0](x)
    likes = torch.randn_like(y), torch.empty_like(y).uniform_(-1, 1), torch.randint_like(y, 9)
    of_other_shapes = torch.rand(8).expand(2, 4, 4, 8), F.dropout2d(y, 0.25), y * torch.rand(())
    return torch.cat([*likes, *of_other_shapes, *(F.dropout(y, p) for p in (1.0, 0.0, 0.3))])


def by_values(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """Draw numbers whose distribution is computed, between others."""
    y = F.dropout(m[0](x), 0.5)
    return F.dropout(m[1](y * torch.poisson(y.detach().abs())), 0.5)


def recomputed(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: dropouts(m, y), x, use_reentrant=False)


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "dropout": (dropouts, 1),
    "several": (several, 1),
    "by values": (by_values, 2),
    "checkpoint": (recomputed, 1),
}
"""Functions, and the parts of their forward graphs."""


def step(run: Any, x: torch.Tensor) -> list[Any]:
    """Return a result, a gradient, and the next number of the generator."""
    torch.manual_seed(7)
    x = x.detach().requires_grad_()
    y = run(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return [y.detach(), gradient, torch.rand(1)]


def check(function: Callable[..., Any], batches: tuple[int, ...], **others: Any) -> Report:
    """Compare a step with PyTorch's: results to the last bit, gradients within roundings."""
    model = Function(function, conv(), conv(4, 3))
    run = compiled(model, **others)
    for batch in batches:
        (y, dx, state), (y_, dx_, state_) = (step(module, image(batch)) for module in (run, model))
        assert torch.equal(state, state_)
        assert torch.equal(y, y_)
        torch.testing.assert_close(dx, dx_, rtol=1e-6, atol=1e-4)
    return report()


@pytest.mark.parametrize("name", CASES)
def test_draws(name: str) -> None:
    function, parts = CASES[name]
    forward, backward = check(function, (2,)).graphs
    assert len(forward.parts) == parts and forward.random and not forward.unknown
    assert len(backward.parts) == 1
    assert bool(backward.random) == (name == "checkpoint")


def test_draws_of_symbolic_sizes() -> None:
    """A batch that is a symbol is known before the first part, like the number of a graph."""
    found = check(dropouts, (2, 3, 4), dynamic=True)
    assert [len(graph.parts) for graph in found.graphs] == [1, 1]


def test_draws_of_computed_sizes_cut() -> None:
    def halves(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.max_pool2d(m[0](x), 2))

    model = Function(halves, conv())
    run = compiled(model, dynamic=True)
    x = image()
    torch._dynamo.mark_dynamic(x, 2)
    (y, *_), (want, *_) = step(run, x), step(model, x)
    assert torch.equal(y, want)
    assert report().graphs[0].random


@pytest.mark.parametrize("in_memory_order", [draws.IN_MEMORY_ORDER, False])
def test_channels_last(in_memory_order: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks are drawn in PyTorch's order of elements, or by the dropout itself."""
    monkeypatch.setattr(draws, "IN_MEMORY_ORDER", in_memory_order)
    model = Function(dropouts, conv(), conv(4, 3)).to(memory_format=torch.channels_last)
    x = image().detach().contiguous(memory_format=torch.channels_last)
    for got, want in zip(step(compiled(model), x)[::2], step(model, x)[::2]):
        assert torch.equal(got, want)
    random = report().graphs[0].random
    assert ("aten.native_dropout.default" in random) == (not in_memory_order)


def test_inference_draws_too() -> None:
    model = Function(dropouts, conv(), conv(4, 3))
    run = compiled(model)
    with torch.no_grad():
        torch.manual_seed(3)
        got = run(image())
        torch.manual_seed(3)
        assert torch.equal(got, model(image()))
    assert len(report().graphs[0].parts) == 1


@pytest.mark.usefixtures("no_graph_is_small")
def test_what_reads_inputs_only_cuts_nothing() -> None:
    """A lookup at the head of a graph runs before the only part."""
    model = Function(lambda m, i: m[0](m[1](i).permute(0, 3, 1, 2)), conv(), nn.Embedding(10, 3))
    compiled(model, {})(torch.arange(18).view(2, 3, 3) % 10)
    (graph,) = report().graphs
    assert len(graph.parts) == 1 and list(graph.unknown) == ["aten.embedding.default"]
