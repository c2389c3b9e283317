# SPDX-License-Identifier: Apache-2.0
"""Compiling in several threads, and interrupted: every kernel is right, now and afterwards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from helpers import build
from helpers.cases import Case, geometry_of
from helpers.cases import cases as any_of
from helpers.faces import FaceCase
from helpers.profile import compiling
from topi_ext import backend, compat
from topi_ext.cpu import emit
from topi_ext.emit import builder
from topi_ext.spec.conv import Convolution

THREADS, ROUNDS = 8, 4


def cases(first: int) -> list[Case]:
    """Geometries that no other test has, for kernels that no cache holds."""
    return [
        Case("conv_transpose", (5 + i, 7), (3, 2), ins=11 + first, outs=3 + i, stride=(2, 1))
        for i in range(THREADS)
    ]


def module_of(case: Case, *, is_symbolic: bool) -> tvm.IRModule:
    """Made before the threads start: TVM's BlockBuilder is not for several threads."""
    sizes = {"N": compat.tir.Var("n", "int64")} if is_symbolic else None
    return build.forward_module([case], sizes)


@dataclass(frozen=True)
class Job:
    """A call that is compiled, run and compared; `kind` is static, symbolic or gradient."""

    case: Case
    kind: str
    seed: int

    def module(self) -> tvm.IRModule:
        if self.kind == "gradient":
            return build.gradient_module([self.case])
        return module_of(self.case, is_symbolic=self.kind == "symbolic")

    def check(self, machine: relax.VirtualMachine) -> None:
        rng = np.random.default_rng(self.seed)
        if self.kind == "gradient":
            build.run_gradients(machine, "f0_adjoint", self.case, rng)
        else:
            build.run_forward(machine, "f0", self.case, rng)


def test_values(rng: np.random.Generator) -> None:
    """Each thread compiles and runs, static sizes and symbolic ones; then all again, alone."""
    seeds = rng.integers(1 << 31, size=THREADS)

    def one(job: tuple[Case, int, tvm.IRModule]) -> None:
        case, seed, module = job
        build.run_forward(build.compiled(module), "f0", case, np.random.default_rng(seed))

    for first in range(ROUNDS):
        jobs = [
            (case, int(seed), module_of(case, is_symbolic=number % 3 == 0))
            for number, (case, seed) in enumerate(zip(cases(first), seeds))
        ]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(one, jobs))
        if first == 0:
            for job in jobs:
                one(job)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Draw the jobs of one thread: some calls of any dtype or symbolic batch, or a gradient."""
    some = []
    for _ in range(draw(st.integers(1, 2))):
        op, rank = draw(st.sampled_from(["conv", "conv_transpose"])), draw(st.integers(1, 3))
        case = draw(any_of(op, rank, channels=(1, 3, 8, 16)))
        kind = draw(st.sampled_from(["static", "symbolic", "gradient"]))
        if kind != "gradient":
            case = case.with_(dtype=draw(st.sampled_from(["float32", "bfloat16", "float64"])))
        some.append(Job(case, kind, draw(st.integers(0, 2**32 - 1))))
    return some


@compiling(2)
@given(data=st.data(), threads=st.integers(2, 6))
def test_any_geometries_at_once(data: st.DataObject, threads: int) -> None:
    """Threads compile and run what is drawn; two of them the same: one builds it for both."""
    each = [data.draw(jobs()) for _ in range(threads - 1)]
    each.append(each[0])
    modules = [[job.module() for job in some] for some in each]
    begin = Barrier(threads)

    def work(number: int) -> None:
        begin.wait()
        compiled = [build.compiled(module) for module in modules[number]]
        for _ in range(3):
            for job, machine in zip(each[number], compiled):
                job.check(machine)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def kernel() -> Any:
    case = FaceCase("conv", geometry_of(Case("conv", (13, 9), (3, 3), ins=23, outs=29)), 2)
    return backend.build(
        Convolution.of(case.face, case.geometry, case.orders, case.n, case.dtypes), build.target()
    )


@pytest.mark.parametrize("after", [1, 7, 30])
def test_an_interrupted_build_leaves_nothing(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a kernel: the next build is whole."""
    backend._build.__wrapped__.cache_clear()
    whole = kernel()
    backend._build.__wrapped__.cache_clear()
    left = iter(range(after))
    real = emit.store

    def store(*arguments: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(emit, "store", store)
        with pytest.raises(KeyboardInterrupt):
            kernel()
    assert not compat.builder._open
    assert not builder._kernels
    assert not emit._sizes
    assert str(kernel()) == str(whole)
