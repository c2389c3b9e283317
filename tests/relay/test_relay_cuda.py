# SPDX-License-Identifier: Apache-2.0
"""Targets that are GPUs, through ``relay.build``: whose kernels are in the source.

What the kernels compute is tested where they are emulated; nothing here runs on a GPU.  TVM 0.17
asks nvcc for each build: here it keeps the source, and nvcc reads it where a test says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relay

from helpers import cuda
from helpers.cases import Case
from helpers.cuda import DEPTHWISE, GEMM, RANKS, SPLIT, UP, WIDE
from helpers.relay import gradient_module, module
from topi_ext import backend

T, C = "conv_transpose", "conv"


@pytest.fixture(autouse=True)
def _source_alone() -> Iterator[None]:
    """Keep the source that TVM hands to nvcc."""
    name = "tvm_callback_cuda_compile"
    before = tvm.get_global_func(name)
    tvm.register_func(name, lambda code, _: code, override=True)
    yield
    tvm.register_func(name, before, override=True)


def built(mod: tvm.IRModule, arch: str = "sm_90") -> str:
    """The CUDA that ``relay.build`` makes of it, for ``cuda -arch={arch}``."""
    target = tvm.target.Target(f"cuda -arch={arch}" if arch else "cuda", host="llvm")
    return cuda.source(relay.build(mod, target=target).lib)


def names(cases: list[Case]) -> set[str]:
    """Each case of these modules is a function of its own."""
    return {f"nn_{case.name}_" for case in cases}


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "sm_70", ""])
def test_every_rank_is_ours(arch: str, tmp_path: Path) -> None:
    """Without an architecture TVM 0.17 takes sm_50, for which nvcc 13 compiles no more."""
    cases = [*RANKS, GEMM, SPLIT, UP, DEPTHWISE]
    text = built(module(cases)[0], arch)
    cuda.check_ours(text, *names(cases))
    if arch == "sm_90":
        cuda.check_compiles(text, tmp_path)


@pytest.mark.parametrize("case", [*RANKS, GEMM, UP, DEPTHWISE], ids=lambda case: case.name)
def test_gradients_are_ours(case: Case) -> None:
    mod = relay.transform.InferType()(gradient_module(case, "first_order"))
    text = built(mod)
    cuda.check_ours(text)
    assert sum("conv" in launch.name for launch in cuda.launches(text)) >= 2


def test_the_default_schedule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper of the tests above recognizes a target without kernels of ours."""
    nothing = backend.Unsupported("a test says so")
    monkeypatch.setattr(backend, "of_target", lambda target: nothing)
    for case in (GEMM, UP, DEPTHWISE):
        relay.backend.te_compiler.get().clear()
        with pytest.raises(AssertionError):
            cuda.check_ours(built(module([case])[0]), f"nn_{case.name}_")
    relay.backend.te_compiler.get().clear()


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [("float16", ""), ("float16", "float32"), ("bfloat16", "float32"), ("float64", ""),
     ("int8", "int32"), ("uint8", "int32"), ("int16", "int32"), ("int32", "")],
)  # fmt: skip
def test_every_dtype_is_ours(dtype: str, out_dtype: str, tmp_path: Path) -> None:
    cases = [case.with_(dtype=dtype, out_dtype=out_dtype) for case in (WIDE, UP, DEPTHWISE)]
    text = built(module(cases)[0])
    cuda.check_ours(text, *names(cases))
    assert ("mma.sync" in text) == dtype.endswith("float16")
    if dtype.endswith("float16"):  # TVM 0.17 alone defines what CUDA 13 has defined
        cuda.check_compiles(text, tmp_path)


@pytest.mark.parametrize("arch", ["", "sm_75"])
def test_bfloat16_of_old_architectures_is_refused(arch: str) -> None:
    """TVM 0.17 has none there, and would fail in one of its passes."""
    line = rf"conv2d: bfloat16 on {arch or 'sm_50'} must be float16 or float32, or -arch sm_80"
    with pytest.raises(ValueError, match=line):
        built(module([WIDE.with_(dtype="bfloat16")])[0], arch)


@pytest.mark.parametrize("arch", ["", "sm_75"])
def test_float16_of_old_architectures_is_ours(arch: str, tmp_path: Path) -> None:
    cases = [case.with_(dtype="float16") for case in (WIDE, UP, DEPTHWISE)]
    text = built(module(cases)[0], arch)
    cuda.check_ours(text, *names(cases))
    if arch:
        cuda.check_compiles(text, tmp_path, arch)


LAYOUTS = [
    ("NHWC", "HWIO", "NHWC"), ("NHWC", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWCN"),
    ("NCHW", "OHWI", "WNHC"), ("NHWC", "HWOI", "NHWC"), ("NCHW4c", "OIHW4i4o", "NCHW4c"),
]  # fmt: skip


@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_every_layout_is_ours(dtype: str, layouts: tuple[str, str, str]) -> None:
    data, kernel, out = layouts
    shapes = (4, 64, 14, 14), (64, 64, 3, 3)
    if "4c" in data:
        shapes = (4, 16, 14, 14, 4), (16, 16, 3, 3, 4, 4)
    else:
        case = GEMM.with_(data_layout=data, kernel_layout=kernel)
        shapes = (case.stored(np.empty(shape, "int8"), i).shape for i, shape in enumerate(shapes))
    x, w = (relay.var(name, shape=shape, dtype=dtype) for name, shape in zip("xw", shapes))
    y = relay.nn.conv2d(
        x, w, padding=1, channels=64, kernel_size=(3, 3), data_layout=data, kernel_layout=kernel,
        out_layout=out, out_dtype="int32" if dtype == "int8" else "",
    )  # fmt: skip
    cuda.check_ours(built(tvm.IRModule.from_expr(relay.Function([x, w], y))), "nn_conv2d")


@pytest.mark.parametrize("unknown", ["N", "HW", "NHW"])
def test_sizes_of_run_time_are_ours(unknown: str, tmp_path: Path) -> None:
    cases = [GEMM, UP, DEPTHWISE]
    mod = module(cases, unknown=unknown)[0]
    target = tvm.target.Target("cuda -arch=sm_90", host="llvm")
    executable = relay.vm.compile(mod, target=target)
    text = cuda.source(executable.lib)
    cuda.check_ours(text, *names(cases))
    cuda.check_compiles(text, tmp_path)
    assert "number elements of the result with 32 bits" in executable.lib.get_source()


def test_what_follows_is_bound_to_threads(tmp_path: Path) -> None:
    """A kernel is opaque: what is fused behind it has a launch of its own."""
    data, weight = relay.var("x", shape=(1, 64, 16, 16)), relay.var("w", shape=(64, 32, 4, 4))
    y = relay.nn.conv2d_transpose(
        data, weight, strides=(2, 2), padding=(1, 1), channels=32, kernel_size=(4, 4)
    )
    body = relay.nn.relu(relay.nn.bias_add(y, relay.var("b", shape=(32,))))
    text = built(tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body)))
    cuda.check_ours(text, "nn_conv2d_transpose_nn_bias_add_nn_relu")
    assert sum(launch.threads == 1024 for launch in cuda.launches(text)) == 1
    cuda.check_compiles(text, tmp_path)


# ---------------------------------------------------------------- GPUs without kernels of ours

KINDS = [k for k in ("opencl", "metal") if tvm.get_global_func(f"target.build.{k}", True)]


def test_this_tvm_writes_for_other_gpus() -> None:
    assert KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_other_gpus_are_scheduled_by_tvm(kind: str) -> None:
    cases = [UP, RANKS[0], RANKS[2], GEMM]
    library = relay.build(module(cases)[0], target=tvm.target.Target(kind, host="llvm")).lib
    (device,) = (m for m in library.imported_modules if m.type_key == kind)
    assert all(f"nn_{case.name}_" in device.get_source() for case in cases)
