# SPDX-License-Identifier: Apache-2.0
"""One convolution and what follows, as Relay and as PyTorch in float64.

What is fused is read from the problems that the backend was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.relay.backend import te_compiler

from topi_ext import backend

from .relay import target

SPATIAL = "DHW"
TOLERANCE = {"float32": 2e-6, "float16": 2e-3}
"""Maximum error, relative to the largest sum: some roundings of sums of up to 216 products, each of
6e-8 or 5e-4."""


@dataclass
class Model:
    """A convolution and what follows, as Relay and as PyTorch in float64.

    Attributes
    ----------
    rank : int
    transposed, last : bool
        Which operator, and whether channels are last.
    dtype : str
    groups : int
    constant : bool
        Whether the weight is.
    """

    rank: int = 2
    transposed: bool = False
    last: bool = False
    dtype: str = "float32"
    groups: int = 1
    constant: bool = True
    ins: int = 8
    outs: int = 16
    taps: int = 3
    inputs: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(0)
        axes = SPATIAL[3 - self.rank :]
        self.layout = f"N{axes}C" if self.last else f"NC{axes}"
        self.channel = self.layout.index("C")
        shape = (2, self.ins, *(9, 7, 6)[: self.rank])
        data = self.numbers(shape)
        groups = (self.ins, self.outs // self.groups)
        if not self.transposed:
            groups = (self.outs, self.ins // self.groups)
        weight = self.numbers((*groups, *(self.taps,) * self.rank)) / 4
        x = self.given("x", self.stored(data))
        letters = ("IO" if self.transposed else "OI") + axes
        kernel, stored = letters, weight
        if self.last:
            kernel = f"{axes}{letters[:2]}" if self.transposed else f"{axes}IO"
            stored = weight.transpose([letters.index(a) for a in kernel])
        w = relay.const(stored) if self.constant else self.given("w", stored)
        name = f"conv{self.rank}d" + "_transpose" * self.transposed
        each = {"strides": 1 + self.transposed, "padding": self.taps // 2, "kernel_size": self.taps}
        options: dict[str, Any] = {key: (value,) * self.rank for key, value in each.items()}
        options |= {"channels": self.outs, "groups": self.groups}
        options |= {"data_layout": self.layout, "kernel_layout": kernel}
        self.value = getattr(relay.nn, name)(x, w, **options)
        kind = "conv_transpose" if self.transposed else "conv"
        exact = getattr(torch.nn.functional, f"{kind}{self.rank}d")
        operands = (torch.from_numpy(one.astype("float64")) for one in (data, weight))
        stride = 1 + self.transposed
        self.exact = exact(*operands, stride=stride, padding=self.taps // 2, groups=self.groups)
        self.largest = float(self.exact.abs().max())

    def numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.random.standard_normal(shape).astype(self.dtype)

    def stored(self, array: np.ndarray) -> np.ndarray:
        """Return an array with the channels where the layout has them."""
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if self.last else array

    def given(self, name: str, array: np.ndarray) -> Any:
        self.inputs[name] = array
        return relay.var(name, shape=array.shape, dtype=array.dtype.name)

    def vector(self, positive: bool = False) -> tuple[Any, torch.Tensor]:
        """Return a constant for each channel, for Relay and for PyTorch."""
        array = self.numbers((self.outs,))
        array = abs(array) + np.asarray(0.5, self.dtype) if positive else array
        exact = torch.from_numpy(array.astype("float64")).reshape(-1, *[1] * self.rank)
        return relay.const(array), exact

    def module(self, *results: Any) -> tvm.IRModule:
        body = relay.Tuple(results) if len(results) > 1 else (*results, self.value)[0]
        return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))

    def build(self, level: int = 3, **options: Any) -> tuple[np.ndarray, list[Any]]:
        """Return the result, and the problems that kernels were built for."""
        te_compiler.get().clear()
        with backend.recording() as works, tvm.transform.PassContext(opt_level=level):
            library = relay.build(self.module(), target(), **options)
        executor = graph_executor.GraphModule(library["default"](tvm.cpu()))
        executor.run(**self.inputs)
        return executor.get_output(0).numpy(), problems(works)

    def check(self, result: np.ndarray) -> None:
        wanted = self.stored(self.exact.numpy())
        atol = TOLERANCE[self.dtype] * max(self.largest, np.abs(wanted).max())
        np.testing.assert_allclose(result.astype("float64"), wanted, rtol=0, atol=atol)


def problems(works: list[Any]) -> list[Any]:
    """Return the problems of kernels; of packing, none has post-ops before its kernel is built."""
    found = [work.problem for work in works]
    fused = [problem for problem in found if problem.epilogue]
    return fused or found


def bias(model: Model) -> None:
    value, exact = model.vector()
    model.value = relay.nn.bias_add(model.value, value, axis=model.channel)
    model.exact = model.exact + exact


def batch_norm(model: Model) -> None:
    pairs = [model.vector(), model.vector(), model.vector(), model.vector(positive=True)]
    values = [value for value, _ in pairs]
    gamma, beta, mean, var = (exact for _, exact in pairs)
    model.value = relay.nn.batch_norm(model.value, *values, axis=model.channel)[0]
    model.exact = (model.exact - mean) / torch.sqrt(var + 1e-5) * gamma + beta


def residual(model: Model) -> None:
    array = model.numbers(tuple(model.exact.shape))
    model.value = model.value + model.given("residual", model.stored(array))
    model.exact = model.exact + torch.from_numpy(array.astype("float64"))


def prelu(model: Model) -> None:
    value, exact = model.vector()
    model.value = relay.nn.prelu(model.value, value, axis=model.channel)
    model.exact = torch.where(model.exact > 0, model.exact, model.exact * exact)


def gelu(model: Model) -> None:
    x = model.value
    half = relay.const(0.5, model.dtype)
    inner = relay.erf(x * relay.const(0.5**0.5, model.dtype)) * half
    model.value = x * (half + inner)
    model.exact = torch.nn.functional.gelu(model.exact)


def unary(in_relay: Callable[[Any], Any], in_torch: Callable[[Any], Any]) -> Any:
    def add(model: Model) -> None:
        model.value, model.exact = in_relay(model.value), in_torch(model.exact)

    return add


relu = unary(relay.nn.relu, torch.relu)
leaky = unary(lambda y: relay.nn.leaky_relu(y, 0.1), lambda y: torch.where(y > 0, y, 0.1 * y))
clip = unary(lambda y: relay.clip(y, -0.5, 1.5), lambda y: y.clip(-0.5, 1.5))
tanh = unary(relay.tanh, torch.tanh)
silu = unary(lambda y: y * relay.sigmoid(y), torch.nn.functional.silu)


def steps(problem: Any) -> list[str]:
    return [step.op for step in problem.epilogue]
