# SPDX-License-Identifier: Apache-2.0
"""Asking for products of TF32."""

from __future__ import annotations

import pytest
import tvm

import relax_ext
from helpers.cases import Case, geometry_of
from helpers.emulated import problem_of
from helpers.faces import FaceCase
from topi_ext.cuda.backend import CudaBackend
from topi_ext.cuda.registry import KERNELS
from topi_ext.cuda.select.choose import choose

LARGE = FaceCase("conv", geometry_of(Case("conv", (64, 64), (3, 3), ins=256, outs=256)), 8)


def chosen(arch: str, case: FaceCase = LARGE) -> str:
    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"})
    return KERNELS.of_plan(choose(problem_of(case), CudaBackend.of(target).machine)).name


def test_only_who_asks_gets_it() -> None:
    assert chosen("sm_90") == "implicit_gemm"
    with relax_ext.float32_precision("tf32x3"):
        assert chosen("sm_90") == "implicit_gemm_mma"
        with relax_ext.float32_precision("float32"):
            assert chosen("sm_90") == "implicit_gemm"
    assert chosen("sm_90") == "implicit_gemm"


def test_tensor_cores_without_tf32_are_left_alone() -> None:
    with relax_ext.float32_precision("tf32x3"):
        assert chosen("sm_75") == "implicit_gemm"


def test_another_name_is_refused() -> None:
    rule = r"^float32_precision: 'tf32' must be one of float32, tf32x3$"
    with pytest.raises(ValueError, match=rule), relax_ext.float32_precision("tf32"):
        pass
