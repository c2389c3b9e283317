# SPDX-License-Identifier: Apache-2.0
"""Models as PT2E quantizes them, of the operators that torchao's ``convert_pt2e`` writes."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

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
        scales = scales[0] if single else scales
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros_like(scales, dtype=torch.int64))
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


class Classifier(nn.Module):
    """Convolutions, between which bytes are pooled, resized and concatenated, and linear layers."""

    STEP = 0.02

    def __init__(self, rng: Any, limits: Any, single: bool, chosen: bool = False):
        super().__init__()
        self.first = Steps(rng, (8, 3, 3, 3), single=single)
        self.second = Steps(rng, (8, 16, 3, 3), single=single)
        self.hidden = Steps(rng, (24, 8 * 6 * 6), single=single)
        self.last = Steps(rng, (20, 24), single=single)
        self.limits, self.chosen = limits, chosen

    def forward(self, x: Any) -> Any:
        low, high, _ = limits = self.limits
        middle = (low + high) // 2
        x = bytes_of(x, 0.04, middle + 1, limits)
        x = F.relu6(F.conv2d(x, self.first(), self.first.bias, 1, 1))
        x = bytes_of(x, 0.05, low, limits)
        y = bytes_of(F.max_pool2d(x, 3, 2, 1), 0.05, low, limits)
        y = bytes_of(F.interpolate(y, scale_factor=2, mode="nearest"), 0.05, low, limits)
        x = bytes_of(torch.cat([x, y], 1), 0.05, low, limits)
        x = F.hardswish(F.conv2d(x, self.second(), self.second.bias, 2, 1))
        x = self._stored(x, 0.05, low).flatten(1)
        x = F.relu(F.linear(x, self.hidden(), self.hidden.bias))
        x = self._stored(x, 0.05, low)
        return bytes_of(F.linear(x, self.last(), self.last.bias), self.STEP, middle, limits)

    def _stored(self, x: Any, scale: float, zero: int) -> Any:
        """Return a value of bytes whose scale is known, or chosen for the value."""
        if not self.chosen:
            return bytes_of(x, scale, zero, self.limits)
        low, high, dtype = self.limits
        parameters = OPS.choose_qparams.tensor(x, low, high, 2**-12, dtype)
        stored = OPS.quantize_per_tensor.tensor(x, *parameters, *self.limits)
        return OPS.dequantize_per_tensor.tensor(stored, *parameters, *self.limits)


def assert_within_steps(got: np.ndarray, want: np.ndarray, step: float) -> None:
    """Compare fractions of bytes.

    Sums are of integers here, of float32 in PyTorch, so that a half rounds elsewhere: a step, which
    the layers behind pass on.
    """
    steps = np.abs(got - want) / step
    assert steps.max() < 2.5
    assert np.mean(steps > 0.5) < 0.01
