# SPDX-License-Identifier: Apache-2.0
"""Attention in the pipeline, in each spelling, against PyTorch in float64."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from torch import Tensor, nn
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

from helpers import build
from helpers.whole import TARGET, Function, check, compiled, ours
from relax_ext.fusion import attention
from topi_ext.compat import tensor_type
from topi_ext.kernel.info import info_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

Q, KV = (2, 3, 40, 16), (2, 3, 52, 16)
SCALE = 0.25


def operands() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in (Q, KV, KV)]


def hiding_mask(*shape: int) -> Tensor:
    """A mask of random numbers that hides some keys, and all of two queries."""
    mask = torch.randn(shape)
    mask[torch.rand(shape) < 0.3] = -math.inf
    mask[..., 3, :] = -math.inf
    return mask


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, **options)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return attention as models of transformers spell it."""
    weights = torch.matmul(q, k.transpose(2, 3)) * SCALE + mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, 0.1, False), v).transpose(1, 2).contiguous()


def divided(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return attention as BERT and its ONNX exports spell it; the mask comes first in the sum."""
    return (mask + (q @ k.transpose(-1, -2)) / math.sqrt(16)).softmax(-1) @ v


def filled(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    return (q @ k.mT).mul(SCALE).masked_fill(hidden, -math.inf).softmax(-1) @ v


def chosen(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    """Return attention as GPT-2 spells it: a finite number replaces hidden scores."""
    weights = (q * SCALE) @ k.mT
    return torch.where(kept, weights, torch.finfo(torch.float32).min).softmax(-1) @ v


def in_batches(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention as diffusers spells it: heads of all images are one batch, and come back to
    channels."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    nothing = q.new_empty(q.shape[0], q.shape[1], k.shape[1])
    weights = torch.baddbmm(nothing, q, k.transpose(-1, -2), beta=0, alpha=SCALE).softmax(-1)
    return torch.bmm(weights, v).reshape(2, 3, 40, 16).permute(0, 2, 1, 3).reshape(2, 40, 48)


def of_images(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Channels first: heads and places of an image from a convolution, back to an image."""
    q, k, v = (x.reshape(2, 6, 8, -1) for x in (q, k, v))
    weights = torch.einsum("bhcm,bhcn->bhmn", q * SCALE, k).softmax(-1)
    return torch.einsum("bhmn,bhcn->bhmc", weights, v).mT.reshape(2, 48, 5, 8)


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Three heads share keys and values, which are repeated."""
    shape = (2, 1, 3, 52, 16)
    k, v = (x[:, :1, None].expand(shape).reshape(2, 3, 52, 16) for x in (k, v))
    return (q @ k.transpose(2, 3) * SCALE).softmax(-1) @ v


def of_windows(q: Tensor, k: Tensor, v: Tensor, *steps: Tensor) -> Tensor:
    """Return attention as Swin2SR spells it: cosines times a temperature, relative positions, and
    windows' masks."""
    temperature, positions, windows = steps
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    scores = q @ k.mT * temperature.exp() + positions[None]
    scores = scores.view(1, 2, 3, 40, 52) + windows[None, :, None]
    scores = (scores + windows[None, :, None]).view(2, 3, 40, 52)
    return scores.softmax(-1) @ v


def window_steps() -> list[Tensor]:
    return [torch.randn(3, 1, 1), torch.randn(3, 40, 52), torch.randn(2, 40, 52)]


SPELLINGS: dict[str, tuple[Callable[..., Tensor], Callable[[], list[Tensor]]]] = {
    "sdpa": (sdpa, list),
    "sdpa, mask": (sdpa, lambda: [hiding_mask(2, 1, 40, 52)]),
    "sdpa, mask of all heads": (sdpa, lambda: [hiding_mask(40, 52)]),
    "sdpa, bool": (sdpa, lambda: [hiding_mask(1, 1, 40, 52) > 0]),
    "sdpa, causal": (lambda *x: sdpa(*x, is_causal=True), list),
    "sdpa, scale": (lambda *x: sdpa(*x, scale=0.7), list),
    "eager": (eager, lambda: [hiding_mask(2, 1, 40, 52).nan_to_num(neginf=-3e38)]),
    "eager, one query": (lambda q, *x: eager(q[:, :, :1], *x), lambda: [torch.randn(2, 1, 1, 52)]),
    "eager, one key": (
        lambda *x: eager(*(one[:1, :, :1] for one in x)), lambda: [torch.randn(1, 1, 1, 1)],
    ),
    "eager, hidden keys": (eager, lambda: [torch.randn(2, 1, 1, 52)]),
    "eager, NaN of hidden queries": (eager, lambda: [hiding_mask(2, 1, 40, 52)]),
    "divided": (divided, lambda: [torch.randn(2, 1, 1, 52)]),
    "filled": (filled, lambda: [torch.rand(2, 1, 40, 52) < 0.5]),
    "chosen": (chosen, lambda: [hiding_mask(40, 52) > 0]),
    "in batches": (in_batches, list),
    "of images": (of_images, list),
    "repeated": (repeated, list),
    "of windows": (of_windows, window_steps),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each spelling is recognised; whether the kernel is used depends on the processor as well."""
    monkeypatch.setattr(attention.backend, "is_faster", lambda *_: True)
    function, more = SPELLINGS[name]
    names = check(Function(function), *operands(), *more())
    assert "attention" in names
    assert not [one for one in names if "softmax" in one or "matmul" in one], names


class Block(nn.Module):
    """Attention between projections, as in a transformer."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(48, 48) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        made = (q @ k.transpose(-1, -2) * SCALE).softmax(-1) @ v
        return self.out(made.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("adds", [False, True])
def test_triangles_are_causal(adds: bool) -> None:
    """A mask that is known, of ranges that are compared, is no operand of the kernel."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        shown = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        zeros = torch.zeros(shown.shape, dtype=q.dtype)
        if adds:
            return (scores + torch.where(shown, zeros, -math.inf)).softmax(-1) @ v
        return torch.where(shown, scores, -math.inf).softmax(-1) @ v

    exported = torch.export.export(Function(function), tuple(operands()))
    _, module = compiled(from_exported_program(exported))
    (info,) = (
        found
        for func in module.functions.values()
        for found in [info_of(func)]
        if found is not None
    )
    assert info.kind == "attention" and "top_left" in info.shape
    check(Function(function), *operands())


def test_between_projections_nothing_is_transposed() -> None:
    """Products write, and read, what attention reads and writes."""
    names = check(Block(), torch.randn(2, 65, 48))
    assert set(names) == {"attention", "matmul_add"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str) -> None:
    kind = getattr(torch, dtype)
    function = Function(lambda *x: sdpa(*(one.to(kind) for one in x)).float())
    assert "attention" in check(function, *operands(), tolerance={"float16": 2e-3}.get(dtype, 2e-2))


def test_what_others_read_stays() -> None:
    """Weights that are a result, too, are made by separate kernels."""

    def both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT).softmax(-1)
        return (weights @ v) + weights.sum()

    names = check(Function(both), *operands(), tolerance=1e-5)
    assert "attention" not in names and any("softmax" in name for name in names)


def test_a_scale_behind_the_mask_multiplies_it() -> None:
    function = Function(lambda q, k, v, mask: ((q @ k.mT + mask) * 0.5).softmax(-1) @ v)
    assert "attention" not in check(function, *operands(), torch.randn(40, 52))


def test_softmax_of_queries_is_something_else() -> None:
    function = Function(lambda q, k, v: (q @ k.mT).softmax(-2) @ v)
    assert "attention" not in check(function, *operands())


def test_a_large_head_has_separate_kernels() -> None:
    """These are estimated to be faster."""
    operands = torch.randn(3, 1, 1, 256, 256).unbind()
    function = Function(lambda q, k, v: (q @ k.mT * 0.06).softmax(-1) @ v)
    assert "attention" not in check(function, *operands, tolerance=5e-6)


def test_symbolic_sizes() -> None:
    names = {0: torch.export.Dim("a"), 1: torch.export.Dim("m", min=2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        block = Block().eval()
        exported = torch.export.export(
            block, (torch.randn(2, 40, 48),), dynamic_shapes={"x": names}
        )
        run, module = compiled(from_exported_program(exported))
    assert "attention" in ours(module)
    for shape in ((1, 7, 48), (3, 100, 48)):
        x = torch.randn(shape)
        result = run(tvm.runtime.tensor(x.numpy()))
        want = block(x).detach().numpy()
        np.testing.assert_allclose(result[0].numpy(), want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("queries", [40, 64])
@pytest.mark.parametrize("causal", [None, "TopLeft", "BottomRight"])
def test_the_operator_by_plain_compile(causal: str | None, queries: int) -> None:
    """``relax.nn.attention`` is legalized to the kernel, without the pipeline; with more queries
    than keys ``BottomRight`` still reads further than ``TopLeft``, as TVM documents it."""
    torch.manual_seed(0)
    given = [torch.randn(2, size, 3, 16) for size in (queries, 52, 52)]
    mod = build.module(partial(relax.op.nn.attention, causal_mask=causal), *given)
    run = build.compiled(mod, TARGET)["main"]
    result = run(*(tvm.runtime.tensor(x.numpy()) for x in given)).numpy()
    last = {"TopLeft": 0, "BottomRight": 12}.get(causal or "", 52)
    mask = torch.ones(queries, 52, dtype=torch.bool).tril(last)
    want = sdpa(*(x.double().transpose(1, 2) for x in given), mask).transpose(1, 2)
    np.testing.assert_allclose(result, want.numpy(), rtol=0, atol=2e-6)


def test_windows_are_left_to_tvm() -> None:
    kind = tensor_type((2, 40, 3, 16), "float32", 4)
    q, k, v = (relax.Var(name, kind) for name in "qkv")
    call = relax.op.nn.attention(q, k, v, causal_mask="TopLeft", window_size=4)
    assert attention.read_operator(call, lambda _: None) is None
