# SPDX-License-Identifier: Apache-2.0
"""Models that PT2E quantized, by ``torch.compile``: one part, and a kernel of bytes for a layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as F

from helpers.pt2e import (
    INT8,
    OPS,
    SEVEN_BITS,
    SYMMETRIC,
    UINT8,
    Classifier,
    Decoder,
    Steps,
    assert_within_steps,
    bytes_of,
)
from helpers.torch_backend import compiled
from helpers.whole import ours
from relax_ext import executable_cache
from relax_ext.torch import known, report
from topi_ext import notices

FREEZE = {"freeze": True, "unknown": "raise"}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Names of our kernels of each function that is compiled."""
    made: list[list[str]] = []
    stock = executable_cache.pipeline

    def pipeline(*args: Any) -> Any:
        passes = stock(*args)

        @tvm.transform.module_pass(opt_level=0)
        def keep(module: Any, _: Any) -> Any:
            module = passes(module)
            made.append(ours(module))
            return module

        return keep

    monkeypatch.setattr(executable_cache, "pipeline", pipeline)
    return made


def image(rng: np.random.Generator, batch: int = 1) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal((batch, 3, 12, 12), "float32")) * 2


def check(run: Any, model: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        assert_within_steps(run(x).numpy(), model(x).numpy(), model.STEP)


def layers(names: list[str], kind: str) -> list[str]:
    return [name for name in names if name.startswith(kind) and "_cast_multiply_add" in name]


@pytest.mark.parametrize("options", [None, FREEZE], ids=["", "freeze"])
@pytest.mark.parametrize("single", [True, False], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("limits", [UINT8, INT8, SEVEN_BITS, SYMMETRIC], ids=str)
def test_layers_are_kernels_of_bytes(
    limits: Any, single: bool, options: Any, kernels: list[list[str]], rng: np.random.Generator
) -> None:
    model = Decoder(rng, limits, single).eval()
    check(compiled(model, options), model, image(rng))
    (graph,) = report().graphs
    assert [part.operators for part in graph.parts] == [graph.operators]
    found = layers(kernels[0], "conv")
    assert len(found) == 3
    assert all("quantize" in name for name in found)


@pytest.mark.parametrize("options", [None, FREEZE], ids=["", "freeze"])
@pytest.mark.parametrize("chosen", [False, True], ids=["known", "chosen"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
@pytest.mark.parametrize("limits", [UINT8, SYMMETRIC], ids=str)
def test_linear_layers_are_kernels_of_bytes(
    limits: Any,
    dynamic: bool,
    chosen: bool,
    options: Any,
    kernels: list[list[str]],
    rng: np.random.Generator,
) -> None:
    model = Classifier(rng, limits, False, chosen).eval()
    run = compiled(model, options)
    for batch in (2, 3) if dynamic else (2,):
        x = image(rng, batch)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        check(run, model, x)
    assert [len(graph.parts) for graph in report().graphs] == [1]
    assert len(layers(kernels[0], "conv")) == 2
    products = [name for name in kernels[0] if name.startswith("matmul") and "cast" in name]
    assert len(products) == 2


def test_weights_are_dequantized_where_they_are_read(
    kernels: list[list[str]], rng: np.random.Generator
) -> None:
    """An operator that stays in PyTorch divides the graph: weights are bytes in both parts."""

    class Divided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleList(Steps(rng, (64, 64)) for _ in range(2))
            self.table = nn.Embedding(8, 64)

        def forward(self, x: Any, i: Any) -> Any:
            for steps in self.steps:
                x = F.linear(bytes_of(x, 0.05, 128, UINT8), steps(), steps.bias)
                x = x + self.table(i + (x[0, 0] > 9).long())
            return x

    model = Divided().eval()
    x, i = torch.from_numpy(rng.standard_normal((8, 64), "float32")), torch.arange(8) % 7
    with torch.no_grad():
        want = model(x, i)
        got = compiled(model, {"freeze": True})(x, i)
    # A step of 0.05 of the data, by weights of at most 0.5.
    torch.testing.assert_close(got, want, rtol=0, atol=0.1)
    (graph,) = report().graphs
    assert len(graph.parts) == 2 and list(graph.in_pytorch) == ["aten.embedding.default"]
    assert kernels and all(len(layers(names, "matmul")) == 1 for names in kernels)


def test_equal_scales_of_channels(rng: np.random.Generator) -> None:
    """One number for each channel stays so where the weight is transposed."""
    model = Classifier(rng, UINT8, False).eval()
    for layer in (model.hidden, model.last):
        layer.scales.fill_(0.003)
    check(compiled(model), model, image(rng))


def test_concatenations_of_several_scales(rng: np.random.Generator) -> None:
    """Their parts are quantized once more, and what others read stays a fraction.

    No ratio of two scales is one of small numbers, which would make many halves.
    """
    first, last = Steps(rng, (8, 3, 3, 3)), Steps(rng, (8, 16, 3, 3))

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.conv2d(bytes_of(x, 0.04, 0, INT8), first(), first.bias, 1, 1)
        y = torch.cat([bytes_of(x, 0.05, -3, INT8), bytes_of(F.relu(x), 0.0311, -128, INT8)], 1)
        z = F.conv2d(bytes_of(y, 0.0607, 5, INT8), last(), last.bias)
        return y, bytes_of(F.max_pool2d(z, 2), 0.1, 0, INT8)

    x = image(rng)
    for got, want, step in zip(compiled(function)(x), function(x), (0.05, 0.1)):
        assert_within_steps(got.detach().numpy(), want.detach().numpy(), step)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
def test_resizes_are_quantized_as_they_are_written(
    dynamic: bool, corners: bool, kernels: list[list[str]], rng: np.random.Generator
) -> None:
    """Fractions, as a decoder joins them: one kernel each, and a concatenation of bytes."""
    first = nn.Parameter(torch.from_numpy(rng.standard_normal((8, 3, 3, 3), "float32")))
    how = {"mode": "bilinear", "align_corners": corners}

    def function(x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(F.conv2d(x, first, padding=1))
        y = F.gelu(F.conv2d(x, first[:, :1].expand(8, 8, 3, 3), padding=1, stride=2))
        ys = [F.interpolate(one, (24, 20), **how) for one in (x, y)]
        return bytes_of(torch.cat(ys, 1), 0.0607, 5, INT8)

    x = torch.from_numpy(rng.standard_normal((2, 3, 12, 10), "float32"))
    run = compiled(function)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        assert_within_steps(run(x).numpy(), function(x).numpy(), 0.0607)
    assert sum("resize2d" in name and "quantize" in name for name in kernels[0]) == 2


def test_products_of_activations(kernels: list[list[str]], rng: np.random.Generator) -> None:
    """Attention of bytes: scores of queries and keys, then a product by values."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (bytes_of(one, 0.03, zero, INT8) for one, zero in ((q, 0), (k, 0), (v, 0)))
        scores = torch.softmax(q @ k.mT / 4, -1)
        return bytes_of(bytes_of(scores, 1 / 127, 0, INT8) @ v, 0.02, 3, INT8)

    x = [torch.from_numpy(rng.standard_normal((2, 3, 10, 16), "float32")) for _ in range(3)]
    assert_within_steps(compiled(function)(*x).numpy(), function(*x).numpy(), 0.02)
    assert [len(graph.parts) for graph in report().graphs] == [1]
    assert len([name for name in kernels[0] if name.startswith("matmul_cast_multiply")]) == 2


def test_other_values_of_scales_are_seen(
    kernels: list[list[str]], rng: np.random.Generator
) -> None:
    model = Decoder(rng, UINT8, False).eval()
    run, x = compiled(model), image(rng)
    check(run, model, x)
    model.first.scales.mul_(2)
    check(run, model, x)
    model.second.scales = model.second.scales * 0.5
    check(run, model, x)
    assert len(kernels) == 3
    model.first.scales.div_(2)
    model.second.scales = model.second.scales / 0.5
    model.second.values.neg_()
    check(run, model, x)
    assert len(kernels) == 3  # the first values again, of other weights
    with torch.inference_mode():
        assert_within_steps(run(x).numpy(), model(x).numpy(), model.STEP)
    assert len(kernels) == 3


def test_modules_share_a_graph(kernels: list[list[str]], rng: np.random.Generator) -> None:
    models = [Decoder(rng, UINT8, False).eval() for _ in range(2)]
    run = compiled(lambda model, x: model(x))
    x = image(rng)
    for model in (*models, *models):
        with torch.no_grad():
            assert_within_steps(run(model, x).numpy(), model(x).numpy(), model.STEP)
    assert len(kernels) == 2


def test_too_many_values_stay_in_pytorch(
    monkeypatch: pytest.MonkeyPatch, kernels: list[list[str]], rng: np.random.Generator
) -> None:
    monkeypatch.setattr(known, "MOST_VALUES", 2)
    notices.warn_once.cache_clear()
    model = Decoder(rng, UINT8, True).eval()
    run, x = compiled(model, {}), image(rng)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            check(run, model, x)
            model.last.scales.mul_(0.9)
    said = [str(one.message) for one in caught if "scales" in str(one.message)]
    assert said == ["tvm_conv: scales have had 2 values: with others a part stays in PyTorch"]
    assert len(kernels) == 2


def test_scales_that_are_arguments(rng: np.random.Generator) -> None:
    """They differ at each call, so no code is made for their values."""
    layer = Steps(rng, (8, 3, 3, 3))

    def function(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        w = OPS.dequantize_per_channel(layer.values, scales, layer.zeros, 0, *SYMMETRIC)
        return bytes_of(F.conv2d(x, w), 0.1, 3, UINT8)

    run, x = compiled(function), image(rng)
    for factor in (1, 2, 3):
        scales = layer.scales * factor
        assert_within_steps(run(x, scales).numpy(), function(x, scales).numpy(), 0.1)
    assert len(report().graphs) == 1


def test_gradients_of_what_follows_bytes(rng: np.random.Generator) -> None:
    model = Steps(rng, (8, 3, 3, 3))

    def function(x: torch.Tensor) -> torch.Tensor:
        x = bytes_of(x, 0.04, 0, INT8)
        return F.relu(F.conv2d(x, model(), model.bias))

    x, gradients = image(rng), []
    for run in (compiled(function), function):
        model.bias.grad = None
        run(x).sum().backward()
        gradients.append(model.bias.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-4)  # sums of 100 ones


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        (
            lambda x: OPS.quantize_per_tensor(x, 0.5, 0, -9, 9, torch.int32) * 0.5,
            "quantized_decomposed.quantize_per_tensor.default "
            "(quantize: dtype=int32 must be one of int8, uint8, int16)",
        ),
        (
            lambda x: OPS.convert_element_type.no_fuse(x, torch.float32),
            "quantized_decomposed.convert_element_type.no_fuse (no converter)",
        ),
    ],
    ids=["dtype", "operator"],
)
def test_an_unknown_scheme_stays_in_pytorch(
    scheme: Callable[[Any], Any], said: str, rng: np.random.Generator
) -> None:
    conv = nn.Conv2d(3, 8, 3).eval()
    run, x = compiled(lambda x: conv(scheme(x)), {}), image(rng)
    notices.warn_once.cache_clear()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(run(x), conv(scheme(x)), rtol=1e-5, atol=1e-5)
    texts = [str(one.message) for one in caught if str(one.message).startswith("tvm_conv")]
    assert texts == [f"tvm_conv: inference: in PyTorch stay {said}"]
