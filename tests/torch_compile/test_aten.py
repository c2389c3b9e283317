# SPDX-License-Identifier: Apache-2.0
"""Operators of aten graphs, forward and backward, compared with PyTorch in float64."""

from __future__ import annotations

import importlib
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_function, make_boxed_func

from helpers.torch_backend import compiled
from relax_ext.torch import attention
from relax_ext.torch.aten import CONVERTERS
from relax_ext.torch.decompositions import decompositions, whole_upsamples

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the operators
OPS = torch.ops.quantized_decomposed

Case = Callable[[Any], Any]

ARITHMETIC: dict[str, Case] = {
    "add": lambda t: torch.add(t.x, t.y, alpha=3) + 2,
    "add of numbers and sizes": lambda t: t.x + t.one,
    "sub": lambda t: torch.sub(t.x, t.y, alpha=0.5) - 0.25,
    "reverse sub": lambda t: 3 - t.x,
    "mul": lambda t: t.x * t.y * 0.1,
    "div": lambda t: t.x / t.positive / 3,
    "integers divided": lambda t: t.i / 4 + t.i / (t.i * t.i + 1),
    "truncated": lambda t: torch.div(t.x, t.positive, rounding_mode="trunc"),
    "floor of integers": lambda t: (t.i // 3, torch.div(t.i, -3, rounding_mode="trunc"), t.i % 3),
    "maximum": lambda t: torch.maximum(t.x, t.y) + torch.minimum(t.x, t.y.abs()),
    "atan2": lambda t: torch.atan2(t.x, t.y),
    "pow": lambda t: (t.x**2, t.x**3, t.positive**0.5, t.positive**-0.5, t.positive**2.7),
    "negative pow": lambda t: (t.positive**-1, t.positive**-2, t.x**4, t.x**1),
    "pow of tensors": lambda t: (t.positive**t.y, 2.5**t.x),
    "pow of integers": lambda t: t.i**2,
    "comparisons": lambda t: (t.x == t.y, t.x != 0, t.x >= t.y, t.x > 0.5, t.x <= t.y, t.x < 0.25),
    "comparisons of tensors": lambda t: (t.x != t.y, t.x > t.y, t.x < t.y, t.x == 0, t.x >= 0.1),
    "comparisons of integers": lambda t: (t.i > 0.5, t.i <= 2, t.i == t.x, t.b == (t.i > 0)),
    "where": lambda t: (torch.where(t.x > 0, t.x, t.y), torch.where(t.b, t.x, 0.0)),
    "logical": lambda t: (
        torch.logical_and(t.x, t.b) ^ torch.logical_or(t.b, t.i),
        torch.logical_xor(t.x, t.b),
        torch.logical_not(t.i),
    ),
    "bits": lambda t: (t.i & 3, t.i | t.i.flip(0), t.i ^ 5, ~t.i, ~t.b, t.b & (t.x > 0)),
    "more bits": lambda t: (t.i & t.i.flip(1), t.i | 4, t.i ^ t.i.flip(0), t.b | t.b.flip(0)),
    "truth values": lambda t: (t.b + t.b.flip(0), t.b * t.b.flip(0), torch.maximum(t.b, t.x > 1)),
    "masked": lambda t: t.x.masked_fill(t.b, -1.0),
    "integers promoted": lambda t: (t.i * 0.5, t.i + t.x, t.i * t.b, t.i + True),
}

FUNCTIONS: dict[str, Case] = {
    "signs": lambda t: (t.x.abs(), -t.x, t.x.sign(), t.i.abs(), t.i.sign()),
    "rounding": lambda t: (t.x.ceil(), t.x.floor(), t.x.trunc(), t.halves.round(), t.i.floor()),
    "trigonometric": lambda t: (t.x.cos(), t.x.sin(), t.x.tan(), t.x.atan()),
    "exponential": lambda t: (t.x.exp(), t.positive.log(), t.x.expm1(), t.positive.log1p()),
    "small": lambda t: ((t.x * 1e-6).expm1(), (t.x * 1e-6).log1p(), t.i.float().exp()),
    "logarithms": lambda t: (t.positive.log2(), t.positive.log10()),
    "hyperbolic": lambda t: (t.x.tanh(), t.x.sinh(), t.x.cosh()),
    "roots": lambda t: (t.positive.sqrt(), t.positive.rsqrt(), t.positive.reciprocal()),
    "erf": lambda t: (t.x.erf(), t.x.sigmoid()),
    "special": lambda t: (t.special.isnan(), t.special.isinf(), t.special.isfinite()),
    "special kept": lambda t: (t.special.relu(), t.special.clamp(-1, 1), t.special.sign()),
    "relu": lambda t: (F.relu(t.x), F.leaky_relu(t.x, 0.2), F.relu6(t.x * 4), F.elu(t.x, 1.5)),
    "selu": lambda t: (F.selu(t.x), F.celu(t.x, 0.7), F.softplus(t.x), F.mish(t.x)),
    "gelu": lambda t: (F.gelu(t.x), F.gelu(t.x, approximate="tanh"), F.silu(t.x)),
    "hard": lambda t: (F.hardswish(t.x * 4), F.hardsigmoid(t.x * 4), F.hardtanh(t.x, -0.5, 0.7)),
    "shrink": lambda t: (F.hardshrink(t.x), F.softshrink(t.x), F.tanhshrink(t.x), F.softsign(t.x)),
    "prelu": lambda t: (F.prelu(t.x, t.weight), F.threshold(t.x, 0.1, 20), F.logsigmoid(t.x)),
    "glu": lambda t: F.glu(t.x, 1),
    "clamp": lambda t: (t.x.clamp(-0.5, 0.5), t.x.clamp(min=0), t.i.clamp(min=1), t.i.clamp(max=2)),
    "clamp by tensors": lambda t: t.x.clamp(t.y, t.y + 1),
    "clamp crossed": lambda t: t.x.clamp(0.5, -0.5),
}

SHAPES: dict[str, Case] = {
    "view": lambda t: (t.x.view(2, -1), t.x.flatten(2), t.x.unsqueeze(1), t.x[:, :1].squeeze(1)),
    "permute": lambda t: (t.x.permute(0, 2, 3, 1).contiguous(), t.x.transpose(1, 3), t.m.t()),
    "strides": lambda t: (
        t.x.contiguous(memory_format=torch.channels_last).as_strided((2, 36, 4), (144, 4, 1)) * 2,
        t.x.exp().as_strided((2, 6, 6, 4), (144, 6, 1, 36)),
        t.x.as_strided_scatter(t.x.mean((0, 1)).expand(8, 6, 6).clone(), (8, 6, 6), (36, 6, 1)),
    ),
    "expand": lambda t: (t.x[:, :1].expand(2, 4, 6, 6), t.weight.expand(2, 3, 4)),
    "repeat": lambda t: (
        t.x.repeat(1, 2, 1, 3),
        t.weight.repeat(2, 2),
        t.x.repeat_interleave(2, 1),
    ),
    "flip": lambda t: (t.x.flip(1, -1), t.x.roll(2, 3)),
    "slice": lambda t: (t.x[:, 1:3], t.x[..., ::2], t.x[:, :, -3:], t.x[:, :, 1:-1:3]),
    "select": lambda t: (t.x[1], t.x[:, -1], t.x[..., 2]),
    "assignment": lambda t: (_assigned(t.x), t.x[:, 4:]),
    "pad": lambda t: (F.pad(t.x, (1, 2, 0, 1)), F.pad(t.x, (-1, 2), value=3.0), F.pad(t.i, (1, 1))),
    "reflect": lambda t: (
        F.pad(t.x, (1, 2, 2, 1), "reflect"),
        F.pad(t.line, (2, 1), "reflect"),
        F.pad(t.volume, (1, 1, 2, 1, 1, 1), "reflect"),
    ),
    "replicate": lambda t: (
        F.pad(t.x, (1, 2, 2, 1), "replicate"),
        F.pad(t.line, (2, 1), "replicate"),
        F.pad(t.volume, (1, 1, 2, 1, 0, 1), "replicate"),
    ),
    "circular": lambda t: F.pad(t.x, (1, 2, 2, 1), "circular"),
    "cat": lambda t: (torch.cat([t.x, t.y, t.x[:, :0]], 1), torch.stack([t.x, t.y], -1)),
    "cat promoted": lambda t: torch.cat([t.x, t.i[:, :1].expand(2, 1, 6, 6)], 1),
    "split": lambda t: (*t.x.split([1, 3], 1), *t.x.chunk(4, 2), *t.x.unbind(1)),
    "one value": lambda t: (
        torch.zeros_like(t.x),
        t.x.new_ones(3),
        torch.full((2, 2), -float("inf")),
        torch.full((2, 2), torch.finfo(torch.float64).min, dtype=torch.float64),
        torch.full((2, 2), 0.1, dtype=torch.float64),
    ),
    "full like": lambda t: torch.full_like(t.x, 2) * t.x,
    "arange": lambda t: torch.arange(1, 12, 3) + torch.arange(4),
    "range of floats": lambda t: (
        torch.arange(-1, 2, 0.3, dtype=torch.float64),
        torch.arange(4, dtype=torch.float64),
    ),
    "windows": lambda t: (t.x.detach().unfold(3, 2, 3), t.m.detach().unfold(-2, 2, 1)),
    "casts": lambda t: (t.x.float(), t.x.bool(), t.i.to(torch.int32), t.b.double(), t.x.long()),
    "pixel shuffle": lambda t: (F.pixel_shuffle(t.x, 2), F.pixel_unshuffle(t.x, 3)),
    "triangle": lambda t: (t.m.tril(), t.m.triu(1)),
    "copy": lambda t: t.x.clone().copy_(t.y[:, :1]),
    "clone": lambda t: t.x.clone(),
}

REDUCTIONS: dict[str, Case] = {
    "sum": lambda t: (t.x.sum(), t.x.sum((2, 3), keepdim=True), t.i.sum(1), t.b.sum()),
    "mean": lambda t: (t.x.mean(), t.x.mean(1), t.x.mean((0, -1), keepdim=True)),
    "prod": lambda t: (t.x[0, 0, 0].prod(), t.m.prod(1)),
    "var": lambda t: (t.x.var(), t.x.std((2, 3)), t.x.var(1, correction=0, keepdim=True)),
    "var and mean": lambda t: (*torch.var_mean(t.x, (0, 2)), *torch.std_mean(t.x)),
    "norm": lambda t: (t.x.norm(), torch.linalg.vector_norm(t.x, 1, 1), t.x.norm(dim=(2, 3))),
    "normalize": lambda t: F.normalize(t.x, dim=1),
    "largest norm": lambda t: torch.linalg.vector_norm(t.x, float("inf"), 1),
    "extremes": lambda t: (t.x.amax((1, 2)), t.x.amin(-1, True), t.x.max(), t.x.min(), t.i.max()),
    "places": lambda t: (*t.x.max(1), *t.x.min(2, keepdim=True), t.x.argmax(3), t.x.argmin()),
    "places of ties": lambda t: (*t.i.max(1), *t.i.min(3), t.i.argmax(2)),
    "places of NaN": lambda t: (*t.special.max(0), t.special.argmin(), t.special.amax()),
    "any": lambda t: (t.b.any(), t.b.any(1), t.x.any(2, True), t.b.all(0), t.b.any((1, 2))),
    "softmax": lambda t: (t.x.softmax(1), t.x.log_softmax(-1), t.x.logsumexp((2, 3))),
    "cumsum": lambda t: (t.x.cumsum(1), t.i.cumsum(2)),
    "cross entropy": lambda t: (
        F.mse_loss(t.x, t.y) + F.smooth_l1_loss(t.x, t.y) + F.l1_loss(t.x, t.y)
    ),
    "bce": lambda t: F.binary_cross_entropy_with_logits(t.x, t.b.double()),
    "products": lambda t: (t.m @ t.n, torch.addmm(t.n[0], t.m, t.n, beta=2, alpha=0.5)),
    "batched products": lambda t: (t.x @ t.y.mT, torch.baddbmm(t.line, t.line @ t.line.mT, t.line)),
    "linear": lambda t: F.linear(t.m, t.n.t(), t.n[0]),
    "einsum": lambda t: torch.einsum("bchw,bdhw->bcd", t.x, t.y),
    "attention": lambda t: F.scaled_dot_product_attention(t.x, t.y, t.x * 2),
    "rows replaced": lambda t: t.x.scatter(1, t.i[:, :1].abs() % 4, 2.5),
    "causal attention": lambda t: (
        F.scaled_dot_product_attention(t.x, t.y, t.x * 2, is_causal=True),
        F.scaled_dot_product_attention(t.x, t.y, t.x, t.b, scale=0.3),
    ),
    "masked rows": lambda t: F.scaled_dot_product_attention(t.x, t.y, t.x, t.b & (t.i > 3)),
}

NORMS: dict[str, Case] = {
    "batch": lambda t: F.batch_norm(t.x, None, None, t.weight, t.bias, True),
    "batch, running": lambda t: _running(t, True),
    "batch, evaluation": lambda t: _running(t, False),
    "batch without parameters": lambda t: F.batch_norm(t.line, None, None, None, None, True),
    "instance": lambda t: F.instance_norm(t.x, None, None, t.weight, t.bias),
    "group": lambda t: (F.group_norm(t.x, 2, t.weight, t.bias), F.group_norm(t.line, 1)),
    "layer": lambda t: (F.layer_norm(t.m, (5,), t.n[:, 0]), F.layer_norm(t.x, (6, 6))),
    "local response": lambda t: F.local_response_norm(t.x, 3),
    "weight": lambda t: torch._weight_norm(t.m, t.m[:, :1].abs() + 1, 0),
}

POOLS: dict[str, Case] = {
    "max": lambda t: (F.max_pool2d(t.x, 2), F.max_pool2d(t.x, 3, 2, 1), F.max_pool2d(t.x[0], 2)),
    "max of one and three axes": lambda t: (
        F.max_pool1d(t.line, 3, 2, 1),
        F.max_pool3d(t.volume, 2),
    ),
    "max dilated": lambda t: F.max_pool2d(t.x, 2, 1, 1, 2),
    "max rounded up": lambda t: F.max_pool2d(t.x, 4, 3, ceil_mode=True),
    "max with indices": lambda t: (
        *F.max_pool2d(t.x, 3, 2, 1, return_indices=True),
        *F.max_pool3d(t.volume, 2, 1, 1, return_indices=True),
    ),
    "max of ties": lambda t: F.max_pool2d(t.x.round(), 3, 1, 1, return_indices=True),
    "max of NaN": lambda t: F.max_pool2d(t.special.view(1, 1, 3, 2), 2, 1, return_indices=True),
    "average": lambda t: (
        F.avg_pool2d(t.x, 2),
        F.avg_pool2d(t.x, 3, 2, 1),
        F.avg_pool1d(t.line, 2),
    ),
    "average of data": lambda t: F.avg_pool2d(t.x, 3, 2, 1, count_include_pad=False),
    "average rounded up": lambda t: F.avg_pool2d(t.x, 4, 3, 1, ceil_mode=True),
    "average by a divisor": lambda t: F.avg_pool2d(t.x, 3, 2, 1, divisor_override=5),
    "average of three axes": lambda t: F.avg_pool3d(t.volume, 2, 1, 1),
    "adaptive": lambda t: (
        F.adaptive_avg_pool2d(t.x, (4, 3)),
        F.adaptive_avg_pool1d(t.line, 3),
        F.adaptive_avg_pool3d(t.volume, 2),
        F.adaptive_avg_pool2d(t.x, 1),
    ),
    "adaptive max": lambda t: (
        *F.adaptive_max_pool2d(t.x, (3, 2), return_indices=True),
        F.adaptive_max_pool1d(t.line, 7),
        F.adaptive_max_pool3d(t.volume, (3, 2, 1)),
    ),
}

RESIZES: dict[str, Case] = {
    "nearest": lambda t: (
        F.interpolate(t.x, scale_factor=2),
        F.interpolate(t.x, size=(7, 5)),
        F.interpolate(t.line, scale_factor=1.3),
        F.interpolate(t.volume, scale_factor=2),
    ),
    "linear": lambda t: (
        F.interpolate(t.x, scale_factor=2, mode="bilinear"),
        F.interpolate(t.x, size=(7, 5), mode="bilinear", align_corners=True),
        F.interpolate(t.x, scale_factor=1.3, mode="bilinear"),
        F.interpolate(t.line, size=5, mode="linear"),
        F.interpolate(t.volume, size=(5, 5, 6), mode="trilinear"),
    ),
    "cubic": lambda t: (
        F.interpolate(t.x, scale_factor=2, mode="bicubic"),
        F.interpolate(t.x, size=(3, 7), mode="bicubic", align_corners=True),
    ),
}

CONVOLUTIONS: dict[str, Case] = {
    "image": lambda t: F.conv2d(t.x, t.kernel, t.bias, 2, 1),
    "groups": lambda t: F.conv2d(t.x, t.kernel[:, :2], None, 1, 2, 2, groups=2),
    "unbatched": lambda t: F.conv2d(t.x[0], t.kernel, t.bias),
    "transposed": lambda t: F.conv_transpose2d(t.x, t.kernel, t.bias, 2, 1, 1),
    "line": lambda t: F.conv1d(t.line, t.kernel[:, :, 0], t.bias, padding="same"),
}

INTEGERS = {torch.uint8: (0, 12), torch.int8: (-5, 12), torch.int16: (-500, 3)}
"""Dtypes of quantized values, and limits narrower than theirs."""

QUANTIZED: dict[str, Case] = {
    "per tensor": lambda t: _per_tensor(t.x.detach().float() * 5),
    "product": lambda t: torch._int_mm(
        t.i.flatten(2)[0].to(torch.int8), t.i.to(torch.int8)[0, 0].repeat(6, 1)
    ),
    "per channel": lambda t: _per_channel(t.x.detach().float() * 5),
    "ranges": lambda t: (
        *OPS.choose_qparams.tensor(t.x.detach().float(), 0, 255, 2**-12, torch.uint8),
        *OPS.choose_qparams.tensor(t.y.detach().float() + 9, -128, 127, 2**-12, torch.int8),
        *OPS.choose_qparams_symmetric.tensor(t.m.detach().float(), 0, 255, 0.5, torch.uint8),
        *OPS.choose_qparams_symmetric.tensor(t.m.detach().float(), -127, 127, 0.1, torch.int8),
    ),
}
"""Scales that are read or made here are powers of two, so that no rounding is in doubt."""


def _per_tensor(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale, zero = torch.full((1,), 0.25, dtype=torch.float64), torch.full((1,), 3)
    results = []
    for dtype, limits in INTEGERS.items():
        ends = [torch.full((), limit) for limit in limits]
        for quantize, dequantize, *given in (
            (OPS.quantize_per_tensor, OPS.dequantize_per_tensor, 0.25, 3, *limits),
            (
                OPS.quantize_per_tensor.tensor,
                OPS.dequantize_per_tensor.tensor,
                scale,
                zero,
                *limits,
            ),
            (
                OPS.quantize_per_tensor.tensor2,
                OPS.dequantize_per_tensor.tensor2,
                scale,
                zero,
                *ends,
            ),
        ):
            stored = quantize(x, *given, dtype)
            results += [stored, dequantize(stored, *given, dtype)]
    return tuple(results)


def _per_channel(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    steps = 2.0 ** torch.arange(-3, 1, dtype=torch.float64), torch.arange(4)
    results = []
    for dtype, limits in INTEGERS.items():
        stored = OPS.quantize_per_channel(x, *steps, 1, *limits, dtype)
        results += [stored, OPS.dequantize_per_channel(stored, *steps, 1, *limits, dtype)]
    return tuple(results)


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[:, 1:3] = x[:, :2] * 2
    y[0] = 1.0
    return y


def _running(t: Any, training: bool) -> Any:
    mean, variance = t.bias.detach() * 1, t.weight.detach() ** 2 + 1
    y = F.batch_norm(t.x, mean, variance, t.weight, t.bias, training, 0.3)
    return y, mean, variance


TABLES = {
    "arithmetic": ARITHMETIC,
    "functions": FUNCTIONS,
    "shapes": SHAPES,
    "reductions": REDUCTIONS,
    "norms": NORMS,
    "pools": POOLS,
    "resizes": RESIZES,
    "convolutions": CONVOLUTIONS,
    "quantized": QUANTIZED,
}


OF_SYMBOLIC_SIZES = {"convert_element_type.default", "true_divide.Tensor", "empty_permuted.default"}
"""Operators that :mod:`test_aten_graphs` tests; the last one with PyTorch 2.5 only."""

OF_TRAINED_GRAPHS = {operator.default.__name__ for operator in attention.OPERATORS}
"""Operators that other graphs decompose; :mod:`test_backend_training` tests them."""


def tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return what the cases compute with; integers and truth values stay what they are."""
    torch.manual_seed(0)
    nan, inf = float("nan"), float("inf")
    found = {
        "x": torch.randn(2, 4, 6, 6),
        "y": torch.randn(2, 4, 6, 6),
        "positive": torch.rand(2, 4, 6, 6) + 0.5,
        "m": torch.randn(3, 5),
        "n": torch.randn(5, 4),
        "line": torch.randn(2, 4, 7),
        "volume": torch.randn(1, 2, 3, 4, 4),
        "weight": torch.rand(4) + 0.5,
        "bias": torch.randn(4),
        "kernel": torch.randn(4, 4, 3, 3),
        "halves": torch.arange(-3, 4) / 2,
        "special": torch.tensor([1.5, nan, -inf, inf, nan, -2.0]),
        "one": torch.tensor(1.5),
    }
    found = {name: tensor.to(dtype) for name, tensor in found.items()}
    found["i"] = torch.randint(-4, 5, (2, 4, 6, 6))
    found["b"] = torch.rand(2, 4, 6, 6) > 0.5
    return found


def evaluated(cases: dict[str, Case], given: dict[str, torch.Tensor], compile: Any) -> Any:
    """Return all results by name and number, and the gradients of their weighted sum."""
    leaves = {
        name: value.clone().requires_grad_(value.is_floating_point() and name != "special")
        for name, value in given.items()
    }
    operands = namedtuple("Operands", leaves)  # type: ignore[misc]  # of any names

    cases = {"product": lambda t: t.m @ t.n, **cases}  # without one, a graph stays in PyTorch

    def everything(*values: torch.Tensor) -> list[list[torch.Tensor]]:
        found = [case(operands(*values)) for case in cases.values()]
        return [list(one) if isinstance(one, tuple) else [one] for one in found]

    results = {
        f"{name} {number}": result
        for name, found in zip(cases, compile(everything)(*leaves.values()))
        for number, result in enumerate(found)
    }
    generator = torch.Generator().manual_seed(1)
    total = 0.0
    for result in results.values():
        if result.requires_grad:
            weights = torch.rand(result.shape, generator=generator, dtype=torch.float64)
            total = total + (result * weights.to(result.dtype)).sum()
    if isinstance(total, torch.Tensor):
        total.backward()
    gradients = {f"gradient of {n}": v.grad for n, v in leaves.items() if v.grad is not None}
    return {**{n: r.detach() for n, r in results.items()}, **gradients}


def assert_equal(found: dict[str, Any], wanted: dict[str, Any], tolerance: float) -> None:
    """Compare by name; floats relative to the largest value, others exactly."""
    assert found.keys() == wanted.keys()
    wrong = {}
    for name, want in wanted.items():
        got = found[name]
        assert got.shape == want.shape, (name, got.shape, want.shape)
        limit = max(tolerance, 1e-6) if want.dtype == torch.float32 else tolerance
        if not want.is_floating_point():
            error = float((got != want).any())
        else:
            finite = want.isfinite()
            got, want = got.double(), want.double()
            assert torch.equal(got[~finite].nan_to_num(7), want[~finite].nan_to_num(7)), name
            scale = want[finite].abs().max() if finite.any() else torch.tensor(1.0)
            error = float((got - want)[finite].abs().max() / (scale + 1e-30)) if finite.any() else 0
        if not error <= limit:
            wrong[name] = error
    assert wrong == {}, wrong


@pytest.mark.parametrize("table", TABLES)
def test_values_and_gradients(table: str) -> None:
    """Sums of at most 300 terms: 1e-12 is 15 times the rounding of float64."""
    given = tensors(torch.float64)
    found = evaluated(TABLES[table], given, partial(compiled, fullgraph=True))
    assert_equal(found, evaluated(TABLES[table], given, lambda function: function), 1e-12)


def test_every_operator_has_a_case() -> None:
    operators: set[str] = set()

    def record(graph: Any, _: Any) -> Any:
        operators.update(getattr(node.target, "__name__", "") for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    compile = partial(
        aot_function, fw_compiler=record, bw_compiler=record, decompositions=decompositions()
    )
    with whole_upsamples():
        for cases in TABLES.values():
            evaluated(cases, tensors(torch.float64), compile)
    assert set(CONVERTERS) - operators - OF_SYMBOLIC_SIZES == OF_TRAINED_GRAPHS
