# SPDX-License-Identifier: Apache-2.0
"""Targets that are GPUs, through what users call: whose kernels are in the source.

What the kernels compute is tested where they are emulated; nothing here runs on a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

import relax_ext
from helpers import build, cuda
from helpers.cases import Case
from topi_ext import backend
from topi_ext.compat import tir

T, C = "conv_transpose", "conv"

RANKS = [
    Case(T, (9,), (4,), ins=8, outs=6, stride=(2,), padding=(1, 1)),
    Case(T, (5, 6), (3, 4), ins=8, outs=6, groups=2, stride=(2, 2), padding=(1, 0, 1, 2)),
    Case(T, (3, 4, 3), (2, 3, 2), ins=4, outs=3, stride=(2, 1, 2), dilation=(1, 2, 1)),
    Case(C, (33,), (5,), ins=8, outs=6, stride=(2,), padding=(2, 2)),
    Case(C, (8, 9), (3, 3), ins=8, outs=6, groups=2, padding=(1, 1, 0, 1), dilation=(1, 2)),
    Case(C, (4, 5, 4), (2, 3, 2), ins=4, outs=3, stride=(1, 2, 1)),
]
GEMM = Case(C, (14, 14), (3, 3), n=4, ins=64, outs=64, padding=(1,) * 4)
UP = Case(T, (16, 16), (4, 4), n=1, ins=64, outs=32, stride=(2, 2), padding=(1,) * 4)
WIDE = Case(C, (28, 28), (3, 3), n=8, ins=128, outs=128, padding=(1,) * 4, data_layout="NHWC")
DEPTHWISE = Case(C, (16, 16), (3, 3), ins=32, outs=32, groups=32, padding=(1,) * 4)


def compiled(mod: tvm.IRModule, on: tvm.target.Target | None = None, **how: object) -> str:
    """The CUDA that ``tvm.compile`` makes of it."""
    return cuda.source(tvm.compile(mod, on or cuda.target(), **how).mod)


def names(cases: Sequence[Case]) -> set[str]:
    return {f"{case.name}_kernel" for case in cases}


@pytest.mark.smoke
def test_every_rank_is_ours(tmp_path: Path) -> None:
    text = compiled(build.forward_module(RANKS))
    cuda.check_ours(text, *names(RANKS))
    cuda.check_compiles(text, tmp_path)


@pytest.mark.smoke
def test_gradients_are_ours(tmp_path: Path) -> None:
    cases = [GEMM, UP, DEPTHWISE, *RANKS]
    text = compiled(build.gradient_module(cases))
    cuda.check_ours(text, "conv_weight_grad_kernel")
    cuda.check_compiles(text, tmp_path)


def test_the_default_schedule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above see when a target has no kernels of ours."""
    nothing = backend.Unsupported("a test says so")
    monkeypatch.setattr(backend, "of_target", lambda target: nothing)
    for case in (GEMM, UP, DEPTHWISE):
        text = compiled(build.forward_module([case]))
        with pytest.raises(AssertionError):
            cuda.check_ours(text, f"{case.name}_kernel")


DTYPES = [
    ("float16", ""), ("float16", "float32"), ("bfloat16", ""), ("bfloat16", "float32"),
    ("float64", ""), ("float32", ""), ("float64", "float32"), ("float32", "float16"),
    ("int8", ""), ("int8", "int32"), ("uint8", "int32"), ("int16", "int32"), ("int32", ""),
    ("int32", "int64"), ("int64", ""),
]  # fmt: skip


def typed(dtypes: Sequence[tuple[str, str]]) -> list[Case]:
    return [
        case.with_(dtype=dtype, out_dtype=out)
        for dtype, out in dtypes
        for case in (GEMM, WIDE, UP, DEPTHWISE)
    ]


@pytest.mark.parametrize("dtypes", [DTYPES[:2], DTYPES[2:4], DTYPES[4:8], DTYPES[8:10], DTYPES[10:]])
@pytest.mark.parametrize("arch", ["sm_70", "sm_90"])
def test_every_dtype_is_ours(arch: str, dtypes: list[tuple[str, str]], tmp_path: Path) -> None:
    cases = typed(dtypes)
    text = compiled(build.forward_module(cases), cuda.target(arch))
    cuda.check_ours(text, *names(cases))
    has_halves = arch == "sm_90" and dtypes[0][0].endswith("float16")
    assert ("mma.sync" in text) == has_halves
    if arch == "sm_90":
        cuda.check_compiles(text, tmp_path)


@pytest.mark.xfail(strict=True, reason="functions in CUDA have one name for several dtypes")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="asks nvcc")
@pytest.mark.parametrize("dtypes", [[("int8", ""), ("uint8", "int32")], DTYPES[1:3]])
def test_dtypes_share_a_module(dtypes: list[tuple[str, str]], tmp_path: Path) -> None:
    cuda.check_compiles(compiled(build.forward_module(typed(dtypes))), tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_gradients_of_other_dtypes_are_ours(dtype: str) -> None:
    cases = [case.with_(dtype=dtype) for case in (GEMM, UP, DEPTHWISE)]
    cuda.check_ours(compiled(build.gradient_module(cases)), "conv_weight_grad_kernel")


LAYOUTS = [
    ("NHWC", "HWIO", "NHWC"), ("NHWC", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWCN"),
    ("NCHW", "OHWI", "WNHC"), ("HCNW", "WOHI", "NHWC"), ("NHWC", "HWOI", ""),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_every_layout_is_ours(dtype: str) -> None:
    cases = [
        case.with_(data_layout=data, kernel_layout=kernel, out_layout=out, dtype=dtype)
        for data, kernel, out in LAYOUTS
        for case in (GEMM, UP, DEPTHWISE)
    ]
    cuda.check_ours(compiled(build.forward_module(cases)), *names(cases))


@pytest.mark.smoke
def test_blocked_layouts_are_ours() -> None:
    data, weight = (relax.Var(n, R.Tensor(s, "float32")) for n, s in BLOCKED.items())
    bb = relax.BlockBuilder()
    with bb.function("main", [data, weight]):
        with bb.dataflow():
            call = relax.op.nn.conv2d(
                data, weight, padding=1, data_layout="NCHW4c", kernel_layout="OIHW4i4o"
            )
            out = bb.emit_output(call)
        bb.emit_func_output(out)
    cuda.check_ours(compiled(bb.get()), "conv2d_kernel")


BLOCKED = {"data": (1, 4, 8, 8, 4), "weight": (3, 4, 3, 3, 4, 4)}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("letters", ["N", "HW", "NHW"])
def test_symbolic_sizes_are_ours(letters: str, dtype: str, tmp_path: Path) -> None:
    some = {name: tir.Var(name.lower(), "int64") for name in letters}
    for case in (GEMM, UP, DEPTHWISE, RANKS[1]):
        typed = case.with_(dtype=dtype)
        text = compiled(build.forward_module([typed], some))
        cuda.check_ours(text, f"{case.name}_kernel")
        text = compiled(build.gradient_module([typed], some))
        cuda.check_ours(text, "conv_weight_grad_kernel")
    cuda.check_compiles(text, tmp_path)
