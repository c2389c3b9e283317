# SPDX-License-Identifier: Apache-2.0
"""The kernels of GPUs, one row each.

A kernel of name ``N`` is planned in ``plan/N.py`` and emitted in ``kernels/N.py``; nothing else has
to know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..problem import Problem
from .machine import GpuMachine
from .plan.direct import DirectPlan, direct_candidates
from .plan.implicit_gemm import GemmPlan, implicit_gemm_candidates
from .plan.implicit_gemm_mma import MmaPlan, implicit_gemm_mma_candidates
from .plan.tiles import Plan
from .plan.wgrad_direct import WgradDirectPlan, wgrad_direct_candidates
from .plan.wgrad_gemm import WgradGemmPlan, wgrad_gemm_candidates
from .plan.wgrad_mma import WgradMmaPlan, wgrad_mma_candidates

Candidates = Callable[[Problem, GpuMachine], Iterable["tuple[float, Plan]"]]
"""All plans of a kernel for a problem, each with its estimated nanoseconds; none where it serves
not."""

GATHERS = ("conv", "conv_transpose")


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
    candidates : Candidates
        What :mod:`topi_ext.cuda.plan.choose` chooses from.
    prepacks : bool
        Whether it may find its weights packed.
    """

    name: str
    plan: type[Plan]
    faces: tuple[str, ...]
    candidates: Candidates
    prepacks: bool = False


KERNELS = (
    Kernel("implicit_gemm", GemmPlan, GATHERS, implicit_gemm_candidates, prepacks=True),
    Kernel("implicit_gemm_mma", MmaPlan, GATHERS, implicit_gemm_mma_candidates, prepacks=True),
    Kernel("direct", DirectPlan, GATHERS, direct_candidates),
    Kernel("wgrad_gemm", WgradGemmPlan, ("conv_weight_grad",), wgrad_gemm_candidates),
    Kernel("wgrad_mma", WgradMmaPlan, ("conv_weight_grad",), wgrad_mma_candidates),
    Kernel("wgrad_direct", WgradDirectPlan, ("conv_weight_grad",), wgrad_direct_candidates),
)

_OF_PLAN = {kernel.plan: kernel for kernel in KERNELS}


def kernels_of(face: str) -> list[Kernel]:
    """Those that serve a face."""
    return [kernel for kernel in KERNELS if face in kernel.faces]


def kernel_of(plan: Plan) -> Kernel:
    """The kernel that a plan is one of."""
    return _OF_PLAN[type(plan)]
