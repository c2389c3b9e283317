# SPDX-License-Identifier: Apache-2.0
"""Compiling in several threads, and interrupted: every kernel is right, now and afterwards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tvm

from helpers import build
from helpers.cases import Case, geometry_of
from helpers.faces import FaceCase
from topi_ext import backend, tvm_compat
from topi_ext.cpu import emit

THREADS, ROUNDS = 8, 4


def cases(first: int) -> list[Case]:
    """Geometries that no other test has, for kernels that no cache holds."""
    return [
        Case("conv_transpose", (5 + i, 7), (3, 2), ins=11 + first, outs=3 + i, stride=(2, 1))
        for i in range(THREADS)
    ]


def module_of(case: Case, *, is_symbolic: bool) -> tvm.IRModule:
    """Made before the threads start: TVM's BlockBuilder is not for several threads."""
    sizes = {"N": tvm_compat.tir.Var("n", "int64")} if is_symbolic else None
    return build.forward_module([case], sizes)


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


def kernel() -> Any:
    case = FaceCase("conv", geometry_of(Case("conv", (13, 9), (3, 3), ins=23, outs=29)), 2)
    return backend.prim_func(
        case.face, case.geometry, case.orders, case.n, case.dtypes, build.target()
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
    assert not tvm_compat._open
    assert not emit._scratch
    assert not emit._sizes
    assert str(kernel()) == str(whole)
