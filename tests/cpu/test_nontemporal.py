# SPDX-License-Identifier: Apache-2.0
"""Results that are written past the caches: which, that they are right, and by which stores."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import tvm

from helpers.assembly import assembly
from helpers.cases import Case, geometry_of
from helpers.compare import numpy_dtype
from helpers.faces import FaceCase
from helpers.kernels import STREAMS, built, kernel_of, problem_of, run_all
from helpers.profile import thinned
from topi_ext import backend, compat
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.base import Plan
from topi_ext.cpu.plan.direct import DirectPlan
from topi_ext.cpu.plan.direct_dot import DirectDotPlan
from topi_ext.cpu.plan.phase_lanes import PhaseLanesPlan
from topi_ext.cpu.plan.window import Window
from topi_ext.cpu.plan.winograd import WinogradPlan
from topi_ext.cpu.select.choose import (
    CACHE_LINE,
    NON_TEMPORAL_CACHES,
    NON_TEMPORAL_RUN,
    choose,
    pays_past_caches,
)
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts
from topi_ext.spec.post_ops import PostOp

MACHINE = CpuMachine(vector_bytes=32, registers=16, threads=2, streams=True)

ROWS = (
    Case("conv_transpose", (5, 37), (3, 3), ins=3, outs=5, stride=(2, 3)),
    Case("conv_transpose", (4, 9), (2, 2), 2, ins=3, outs=5, stride=(1, 2)),
    Case("conv_transpose", (6, 7), (4, 32), ins=2, outs=3, stride=(2, 16), padding=(1, 5, 0, 2)),
    Case("conv", (7, 50), (3, 3), 2, ins=3, outs=4, padding=(1,) * 4),
    Case("conv", (3, 3), (3, 3), 2, ins=3, outs=4),
    Case("conv", (40, 131), (1, 3), ins=2, outs=2),
    Case("conv_transpose", (2, 700), (1, 4), ins=2, outs=2, stride=(1, 2)),
    Case("conv_transpose", (2, 700), (2, 4), ins=2, outs=2, stride=(2, 4)),
)
"""Rows that begin anywhere, that end within a vector, and that are shorter than one; more of them
than are collected, and longer ones, that follow each other in a task and that do not."""


def streamed_plans(case: FaceCase, lanes: int) -> list[Plan]:
    """One of each kernel that can."""
    problem = problem_of(case)
    block = [max(1, -(-p // 2)) for p in problem.positions]
    # Rows that follow each other, more of them than are collected.
    whole = [1, *problem.positions[1:]]
    accesses = [
        DirectPlan(Window.of(each, problem.accesses), lanes, 2, 2, 1, problem.in_channels)
        for each in (block, whole)
    ]
    plans: list[Plan] = [
        *accesses,
        WinogradPlan((1, 2, 2), (1, 1, 2, 3), lanes, 2, 1, 1, 1, None),
    ]
    if problem.transposed and case.geometry.stride[-1] >= lanes:
        plans.append(PhaseLanesPlan(1, lanes, 2, 3, 2))
    return [replace(plan, streamed=True) for plan in plans]


@pytest.mark.skipif(not STREAMS, reason="TVM's LLVM has no opaque pointers, or this is not x86")
@pytest.mark.parametrize(
    ("dtype", "lanes"),
    [("float32", 16), ("float32", 8), ("float64", 8), ("float16", 16), ("bfloat16", 8)],
)
def test_rows(dtype: str, lanes: int) -> None:
    """Between guards, and the same elements as stores that stay in the caches write."""
    cases = [FaceCase(c.op, geometry_of(c), c.n, dtypes=(dtype,) * 3) for c in ROWS]
    every = ((case, plan) for case in cases for plan in streamed_plans(case, lanes))
    some = thinned(every, 2, int(lanes == 8))
    made = [kernel_of(problem_of(case), plan) for case, plan in some]
    run_all(made, [case for case, _ in some], seed=1)


@pytest.mark.skipif(not STREAMS, reason="TVM's LLVM has no opaque pointers, or this is not x86")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrowing(dtype: str) -> None:
    """Any float32 is rounded to nearest, and to even between two; infinity stays, and NaN as a
    processor makes it."""
    geometry = geometry_of(Case("conv_transpose", (8, 256), (1, 1), ins=1, outs=1))
    case = FaceCase("conv_transpose", geometry, 1, dtypes=("float32", "float32", dtype))
    bits = np.random.default_rng(0).integers(0, 1 << 32, 2048, dtype="uint32")
    bits[::3] &= 0xFFFF8000  # between two of bfloat16, or one of them
    bits[1::3] = (bits[1::3] & 0x8FFFF000) | 0x38000000  # the range of float16, and below
    bits[:4] = 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF
    data = bits.view("float32").reshape(1, 1, 8, 256)
    plans = streamed_plans(case, 8)
    kernels = built([kernel_of(problem_of(case), plan) for plan in plans])
    with np.errstate(over="ignore", invalid="ignore"):
        want = data.astype(numpy_dtype(dtype))
    for number in range(len(plans)):
        out = torch.empty(want.shape, dtype=getattr(torch, dtype))
        weight = np.ones((1, 1, 1, 1), "float32")
        kernels[f"f{number}"](
            *map(tvm.runtime.tensor, (data, weight)), tvm.runtime.from_dlpack(out)
        )
        np.testing.assert_array_equal(out.float().numpy(), want.astype("float32"))


@pytest.mark.skipif(not STREAMS, reason="TVM's LLVM has no opaque pointers, or this is not x86")
def test_epilogue() -> None:
    """Elements are finished on their way into the line."""
    case = FaceCase("conv_transpose", geometry_of(ROWS[0]), 1)
    steps = (PostOp("add", "NCHW", "C"), PostOp("relu"))
    problem = replace(problem_of(case), epilogue=steps)
    rng = np.random.default_rng(0)
    data, weight = case.arrays(rng)
    bias = rng.standard_normal((1, 5, 1, 1)).astype("float32")
    want = np.maximum(case.want(data, weight) + bias, 0)
    plans = streamed_plans(case, 8)
    kernels = built([kernel_of(problem, plan) for plan in plans])
    for number in range(len(plans)):
        out = torch.empty(want.shape)
        kernels[f"f{number}"](
            *(tvm.runtime.tensor(a) for a in (data, weight, bias)), tvm.runtime.from_dlpack(out)
        )
        # A few dozen products of float32.
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-5)


def large(
    face: str = "conv_transpose", row: int = 512, width: int = 4, **changes: object
) -> Convolution:
    """Return a case at the size from which non-temporal stores are used, at most a row larger, for
    elements of `width` bytes."""
    rows = -(-NON_TEMPORAL_CACHES * MACHINE.l2 * MACHINE.threads // (64 * row * width))
    geometry = geometry_of(Case("conv", (rows, row), (1, 1), ins=64, outs=64))
    case = FaceCase(face, geometry, 1, **changes)
    return problem_of(case)


def test_short_rows_are_streamed_where_enough_of_them_follow_each_other() -> None:
    """Whole vectors always are; of others, lines at both ends are shared with other tasks."""
    line = CACHE_LINE // 4

    def is_streamed(row: int, *block: int) -> bool:
        problem = large("conv_transpose", row)
        window = Window.of((1, 1, *block), problem.accesses)
        return pays_past_caches(problem, DirectPlan(window, 8, 2, 2, 1, 64), MACHINE)

    assert is_streamed(3 * line, 1, line)
    long = NON_TEMPORAL_RUN * line + 1
    assert is_streamed(long, 1, long)
    assert not is_streamed(long, 1, line)
    short = NON_TEMPORAL_RUN * line // 4 - 1
    assert not is_streamed(short, 4, short)
    assert is_streamed(short, 5, short)
    assert not is_streamed(short, 5, short - 1)
    problem = large("conv_transpose", short)
    assert not pays_past_caches(
        problem, WinogradPlan((1, 2, 2), (1, 1, 8, 99), 8, 2, 1, 1, 1, None), MACHINE
    )
    # As few lines of each row at a time.
    tiles = WinogradPlan((1, 2, 2), (1, 1, 8, 10 * line - 1), 8, 2, 1, 1, 1, None)
    assert not pays_past_caches(large(row=long), tiles, MACHINE)
    assert pays_past_caches(large(row=long), replace(tiles, block=(1, 1, 8, 10 * line)), MACHINE)


def test_rows_too_long_to_be_collected_are_not_streamed() -> None:
    """Phases put rows together in any order, and hold them until they are whole."""
    plan = PhaseLanesPlan(1, 8, 2, 3, 2)
    row = MACHINE.l2 // 16
    assert pays_past_caches(large(row=row), plan, MACHINE)
    assert not pays_past_caches(large(row=row + 16), plan, MACHINE)


def test_what_is_streamed() -> None:
    """Large results of floating point whose rows lie in one piece, where a processor can."""
    halves = [large(width=2, dtypes=(dtype,) * 3) for dtype in ("float16", "bfloat16")]
    for problem in (large(), large("conv"), large(width=8, dtypes=("float64",) * 3), *halves):
        assert choose(problem, MACHINE).streamed
        assert not choose(problem, replace(MACHINE, streams=False)).streamed
        assert not choose(problem, replace(MACHINE, threads=5)).streamed
    channels_last = Layouts("NHWC", "OIHW", "NHWC")
    pairs = CpuMachine(64, 32, fmas=1, threads=2, l2=MACHINE.l2, dots=1.0, streams=True)
    plan = choose(halves[1], pairs)
    assert isinstance(plan, DirectDotPlan)
    assert plan.nest.streamed
    for problem in (
        large(layouts=channels_last),
        large(width=2, layouts=channels_last, dtypes=("float16",) * 3),
        large(dtypes=("float16",) * 3),
        large(dtypes=("int8", "int8", "int32")),
    ):
        assert not choose(problem, MACHINE).streamed


@pytest.mark.parametrize(
    ("options", "dtype", "store"),
    [
        ({"mcpu": "skylake-avx512"}, "float32", r"vmovnt\w+\s+%zmm"),
        ({"mcpu": "x86-64-v3"}, "float32", r"vmovnt\w+\s+%ymm"),
        ({"mcpu": "skylake-avx512"}, "float16", r"vmovnt\w+\s+%zmm"),
        ({"mcpu": "x86-64-v3"}, "bfloat16", r"vmovnt\w+\s+%ymm"),
        ({"mcpu": "x86-64-v2"}, "float32", None),
    ],
)
def test_stores(options: dict, dtype: str, store: str | None) -> None:
    """Whole vectors past the caches, and a fence behind them; none without AVX."""
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, **options})
    if not CpuMachine.of_features(*compat.llvm_features(target)).streams:
        store = None
    rows = 1026 * (4 // np.dtype(numpy_dtype(dtype)).itemsize) // 2
    geometry = geometry_of(Case("conv", (rows, 1026), (3, 3), ins=8, outs=32))
    case = FaceCase("conv", geometry, 1, dtypes=(dtype,) * 3)
    func = backend.build(
        Convolution.of(case.face, case.geometry, case.orders, 1, case.dtypes), target
    )
    text = assembly(
        tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target)
    )
    assert "topi_ext_" not in text, "called, not inlined"
    assert bool(re.search(r"vmovnt", text)) == bool(store)
    if store:
        assert re.search(store, text)
        assert re.search(r"mfence|lock\s+or", text)
