# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels, one row each.

A kernel of name ``N`` has its planner in ``plan/N.py`` and its emitter in ``kernels/N.py``; no
other module names it.
"""

from __future__ import annotations

from ..kernel.registry import DynamicShapes, Kernel, Registry
from ..spec.rowwise import OPS, STRIDED_NORMALIZE
from .machine import GpuMachine
from .plan.direct import DirectPlan, direct_candidates
from .plan.implicit_gemm import ImplicitGemmPlan, implicit_gemm_candidates
from .plan.implicit_gemm_mma import ImplicitGemmMmaPlan, implicit_gemm_mma_candidates
from .plan.rowwise import RowwisePlan, rowwise_candidates
from .plan.wgrad_direct import WgradDirectPlan, wgrad_direct_candidates
from .plan.wgrad_gemm import WgradGemmPlan, wgrad_gemm_candidates
from .plan.wgrad_mma import WgradMmaPlan, wgrad_mma_candidates

CONVS = ("conv", "conv_transpose")
ROWWISE = (*OPS, STRIDED_NORMALIZE)
ALWAYS = DynamicShapes(kinds=(*CONVS, "conv_weight_grad", *ROWWISE))
"""Symbolic sizes are planned as if they had the values of their hints."""

KERNELS: Registry[GpuMachine] = Registry(
    Kernel(
        "implicit_gemm",
        ImplicitGemmPlan,
        CONVS,
        implicit_gemm_candidates,
        prepacks=True,
        dynamic=ALWAYS,
    ),
    Kernel(
        "implicit_gemm_mma",
        ImplicitGemmMmaPlan,
        CONVS,
        implicit_gemm_mma_candidates,
        prepacks=True,
        dynamic=ALWAYS,
    ),
    Kernel("direct", DirectPlan, CONVS, direct_candidates, dynamic=ALWAYS),
    Kernel(
        "wgrad_gemm", WgradGemmPlan, ("conv_weight_grad",), wgrad_gemm_candidates, dynamic=ALWAYS
    ),
    Kernel("wgrad_mma", WgradMmaPlan, ("conv_weight_grad",), wgrad_mma_candidates, dynamic=ALWAYS),
    Kernel(
        "wgrad_direct",
        WgradDirectPlan,
        ("conv_weight_grad",),
        wgrad_direct_candidates,
        dynamic=ALWAYS,
    ),
    Kernel("rowwise", RowwisePlan, ROWWISE, rowwise_candidates, dynamic=ALWAYS),
)
