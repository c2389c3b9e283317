# SPDX-License-Identifier: Apache-2.0
"""``options={"dtype": ...}``: products in half precision, beside autocast and float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from helpers.torch_backend import check_training, compiled, gradients
from relax_ext.torch import part, report
from relax_ext.torch.partition import is_product
from relax_ext.torch.precision import lower

DTYPES = [torch.bfloat16, torch.float16]


def net() -> nn.Module:
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.ConvTranspose2d(8, 4, 4, 2, 1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 256, 5))


def image() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8)


def error(value: torch.Tensor, want: torch.Tensor) -> float:
    return float((value.double() - want).abs().max() / want.abs().max())


def results(run: Any, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    y = run(x)
    y.square().sum().backward()
    return [y.detach(), *gradients(model.parameters())]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_training_step(dtype: torch.dtype) -> None:
    """No error is more than three times that of autocast, or eight roundings of a product."""
    torch.manual_seed(0)
    model, x = net(), image()
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    run = compiled(model, {"dtype": str(dtype).removeprefix("torch."), "unknown": "raise"})
    ours = results(run, model, x)
    with torch.autocast("cpu", dtype):
        theirs = results(eager, eager, x)
    want = results(exact, exact, x.double())
    assert all(value.dtype is torch.float32 for value in ours)
    limit = 8 * torch.finfo(dtype).eps
    errors = [(error(a, w), error(b, w)) for a, b, w in zip(ours, theirs, want)]
    assert all(mine <= max(limit, 3 * other) for mine, other in errors), errors
    assert max(mine for mine, _ in errors) > torch.finfo(dtype).eps / 16, "in float32"
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    optimizer.step()
    assert all(parameter.dtype is torch.float32 for parameter in model.parameters())
    assert float(run(x).detach().square().sum()) < float(ours[0].square().sum())


def test_frozen_weights_are_packed_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    runners: list[Any] = []
    stock = part.compile_part
    monkeypatch.setattr(
        "relax_ext.torch.graph.compile_part",
        lambda *given: runners.append(stock(*given)) or runners[-1],
    )
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3)).eval()
    run, x = compiled(model, {"dtype": torch.bfloat16, "freeze": True}), torch.rand(1, 16, 8, 8)
    with torch.no_grad():
        assert error(run(x), model.double()(x.double())) < 8 * torch.finfo(torch.bfloat16).eps
    (runner,) = runners
    _, weights, _ = runner._executables.of([]).of(())._packed._last
    packed = [torch.from_dlpack(tensor).dtype for tensor in weights]
    assert packed.count(torch.bfloat16) >= 2


def traced(function: Any, *arguments: torch.Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*arguments)


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_products_change(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> Any:
        y = torch.conv2d(x, k).exp()
        return (y.flatten(1) @ w).softmax(-1), torch.autograd.grad(y.sum(), (x, k))

    torch.manual_seed(0)
    tensors = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 1, 1) / 4, torch.rand(32, 5) / 16
    graph_module = traced(function, *(t.requires_grad_() for t in tensors))
    before = [node.name for node in graph_module.graph.nodes]
    lower(graph_module.graph, dtype)
    graph_module.graph.lint()
    products = 0
    for node in graph_module.graph.nodes:
        values = node.meta.get("val")
        if node.name not in before or not isinstance(values, torch.Tensor):
            continue
        if is_product(node):
            products += 1
            assert values.dtype is dtype
            assert all(each.meta["val"].dtype is dtype for each in node.all_input_nodes)
        elif node.args and not any(map(is_product, node.all_input_nodes)):
            assert values.dtype is torch.float32
    assert products == 2
    graph_module.recompile()
    for got, want in zip(graph_module(*tensors)[0], function(*tensors)[0]):
        assert got.dtype is torch.float32
        assert float((got - want).abs().max()) < 8 * torch.finfo(dtype).eps


def test_float64_stays() -> None:
    check_training(net().double(), image().double(), options={"dtype": "float16"})
    assert all(graph.parts for graph in report().graphs)
