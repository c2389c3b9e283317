# SPDX-License-Identifier: Apache-2.0
"""Concatenations that the kernel of one part writes: emulated, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

from helpers import build, compare, cuda
from helpers.cases import numbers
from helpers.emulated import BACKEND, DIRECT, SMALL_KERNELS, emulated, problem_of
from relax_ext.fusion.fuse import fuse_kernels
from topi_ext import backend
from topi_ext.emit.operands import Channels
from topi_ext.spec.conv import Joined
from topi_ext.spec.layout import Layouts
from topi_ext.spec.post_ops import PostOp

LAST = Layouts("NHWC", "OHWI", "NHWC")

KERNELS: dict[str, tuple[str, Joined, dict]] = {
    "first": ("gemm", ((), (3, 4)), {}),
    "last and of a split sum": ("gemm packed and split", ((6,), ()), {}),
    "split, channels last": ("gemm packed and split", ((6,), (4,)), {"layouts": LAST}),
    "between others, by tensor cores": ("mma by copies", ((8,), (5, 3)), {}),
    "by tensor cores, channels first": ("mma by registers", ((3,), ()), {}),
    "direct": ("direct", ((4,), (2,)), {}),
    "direct, channels last": ("direct", ((4,), ()), {"layouts": LAST}),
    "symbolic": ("gemm", ((8,), (2,)), {}),
}
"""Small kernels, what they are joined to, and changes of their cases."""


@pytest.mark.parametrize("name", KERNELS)
def test_values(name: str, rng: np.random.Generator) -> None:
    """The sum of a product and a residual, and copies of the other parts; nothing else is read."""
    kernel, joined, changes = KERNELS[name]
    case, plan = DIRECT if kernel == "direct" else SMALL_KERNELS[kernel]
    case = replace(case, n=2, **changes)
    role, dtype = case.roles[2], case.dtypes[2]
    order = getattr(case.orders, role)
    problem = problem_of(
        case, is_symbolic=name == "symbolic", joined=joined, epilogue=(PostOp("add", order, order),)
    )
    run = emulated(BACKEND.build(problem, plan))
    a, b = case.arrays(rng)
    batch, channels, *size = case.shape(role)
    others = [numbers(rng, (batch, count, *size), dtype) for count in sum(joined, ())]
    residual = numbers(rng, (batch, channels, *size), dtype)
    parts = [*others[: len(joined[0])], residual, *others[len(joined[0]) :]]
    out = case.stored(role, np.full_like(np.concatenate(parts, 1), np.nan))
    given = zip(f"{case.roles[:2]}{role}", (a, b, residual))
    run(*(case.stored(*one) for one in given), *(case.stored(role, one) for one in others), out)
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    got = np.split(case.opened(role, out), ends, 1)
    own = got.pop(len(joined[0]))
    for copied, other in zip(got, others):
        np.testing.assert_array_equal(copied, other)
    magnitude = case.want(*(np.abs(one.astype("float64")) for one in (a, b))) + np.abs(residual)
    want = case.want(a, b) + residual.astype("float64")
    compare.assert_close(own, want, magnitude, case.terms + 1, dtypes=case.dtypes, what=name)


def test_a_part_at_the_first_channel_is_found(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(Channels, "at", lambda self, *where: super(Channels, self).at(*where))
    with pytest.raises(AssertionError):
        test_values("between others, by tensor cores", rng)


WEIGHTS = (32, 8, 3, 3), (32, 32, 2, 2), (32, 24, 2, 2)
EQUAL = (24, 8, 3, 3), (32, 24, 2, 2), (32, 24, 2, 2)
NARROW = (*WEIGHTS[:2], (32, 8, 2, 2))


op = relax.op


def concat_of(bb: relax.BlockBuilder, skip: relax.Var, up: relax.Var, axis: int) -> relax.Expr:
    """Return the concatenation of a decoder."""
    return op.concat((skip, up), axis)


def decoder(
    dtype: str, is_last: bool, joined: Callable = concat_of, weights: tuple = WEIGHTS
) -> tvm.IRModule:
    """``main(x, *weights)``; `joined` is what it returns of a value with two readers, and of the
    result of a transposed convolution with a bias.
    """
    layout = "NHWC" if is_last else "NCHW"
    outs, shapes = weights[-1][1], ((2, 8, 8, 8), *weights)
    bias, nn = relax.const(np.ones((outs,) if is_last else (outs, 1, 1), dtype)), op.nn

    def body(x: relax.Expr, *weights: relax.Expr) -> relax.Expr:
        skip = build.emit(nn.relu(nn.conv2d(x, weights[0], padding=1, data_layout=layout)))
        small = nn.conv2d(skip, weights[1], strides=2, data_layout=layout)
        up = nn.conv2d_transpose(small, weights[2], strides=2, data_layout=layout)
        up = build.emit(op.add(up, bias))
        return joined(relax.BlockBuilder.current(), skip, up, layout.index("C"))

    return build.module(body, *shapes, dtype=dtype)


def fused(mod: tvm.IRModule, on: tvm.target.Target | None = None) -> tvm.IRModule:
    """Return the module with kernels for CUDA."""
    with on or cuda.target():
        return fuse_kernels(mod)


@pytest.mark.parametrize(("dtype", "is_last"), [("float16", True), ("float32", False)])
def test_a_decoder(dtype: str, is_last: bool, rng: np.random.Generator) -> None:
    """Three functions compute it, the last by two launches, and the values are PyTorch's."""
    mod = fused(decoder(dtype, is_last))
    calls = [binding.value for binding in mod["main"].body.blocks[0].bindings]
    names = [call.args[0].name_hint for call in calls]
    assert names == ["conv2d_relu", "conv2d", "conv2d_transpose_add_concat"]
    x, *weights = (numbers(rng, shape, dtype) / 2 for shape in ((2, 8, 8, 8), *WEIGHTS))
    empty = [np.full((2, k, n, n), np.nan, dtype) for k, n in ((32, 8), (32, 4), (56, 8))]

    def turned(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if is_last else array

    x, skip, small, out = map(turned, (x, *empty))
    bias = np.ones((24,) if is_last else (24, 1, 1), dtype)
    runs = [emulated(mod[name]) for name in names]
    runs[0](x, weights[0], skip)
    runs[1](skip, weights[1], small)
    runs[2](small, weights[2], bias, skip, out)
    assert len(runs[2].launches(small, weights[2], bias, skip, out)) == 2
    opened = [np.moveaxis(one, -1, 1) if is_last else one for one in (x, skip, small, out)]
    tensors = [torch.tensor(np.ascontiguousarray(one)).double() for one in (*opened, *weights)]
    x, skip, small, out, first, second, last = tensors
    want = F.relu(F.conv2d(x, first, padding=1)), F.conv2d(skip, second, stride=2)
    up = F.conv_transpose2d(small, last, stride=2) + 1
    # Sums of at most 128 products in float32; halves are rounded once, by half of 2**-10.
    limit = {"float16": 1e-3, "float32": 2e-5}[dtype]
    for got, expected in zip((skip, small, out), (*want, torch.cat([skip, up], 1))):
        torch.testing.assert_close(got, expected, rtol=limit, atol=limit)


OTHERS: dict[str, Callable] = {
    "another reader": lambda bb, skip, up, axis: op.add(
        op.concat((skip, up), axis), op.concat((up, skip), axis)
    ),
    "rows": lambda bb, skip, up, axis: op.concat((skip, up), 1),
    "twice": lambda bb, skip, up, axis: op.concat((up, up), axis),
    "one reader, which takes it in": lambda bb, skip, up, axis: op.exp(
        bb.emit(op.concat((skip, up), axis))
    ),
    "a part that it takes in": lambda bb, skip, up, axis: op.concat(
        (bb.emit(op.exp(skip)), up), axis
    ),
}
"""Results of which no kernel writes a part."""


@pytest.mark.parametrize("name", OTHERS)
def test_other_concatenations_stay(name: str) -> None:
    mod = decoder("float16", True, OTHERS[name], EQUAL)
    assert "_concat" not in str(fused(mod)["main"])


def test_runs_of_few_bytes_are_copied() -> None:
    """Eight halves of each position are half of what memory writes at once."""
    for is_last in (False, True):
        mod = fused(decoder("float16", is_last, weights=NARROW))
        assert ("_concat" in str(mod["main"])) != is_last


def test_only_kernels_for_cuda_write_concatenations() -> None:
    assert "_concat" not in str(fused(decoder("float32", False), build.target())["main"])
    case, _ = SMALL_KERNELS["gemm"]
    problem = problem_of(case, joined=((3,), ()))
    assert backend.build(problem, cuda.target()) is not None
    assert backend.build(problem, build.target()) is None


def test_the_largest_part_is_written_in_place() -> None:
    """The other one is a kernel of its own, and copied."""

    def both(bb: relax.BlockBuilder, skip: relax.Var, up: relax.Var, axis: int) -> relax.Expr:
        weight = relax.const(np.ones((40, 32, 1, 1), "float16"))
        more = bb.emit(op.nn.conv2d(skip, weight, data_layout="NHWC"))
        return op.concat((up, more), axis)

    text = str(fused(decoder("float16", True, both))["main"])
    assert "conv2d_concat" in text and "conv2d_transpose_add," in text
