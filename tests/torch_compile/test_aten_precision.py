# SPDX-License-Identifier: Apache-2.0
"""Long sums of float32 and half precision in aten graphs, and random convolutions.

Errors are compared with those of PyTorch itself.  Small images show no fault of a sum, and float64
none at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from helpers.profile import deep
from helpers.torch_backend import compiled

SIDE = 96
"""Elements along an axis: 36,864 elements are added for each channel of a batch of 4."""


def normalized(x: Any, w: Any, b: Any) -> list[Any]:
    """Return what reduces images: norms, a mean, a convolution with a bias."""
    return [
        F.batch_norm(x, None, None, w, b, True),
        F.group_norm(x, 2, w, b),
        F.layer_norm(x, x.shape[2:]),
        F.conv2d(x, w.view(4, 1, 1, 1), b, groups=4),
        x.mean((0, 2, 3)),
    ]


def gradients(function: Callable[..., Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return results, and gradients of a sum with positive weights."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    results = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    total = 0.0
    for result in results:
        weights = torch.rand(result.shape, generator=generator, dtype=torch.float64) / 100
        total = total + (result * weights.to(torch.bfloat16).to(result.dtype)).sum()
    total.backward()
    return [*(result.detach() for result in results), *(leaf.grad for leaf in leaves)]


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest error relative to the largest value."""
    return float((got.double() - want).abs().max() / want.abs().max())


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, pytest.param(torch.float16, marks=deep), torch.bfloat16],
    ids=str,
)
def test_long_sums(dtype: torch.dtype) -> None:
    """No result may be three times as far off as PyTorch's, or four roundings."""
    torch.manual_seed(0)
    tensors = [torch.randn(4, 4, SIDE, SIDE), torch.rand(4) + 0.5, torch.randn(4)]
    tensors = [tensor.to(torch.bfloat16).to(dtype) for tensor in tensors]
    want = gradients(normalized, [tensor.double() for tensor in tensors])
    eager = gradients(normalized, tensors)
    found = gradients(compiled(normalized), tensors)
    limit = 4 * torch.finfo(dtype).eps
    errors = [(error(a, w), error(b, w)) for a, b, w in zip(found, eager, want)]
    assert all(ours <= max(limit, 3 * theirs) for ours, theirs in errors), errors


def random_convolution(seed: int) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Return a convolution of random rank, sizes and attributes, and its tensors in float64."""
    draw = random.Random(seed)
    rank, groups, transposed = draw.randint(1, 3), draw.choice([1, 1, 2, 3]), draw.random() < 0.5
    kernel = [draw.randint(1, 4) for _ in range(rank)]
    stride = [draw.randint(1, 3) for _ in range(rank)]
    dilation = [draw.randint(1, 3) for _ in range(rank)]
    reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
    padding = [draw.randint(0, max(0, r)) for r in reach]
    sizes = [r + draw.randint(1, 6) for r in reach]
    inner, outer = groups * draw.randint(1, 3), groups * draw.randint(1, 3)
    attributes: dict[str, Any] = dict(stride=stride, padding=padding, dilation=dilation)
    if transposed:
        extra = [draw.randrange(max(s, d)) for s, d in zip(stride, dilation)]
        padding = [
            min(p, (size - 1) * s // 2 + r // 2)
            for p, size, s, r in zip(padding, sizes, stride, reach)
        ]
        attributes |= dict(output_padding=extra, padding=padding)
    name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    torch.manual_seed(seed)
    shape = (inner, outer // groups) if transposed else (outer, inner // groups)
    tensors = [
        torch.randn(draw.randint(1, 3), inner, *sizes, dtype=torch.float64),
        torch.randn(*shape, *kernel, dtype=torch.float64),
        torch.randn(outer, dtype=torch.float64),
    ]
    operator = getattr(F, name)
    return lambda x, w, b: operator(x, w, b, groups=groups, **attributes), tensors


def check_convolutions(seeds: range) -> None:
    """Compare convolutions and their gradients in one graph: 1e-12 for sums of 600 products."""
    cases = [random_convolution(seed) for seed in seeds]
    tensors = [tensor for _, group in cases for tensor in group]

    def together(*flat: torch.Tensor) -> list[torch.Tensor]:
        return [case(*flat[3 * i : 3 * i + 3]) for i, (case, _) in enumerate(cases)]

    found, want = gradients(compiled(together), tensors), gradients(together, tensors)
    errors = [error(got, expected) for got, expected in zip(found, want)]
    assert max(errors) <= 1e-12, errors


def test_random_convolutions() -> None:
    check_convolutions(range(6))


@deep
@pytest.mark.parametrize("first", range(6, 126, 12))
def test_more_random_convolutions(first: int) -> None:
    check_convolutions(range(first, first + 12))
