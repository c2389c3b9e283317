# SPDX-License-Identifier: Apache-2.0
"""Kernels for CUDA, run on the processor by the emulator and compared with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm

import cuda_emulator
from helpers.cases import Case, geometry_of
from helpers.compare import numpy_dtype
from helpers.faces import FaceCase
from helpers.guarded import symbolic
from support.gpu.requests import machine_of
from topi_ext.cuda.backend import CudaBackend
from topi_ext.cuda.plan.direct import DirectPlan
from topi_ext.cuda.plan.implicit_gemm import ImplicitGemmPlan
from topi_ext.cuda.plan.implicit_gemm_mma import ImplicitGemmMmaPlan
from topi_ext.cuda.plan.tiles import Tile
from topi_ext.cuda.plan.wgrad_direct import WgradDirectPlan
from topi_ext.cuda.plan.wgrad_gemm import WgradGemmPlan
from topi_ext.cuda.plan.wgrad_mma import WgradMmaPlan
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts

ARCH = "sm_90"
BACKEND = CudaBackend(machine_of(ARCH))
TARGET = tvm.target.Target({"kind": "cuda", "arch": ARCH}, host={"kind": "llvm"})

ORDERS = (0, 1, 2)
"""In which threads take turns: ascending, descending, shuffled."""


def problem_of(case: FaceCase, *, is_symbolic: bool = False, **more: Any) -> Convolution:
    """The problem of a case; `more` are fields of it."""
    geometry, n = symbolic(case) if is_symbolic else (case.geometry, case.n)
    made = Convolution(case.face, geometry.as_rank3(), case.orders, n, case.dtypes)
    return replace(made, **more)


def emulated(func: object, **options: Any) -> Callable[..., Any]:
    """A PrimFunc, compiled for the emulator, which watches every access unless asked otherwise."""
    return cuda_emulator.build(func, TARGET, **{"mode": "watch", **options})


def result_of(
    run: Callable[..., Any], case: FaceCase, operands: Sequence[np.ndarray], order: int = 0
) -> np.ndarray:
    """Return the result of a kernel of `case`, as stored; elements that it does not write keep a
    mark."""
    role = case.roles[2]
    out = np.full(case.stored_shape(role), 77, numpy_dtype(case.dtypes[2]))
    run(*operands, out, order=order)
    return out


def check(
    case: FaceCase,
    plan: Any = None,
    *,
    is_symbolic: bool = False,
    seed: int = 0,
    orders: Iterable[int] = (0,),
    **options: object,
) -> None:
    """Build, run in these orders, and compare; `plan` is chosen if left out."""
    func = BACKEND.build(problem_of(case, is_symbolic=is_symbolic), plan)
    run = emulated(func, **options)
    a, b = case.arrays(np.random.default_rng(seed))
    operands = [case.stored(role, array) for role, array in zip(case.roles, (a, b))]
    for order in orders:
        case.check(result_of(run, case, operands, order), a, b)


# Every tile has a tail, and every edge an image beyond which something else lies.
_SMALL = Case(
    "conv_transpose", (7, 6), (3, 3), n=1, ins=9, outs=10, stride=(2, 2), padding=(1,) * 4
)
_WIDE = Case(
    "conv_transpose", (7, 6), (3, 3), n=1, ins=64, outs=24, stride=(2, 2), padding=(1,) * 4
)
_LAST = Layouts("NHWC", "OHWI", "NHWC")
_HALVES = ("float16",) * 3


def _face(name: str, case: Case, **more: Any) -> FaceCase:
    return FaceCase(name, geometry_of(case), case.n, **more)


SMALL_KERNELS = {
    "gemm": (_face("conv_transpose", _SMALL), ImplicitGemmPlan(Tile(32, 32, 8), 4, 2)),
    "gemm packed and split": (
        _face("conv", _SMALL), ImplicitGemmPlan(Tile(32, 32, 8, 2), 4, 2, packed=True)),
    "mma by copies": (
        _face("conv_transpose", _WIDE, layouts=_LAST, dtypes=_HALVES),
        ImplicitGemmMmaPlan(Tile(64, 64, 16), 2, 2)),
    "mma by registers": (
        _face("conv", _WIDE, dtypes=_HALVES),
        ImplicitGemmMmaPlan(Tile(64, 64, 16), 2, 2, stages=2)),
    "wgrad": (_face("conv_weight_grad", _SMALL), WgradGemmPlan(Tile(32, 32, 8, 2), 4, 2)),
    "wgrad by copies": (
        _face("conv_weight_grad", _WIDE, layouts=_LAST, dtypes=_HALVES),
        WgradMmaPlan(Tile(64, 64, 16), 2, 2)),
    "wgrad by registers": (
        _face("conv_weight_grad", _WIDE, dtypes=_HALVES), WgradMmaPlan(Tile(64, 64, 16), 2, 2)),
    "wgrad of few channels": (_face("conv_weight_grad", _SMALL), WgradDirectPlan(2, 1, 1)),
}  # fmt: skip
"""Each kernel, small and with all it has: case and plan."""

DIRECT = _face("conv_transpose", _SMALL), DirectPlan(2, 2)
"""The kernel in which threads share nothing."""
