# SPDX-License-Identifier: Apache-2.0
"""One quantized layer as a model of ONNX: bytes in, bytes out, and what integers make of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from onnx import NodeProto, helper

from .cases import Case
from .onnx_models import model_of, node_of

ZERO = 128
"""The zero point of the data."""


@dataclass(frozen=True)
class Layer:
    """A convolution or transposed convolution of uint8 by int8, with a bias and a relu.

    Weights have a scale for each output channel, and seven bits: without VNNI, onnxruntime adds
    pairs of products in 16 bits.

    Attributes
    ----------
    case : Case
    data, weight, bias : numpy.ndarray
        uint8, int8, int32.
    x_scale, y_scale : numpy.float32
    w_scale : numpy.ndarray
        One for each output channel that the weight's shape states.
    """

    case: Case
    data: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    x_scale: np.float32
    w_scale: np.ndarray
    y_scale: np.float32

    @classmethod
    def of(cls, case: Case, rng: np.random.Generator) -> Layer:
        """Return a layer with random numbers; results cover the range of uint8."""
        transposed = case.op == "conv_transpose"
        weight = rng.integers(-64, 63, case.shape("w"), "int8", endpoint=True)
        data = rng.integers(0, 255, case.shape("y" if transposed else "x"), "uint8", endpoint=True)
        terms = case.terms(case.op)
        channels = case.geometry.c if transposed else case.geometry.k
        scales = rng.uniform(0.005, 0.01, [weight.shape[1 if transposed else 0]]).astype("float32")
        bias = rng.integers(-999, 999, channels).astype("int32")
        y_scale = np.float32(0.02 * 0.0075 * 73 * 37 * terms**0.5 / 64)
        return cls(case, data, weight, bias, np.float32(0.02), scales, y_scale)

    @property
    def transposed(self) -> bool:
        """True for ``conv_transpose``, false for ``conv``."""
        return self.case.op == "conv_transpose"

    @property
    def per_channel(self) -> np.ndarray:
        """The factor of the sums of each channel of the result."""
        groups = self.case.geometry.groups if self.transposed else 1
        return np.tile(self.w_scale, groups) * self.x_scale

    def want(self) -> np.ndarray:
        """Return the result: exact sums, then float64."""
        g = self.case.geometry_of(self.case.op)
        rank = len(g.kernel)
        x = torch.tensor(self.data.astype("float64") - ZERO)
        w = torch.tensor(self.weight.astype("float64"))
        window = {"stride": g.stride, "padding": g.pad_before, "dilation": g.dilation}
        if self.transposed:
            function = getattr(F, f"conv_transpose{rank}d")
            sums = function(x, w, groups=g.groups, output_padding=g.output_padding, **window)
        else:
            sums = getattr(F, f"conv{rank}d")(x, w, groups=g.groups, **window)
        along = (1, -1, *(1,) * rank)
        real = (sums.numpy() + self.bias.reshape(along)) * self.per_channel.reshape(along)
        return np.clip(np.rint(np.maximum(real, 0) / self.y_scale), 0, 255).astype("uint8")

    def integers(self) -> bytes:
        """Return the model between DequantizeLinear and QuantizeLinear."""
        parts = {
            "x_scale": self.x_scale,
            "x_zero": np.uint8(ZERO),
            "w": self.weight,
            "w_scale": self.w_scale,
            "w_zero": np.zeros(self.w_scale.shape, "int8"),
            "b": self.bias,
            "b_scale": self.per_channel.astype("float32"),
            "b_zero": np.zeros(self.bias.shape, "int32"),
            "y_scale": self.y_scale,
            "y_zero": np.uint8(0),
        }
        node = helper.make_node
        axis = 1 if self.transposed else 0
        nodes = [
            node("DequantizeLinear", ["data", "x_scale", "x_zero"], ["x"]),
            node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], axis=axis),
            node("DequantizeLinear", ["b", "b_scale", "b_zero"], ["bf"], axis=0),
            *self._layer("x", "wf", "bf", "r"),
            node("QuantizeLinear", ["r", "y_scale", "y_zero"], ["result"]),
        ]
        return model_of(nodes, parts, self._shapes, "uint8")

    def fractions(self) -> bytes:
        """Return the same layer in float32."""
        along = [1] * self.weight.ndim
        along[1 if self.transposed else 0] = -1
        weight = self.weight.astype("float32") * self.w_scale.reshape(along)
        bias = (self.bias * self.per_channel).astype("float32")
        nodes = self._layer("data", "w", "b", "result")
        return model_of(nodes, {"w": weight, "b": bias}, self._shapes, "float32")

    def _layer(self, x: str, w: str, b: str, result: str) -> list[NodeProto]:
        layer = node_of(self.case, self.case.op, [x, w, b], "sums")
        return [layer, helper.make_node("Relu", ["sums"], [result])]

    @property
    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the data and of the result."""
        data, result = (self.case.shape(role) for role in ("yx" if self.transposed else "xy"))
        return data, result
