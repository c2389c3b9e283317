# SPDX-License-Identifier: Apache-2.0
"""Models that torchao quantized, by ``torch.compile`` and by TVM's importer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as F
from tvm.relax.frontend.torch import from_exported_program

from helpers.imported import piped
from helpers.torch_backend import compiled
from relax_ext.torch import report

pytest.importorskip("torchao", reason="torchao is not installed: pip install tvm-conv-ext[torchao]")

from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

AFFINE = torch.ops.torchao
FREEZE = {"freeze": True, "unknown": "raise"}
RELATIVE = 0.02
"""Maximum error, relative to the largest value, of fractions behind several layers of bytes: one of
255 steps that is rounded otherwise, some of which meet."""


class ResNet(nn.Module):
    """A stem, a residual block, a block that halves the image, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 8, 3)
        self.first, self.second = _conv(8, 8, 3), _conv(8, 8, 3)
        self.third, self.fourth = _conv(8, 16, 3, 2), _conv(16, 16, 3)
        self.short = _conv(8, 16, 1, 2)
        self.last = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        x = F.relu(x + self.second(F.relu(self.first(x))))
        x = F.relu(self.short(x) + self.fourth(F.hardswish(self.third(x))))
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _conv(channels: int, filters: int, kernel: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(filters))


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.first(x)))


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def converted(model: nn.Module, x: torch.Tensor, fold: bool = True, dynamic: bool = False) -> Any:
    """Return a model as PT2E quantizes it for processors."""
    quantizer = x86.X86InductorQuantizer()
    config = x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
    quantizer.set_global(config)
    prepared = prepare_pt2e(torch.export.export(model.eval(), (x,)).module(), quantizer)
    with torch.no_grad():
        prepared(x)
    return convert_pt2e(prepared, fold_quantize=fold)


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float = RELATIVE) -> None:
    assert float((got - want).abs().max() / want.abs().max()) <= tolerance


def assert_one_part() -> None:
    (graph,) = report().graphs
    assert [part.operators for part in graph.parts] == [graph.operators]


@pytest.mark.parametrize("options", [None, FREEZE], ids=["", "freeze"])
@pytest.mark.parametrize("fold", [True, False], ids=["weights of bytes", "weights of floats"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
def test_pt2e(dynamic: bool, fold: bool, options: Any, images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = converted(ResNet(), images, fold, dynamic)
    run = compiled(model, options)
    with torch.no_grad():
        assert_close(run(images), model(images))
    assert_one_part()


def test_pt2e_by_the_importer(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = converted(ResNet(), images)
    run, kernels = piped(from_exported_program(torch.export.export(model, (images,))))
    with torch.no_grad():
        assert_close(torch.from_numpy(run(tvm.runtime.from_dlpack(images)).numpy()), model(images))
    assert len([name for name in kernels if "cast" in name]) == 7


class Affine(nn.Module):
    """A convolution between torchao's own operators."""

    STEP = 0.25

    def __init__(self, single: bool, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        values = torch.randint(-127, 128, (8, 3, 3, 3), dtype=torch.int8, generator=generator)
        scales = torch.rand((), generator=generator) / 100 + 0.01
        self.register_buffer("values", values)
        self.register_buffer("scales", scales if single else scales * torch.arange(1, 9) / 8)
        self.register_buffer("zeros", torch.zeros_like(self.scales, dtype=torch.int32))
        self.register_buffer("step", torch.tensor(self.STEP))
        self.register_buffer("zero", torch.tensor(3, dtype=torch.int32))
        self.block, self.dtype = ((8 if single else 1), 3, 3, 3), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.values, self.block, self.scales, self.zeros, torch.int8, -127, 127
        weight = AFFINE.dequantize_affine(*given)
        return self._stored(F.relu(F.conv2d(self._stored(x), weight)))

    def _stored(self, x: torch.Tensor) -> torch.Tensor:
        given = list(x.shape), self.step, self.zero, self.dtype
        return AFFINE.dequantize_affine(AFFINE.quantize_affine(x, *given), *given)


@pytest.mark.parametrize("door", ["compile", "raw", "export"])
@pytest.mark.parametrize("single", [True, False], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_affine_operators(
    dtype: torch.dtype, single: bool, door: str, images: torch.Tensor
) -> None:
    """Sums are of integers here, of float32 in PyTorch, so that a half rounds elsewhere: a step."""
    model = Affine(single, dtype)
    kernels = ["cast"]
    with torch.no_grad():
        want = model(images)
        if door == "compile":
            got = compiled(model)(images)
            assert report().graphs[0].operators == 7
            assert_one_part()
        else:
            exported = torch.export.export(model, (images,))
            decomposed = door == "export"
            run, kernels = piped(from_exported_program(exported, run_ep_decomposition=decomposed))
            got = torch.from_numpy(run(tvm.runtime.from_dlpack(images)).numpy())
    steps = (got - want).abs() / model.STEP
    assert steps.max() < 1.5
    assert np.mean(steps.numpy() > 0.5) < 0.01
    assert any("cast" in name for name in kernels) == (door != "export")


@pytest.mark.parametrize("options", [None, FREEZE], ids=["", "freeze"])
@pytest.mark.parametrize(
    "config",
    [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig],
    ids=lambda c: c.__name__,
)
def test_quantized_linear_layers(config: Any, options: Any) -> None:
    """Weights are bytes, activations are floats, or bytes with a scale for each row."""
    torch.manual_seed(0)
    model = Perceptron().eval()
    quantize_(model, config())
    run, x = compiled(model, options), torch.randn(20, 32)
    with torch.no_grad():
        assert_close(run(x), model(x), 1e-5)  # sums of up to 64 products, in float32
    assert_one_part()
