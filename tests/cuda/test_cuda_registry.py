# SPDX-License-Identifier: Apache-2.0
"""A kernel for CUDA is one row; plans fit what a block may have; targets that are known."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import tvm

from helpers.cases import Case, geometry_of
from helpers.emulated import problem_of
from helpers.faces import FaceCase
from topi_ext.backend import Unsupported, of_target
from topi_ext.cuda import kernels
from topi_ext.cuda.backend import CudaBackend
from topi_ext.cuda.machine import STATIC_SHARED, GpuMachine
from topi_ext.cuda.plan.implicit_gemm import ImplicitGemmPlan
from topi_ext.cuda.plan.tiles import Plan, WarpTiles
from topi_ext.cuda.registry import KERNELS, ROWWISE
from topi_ext.cuda.select.choose import choose
from topi_ext.kernel.registry import Kernel
from topi_ext.spec.conv import OPERANDS

ROOT = Path(__file__).parents[2]
ROWS = pytest.mark.parametrize("row", KERNELS, ids=lambda row: row.name)
DECODER = Case("conv_transpose", (64, 64), (4, 4), ins=128, outs=64, stride=(2, 2),
               padding=(1,) * 4)  # fmt: skip


def decoder(face: str, dtype: str = "float32") -> FaceCase:
    return FaceCase(face, geometry_of(DECODER), 8, dtypes=(dtype,) * 3)


@ROWS
def test_a_row_has_its_files(row: Kernel) -> None:
    planner = import_module(f"topi_ext.cuda.plan.{row.name}")
    kernel = import_module(f"topi_ext.cuda.kernels.{row.name}")
    assert row.plan.__module__ == planner.__name__ and issubclass(row.plan, Plan)
    needed = {"emit_body"} | ({"packed_weights", "pack_weights"} if row.prepacks else set())
    assert needed <= vars(kernel).keys()


@ROWS
def test_a_row_is_in_the_documents_and_tests(row: Kernel) -> None:
    page = (ROOT / "docs/developer/cuda.md").read_text()
    assert re.search(rf"^\| `{row.name}` \|", page, re.MULTILINE), "no row in cuda.md"
    tests = [path.read_text() for path in (ROOT / "tests/cuda").glob("test_*.py")]
    assert any(re.search(rf"\b{row.plan.__name__}\(", text) for text in tests)


def test_every_file_has_a_row() -> None:
    folder = Path(kernels.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == {k.name for k in KERNELS}


def test_rows_are_found_by_face_and_plan() -> None:
    found = {kernel.name for face in (*OPERANDS, *ROWWISE) for kernel in KERNELS.of_kind(face)}
    assert found == {kernel.name for kernel in KERNELS}
    assert all(KERNELS.of_plan(object.__new__(kernel.plan)) is kernel for kernel in KERNELS)


@pytest.mark.parametrize("face", OPERANDS)
@pytest.mark.parametrize("arch", ["sm_60", "sm_75", "sm_90"])
def test_plans_fit_a_block(face: str, arch: str) -> None:
    machine = GpuMachine.of_arch(arch)
    for dtype in ("float32", "float16", "float64"):
        problem = problem_of(decoder(face, dtype))
        for _, plan in KERNELS.candidates(problem, machine):
            assert getattr(plan, "threads", 128) <= 1024
            if isinstance(plan, ImplicitGemmPlan):
                assert plan.footprint(problem).shared <= STATIC_SHARED, plan
            if isinstance(plan, WarpTiles):
                assert machine.has_mma
                assert plan.stages * plan.stage_bytes <= machine.shared, plan


def test_a_choice_is_the_least_estimate() -> None:
    machine = GpuMachine.of_arch("sm_90")
    for face in OPERANDS:
        problem = problem_of(decoder(face))
        least = min(time for time, _ in KERNELS.candidates(problem, machine))
        chosen = choose(problem, machine)
        assert least in [
            time for time, plan in KERNELS.candidates(problem, machine) if plan == chosen
        ]


def test_more_multiprocessors_split_small_layers() -> None:
    """A sum of few results is divided among the blocks that there is room for."""
    small = Case("conv", (8, 8), (3, 3), ins=512, outs=512, padding=(1,) * 4, n=1)
    problem = problem_of(FaceCase("conv", geometry_of(small), 1))
    few = replace(GpuMachine.of_arch("sm_90"), sms=4)
    assert (
        choose(problem, few).tile.splits < choose(problem, GpuMachine.of_arch("sm_90")).tile.splits
    )


@pytest.mark.parametrize(
    ("name", "arch"), [("sm_90", 90), ("sm_90a", 90), ("sm_87", 87), ("sm_88", 88), ("sm_53", 53)]
)
def test_architectures(name: str, arch: int) -> None:
    """Architectures that are not in the table are taken for the largest one below."""
    assert GpuMachine.of_arch(name).arch == arch
    assert GpuMachine.of_arch("sm_88").sms == GpuMachine.of_arch("sm_87").sms


def test_what_is_no_architecture_has_no_kernels() -> None:
    assert GpuMachine.of_arch("compute_90") is None
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host={"kind": "llvm"})
    assert isinstance(of_target(cuda), CudaBackend)
    other = of_target(tvm.target.Target({"kind": "opencl"}, host={"kind": "llvm"}))
    assert isinstance(other, Unsupported) and "llvm and cuda" in other.reason
