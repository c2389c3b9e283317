# SPDX-License-Identifier: Apache-2.0
"""Softmax, norms, transposes and resizes in the pipeline, against PyTorch in float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from torch import nn
from tvm import relax

from helpers import build
from helpers.whole import Function, check, compiled, ours
from topi_ext.compat import tir

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def randomized(norm: nn.Module) -> nn.Module:
    """A norm whose scale and shift matter."""
    for weight in norm.parameters():
        nn.init.normal_(weight)
    return norm


NORMS = {
    "layer": (lambda: nn.LayerNorm(37), (2, 5, 37)),
    "layer, two axes, no shift": (lambda: nn.LayerNorm((4, 6), bias=False), (3, 4, 6)),
    "layer, plain": (lambda: nn.LayerNorm(8, elementwise_affine=False), (3, 8)),
    "group": (lambda: nn.GroupNorm(3, 12), (2, 12, 5, 7)),
    "group, one of a long row": (lambda: nn.GroupNorm(1, 3), (2, 3, 6007)),
    "instance": (lambda: nn.InstanceNorm2d(6, affine=True), (1, 6, 9, 11)),
    "instance of long rows": (lambda: nn.InstanceNorm1d(5), (1, 5, 8200)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    """With a mean that is a hundred times the deviation: squares of it would cancel.

    What is left is the rounding of a mean to float32, 4e-6 of a deviation.
    """
    torch.manual_seed(0)
    make, shape = NORMS[name]
    names = check(randomized(make()), torch.randn(shape) + 100, tolerance=1e-5)
    assert len(names) == 1


def test_what_follows_a_norm_is_part_of_its_kernel() -> None:
    norm = randomized(nn.GroupNorm(2, 8))
    made = nn.Sequential(norm, nn.Tanh(), nn.Flatten())
    assert check(made, torch.randn(2, 8, 6, 5)) == ["group_norm_multiply_add_tanh"]
    add = Function(lambda x, y, w, b: F.group_norm(x, 2, w, b) + y)
    names = check(add, *torch.randn(2, 2, 8, 6, 5), *torch.randn(2, 8))
    assert names == ["group_norm_multiply_add_add"]


@pytest.mark.parametrize("shape", [(3, 50), (2, 3, 7), (1, 2, 1, 1), (70, 600)])
def test_softmax(shape: tuple[int, ...]) -> None:
    """Also of numbers whose exponentials overflow, or vanish."""
    x = 60 * torch.randn(shape)
    assert check(Function(lambda x: x.softmax(-1)), x) == ["softmax"]


def test_softmax_of_other_axes_is_left_to_tvm() -> None:
    assert check(Function(lambda x: x.softmax(1)), torch.randn(2, 3, 4)) == []


def test_group_norm_with_channels_last_is_left_to_tvm() -> None:
    """Its rows are apart in memory, which only kernels for CUDA read."""
    x, weights = torch.randn(2, 5, 7, 12), torch.randn(2, 12)
    affine = [relax.const(one.numpy()) for one in weights]
    run, module = compiled(
        build.module(lambda v: relax.op.nn.group_norm(v, *affine, 3, 3, [1, 2]), x)
    )
    assert ours(module) == []
    got = run(tvm.runtime.tensor(x.numpy())).numpy()
    want = F.group_norm(x.double().movedim(3, 1), 3, *weights.double()).movedim(1, 3)
    np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=1e-5)


def test_rows_that_a_mask_hides() -> None:
    """PyTorch's attention makes zeros of them; of NaN and infinity, NaN.

    Single queries of an odd head size have no kernel of attention.
    """
    mask = torch.randn(1, 3, 1, 9)
    mask[:, 0] = mask[:, 1, :, 2:] = -math.inf
    k, v = torch.randn(2, 2, 3, 9, 18)
    q = torch.randn(2, 3, 1, 18)
    attend = Function(F.scaled_dot_product_attention)
    names = check(attend, q, k, v, mask)
    assert "matmul_add" in names and sum("softmax" in name for name in names) == 1
    q[0, 1], k[1, 2, 0, 0] = math.nan, math.inf
    check(attend, q, k, v, mask)


def test_a_masked_softmax_that_is_broadcast() -> None:
    """The softmax is a kernel, and what makes more of it is not; it had ended the compilation."""
    op = relax.op

    def masked(x: Any, zeros: Any) -> Any:
        shown = op.logical_not(op.equal(x, relax.const(-math.inf, "float32")))
        hidden = op.logical_not(op.astype(op.max(op.astype(shown, "float32"), -1, True), "bool"))
        return op.where(hidden, op.zeros_like(zeros), op.nn.softmax(x, -1))

    run, module = compiled(build.module(masked, [2, 3], [5, 2, 3]))
    assert ours(module) == ["softmax"]
    given = np.array([[1, 2, 3], [-np.inf] * 3], "float32")
    result = run(*map(tvm.runtime.tensor, (given, np.zeros((5, 2, 3), "float32")))).numpy()
    exact = np.exp(given[0]) / np.exp(given[0]).sum()
    np.testing.assert_allclose(result, np.stack([[exact, np.zeros(3)]] * 5), rtol=1e-5)


def test_of_a_row_that_is_all_minus_infinity_softmax_is_nan() -> None:
    x = torch.zeros(2, 5)
    x[1] = -math.inf
    check(Function(lambda x: x.softmax(-1)), x)


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    """float16 and bfloat16 are computed in float32, and rounded once."""
    kind = getattr(torch, dtype)

    def both(x: Any) -> Any:
        softmax, norm = relax.op.nn.softmax(x, -1), relax.op.nn.layer_norm(x, *weights, axes=[-1])
        return relax.Tuple([build.emit(softmax), build.emit(norm)])

    numbers = np.arange(1, 51) / 16
    weights = [relax.const(numbers, dtype=dtype) for _ in range(2)]
    x = (100 + torch.randn(3, 50, dtype=torch.float64)).to(kind)
    run, module = compiled(build.module(both, x))
    assert ours(module) == ["layer_norm_multiply_add", "softmax"]
    given = x.view(torch.int16) if dtype == "bfloat16" else x
    given = given.numpy().view(ml_dtypes.bfloat16) if dtype == "bfloat16" else given.numpy()
    got = [one.numpy().astype("float64") for one in run(tvm.runtime.tensor(given))]
    wide = x.double()
    scale = torch.from_numpy(numbers)
    want = wide.softmax(-1), F.layer_norm(wide, (50,), scale, scale)
    limit = {"float64": 1e-12, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    for one, other in zip(got, want):
        np.testing.assert_allclose(one, other.numpy(), rtol=limit, atol=limit)


def test_symbolic_sizes() -> None:
    """Batch, and length of rows."""
    n, m = (tir.Var(name, "int64") for name in "nm")
    weights = [relax.const(np.linspace(0.5, 2, 24), dtype="float32") for _ in range(2)]

    def body(x: Any) -> Any:
        normed = relax.op.nn.layer_norm(x, *weights, axes=[-1])
        return relax.op.nn.softmax(relax.op.permute_dims(normed, [0, 2, 1]), -1)

    run, module = compiled(build.module(body, [n, m, 24]))
    assert ours(module) == ["layer_norm_multiply_add", "softmax", "transpose"]
    scale = torch.linspace(0.5, 2, 24, dtype=torch.float64)
    for shape in ((1, 1, 24), (3, 50, 24), (2, 0, 24)):
        x = torch.randn(shape)
        got = run(tvm.runtime.tensor(x.numpy())).numpy()
        want = F.layer_norm(x.double(), (24,), scale, scale).transpose(1, 2).softmax(-1)
        np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=2e-6)


TURNED = {
    "tokens to image": ((2, 130, 48), lambda x: x.transpose(1, 2).reshape(2, 48, 13, 10), []),
    "bias and activation behind": (
        (2, 40, 13, 11), lambda x, b: F.silu(x.permute(0, 2, 3, 1) + b), [(40,)],
    ),
    "residual behind": ((2, 300, 70), lambda x, y: y + x.mT, [(2, 70, 300)]),
    "scale of one": ((1, 96, 128), lambda x, a: x.transpose(1, 2) * a, [(1, 1, 1)]),
    "few columns": ((3, 9, 700), lambda x: x.transpose(1, 2), []),
    "all axes": ((20, 21, 22), lambda x: x.permute(2, 1, 0), []),
}  # fmt: skip


@pytest.mark.parametrize("name", TURNED)
def test_transposes(name: str) -> None:
    """By squares in registers, with what follows; odd sizes, blocks of rows that are not full."""
    shape, function, others = TURNED[name]
    names = check(Function(function), *(torch.randn(one) for one in (shape, *others)))
    assert len(names) == 1 and names[0].startswith("transpose")


RESIZES: dict[str, tuple[dict[str, Any], str]] = {
    "nearest": ({"scale_factor": (2, 3)}, "resize2d"),
    "bilinear": ({"size": (20, 31), "mode": "bilinear"}, "resize2d"),
    "bilinear, smaller": ({"size": (4, 3), "mode": "bilinear"}, "resize2d"),
    "bilinear between corners": (
        {"size": (18, 1), "mode": "bilinear", "align_corners": True}, "resize2d",
    ),
    "bicubic": ({"size": (20, 30), "mode": "bicubic"}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", RESIZES)
def test_resizes(name: str) -> None:
    """PyTorch's coordinates are float32: what it computes in float64 is compared with."""
    options, kernel = RESIZES[name]
    function = Function(lambda x: F.interpolate(x, **options))
    names = check(function, torch.randn(2, 3, 9, 11), tolerance=5e-6)
    assert names == [kernel] * bool(kernel)


def test_infinity_is_resized_as_a_number() -> None:
    """Infinity is resized as in PyTorch; the difference of two infinities would be NaN."""
    x = torch.randn(1, 2, 7, 5)
    x[0, 0, 3, 3], x[0, 0, 6, 4], x[0, 1, 2, 2] = math.inf, -math.inf, math.nan
    x[0, 1, 5, :2] = torch.tensor([3e38, -3e38])
    function = Function(lambda x: F.interpolate(x, size=(13, 9), mode="bilinear"))
    assert check(function, x) == ["resize2d"]


def test_what_follows_a_resize_is_part_of_its_kernel() -> None:
    options = {"scale_factor": 2, "mode": "bilinear"}
    made = Function(lambda x, y: F.relu(F.interpolate(x, **options) + y))
    assert check(made, torch.randn(1, 3, 5, 6), torch.randn(3, 1, 1)) == ["resize2d_add_relu"]
