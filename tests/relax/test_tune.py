# SPDX-License-Identifier: Apache-2.0
"""``relax_ext.tune``: what is measured, what is kept, and what is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import relax_ext
from helpers import build, plans
from topi_ext import notices
from topi_ext.compat import size_var
from topi_ext.kernel.database import plain, read

TARGET = relax_ext.host_target(num_cores=2)


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    notices.warn_once.cache_clear()
    monkeypatch.delenv("TVM_CONV_PLANS", raising=False)


def model(weights: np.ndarray, batch: object = 1) -> tvm.IRModule:
    """A convolution with a bias and relu, and one behind it that is like it but for these."""
    channels, *size = plans.X[1:]
    bias = relax.const(np.ones((1, channels, 1, 1), np.float32))
    conv = partial(relax.op.nn.conv2d, weight=relax.const(weights), padding=plans.PADDING)
    return build.module(
        lambda x: conv(relax.op.nn.relu(relax.op.add(conv(x), bias))), [batch, channels, *size]
    )


def test_a_matrix_product(tmp_path: Path) -> None:
    """A batched product is no convolution; its plan is measured, kept and taken all the same."""
    path = tmp_path / "plans.json"
    module = build.module(relax.op.matmul, *[(3, 40, 40)] * 2)
    (tuned,) = relax_ext.tune(module, TARGET, path, candidates=3, say=lambda _: None)
    assert tuned.problem.startswith("matmul ") and tuned.plans == 3
    (entries,) = read(path).values()
    assert {problem: entry["kernel"] for problem, entry in entries.items()} == {
        tuned.problem: "gemm"
    }
    with plans.built() as built:
        pipeline = relax_ext.pipeline(TARGET, database=path)
        machine = relax.VirtualMachine(
            tvm.compile(module, TARGET, relax_pipeline=pipeline), tvm.cpu()
        )
    assert [plain(plan) for plan in built] == [entries[tuned.problem]["plan"]]
    a, b = np.random.default_rng(0).standard_normal((2, 3, 40, 40), np.float32)
    result = machine["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b)).numpy()
    exact = a.astype("float64") @ b.astype("float64")
    # Sums of 40 products of float32.
    assert np.abs(result - exact).max() <= 1e-6 * np.abs(exact).max()


def test_a_model(tmp_path: Path) -> None:
    """Both kernels are measured, with epilogue and packing; the pipeline takes what is kept, and
    the second time there is nothing to do."""
    path, said = tmp_path / "plans.json", list[str]()
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(plans.W, np.float32)
    module = model(weights)
    tuned = relax_ext.tune(module, TARGET, path, candidates=2, say=said.append)
    assert len(tuned) == len(said) == 2
    assert [one.plans for one in tuned] == [2, 2]
    assert all(one.ms <= one.estimate_ms and "prepacked" in one.problem for one in tuned)
    assert sum("epilogue=add(NCHW:C),relu " in one.problem for one in tuned) == 1
    (entries,) = read(path).values()
    assert set(entries) == {one.problem for one in tuned}
    assert relax_ext.tune(module, TARGET, path, say=said.append) == []
    assert said[2:] == [f"tune: 2 kernels are in {path} already"]
    with plans.built() as built:
        pipeline = relax_ext.pipeline(TARGET, database=path)
        machine = relax.VirtualMachine(
            tvm.compile(module, TARGET, relax_pipeline=pipeline), tvm.cpu()
        )
    kept = [json.dumps(entry["plan"]) for entry in entries.values()]
    assert sorted(json.dumps(plain(plan)) for plan in built) == sorted(kept)
    data = rng.standard_normal(plans.X, np.float32)
    exact, w = torch.tensor(data).double(), torch.tensor(weights).double()
    for step in (lambda y: torch.relu(y + 1), lambda y: y):
        exact = step(torch.nn.functional.conv2d(exact, w, padding=plans.PADDING))
    result = machine["main"](tvm.runtime.tensor(data)).numpy()
    # Sums of 72 products of float32, twice.
    assert np.abs(result - exact.numpy()).max() <= 1e-5 * np.abs(exact.numpy()).max()


def test_a_plan_that_computes_something_else_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import import_module

    module = import_module("relax_ext.tune")
    monkeypatch.setattr(module, "_agree", lambda *_: False)
    weights = np.ones(plans.W, np.float32)
    tuned = relax_ext.tune(model(weights), TARGET, tmp_path / "p.json", candidates=2, say=str)
    assert [one.plans for one in tuned] == [1, 1]


def test_symbolic_sizes_are_told(tmp_path: Path) -> None:
    said: list[str] = []
    module = model(np.ones(plans.W, np.float32), size_var("n"))
    assert relax_ext.tune(module, TARGET, tmp_path / "p.json", say=said.append) == []
    assert said == ["tune: 2 kernels of symbolic sizes are left to the estimate"]
    assert not (tmp_path / "p.json").exists()


REFUSED = {
    "a GPU": ({"kind": "cuda", "arch": "sm_80"}, "target kind cuda: plans are measured on proc"),
    "no kernels": ({"kind": "c"}, "target kind c: this package has kernels for"),
    "another processor": (
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, "must be one whose kernels run on this",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("target", "why"), REFUSED.values(), ids=REFUSED)
def test_targets_that_are_refused(tmp_path: Path, target: dict[str, str], why: str) -> None:
    module = model(np.ones(plans.W, np.float32))
    with pytest.raises(ValueError, match=f"tune: .*{why}") as refused:
        relax_ext.tune(module, target, tmp_path / "p.json")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(ValueError, match="its format must be"):
        relax_ext.tune(model(np.ones(plans.W, np.float32)), TARGET, tmp_path / "p.json")
    assert (tmp_path / "p.json").read_text() == "{}"
