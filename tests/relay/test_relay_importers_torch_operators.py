# SPDX-License-Identifier: Apache-2.0
"""PyTorch's normalizations, poolings and arithmetic through relay.frontend.from_pytorch.

Each argument that a converter of ours could drop has a row, whether stock TVM drops it or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from tvm import relay

from helpers.relay_imported import is_right, results, uncorrected

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 2e-3}
"""Relative to the largest value: sums of some ten numbers, and half an ulp twice."""


class Module(nn.Module):
    """A function as a module, which can be traced."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> Any:
        return self.function(*operands)


@dataclass(frozen=True)
class Row:
    """One call of PyTorch.

    Parameters
    ----------
    function : callable or nn.Module
        Of tensors.
    shapes : tuple
        Of the tensors.
    dtype : str
        Of the tensors.
    is_wrong : bool
        Whether stock TVM gets it wrong, or raises.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"
    is_wrong: bool = False

    def drawn(self) -> list[torch.Tensor]:
        dtype = getattr(torch, self.dtype)
        if dtype.is_floating_point:
            return [(2 * torch.randn(shape)).to(dtype) for shape in self.shapes]
        return [torch.randint(-9, 9, shape, dtype=dtype) for shape in self.shapes]

    def imported(self, way: str = "traced") -> tuple[Any, Any, list[torch.Tensor], Any]:
        torch.manual_seed(0)
        module = self.function
        module = module if isinstance(module, nn.Module) else Module(module)
        if getattr(torch, self.dtype).is_floating_point:
            module = module.to(getattr(torch, self.dtype))
        operands = self.drawn()
        if way == "scripted":
            script = torch.jit.script(module.eval())
        else:
            script = torch.jit.trace(module, operands, check_trace=False)
        infos = [(f"x{at}", (tuple(x.shape), self.dtype)) for at, x in enumerate(operands)]
        mod, params = relay.frontend.from_pytorch(script, infos)
        return mod, params, operands, script

    def check(self, way: str = "traced") -> None:
        mod, params, operands, script = self.imported(way)
        got = results(mod, params, {f"x{at}": x.numpy() for at, x in enumerate(operands)})
        want = script(*operands)
        for one, other in zip(got, [want] if torch.is_tensor(want) else want):
            expected = other.detach().numpy()
            assert (one.shape, one.dtype) == (expected.shape, expected.dtype)
            limit = TOLERANCE.get(str(one.dtype), 0) * np.abs(expected).max()
            assert np.abs(one.astype("float64") - expected).max() <= limit


def wrong(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> Row:
    return Row(function, shapes, dtype, is_wrong=True)


def right(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> Row:
    return Row(function, shapes, dtype)


A = (3, 4)
PAD = (2, 3, 7, 6)

ARITHMETIC = {
    "add, alpha": wrong(lambda a, b: torch.add(a, b, alpha=3), A, A),
    "add, alpha, broadcast": wrong(lambda a, b: torch.add(a, b, alpha=0.5), A, (4,)),
    "add, alpha, a number": wrong(lambda a: torch.add(a, 2.0, alpha=3), A),
    "add, alpha, integers": wrong(lambda a, b: torch.add(a, b, alpha=3), A, A, dtype="int64"),
    "add, alpha, mixed": wrong(lambda a: torch.add(a, a.float(), alpha=0.5), A, dtype="int64"),
    "add in place, alpha": wrong(lambda a, b: a.clone().add_(b, alpha=3), A, A),
    "div, floor": wrong(lambda a, b: torch.div(a, b, rounding_mode="floor"), A, A),
    "div, trunc": wrong(lambda a, b: torch.div(a, b, rounding_mode="trunc"), A, A),
    "div, floor, integers": wrong(
        lambda a: torch.div(a, 2, rounding_mode="floor"), A, dtype="int64"
    ),
    "div, trunc, integers": wrong(
        lambda a: torch.div(a, 2, rounding_mode="trunc"), A, dtype="int64"
    ),
    "div": right(lambda a: a / 2, A, dtype="int64"),
    "clamp, min, integers": wrong(lambda a: a.clamp(min=2), A, dtype="int64"),
    "clamp, max, integers": right(lambda a: a.clamp(max=2), A, dtype="int64"),
    "clamp, min, a tensor": wrong(lambda a, b: a.clamp(min=b), A, A),
    "clamp": right(lambda a: a.clamp(-0.5, 0.7), A),
    "clamp, bounds that cross": wrong(lambda a: a.clamp(0.7, -0.5), A),
    **{
        f"{mode}, factor": wrong(partial(F.interpolate, scale_factor=1.7, mode=mode), (1, 2, 5, 7))
        for mode in ("nearest", "bilinear", "bicubic")
    },
    "nearest, three axes, factor": wrong(
        partial(F.interpolate, scale_factor=1.3), (1, 2, 4, 5, 3)
    ),
    "bilinear, factor of sizes": right(
        partial(F.interpolate, scale_factor=1.5, mode="bilinear", recompute_scale_factor=True),
        (1, 2, 5, 7),
    ),
    "clamp_max": right(lambda a: torch.clamp_max(a, 0.5), A),
    "cumsum of int32": wrong(lambda a: a.cumsum(1), A, dtype="int32"),
    "cumsum": right(lambda a: a.cumsum(1), A),
    "var of all": wrong(lambda a: a.var(), A),
    "var, correction": right(lambda a: torch.var(a, 1, correction=1), A),
    "std, correction": right(lambda a: torch.std(a, 1, correction=0), A),
    "var_mean": wrong(torch.var_mean, A),
    "var, unbiased": right(lambda a: a.var(1, unbiased=False, keepdim=True), A),
    "gelu, tanh": wrong(nn.GELU("tanh"), (40, 40)),
    "gelu": right(nn.GELU(), A),
    "elu": right(nn.ELU(0.5), A),
    "pad, negative": right(lambda a: F.pad(a, (-1, 2, 1, -1)), PAD),
    "pad, one side": right(lambda a: F.pad(a, (1, 2, 0, 3), value=3.5), PAD),
    "reflect, one side": right(lambda a: F.pad(a, (1, 2, 0, 3), mode="reflect"), PAD),
    "replicate, one side": right(lambda a: F.pad(a, (1, 2, 0, 3), mode="replicate"), PAD),
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    check(ARITHMETIC[name])


def check(row: Row) -> None:
    row.check()
    with uncorrected():
        assert is_right(row.check) is not row.is_wrong


ONE, TWO, THREE = (2, 3, 9), (1, 2, 9, 7), (1, 2, 7, 6, 5)

POOLING = {
    "max": right(nn.MaxPool2d(3, 2, 1), TWO),
    "max, dilation": right(nn.MaxPool2d(2, 1, dilation=2), TWO),
    "max, one axis": right(nn.MaxPool1d(2, 1, dilation=2), ONE),
    "max, three axes": right(nn.MaxPool3d(3, 2, 1, ceil_mode=True), THREE),
    "max, ceil": right(nn.MaxPool2d(2, ceil_mode=True), TWO),
    # The last window would begin behind the data and its padding.
    "max, ceil, stride 3": wrong(nn.MaxPool2d(2, 3, 1, ceil_mode=True), (1, 2, 8, 9)),
    "max, ceil, one axis": wrong(nn.MaxPool1d(2, 4, 1, ceil_mode=True), ONE),
    "max, ceil, dilation": wrong(nn.MaxPool3d(2, 3, 1, dilation=2, ceil_mode=True), THREE),
    "max, values of both": right(lambda a: F.max_pool2d(a, 2, return_indices=True)[0], TWO),
    "max, no batch": wrong(nn.MaxPool2d(2), (3, 6, 6)),
    "max, float64": right(nn.MaxPool2d(2), TWO, dtype="float64"),
    "mean": right(nn.AvgPool2d(3, 2, 1), TWO),
    "mean, without padding": right(nn.AvgPool2d(3, 2, 1, count_include_pad=False), TWO),
    "mean, ceil": right(nn.AvgPool2d(3, 2, 1, ceil_mode=True), (1, 2, 8, 10)),
    "mean, ceil, without padding": right(
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (1, 2, 8, 10)
    ),
    "mean, ceil, stride 3": wrong(nn.AvgPool2d(2, 3, 1, ceil_mode=True), (1, 2, 8, 9)),
    "mean, ceil, one axis": wrong(nn.AvgPool1d(2, 4, 1, ceil_mode=True), ONE),
    "mean, divisor": wrong(nn.AvgPool2d(3, 2, 1, divisor_override=5), TWO),
    "mean, divisor, ceil": wrong(nn.AvgPool2d(2, 3, ceil_mode=True, divisor_override=3), TWO),
    "mean, divisor, three axes": wrong(
        nn.AvgPool3d(2, 2, 1, ceil_mode=True, divisor_override=1), THREE
    ),
    "mean, no batch": wrong(nn.AvgPool2d(2), (3, 6, 6)),
    "mean, one axis, no batch": wrong(nn.AvgPool1d(3), (3, 9)),
    "adaptive max": right(nn.AdaptiveMaxPool2d((2, 3)), TWO),
}


@pytest.mark.parametrize("name", POOLING)
def test_pooling(name: str) -> None:
    check(POOLING[name])


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("kind", ["max", "mean", "mean without padding", "mean by 3"])
def test_pooling_of_drawn_sizes(kind: str, ceil_mode: bool, rng: np.random.Generator) -> None:
    """Windows by PyTorch's rule, for kernels and strides of any relation."""
    options = {
        "mean": {},
        "mean without padding": dict(count_include_pad=False),
        "mean by 3": dict(divisor_override=3),
    }
    for _ in range(8):
        kernel, stride = (int(n) for n in rng.integers(1, 5, 2))
        pad, *sizes = (int(n) for n in (rng.integers(0, kernel // 2 + 1), *rng.integers(4, 12, 2)))
        made: nn.Module
        if kind == "max":
            made = nn.MaxPool2d(kernel, stride, pad, ceil_mode=ceil_mode)
        else:
            made = nn.AvgPool2d(kernel, stride, pad, ceil_mode=ceil_mode, **options[kind])
        right(made, (1, 2, *sizes)).check()


def norm(**options: Any) -> nn.BatchNorm2d:
    """With statistics that are not those of a batch."""
    made = nn.BatchNorm2d(3, **options).eval()
    for name, tensor in (*made.named_parameters(), *made.named_buffers()):
        if tensor is not None and tensor.dim():
            tensor.data = torch.linspace(0.5, 2, 3) * (-1 if name == "running_mean" else 1)
    return made


class BatchNorm(nn.Module):
    """The function, in a module that can be scripted."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.norm, self.training_stated = norm(), training

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        n = self.norm
        return F.batch_norm(
            data, n.running_mean, n.running_var, n.weight, n.bias, self.training_stated, 0.1, 0.1
        )


NORMALIZATION = {
    "batch": right(norm(), PAD),
    "batch, in training": wrong(norm().train(), PAD),
    "batch, training=True": wrong(BatchNorm(training=True), PAD),
    "batch, no statistics": wrong(norm(track_running_stats=False), PAD),
    "batch, nothing": wrong(norm(track_running_stats=False, affine=False), PAD),
    "batch, float64": wrong(norm(track_running_stats=False), PAD, dtype="float64"),
    "batch, float16": wrong(norm(track_running_stats=False), PAD, dtype="float16"),
    "batch, two axes": wrong(nn.BatchNorm1d(3, track_running_stats=False), (5, 3)),
    "batch, three axes": wrong(nn.BatchNorm3d(2, track_running_stats=False), THREE),
    "batch, mixed": wrong(
        lambda a: F.batch_norm(a, torch.zeros(3), 2 * torch.ones(3), torch.ones(3), torch.ones(3)),
        PAD, dtype="float16",
    ),
    "layer": right(nn.LayerNorm(6, eps=0.1), PAD),
    "layer, not affine": wrong(nn.LayerNorm(6, eps=0.1, elementwise_affine=False), PAD),
    "group": right(nn.GroupNorm(2, 4, eps=0.1), (2, 4, 5, 6)),
    "group, not affine": wrong(nn.GroupNorm(2, 4, affine=False), (2, 4, 5, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMALIZATION)
def test_normalization(name: str) -> None:
    check(NORMALIZATION[name])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_batch_normalization(training: bool) -> None:
    right(BatchNorm(training), PAD).check("scripted")


REFUSED = {
    "dropout": (nn.Dropout(0.5).train(), "aten::dropout: train=True must be False"),
    "channels": (nn.Dropout2d(0.5).train(), "aten::feature_dropout: train=True must be False"),
    "alpha": (nn.AlphaDropout(0.5).train(), "aten::alpha_dropout: train=True must be False"),
    "elu": (lambda a: torch.ops.aten.elu(a, 1.0, 2.0), "aten::elu: scale=2.0 must be 1"),
    "var": (lambda a: a.var(1, correction=2), "aten::var: correction=2 must be 0 or 1"),
    "indices": (
        nn.MaxPool2d(2, return_indices=True),
        "aten::max_pool2d_with_indices: return_indices=True must be False",
    ),
    "adaptive indices": (
        nn.AdaptiveMaxPool2d(2, return_indices=True),
        "aten::adaptive_max_pool2d: return_indices=True must be False",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_counterpart_is_refused_in_one_line(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{said}") as error:
        right(function, PAD).imported()
    assert "\n" not in str(error.value)
    with uncorrected():
        assert not is_right(right(function, PAD).check)


def test_a_dropout_of_nothing_is_right() -> None:
    right(nn.Dropout(0.0).train(), PAD).check()
    right(nn.Dropout(0.5).eval(), PAD).check()
