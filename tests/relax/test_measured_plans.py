# SPDX-License-Identifier: Apache-2.0
"""Measured plans in Relax: by the pipeline and by the environment, and only where they are asked
for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import relax_ext
from helpers import build, plans
from helpers.plans import W, X, plant
from topi_ext import backend, notices
from topi_ext.kernel.database import using

TARGET = relax_ext.host_target(num_cores=2)
DATA, WEIGHT = (
    np.random.default_rng(seed).standard_normal(shape, np.float32)
    for seed, shape in enumerate((X, W))
)
WANTED = torch.nn.functional.conv2d(
    torch.tensor(DATA, dtype=torch.float64),
    torch.tensor(WEIGHT, dtype=torch.float64),
    padding=plans.PADDING,
)


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    notices.warn_once.cache_clear()
    backend._build.__wrapped__.cache_clear()
    monkeypatch.delenv("TVM_CONV_PLANS", raising=False)


def model() -> tvm.IRModule:
    weight = relax.const(WEIGHT)
    return build.module(lambda x: relax.op.nn.conv2d(x, weight, padding=plans.PADDING), X)


def ran(**options: object) -> None:
    """Compile and run, and compare: sums of 72 products of float32, in any order."""
    machine = relax.VirtualMachine(tvm.compile(model(), TARGET, **options), tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(DATA)).numpy()
    np.testing.assert_allclose(result, WANTED, rtol=0, atol=1e-5)


def test_the_pipeline_takes_the_planted_plan(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    planted = plant(path, TARGET, plans.problem(prepacked=True))
    with plans.built() as found:
        ran(relax_pipeline=relax_ext.pipeline(TARGET, database=path))
    assert found == [planted]
    with plans.built() as found:
        ran(relax_pipeline=relax_ext.pipeline(TARGET))
    assert planted not in found
    assert len(found) == 1


def test_plain_compile_takes_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plans.json"
    planted = plant(path, TARGET, plans.problem())
    monkeypatch.setenv("TVM_CONV_PLANS", str(path))
    with plans.built() as found:
        ran()
    assert found == [planted]
    monkeypatch.delenv("TVM_CONV_PLANS")
    with plans.built() as found:
        ran()
    assert planted not in found


def test_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text("{")
    with pytest.warns(UserWarning, match="no plans are used"):
        ran(relax_pipeline=relax_ext.pipeline(TARGET, database=path))


def test_threads_do_not_share_databases(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    planted = plant(path, TARGET, plans.problem())

    def plan(number: int) -> object:
        with using(path if number % 2 else None):
            return backend.of_target(TARGET).choice(plans.problem()).plan

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(plan, range(64)))
    assert [one == planted for one in found] == [number % 2 == 1 for number in range(64)]
