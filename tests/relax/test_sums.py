# SPDX-License-Identifier: Apache-2.0
"""Sums of many elements, half precision in float32 and float32 in stages, against float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional as F
from tvm import relax
from tvm.relax import op

import relax_ext
from helpers import build
from helpers.whole import TARGET, compiled
from topi_ext.compat import dtype_name, tir, type_of

RELATIVE = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 4e-7}
"""Maximum error, relative to the largest result: half precision is rounded once, and operands once
in a norm; float32 sums of 36,864 positive numbers one after the other are off by 1e-6 to 3e-5."""

SIZE = 36864

CASES: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "sum": (lambda x: op.sum(x, [0, 2, 3]), lambda x: x.sum((0, 2, 3)), (1, 4, 96, 96)),
    "sum of a row": (lambda x: op.sum(x, [1]), lambda x: x.sum(1), (1, SIZE)),
    "sum of columns": (lambda x: op.sum(x, [0]), lambda x: x.sum(0), (4099, 3)),
    "sum of all": (op.sum, torch.sum, (3, 1, 41, 37)),
    "kept": (lambda x: op.sum(x, [-1, 1], True), lambda x: x.sum((1, 3), True), (2, 67, 3, 91)),
    "mean": (lambda x: op.mean(x, [2, 3]), lambda x: x.mean((2, 3)), (2, 4, 96, 96)),
    "mean of all": (op.mean, torch.mean, (2, 4, 96, 96)),
    "variance": (
        lambda x: op.variance(x, [2, 3], True),
        lambda x: x.var((2, 3), unbiased=False, keepdim=True),
        (2, 4, 96, 96),
    ),
    "std": (lambda x: op.std(x, [1]), lambda x: x.std(1, unbiased=False), (2, 9001)),
    "bias gradient": (
        lambda x: op.collapse_sum_to(x, (4, 1, 1)),
        lambda x: x.sum((0, 2, 3))[:, None, None],
        (2, 4, 96, 96),
    ),
    "global pool": (
        lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        (2, 4, 96, 96),
    ),
    "group norm": (
        lambda x: op.nn.group_norm(x, ones(x, 4), ones(x, 4), 2, 1, [2, 3]),
        lambda x: F.group_norm(x, 2) + 1,
        (1, 4, 96, 96),
    ),
    "softmax": (lambda x: op.nn.softmax(x, -1), lambda x: x.softmax(-1), (2, SIZE)),
}
HALF: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "product": (
        lambda x: op.matmul(x, op.permute_dims(x)),
        lambda x: x @ x.T,
        (2, SIZE // 8),
    ),
    "product of vectors": (lambda x: op.matmul(x, x), lambda x: x @ x, (SIZE // 8,)),
    "einsum": (
        lambda x: op.einsum((x, x), "ik,jk->ij"),
        lambda x: torch.einsum("ik,jk->ij", x, x),
        (2, SIZE // 8),
    ),
    "pool": (
        lambda x: op.nn.avg_pool2d(x, (48, 48), (48, 48)),
        lambda x: F.avg_pool2d(x, 48),
        (1, 4, 96, 96),
    ),
    "log_softmax": (
        lambda x: op.nn.log_softmax(x, -1),
        lambda x: x.log_softmax(-1),
        (2, SIZE),
    ),
}


def ones(x: Any, count: int) -> Any:
    return relax.const(np.ones(count, "float32").astype(dtype_name(type_of(x).dtype)))


def module(function: Callable[..., Any], shape: tuple, dtype: str) -> tvm.IRModule:
    return build.module(function, shape, dtype=dtype)


def error(run: Callable[..., Any], x: torch.Tensor, want: torch.Tensor) -> float:
    got = torch.from_dlpack(run(tvm.runtime.from_dlpack(x))).double()
    assert got.shape == want.shape
    return ((got - want).abs().max() / want.abs().max()).item()


def check(cases: Mapping[str, tuple], dtype: str) -> None:
    """Compare plain compilation and the pipeline."""
    mod = build.joined({name: module(*case[::2], dtype) for name, case in cases.items()})
    machines = build.compiled(mod, "llvm"), build.compiled(mod, TARGET, pipeline=True)
    for name, (_, oracle, shape) in cases.items():
        torch.manual_seed(0)
        x = (torch.rand(shape) + 0.5).to(getattr(torch, dtype))
        if dtype == "float16":
            x = x / 4  # sums stay in its range
        for machine in machines:
            assert error(machine[name], x, oracle(x.double())) <= RELATIVE[dtype], name


@pytest.mark.parametrize("dtype", RELATIVE)
def test_sums(dtype: str) -> None:
    """TVM's operator of a group norm refuses bfloat16."""
    some = CASES if dtype == "float32" else CASES | HALF
    check({n: c for n, c in some.items() if (n, dtype) != ("group norm", "bfloat16")}, dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("sum", "float16"),
        ("sum", "bfloat16"),
        ("bias gradient", "bfloat16"),
        ("mean", "float32"),
        ("sum of a row", "float32"),
        ("variance", "float32"),
        ("global pool", "float32"),
        ("group norm", "float32"),
    ],
)
def test_stock_is_seen_to_be_wrong(name: str, dtype: str) -> None:
    with relax_ext.stock(), pytest.raises(AssertionError):
        check({name: CASES[name]}, dtype)


def test_symbolic_sizes() -> None:
    n = tir.Var("n", "int64")
    x = torch.rand((3, 5000, 7)) + 0.5
    for function, oracle in (
        (lambda x: op.sum(x, [0, 1]), lambda x: x.sum((0, 1))),
        (lambda x: op.mean(x, [1, 2]), lambda x: x.mean((1, 2))),
        (lambda x: op.variance(x), lambda x: x.var(unbiased=False)),
    ):
        run = compiled(module(function, (3, n, 7), "float32"))[0]
        assert error(run, x, oracle(x.double())) <= 1e-5  # one symbolic axis is summed in a row


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_sums_of_nothing(shape: tuple[int, ...]) -> None:
    mod = module(lambda x: op.sum(x, [0]), shape, "float32")
    vm = build.compiled(mod, "llvm")
    got = vm["main"](tvm.runtime.tensor(np.ones(shape, "float32"))).numpy()
    assert got.shape == shape[1:] and not got.any()


def test_integers_are_summed_as_before() -> None:
    x = np.arange(70000, dtype="int32").reshape(7, 100, 100)
    run = compiled(module(lambda x: op.sum(x, [1, 2]), x.shape, "int32"))[0]
    assert np.array_equal(run(tvm.runtime.tensor(x)).numpy(), x.sum((1, 2)))
