# SPDX-License-Identifier: Apache-2.0
"""torch.export of PT2E's quantized models: layers become kernels of bytes.

torchao's ``convert_pt2e`` writes the operators that are written here by hand.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import tvm

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

from helpers.imported import is_right, piped, runner, uncorrected  # noqa: E402
from helpers.whole import Function  # noqa: E402

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the operators
OPS = torch.ops.quantized_decomposed

UINT8 = (0, 255, torch.uint8)
INT8 = (-128, 127, torch.int8)
SEVEN_BITS = (0, 127, torch.uint8)
SYMMETRIC = (-127, 127, torch.int8)


class Steps(nn.Module):
    """A layer of integers with a scale for each channel, or one for all."""

    def __init__(self, rng: Any, shape: tuple[int, ...], axis: int = 0, single: bool = False):
        super().__init__()
        values = torch.from_numpy(rng.integers(-127, 128, shape, "int8"))
        scales = torch.from_numpy(rng.uniform(0.002, 0.004, shape[axis]).astype("float32"))
        self.register_buffer("values", values)
        self.register_buffer("scales", scales[0] if single else scales)
        self.register_buffer("zeros", torch.zeros_like(self.scales, dtype=torch.int64))
        self.bias = nn.Parameter(torch.from_numpy(rng.standard_normal(shape[axis], "float32")))
        self.axis, self.single = axis, single

    def forward(self) -> Any:
        if self.single:
            return OPS.dequantize_per_tensor.tensor(
                self.values, self.scales, self.zeros, *SYMMETRIC
            )
        return OPS.dequantize_per_channel(
            self.values, self.scales, self.zeros, self.axis, *SYMMETRIC
        )


def bytes_of(x: Any, scale: float, zero: int, limits: Any) -> Any:
    stored = OPS.quantize_per_tensor(x, scale, zero, *limits)
    return OPS.dequantize_per_tensor(stored, scale, zero, *limits)


class Decoder(nn.Module):
    """A convolution, a convolution with a residual, and a transposed convolution."""

    STEP = 0.05

    def __init__(self, rng: Any, limits: Any, single: bool):
        super().__init__()
        self.first = Steps(rng, (8, 3, 3, 3), single=single)
        self.second = Steps(rng, (8, 8, 3, 3), single=single)
        self.last = Steps(rng, (8, 4, 4, 4), axis=1, single=single)
        self.limits = limits

    def forward(self, x: Any) -> Any:
        middle = sum(self.limits[:2]) // 2 + 1
        x = bytes_of(x, 0.04, middle, self.limits)
        x = F.relu(F.conv2d(x, self.first(), self.first.bias, 2, 1))
        x = bytes_of(x, 0.05, self.limits[0], self.limits)
        y = F.conv2d(x, self.second(), self.second.bias, 1, 1)
        x = bytes_of(y + x, 0.1, middle, self.limits)
        y = F.conv_transpose2d(x, self.last(), self.last.bias, 2, 1)
        return bytes_of(y, self.STEP, middle, self.limits)


@pytest.mark.parametrize("decomposed", [True, False], ids=["export", "raw"])
@pytest.mark.parametrize("single", [True, False], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("limits", [UINT8, INT8, SEVEN_BITS, SYMMETRIC], ids=str)
def test_layers_are_kernels_of_bytes(
    limits: Any, single: bool, decomposed: bool, rng: np.random.Generator
) -> None:
    model = Decoder(rng, limits, single).eval()
    x = torch.from_numpy(rng.standard_normal((1, 3, 12, 12), "float32")) * 2
    exported = torch.export.export(model, (x,))

    def imported() -> Any:
        return from_exported_program(exported, run_ep_decomposition=decomposed)

    with torch.no_grad():
        want = model(x).numpy()
    run, kernels = piped(imported())
    for function in (run, runner(imported())):
        got = function(tvm.runtime.from_dlpack(x)).numpy()
        steps = np.abs(got - want) / Decoder.STEP
        # Sums are of integers here, of float32 in PyTorch, so that a half rounds elsewhere: a step,
        # which the layers behind pass on.
        assert steps.max() < 2.5
        assert np.mean(steps > 0.5) < 0.01
    convolutions = [name for name in kernels if name.startswith("conv")]
    assert len(convolutions) == 3
    assert all("_cast_multiply_add" in name and "quantize" in name for name in convolutions)
    with uncorrected():
        assert not is_right(imported)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_each_operator(dtype: Any, rng: np.random.Generator) -> None:
    """Values of each operator alone, with limits narrower than the dtype's."""
    x = torch.from_numpy(rng.standard_normal((2, 3, 4), "float32")) * 5
    scales = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    zeros, low = torch.tensor([3, 0, 7]), 0 if dtype is torch.uint8 else -5

    def per_channel(x: Any) -> Any:
        stored = OPS.quantize_per_channel(x, scales, zeros, 1, low, 12, dtype)
        return OPS.dequantize_per_channel(stored, scales, zeros, 1, low, 12, dtype)

    def per_tensor(x: Any) -> Any:
        scale, zero = torch.tensor([0.25], dtype=torch.float64), torch.tensor([4])
        stored = OPS.quantize_per_tensor.tensor(x, scale, zero, low, 12, dtype)
        return OPS.dequantize_per_tensor.tensor(stored, scale, zero, low, 12, dtype)

    for function in (per_channel, per_tensor):
        want = function(x)
        run = runner(from_exported_program(torch.export.export(Function(function), (x,))))
        got = run(tvm.runtime.from_dlpack(x)).numpy()
        np.testing.assert_array_equal(got, want.numpy())  # scales are powers of two


def test_biases_of_int32() -> None:
    values = torch.arange(-(2**20), 2**20, 2**17, dtype=torch.int32)

    def fractions(x: Any) -> Any:
        return OPS.dequantize_per_tensor(x, 0.25, 3, -(2**31), 2**31 - 1, torch.int32)

    run = runner(from_exported_program(torch.export.export(Function(fractions), (values,))))
    got = run(tvm.runtime.from_dlpack(values)).numpy()
    np.testing.assert_array_equal(got, fractions(values).numpy())  # the scale is a power of two


def test_refusals_are_one_line() -> None:
    def fractions(x: Any) -> Any:
        return OPS.dequantize_per_tensor(x.to(torch.int64), 0.5, 0, -5, 5, torch.int64)

    exported = torch.export.export(Function(fractions), (torch.zeros(3),))
    said = r"^dequantize: dtype=int64 must be one of int8, uint8, int16, int32$"
    with pytest.raises(ValueError, match=said):
        from_exported_program(exported)
