# SPDX-License-Identifier: Apache-2.0
"""Relay's quantized convolutions: zero points, bias, requantize and activation in one kernel.

Results have the bits of stock Relay's.  Weights have seven bits, since stock adds pairs of products
in 16 bits on some processors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import meta_schedule, relay
from tvm.contrib import graph_executor
from tvm.relay.backend import te_compiler

import relay_ext
from helpers.relay import target
from helpers.relay_model import problems, steps
from topi_ext import backend

CHANNELS, OUTS = 8, 12
REQUANTIZED = ["add", "cast", "multiply", "add", "floor", "truncate", "minimum"]


@dataclass
class Quantized:
    """A convolution as TFLite and PyTorch have it: bias, requantize, activation."""

    layout: str = "NHWC"
    transposed: bool = False
    per_channel: bool = True
    dtype: str = "int8"
    to: str = "int8"
    zero: int = -3
    groups: int = 1
    stride: int = 1
    activation: str = ""

    def __post_init__(self) -> None:
        random = np.random.default_rng(0)
        low, high = (-128, 128) if self.dtype == "int8" else (0, 256)
        self.outs = CHANNELS if self.groups == CHANNELS else OUTS
        self.data = random.integers(low, high, (2, CHANNELS, 9, 7)).astype(self.dtype)
        shape = (self.outs, CHANNELS // self.groups, 3, 3)
        if self.transposed:
            shape = (CHANNELS, self.outs // self.groups, 3, 3)
        self.weight = random.integers(-63, 64, shape).astype("int8")
        self.bias = random.integers(-999, 999, self.outs).astype("int32")
        scales = random.uniform(0.001, 0.004, self.outs if self.per_channel else ())
        self.scales = scales.astype("float32")

    def module(self, weight: Any = None) -> tvm.IRModule:
        kernel = "IOHW" if self.transposed else "OIHW"
        order = kernel if self.layout == "NCHW" else "HWIO"
        stored = self.weight.transpose([kernel.index(a) for a in order])
        x = relay.var("x", shape=self.stored(self.data).shape, dtype=self.dtype)
        scale = relay.const(np.float32(0.5))
        operator = relay.qnn.op.conv2d_transpose if self.transposed else relay.qnn.op.conv2d
        y = operator(
            x,
            relay.const(stored) if weight is None else weight,
            *(relay.const(zero, "int32") for zero in (self.zero, 0)),
            *(scale, relay.const(self.scales)),
            kernel_size=(3, 3),
            channels=self.outs,
            strides=(self.stride,) * 2,
            padding=(1, 1),
            groups=self.groups,
            data_layout=self.layout,
            kernel_layout=order,
            out_dtype="int32",
        )
        axis = self.layout.index("C")
        y = relay.nn.bias_add(y, relay.const(self.bias), axis=axis)
        y = relay.qnn.op.requantize(
            y,
            relay.const(self.scales * np.float32(0.5)),
            relay.const(0, "int32"),
            relay.const(np.float32(0.3)),
            relay.const(5, "int32"),
            axis=axis,
            out_dtype=self.to,
        )
        y = {"": y, "relu": relay.nn.relu(y), "clip": relay.clip(y, 7, 90)}[self.activation]
        return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y))

    def stored(self, array: np.ndarray) -> np.ndarray:
        return array if self.layout == "NCHW" else np.ascontiguousarray(np.moveaxis(array, 1, -1))

    def exact(self) -> np.ndarray:
        """Return what real numbers give, halves rounded up."""
        name = "conv_transpose2d" if self.transposed else "conv2d"
        sums = getattr(torch.nn.functional, name)(
            torch.from_numpy(self.data.astype("float64") - self.zero),
            torch.from_numpy(self.weight.astype("float64")),
            torch.from_numpy(self.bias.astype("float64")),
            stride=self.stride,
            padding=1,
            groups=self.groups,
        ).numpy()
        scale = np.broadcast_to(self.scales.astype("float64") * 0.5 / 0.3, (self.outs,))
        limits = np.iinfo(self.to)
        value = np.floor(sums * scale[:, None, None] + 5.5).clip(limits.min, limits.max)
        least, most = {"": (-128, 255), "relu": (0, 255), "clip": (7, 90)}[self.activation]
        return self.stored(value.clip(least, most))


def ran(mod: tvm.IRModule, **inputs: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    te_compiler.get().clear()
    with backend.recording() as works, tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target())
    executor = graph_executor.GraphModule(library["default"](tvm.cpu()))
    executor.run(**inputs)
    return executor.get_output(0).numpy(), problems(works)


@pytest.mark.parametrize(
    "case",
    [
        Quantized(activation="clip"),
        Quantized("NCHW", per_channel=False, dtype="uint8", zero=128, stride=2, activation="relu"),
        Quantized("NCHW", groups=CHANNELS, activation="relu"),
        Quantized("NCHW", transposed=True, stride=2),
        Quantized(transposed=True, per_channel=False, dtype="uint8", to="uint8", zero=7),
    ],
    ids=str,
)
def test_one_kernel_with_the_bits_of_stock(case: Quantized) -> None:
    x = case.stored(case.data)
    got, found = ran(case.module(), x=x)
    with relay_ext.stock():
        want, none = ran(case.module(), x=x)
    assert not none and got.tobytes() == want.tobytes()
    exact = case.exact()
    # In float32 a sum may be rounded across a half.
    assert np.abs(got - exact).max() <= 1 and (got != exact).mean() < 0.01 and exact.std() > 15
    wanted = [*REQUANTIZED, "relu" if case.to == "uint8" else "maximum"]
    assert steps(found[-1])[: len(wanted)] == wanted
    assert found[-1].zero_points == (case.zero, 0) and found[-1].dtypes[2] == case.to


def test_a_weight_that_is_no_constant() -> None:
    """TVM's own way: it subtracts what zero points add."""
    case = Quantized("NCHW")
    weight = relay.var("w", shape=case.weight.shape, dtype="int8")
    got, found = ran(case.module(weight), x=case.data, w=case.weight)
    assert got.tobytes() == ran(case.module(), x=case.data)[0].tobytes()
    assert not any(any(problem.zero_points) for problem in found)


@pytest.mark.parametrize("config", ["auto_scheduler", "meta_schedule"])
def test_tuners_and_stock_see_their_own_operators(config: str) -> None:
    mod = Quantized().module()
    context = tvm.transform.PassContext(3, config={f"relay.backend.use_{config}": True})
    with meta_schedule.database.MemoryDatabase(), context:
        assert "conv_packed" not in str(relay.optimize(mod, target())[0])
    with relay_ext.stock():
        assert "conv_packed" not in str(relay.optimize(mod, target())[0])
    assert "conv_packed" in str(relay.optimize(mod, target())[0])
