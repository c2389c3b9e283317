# SPDX-License-Identifier: Apache-2.0
"""Kernels of what is no convolution, by any plan; and a kind and a target that a test adds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import tvm

from helpers.kernels import HOST, built
from topi_ext import backend
from topi_ext.cpu import emit, kernels, registry
from topi_ext.cpu.backend import CpuBackend
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.base import Plan
from topi_ext.cpu.plan.resize import ResizePlan
from topi_ext.cpu.plan.rowwise import RowwisePlan
from topi_ext.cpu.plan.transpose import TransposePlan
from topi_ext.cpu.select.choose import rated
from topi_ext.kernel.info import info_of
from topi_ext.kernel.registry import Kernel
from topi_ext.spec.post_ops import PostOp
from topi_ext.spec.problem import Argument, Problem
from topi_ext.spec.resize import CORNERS, HALF_PIXEL, NEAREST, Resize
from topi_ext.spec.rowwise import NORMALIZE, SOFTMAX, RowWise
from topi_ext.spec.transpose import Transpose

RELU = (PostOp("relu"),)
TOLERANCE = 2e-6
"""Maximum error: float32 sums of 300 elements, and exp."""


def run(problem: Any, plan: Plan | None, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    func = CpuBackend(CpuMachine(vector_bytes=32, threads=2)).build(problem, plan)
    out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    built([func])["f0"](tvm.runtime.tensor(x), out)
    return out.numpy()


@pytest.mark.smoke
@pytest.mark.parametrize(
    "plan",
    [None, RowwisePlan(8), RowwisePlan(4, 3), RowwisePlan(16, 2, 1, False), RowwisePlan(8, 1, 3)],
)
@pytest.mark.parametrize("op", [SOFTMAX, NORMALIZE])
def test_rows(op: str, plan: RowwisePlan | None, rng: np.random.Generator) -> None:
    if op == SOFTMAX and plan is not None and plan.parts > 1:
        plan = RowwisePlan(8, 5)  # softmax has no parts
    x = rng.standard_normal((7, 300), "float32")
    problem = RowWise(op, (("b", 7), ("k", 300)), "k", ("float32",) * 2, 1e-5, RELU)
    wide = x.astype("float64")
    if op == SOFTMAX:
        want = np.exp(wide - wide.max(1, keepdims=True))
        want /= want.sum(1, keepdims=True)
    else:
        want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    want = np.maximum(want, 0)
    got = run(problem, plan, x, x.shape)
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())


@pytest.mark.smoke
@pytest.mark.parametrize(
    "plan", [None, TransposePlan(8, 5, 16, True), TransposePlan(4, 64, 37, False)]
)
@pytest.mark.parametrize("steps", [(), RELU], ids=["", "relu"])
def test_transposes(
    steps: tuple[PostOp, ...], plan: TransposePlan | None, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((3, 37, 70), "float32")
    problem = Transpose((("a", 3), ("b", 37), ("c", 70)), "abc", "acb", "float32", steps)
    want = np.maximum(x, 0) if steps else x
    assert np.array_equal(run(problem, plan, x, (3, 70, 37)), want.transpose(0, 2, 1))


@pytest.mark.smoke
@pytest.mark.parametrize("plan", [None, ResizePlan(1, False), ResizePlan(5, True)])
@pytest.mark.parametrize("method", [NEAREST, HALF_PIXEL, CORNERS])
def test_resizes(method: str, plan: ResizePlan | None, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 3, 6, 7), "float32")
    problem = Resize(method, (2, 3), (6, 7), (12, 14), RELU)
    how = {NEAREST: {"mode": "nearest"}}.get(method, {"mode": "bilinear"})
    if method != NEAREST:
        how["align_corners"] = method == CORNERS
    wide = torch.from_numpy(x).double()
    want = torch.nn.functional.interpolate(wide, size=(12, 14), **how).relu().numpy()
    got = run(problem, plan, x, want.shape)
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())


# ---------------------------------------------------------------- a kind that a test adds


@dataclass(frozen=True)
class Reversal(Problem):
    """A row, backwards."""

    size: int
    kind: ClassVar[str] = "reverse"
    dtypes: ClassVar[tuple[str, str]] = ("float32", "float32")
    shape_text: ClassVar[str] = "a row"

    def arguments(self) -> list[Argument]:
        return [Argument(name, "K", (self.size,), "float32") for name in ("x", "out")]


@dataclass(frozen=True)
class ReversePlan(Plan):
    parallel: bool


def reverse_body(problem: Reversal, plan: ReversePlan, operands: Any) -> None:
    x, out = operands
    with emit.tasks(problem.size, plan.parallel) as i:
        emit.store(out, i, x[problem.size - 1 - i])


@pytest.fixture
def reversal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType(f"{kernels.__name__}.reverse")
    module.emit_body = reverse_body
    monkeypatch.setitem(sys.modules, module.__name__, module)
    row = Kernel("reverse", ReversePlan, ("reverse",), lambda *_: [(1.0, ReversePlan(False))])
    with registry.KERNELS.added(row):
        yield
    rated.cache_clear()


@pytest.mark.usefixtures("reversal")
def test_a_kind_is_a_problem_a_plan_an_emitter_and_a_row() -> None:
    assert backend.supports("reverse", HOST)
    func = backend.build(Reversal(9), HOST)
    info = info_of(func)
    assert info is not None and (info.kind, info.kernel) == ("reverse", "reverse")
    x = np.arange(9, dtype="float32")
    out = tvm.runtime.tensor(np.zeros_like(x))
    built([func])["f0"](tvm.runtime.tensor(x), out)
    assert np.array_equal(out.numpy(), x[::-1])


def test_a_target_is_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCL's kernels, as those of a processor of one thread: the same interface."""

    class ToyBackend(CpuBackend):
        @classmethod
        def of(cls, target: Any, selection: Any = None) -> ToyBackend:
            return cls(CpuMachine(vector_bytes=16, threads=1), selection=selection)

    target = tvm.target.Target("opencl")
    assert "llvm and cuda" in backend.supports("softmax", target).reason
    monkeypatch.setitem(backend.BACKENDS, "opencl", (ToyBackend, "never"))
    assert backend.supports("softmax", target) and not backend.supports("sort", target)
    problem = RowWise(SOFTMAX, (("b", 2), ("k", 5)), "k", ("float32",) * 2)
    x = np.arange(10, dtype="float32").reshape(2, 5)
    out = tvm.runtime.tensor(np.zeros_like(x))
    built([backend.build(problem, target)])["f0"](tvm.runtime.tensor(x), out)
    np.testing.assert_allclose(out.numpy().sum(1), 1, rtol=1e-6)


def test_why_there_are_no_kernels() -> None:
    assert backend.supports("conv", None).reason == "no target is known"
    gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host={"kind": "llvm"})
    found = backend.supports("resize", gpu)
    assert not found and found.reason == "target kind cuda has no kernels for resize"
