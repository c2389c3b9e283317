# SPDX-License-Identifier: Apache-2.0
"""Kernels as users call them: compiled by ``tvm.compile``, on PyTorch's tensors and stream.

TVM's wheel has its CUDA runtime in a separate library.  ``import tvm`` loads it if it finds the
CUDA runtime of the same major version, which a PyTorch that is imported before provides.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
import tvm
import tvm_ffi

from cuda_emulator.lowering import target_of
from support.errors import allowed, finite, one_line, relative_error
from topi_ext.cuda import kernels

from . import tensors
from .requests import Request, machine_of


def available() -> str:
    """Return why TVM cannot run kernels here; empty if it can."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        return (
            "TVM's runtime for CUDA is not loaded: it wants libcudart.so.13 and libcuda.so.1, "
            "found before TVM is imported"
        )
    return ""


def check(request: Request, arch: str) -> dict[str, Any]:
    """Return whether the result of a call through TVM is correct."""
    row: dict[str, Any] = {"key": f"tvm:{request.key}", "ok": True, "note": available()}
    if row["note"]:
        return row
    if shutil.which("nvcc"):
        # TVM's default, NVRTC, needs a further package.
        os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    try:
        func = kernels.build(request.problem, request.plan(machine_of(arch)))
        module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        main = tvm.compile(module, target_of(arch))["main"]
        placed = tensors.operands(request, "cuda")
        data = [tensors.stored(request, role, placed[role]) for role in request.roles[:2]]
        out = tensors.result(request, "cuda")
        with tvm_ffi.use_torch_stream(torch.cuda.stream(torch.cuda.current_stream())):
            main(*(tvm.runtime.from_dlpack(one) for one in (*data, out)))
        torch.cuda.synchronize()
        want = tensors.reference(request, placed)
        error = relative_error(tensors.canonical(request, out), want)
    except Exception as failure:
        return {**row, "ok": False, "note": one_line(failure)}
    limit = allowed(request.case.terms(request.kind), request.dtype)
    ok = error is not None and error <= limit
    return {**row, "ok": ok, "error": finite(error), "tolerance": limit}
