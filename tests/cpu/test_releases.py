# SPDX-License-Identifier: Apache-2.0
"""Every kernel in every kind of dtype, in every release of TVM: among the smoke tests.

TVM rewrites bfloat16 before it compiles, each release in its own way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.cases import Case, geometry_of
from helpers.faces import OPERANDS, FaceCase
from helpers.kernels import HOST, built, free, kernel_of, problem_of, run
from topi_ext import compat
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.direct_amx import DirectAmxPlan
from topi_ext.cpu.plan.direct_dot import DirectDotPlan, plan_direct_dot
from topi_ext.cpu.plan.estimate import cheapest
from topi_ext.cpu.plan.gemm_amx import GemmAmxPlan
from topi_ext.cpu.plan.gemm_col2im import GemmCol2imPlan
from topi_ext.cpu.plan.gemm_dot import GemmDotPlan, gemm_dot_candidates
from topi_ext.cpu.plan.runtime_dispatch import RuntimeDispatchPlan
from topi_ext.cpu.plan.valid_taps import ValidTapsPlan
from topi_ext.cpu.registry import KERNELS
from topi_ext.cpu.select.choose import choose
from topi_ext.spec.layout import Layouts

MACHINE = CpuMachine(vector_bytes=32, registers=16)

OF_SOME = {DirectAmxPlan, DirectDotPlan, GemmAmxPlan, GemmDotPlan}
"""Plans with instructions that only some processors have."""

CASES = [
    Case("conv", (12, 11), (3, 3), 1, ins=8, outs=16, padding=(1,) * 4),
    Case("conv", (8, 9), (3, 3), ins=64, outs=64, padding=(1,) * 4),
    Case("conv", (3, 2), (2, 2), 1, ins=21, outs=37),
    Case("conv", (9, 20), (3, 3), 1, ins=2, outs=2, groups=2, padding=(1,) * 4),
    Case("conv", (5, 6, 7), (3, 2, 3), 1, ins=6, outs=33, padding=(3, 1, 2) * 2,
         dilation=(3, 2, 2)),
    Case("conv_transpose", (2, 2), (3, 3), 1, ins=256, outs=128, stride=(2, 2)),
    Case("conv_transpose", (40,), (16,), 1, ins=8, outs=2, stride=8, padding=4),
]  # fmt: skip

TILES = FaceCase(
    "conv_weight_grad",
    geometry_of(Case("conv", (7, 9), (3, 3), 2, ins=96, outs=104, padding=(1,) * 4)),
)
"""Whose weight gradient has fewer products."""

PIXELS = geometry_of(Case("conv", (5, 6), (1, 1), 2, ins=24, outs=40))
"""A channels-last layer that is a matrix product."""


def in_dtype(dtype: str) -> list[FaceCase]:
    """All faces of the cases; sums of integers are not narrowed, so that each counts."""
    dtypes = (dtype, dtype, "int32" if dtype == "int8" else dtype)
    shapes = [(face, geometry_of(case), case.n) for case in CASES for face in OPERANDS]
    shapes.append((TILES.face, TILES.geometry, TILES.n))
    last = FaceCase("conv", PIXELS, 2, Layouts("NHWC", "HWIO", "NHWC"), dtypes)
    return [*(FaceCase(*shape, None, dtypes) for shape in shapes), last]


def kinds(plan: object) -> set[type]:
    """Return the class of the plan, or of both plans that it chooses from."""
    if isinstance(plan, RuntimeDispatchPlan):
        return {RuntimeDispatchPlan, *kinds(plan.small), *kinds(plan.large)}
    return {type(plan)}


def asks(plan: object) -> bool:
    """Return True if the plan prefetches weights, which has code of its own."""
    return isinstance(plan, GemmCol2imPlan) and plan.ahead > 0


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8"])
def test_each_kernel(dtype: str) -> None:
    """Once for each face and plan; bfloat16 of sizes that only run time knows, too."""
    chosen: dict[object, tuple[FaceCase, object]] = {}
    seen: set[type] = set()
    for case in in_dtype(dtype):
        # Kernels of unknown sizes hold two others, and take as long to compile.
        is_symbolic = dtype == "bfloat16" and case.geometry == geometry_of(CASES[0])
        for problem in (problem_of(case), *([free(case)] if is_symbolic else [])):
            plan = choose(problem, MACHINE)
            name = problem.is_static, case.face, frozenset(kinds(plan)), asks(plan)
            if name not in chosen:
                chosen[name] = case, kernel_of(problem, plan)
                seen |= kinds(plan)
    if dtype in ("bfloat16", "float16"):
        assert (
            seen | {RuntimeDispatchPlan}
            == {kernel.plan for kernel in KERNELS.of_kind(*OPERANDS)} - OF_SOME
        )
    kernels = built([kernel for _, kernel in chosen.values()])
    rng = np.random.default_rng(0)
    for number, (case, _) in enumerate(chosen.values()):
        run(kernels[f"f{number}"], case, rng, tiled=True)


@pytest.mark.smoke
def test_dot_products() -> None:
    """Kernels whose instructions are not TVM's, by what this processor has."""
    has = CpuMachine.of_features(*compat.llvm_features(HOST)).int_dots
    if not has:
        pytest.skip("no instruction here multiplies and adds integers within lanes")
    machine = replace(MACHINE, int_dots=has)
    dtypes = ("uint8", "int8", "int32")
    cases = [FaceCase(c.op, geometry_of(c), c.n, None, dtypes) for c in (CASES[0], CASES[5])]
    plans = [plan_direct_dot(problem_of(case), machine)[1] for case in cases]
    cases.append(FaceCase("conv", PIXELS, 2, Layouts("NHWC", "HWIO", "NHWC"), dtypes))
    plans.append(cheapest(gemm_dot_candidates(problem_of(cases[-1]), machine))[1])
    kernels = built([kernel_of(problem_of(case), plan) for case, plan in zip(cases, plans)])
    for number, case in enumerate(cases):
        run(kernels[f"f{number}"], case, np.random.default_rng(0), tiled=True)


@pytest.mark.smoke
def test_rows_that_are_copied_together() -> None:
    """All rows in one task: how many each row of taps meets is a sum of minima and maxima, whose
    multiples TVM 0.25 divides wrongly.  The last four inputs were missing."""
    geometry = geometry_of(Case("conv", (12, 12), (3, 3), 1, ins=8, outs=8, padding=(1,) * 4))
    case = FaceCase("conv", geometry, 1)
    plan = ValidTapsPlan((1, 12), 8, 1, 11, 8, 1, parallel=False)
    kernels = built([kernel_of(problem_of(case), plan)])
    run(kernels["f0"], case, np.random.default_rng(0))
