# SPDX-License-Identifier: Apache-2.0
"""Kernels of a case by a given plan, built, run and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

from helpers.compare import numpy_dtype
from helpers.faces import FaceCase
from helpers.guarded import symbolic
from helpers.targets import quickly_compiled
from support.environment import host_features
from topi_ext.cpu.kernels import build, direct, wgrad_winograd
from topi_ext.cpu.machine import CpuMachine
from topi_ext.emit.lowering import pipeline_of_kernels
from topi_ext.spec.conv import Convolution
from topi_ext.target import host_target

HOST = quickly_compiled(host_target())


STREAMS = CpuMachine.of_features(*host_features(HOST)).streams


def problem_of(case: FaceCase) -> Convolution:
    return Convolution(case.face, case.geometry.as_rank3(), case.orders, case.n, case.dtypes)


def kernel_of(problem: Convolution, plan: object) -> object:
    """Any plan is right, the planner only guesses which is fast."""
    if getattr(plan, "direct", True) is None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(direct, "emit_body", lambda *_: None)
            patch.setattr(wgrad_winograd, "emit_directly", lambda *_: None)
            return build(problem, plan)
    return build(problem, plan)


def built(kernels: list[Any], target: tvm.target.Target = HOST) -> tvm.runtime.Executable:
    """One module of all kernels, ``f0(a, b, out)``, ``f1(a, b, out)``, ..."""
    names = [f"f{number}" for number in range(len(kernels))]
    functions = {n: f.with_attr("global_symbol", n) for n, f in zip(names, kernels)}
    return tvm.compile(tvm.IRModule(functions), target, tir_pipeline=pipeline_of_kernels())


def guarded(array: np.ndarray, mark: float) -> tuple[tvm.runtime.Tensor, np.ndarray]:
    """A tensor of the same values in the middle of marks, and those marks."""
    if array.dtype.kind not in "fiu" or array.size == 0:
        return tvm.runtime.tensor(array), np.empty(0)
    margin = 64
    whole = np.full(array.size + 3 * margin, mark, array.dtype)
    # TVM takes arguments to be aligned to 64 bytes.
    start = margin + -(whole[margin:].ctypes.data // array.itemsize) % (64 // array.itemsize)
    middle = whole[start : start + array.size].reshape(array.shape)
    middle[...] = array
    return tvm.runtime.from_dlpack(middle), whole


def run(
    kernel: Callable[..., Any], case: FaceCase, rng: np.random.Generator, *, tiled: bool = False
) -> np.ndarray:
    """Run between guards and compare; returns the result as stored."""
    a, b = case.arrays(rng)
    nan = np.nan if case.dtypes[0].startswith(("float", "bfloat")) else 99
    operands = [guarded(case.stored(r, v), nan) for r, v in zip(case.roles, (a, b))]
    role, dtype = case.roles[2], numpy_dtype(case.dtypes[2])
    out, whole = guarded(np.full(case.stored_shape(role), 77, dtype), 55)
    kernel(*(tensor for tensor, _ in operands), out)
    got = out.numpy()
    case.check(got, a, b, tiled=tiled)
    if whole.size:
        outside = whole.size - got.size
        assert (whole == 55).sum() >= outside, f"{case}: wrote outside of its result"
        edges = np.concatenate([whole[:64], whole[-64:]])
        assert (edges == 55).all(), f"{case}: wrote outside of its result"
    return got


def run_all(
    made: list[object],
    cases: list[FaceCase],
    seed: int = 0,
    target: tvm.target.Target = HOST,
    *,
    tiled: bool = False,
) -> None:
    """The kernels of the cases, in one module, one by one."""
    kernels, rng = built(made, target), np.random.default_rng(seed)
    for number, case in enumerate(cases):
        run(kernels[f"f{number}"], case, rng, tiled=tiled)


def free(case: FaceCase) -> Convolution:
    """The problem with sizes that the kernel knows when it runs."""
    geometry, n = symbolic(case)
    return Convolution(case.face, geometry.as_rank3(), case.orders, n, case.dtypes)
