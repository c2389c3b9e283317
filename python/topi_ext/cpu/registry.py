# SPDX-License-Identifier: Apache-2.0
"""The CPU kernels, one row each.

A kernel of name ``N`` is planned in ``plan/N.py`` and emitted in ``kernels/N.py``; nothing else has
to know it.  docs/how-to/add-a-kernel.md shows how one is added.
"""

from __future__ import annotations

from ..kernel.registry import DynamicShapes, Kernel, Registry
from ..spec.rowwise import OPS as ROW_OPS
from .machine import CpuMachine
from .plan.attention import AttentionPlan, attention_candidates
from .plan.attention_few import AttentionFewPlan, attention_few_candidates
from .plan.attention_grad import AttentionGradPlan, attention_grad_candidates
from .plan.direct import DirectPlan, direct_candidates, direct_of_any_size, plan_direct
from .plan.direct_amx import DirectAmxPlan, direct_amx_candidates
from .plan.direct_dot import DirectDotPlan, direct_dot_candidates, plan_direct_dot
from .plan.dot_product import DotProductPlan, dot_product_candidates, dot_product_of_any_size
from .plan.gemm import GemmPlan, gemm_candidates, gemm_of_any_size
from .plan.gemm_amx import GemmAmxPlan, gemm_amx_candidates
from .plan.gemm_col2im import GemmCol2imPlan, gemm_col2im_candidates, gemm_col2im_of_any_size
from .plan.gemm_dot import GemmDotPlan, gemm_dot_candidates
from .plan.phase_lanes import PhaseLanesPlan, phase_lanes_candidates, phase_lanes_of_any_size
from .plan.resize import ResizePlan, resize_candidates
from .plan.rowwise import RowwisePlan, rowwise_candidates
from .plan.runtime_dispatch import RuntimeDispatchPlan
from .plan.transpose import TransposePlan, transpose_candidates
from .plan.valid_taps import ValidTapsPlan, valid_taps_candidates, valid_taps_of_any_size
from .plan.wgrad_channels import (
    WgradChannelsPlan,
    wgrad_channels_candidates,
    wgrad_channels_of_any_size,
)
from .plan.wgrad_im2col import WgradIm2colPlan, wgrad_im2col_candidates, wgrad_im2col_of_any_size
from .plan.wgrad_positions import (
    WgradPositionsPlan,
    plan_wgrad_positions,
    wgrad_positions_candidates,
    wgrad_positions_of_any_size,
)
from .plan.wgrad_winograd import (
    WgradWinogradPlan,
    wgrad_winograd_candidates,
    wgrad_winograd_of_any_size,
)
from .plan.winograd import WinogradPlan, winograd_candidates, winograd_of_any_size

CONVS = ("conv", "conv_transpose")
WGRAD = ("conv_weight_grad",)
ALONE = DynamicShapes(kinds=CONVS)
"""Symbolic sizes are planned as known ones, and no other kernel is rated against the plan."""

KERNELS: Registry[CpuMachine] = Registry(
    Kernel(
        "direct", DirectPlan, CONVS, direct_candidates, plan_direct, prepacks=True,
        dynamic=DynamicShapes(kinds=CONVS, is_contested=True, many=direct_of_any_size),
    ),
    Kernel(
        "winograd", WinogradPlan, CONVS, winograd_candidates, prepacks=True,
        dynamic=DynamicShapes(large=winograd_of_any_size),
    ),
    Kernel(
        "dot_product", DotProductPlan, ("conv",), dot_product_candidates, is_bounded=True,
        dynamic=DynamicShapes(few=dot_product_of_any_size),
    ),
    Kernel(
        "gemm_col2im", GemmCol2imPlan, ("conv_transpose",), gemm_col2im_candidates, is_bounded=True,
        dynamic=DynamicShapes(few=gemm_col2im_of_any_size),
    ),
    Kernel(
        "phase_lanes", PhaseLanesPlan, ("conv_transpose",), phase_lanes_candidates,
        dynamic=DynamicShapes(many=phase_lanes_of_any_size),
    ),
    Kernel(
        "valid_taps", ValidTapsPlan, CONVS, valid_taps_candidates, prepacks=True,
        dynamic=DynamicShapes(unpadded=valid_taps_of_any_size),
    ),
    Kernel(
        "gemm", GemmPlan, ("conv", "matmul"), gemm_candidates, prepacks=True,
        dynamic=DynamicShapes(kinds=("matmul",), many=gemm_of_any_size),
    ),
    Kernel(
        "gemm_dot", GemmDotPlan, ("conv", "matmul"), gemm_dot_candidates, prepacks=True,
        dynamic=DynamicShapes(kinds=("conv", "matmul")),
    ),
    Kernel(
        "gemm_amx", GemmAmxPlan, ("conv", "matmul"), gemm_amx_candidates, prepacks=True,
        dynamic=DynamicShapes(kinds=("conv", "matmul")),
    ),
    Kernel(
        "direct_amx", DirectAmxPlan, CONVS, direct_amx_candidates, prepacks=True, dynamic=ALONE,
    ),
    Kernel(
        "direct_dot", DirectDotPlan, CONVS, direct_dot_candidates, plan_direct_dot, prepacks=True,
        dynamic=ALONE,
    ),
    Kernel(
        "wgrad_positions", WgradPositionsPlan, WGRAD, wgrad_positions_candidates,
        plan_wgrad_positions,
        dynamic=DynamicShapes(many=wgrad_positions_of_any_size),
    ),
    Kernel(
        "wgrad_channels", WgradChannelsPlan, WGRAD, wgrad_channels_candidates,
        dynamic=DynamicShapes(many=wgrad_channels_of_any_size, may_be_one_of_two=True),
    ),
    Kernel(
        "wgrad_im2col", WgradIm2colPlan, WGRAD, wgrad_im2col_candidates, is_bounded=True,
        dynamic=DynamicShapes(few=wgrad_im2col_of_any_size),
    ),
    Kernel(
        "wgrad_winograd", WgradWinogradPlan, WGRAD, wgrad_winograd_candidates,
        dynamic=DynamicShapes(many=wgrad_winograd_of_any_size),
    ),
    Kernel(
        "rowwise", RowwisePlan, ROW_OPS, rowwise_candidates, dynamic=DynamicShapes(kinds=ROW_OPS),
    ),
    Kernel(
        "attention", AttentionPlan, ("attention",), attention_candidates,
        dynamic=DynamicShapes(kinds=("attention",)),
    ),
    Kernel(
        "attention_few", AttentionFewPlan, ("attention",), attention_few_candidates,
        dynamic=DynamicShapes(kinds=("attention",)),
    ),
    Kernel(
        "attention_grad", AttentionGradPlan, ("attention_grad",), attention_grad_candidates,
        dynamic=DynamicShapes(kinds=("attention_grad",)),
    ),
    Kernel(
        "transpose", TransposePlan, ("transpose",), transpose_candidates,
        dynamic=DynamicShapes(kinds=("transpose",)),
    ),
    Kernel(
        "resize", ResizePlan, ("resize",), resize_candidates,
        dynamic=DynamicShapes(kinds=("resize",)),
    ),
    Kernel("runtime_dispatch", RuntimeDispatchPlan, (*CONVS, *WGRAD)),
)  # fmt: skip
