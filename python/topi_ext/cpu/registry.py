# SPDX-License-Identifier: Apache-2.0
"""The kernels of processors, one row each.

A kernel of name ``N`` is planned in ``plan/N.py`` and emitted in ``kernels/N.py``; nothing else has
to know it.  docs/how-to/add-a-kernel.md shows how one is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..problem import Problem
from ..rowwise import OPS as ROW_OPS
from .machine import Machine
from .plan.direct import DirectPlan, direct_candidates, plan_direct
from .plan.direct_amx import DirectAmxPlan, direct_amx_candidates, plan_direct_amx
from .plan.direct_amx_int8 import (
    DirectAmxInt8Plan,
    direct_amx_int8_candidates,
    plan_direct_amx_int8,
)
from .plan.direct_dot_bf16 import DirectDotPlan, direct_dot_candidates, plan_direct_dot
from .plan.direct_dot_int8 import (
    DirectDotInt8Plan,
    direct_dot_int8_candidates,
    plan_direct_dot_int8,
)
from .plan.dot_product import (
    DotProductPlan,
    dot_product_candidates,
    dot_product_of_any_size,
    plan_dot_product,
)
from .plan.gemm import GemmPlan, gemm_candidates, gemm_of_any_size, plan_gemm
from .plan.gemm_col2im import (
    Col2imPlan,
    gemm_col2im_candidates,
    gemm_col2im_of_any_size,
    plan_gemm_col2im,
)
from .plan.phase_lanes import (
    PhaseLanesPlan,
    phase_lanes_candidates,
    phase_lanes_of_any_size,
    plan_phase_lanes,
)
from .plan.resize import ResizePlan, plan_resize, resize_candidates
from .plan.rowwise import RowPlan, plan_rowwise, rowwise_candidates
from .plan.runtime_dispatch import DispatchPlan
from .plan.transposition import (
    TranspositionPlan,
    plan_transposition,
    transposition_candidates,
)
from .plan.valid_taps import ValidTapsPlan, plan_valid_taps, valid_taps_candidates
from .plan.wgrad_channels import WgradChannelsPlan, plan_wgrad_channels, wgrad_channels_candidates
from .plan.wgrad_im2col import (
    WgradIm2colPlan,
    plan_wgrad_im2col,
    wgrad_im2col_candidates,
    wgrad_im2col_of_any_size,
)
from .plan.wgrad_positions import (
    WgradPositionsPlan,
    plan_wgrad_positions,
    wgrad_positions_candidates,
)
from .plan.wgrad_winograd import (
    WgradWinogradPlan,
    plan_wgrad_winograd,
    wgrad_winograd_candidates,
    wgrad_winograd_of_any_size,
)
from .plan.window import Plan
from .plan.winograd import WinogradPlan, plan_winograd, winograd_candidates

Planner = Callable[[Any, Machine], tuple[float, Plan] | None]
"""The fastest plan for a problem, and its estimated cycles; None where it is not served."""

Candidates = Callable[[Any, Machine], Iterable[tuple[float, Plan]]]
"""All plans that a planner compares, each with its estimated cycles; none where it serves not."""

AnySize = Callable[[Problem, Sequence[Problem], Machine], Iterable[tuple[Plan, Sequence[float]]]]
"""Of symbolic sizes, plans, each with the cycles that it takes for every one of the known sizes."""

GATHERS = ("conv", "conv_transpose")
BOTH = (*GATHERS, "conv_weight_grad")


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    Attributes
    ----------
    name : str
        Of its files in ``plan/`` and in ``kernels/``.
    plan : type
        Of its plans.
    faces : tuple of str
        Those that it serves.
    propose : Planner, optional
        For sizes that are known; None for a kernel that others are made part of.
    candidates : Candidates, optional
        What `propose` chooses from, of known sizes.
    symbolic : bool
        Whether `propose` serves symbolic sizes as well.
    few, many : AnySize, optional
        Plans of symbolic sizes, for few positions of y only, and for any number.
    prepacks : bool
        Whether it may find its weights packed.
    limited : bool
        Whether it has room for so many positions only: it is asked at run time whether they fit.
    """

    name: str
    plan: type[Plan]
    faces: tuple[str, ...]
    propose: Planner | None = None
    candidates: Candidates | None = None
    symbolic: bool = False
    few: AnySize | None = None
    many: AnySize | None = None
    prepacks: bool = False
    limited: bool = False


# Of plans that are estimated to be equally fast the first one is taken.
KERNELS = (
    Kernel(
        "direct", DirectPlan, GATHERS, plan_direct, direct_candidates,
        symbolic=True, prepacks=True,
    ),
    Kernel("winograd", WinogradPlan, GATHERS, plan_winograd, winograd_candidates, prepacks=True),
    Kernel(
        "dot_product", DotProductPlan, ("conv",), plan_dot_product, dot_product_candidates,
        few=dot_product_of_any_size, limited=True,
    ),
    Kernel(
        "gemm_col2im", Col2imPlan, ("conv_transpose",), plan_gemm_col2im, gemm_col2im_candidates,
        few=gemm_col2im_of_any_size, limited=True,
    ),
    Kernel(
        "phase_lanes", PhaseLanesPlan, ("conv_transpose",),
        plan_phase_lanes, phase_lanes_candidates, many=phase_lanes_of_any_size,
    ),
    Kernel(
        "valid_taps", ValidTapsPlan, GATHERS, plan_valid_taps, valid_taps_candidates,
        prepacks=True, limited=True,
    ),
    Kernel(
        "gemm", GemmPlan, ("conv", "matmul"), plan_gemm, gemm_candidates,
        many=gemm_of_any_size, prepacks=True,
    ),
    Kernel(
        "direct_amx", DirectAmxPlan, GATHERS, plan_direct_amx, direct_amx_candidates,
        symbolic=True, prepacks=True,
    ),
    Kernel(
        "direct_dot_bf16", DirectDotPlan, GATHERS, plan_direct_dot, direct_dot_candidates,
        symbolic=True, prepacks=True,
    ),
    Kernel(
        "direct_dot_int8", DirectDotInt8Plan, GATHERS,
        plan_direct_dot_int8, direct_dot_int8_candidates, symbolic=True, prepacks=True,
    ),
    Kernel(
        "direct_amx_int8", DirectAmxInt8Plan, GATHERS,
        plan_direct_amx_int8, direct_amx_int8_candidates, symbolic=True, prepacks=True,
    ),
    Kernel(
        "wgrad_positions", WgradPositionsPlan, ("conv_weight_grad",),
        plan_wgrad_positions, wgrad_positions_candidates,
    ),
    Kernel(
        "wgrad_channels", WgradChannelsPlan, ("conv_weight_grad",),
        plan_wgrad_channels, wgrad_channels_candidates,
    ),
    Kernel(
        "wgrad_im2col", WgradIm2colPlan, ("conv_weight_grad",),
        plan_wgrad_im2col, wgrad_im2col_candidates, few=wgrad_im2col_of_any_size, limited=True,
    ),
    Kernel(
        "wgrad_winograd", WgradWinogradPlan, ("conv_weight_grad",),
        plan_wgrad_winograd, wgrad_winograd_candidates, many=wgrad_winograd_of_any_size,
    ),
    Kernel(
        "rowwise", RowPlan, ROW_OPS, plan_rowwise, rowwise_candidates, symbolic=True,
    ),
    Kernel(
        "transposition", TranspositionPlan, ("transpose",),
        plan_transposition, transposition_candidates,
    ),
    Kernel("resize", ResizePlan, ("resize",), plan_resize, resize_candidates),
    Kernel("runtime_dispatch", DispatchPlan, BOTH),
)  # fmt: skip

OF_CONVOLUTIONS = tuple(kernel for kernel in KERNELS if set(kernel.faces) & set(BOTH))
"""Those that serve a convolution, its transpose or its weight gradient."""

_OF_PLAN = {kernel.plan: kernel for kernel in KERNELS}


def kernels_of(kind: str) -> list[Kernel]:
    """Those that serve a kind of operator."""
    return [kernel for kernel in KERNELS if kind in kernel.faces]


def kernel_of(plan: Plan) -> Kernel:
    """The kernel that a plan is one of."""
    return _OF_PLAN[type(plan)]


def kernel_text(plan: Plan) -> str:
    """Return the name of a plan's kernel, with those that it runs in parentheses."""
    parts = ", ".join(map(kernel_text, plan.subplans))
    return f"{kernel_of(plan).name}({parts})" if parts else kernel_of(plan).name
