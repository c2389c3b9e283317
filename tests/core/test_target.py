# SPDX-License-Identifier: Apache-2.0
"""Warnings about a target are logged once, and the doctor prints them."""

from __future__ import annotations

import importlib
import os
import platform
import warnings
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

import relax_ext
from helpers import build
from relax_ext.cli import main
from topi_ext import compat, notices, target
from topi_ext.compat import builds
from topi_ext.cpu.isa import amx
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.step_costs import costs_of


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    notices.warn_once.cache_clear()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def said(some: object) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        target.advise("relax_ext", some)
    return [str(w.message) for w in caught]


def test_said_once_and_only_where_it_helps() -> None:
    assert said(relax_ext.host_target()) == []
    assert said(None) == [] and said(tvm.target.Target({"kind": "cuda", "arch": "sm_80"})) == []
    (line,) = said(tvm.target.Target({"kind": "llvm"}))
    assert "names no mcpu" in line and "relax_ext.host_target()" in line
    assert said(tvm.target.Target({"kind": "llvm"})) == []


@pytest.mark.parametrize("how", ["plain", "pipeline", "pipeline without convolutions"])
def test_every_compile_says_once_that_a_processor_is_not_named(how: str) -> None:
    weight = relax.const(np.ones((2, 3, 3, 3), "float32"))

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.nn.relu(x if "without" in how else relax.op.nn.conv2d(x, weight))

    mod = build.module(body, [1, 3, 5, 5])
    baseline = tvm.target.Target({"kind": "llvm"})
    pipeline = relax_ext.pipeline(baseline) if "pipeline" in how else "default"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            tvm.compile(mod, baseline, relax_pipeline=pipeline)
    assert sum("names no mcpu" in str(w.message) for w in caught) == 1


def test_gathers_and_scatters() -> None:
    """A target for AVX-512 that does not turn off gathers and scatters gets one hint."""
    (line,) = said(tvm.target.Target({"kind": "llvm", "mcpu": "znver4"}))
    assert "accesses and scatters" in line and "prefer-no-scatter" in line
    assert said(tvm.target.Target({"kind": "llvm", "mcpu": "znver3"})) == []
    named = {
        "kind": "llvm",
        "mcpu": "znver4",
        "mattr": ["+prefer-no-gather", "+prefer-no-scatter"],
    }
    assert not compat.gathers_elements(tvm.target.Target(named))
    assert not compat.gathers_elements(relax_ext.host_target())


HIDDEN = ("amx-bf16", "amx-tile", "avx512bf16", "avx512fp16", "avxvnni", "avx10.1", "sse4.2")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="processors of x86-64")
@pytest.mark.parametrize("granted", [True, False])
def test_more_than_the_name_of_the_processor_promises(
    granted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual machine may hide its processor's name; float32 is planned by the name alone."""
    named = tvm.target.Target({"kind": "llvm", "mcpu": "rocketlake", "num-cores": 2})
    before = CpuMachine.of_features(*compat.llvm_features(named))
    asked = "tvm.codegen.llvm.GetHostCPUFeatures"
    function, has = tvm.get_global_func, dict.fromkeys(HIDDEN, 1) | {"avx512ifma": 0, "rtm": 1}
    monkeypatch.setattr(
        tvm, "get_global_func", lambda name: (lambda: has) if name == asked else function(name)
    )
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "rocketlake")
    monkeypatch.setattr(compat.targets, "_linux_grants_amx", lambda: granted)
    host = compat.host_target(2)
    amx_features = {"+amx-bf16", "+amx-tile"} if granted else set()
    assert set(map(str, host.attrs["mattr"])) == amx_features | {
        "+avx512bf16", "+avxvnni", "-avx512ifma", "+prefer-no-gather", "+prefer-no-scatter",
    }  # fmt: skip
    after = CpuMachine.of_features(*compat.llvm_features(host))
    assert after == replace(before, amx=granted, dots=0.5)


@pytest.mark.parametrize("known", ["neoverse-n1", "generic"])
def test_the_processor_of_an_arm_machine(known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named; where LLVM has no name for it, by what it has beyond the least of them."""
    asked = "tvm.codegen.llvm.GetHostCPUFeatures"
    has = dict.fromkeys(("neon", "fp-armv8", "dotprod", "fullfp16", "crc", "sve"), 1)
    function, features = tvm.get_global_func, tvm.target.codegen.llvm_get_cpu_features
    monkeypatch.setattr(
        tvm, "get_global_func", lambda name: (lambda: has) if name == asked else function(name)
    )
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: known)
    arm = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": known})
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_cpu_features", lambda _: features(arm))
    host = relax_ext.host_target(4)
    assert (host.attrs["mcpu"], int(host.attrs["num-cores"])) == (known, 4)
    more = {} if known == "neoverse-n1" else {"+dotprod", "+fullfp16"}
    assert set(map(str, host.attrs.get("mattr", ()))) == set(more)


def convolution() -> tvm.IRModule:
    return build.module(relax.op.nn.conv2d, (1, 4, 8, 8), (4, 4, 3, 3))


def test_advice_made_an_error_breaks_no_compile(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tvm.compile(convolution(), "llvm")
    assert "relax_ext: the llvm target names no mcpu" in capsys.readouterr().err


@pytest.mark.parametrize("cores", [0, -1, -(2**62)])
def test_cores_that_no_machine_has(cores: int) -> None:
    """TVM takes them, and so do we: the plan is for the threads that there are."""
    named = tvm.target.Target({"kind": "llvm", "num-cores": cores})
    assert compat.llvm_features(named)[1] == tvm.runtime.num_threads()
    tvm.compile(convolution(), named)


def test_a_triple_that_llvm_does_not_know() -> None:
    """Asked what features it has, LLVM ends the process; TVM's own error says what is wrong."""
    named = tvm.target.Target({"kind": "llvm", "mtriple": "foo-bar-baz"})
    with pytest.raises(RuntimeError, match='compatible with triple "foo-bar-baz"'):
        tvm.compile(convolution(), named)
    with pytest.raises(RuntimeError, match='compatible with triple "foo-bar-baz"'):
        tvm.compile(convolution(), named, relax_pipeline=relax_ext.pipeline(named))


def test_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "TVM 2 of 8 cores",
        "TVM_NUM_THREADS=8",
        tvm.__version__,
        "relax.nn.conv2d: ours",
    ):
        assert expected in shown
    with relax_ext.stock():
        main(["doctor"])
    assert "relax.nn.conv2d: stock TVM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "crashes"),
    [("0.1.14.post1", False), ("0.1.15", True), ("0.1.15.post2", True), ("0.1.16", False)],
)
def test_an_ffi_that_crashes(
    version: str,
    crashes: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line on import, and one in what the doctor prints."""
    line = f"apache-tvm-ffi {version} crashes in TVM's Schedule.tensorize and save_json: pip inst"
    monkeypatch.setattr(builds, "_ffi_version", lambda: version)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.count(line) == crashes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        importlib.reload(relax_ext)
        importlib.reload(relax_ext)
    assert [str(w.message).startswith(f"relax_ext: {line}") for w in caught] == [True] * crashes


@pytest.mark.parametrize(
    ("version", "is_newer"), [("0.27.0.post1", False), ("0.28.dev0", False), ("0.29.0", True)]
)
def test_a_release_that_was_not_tested(
    version: str,
    is_newer: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A newer TVM gives one warning that names the tested releases, as the doctor always does."""
    line = f"tvm {version} is newer than the tested releases: {compat.TESTED}"
    monkeypatch.setattr(tvm, "__version__", version)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"tested     {compat.TESTED}" in shown and shown.count(line) == is_newer
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        importlib.reload(relax_ext)
        importlib.reload(relax_ext)
    assert [str(w.message) for w in caught] == [f"relax_ext: {line}"] * is_newer


@pytest.mark.parametrize("granted", [True, False])
def test_doctor_asks_for_the_matrix_unit(
    granted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    features, threads = compat.llvm_features(relax_ext.host_target())
    monkeypatch.setattr(
        compat, "llvm_features", lambda _: (features | {"amx-tile", "amx-bf16"}, threads)
    )
    monkeypatch.setattr(amx, "is_granted_now", lambda: granted)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"Linux {'grants' if granted else 'denies'} AMX" in shown
    assert ("computed in float32" in shown) != granted


@pytest.mark.parametrize(
    ("processor", "fmas", "l1", "l2", "l3_line"),
    [
        ("skylake-avx512", 2, 32, 1024, 7.0),
        ("icelake-server", 2, 48, 1280, 7.0),
        ("sapphirerapids", 2, 48, 2048, 7.0),
        ("znver4", 1, 32, 1024, 2.5),
    ],
)
def test_processors_with_avx512(
    processor: str, fmas: int, l1: int, l2: int, l3_line: float
) -> None:
    """Their caches, in KiB, and what a line costs that comes from behind these."""
    named = tvm.target.Target({"kind": "llvm", "mcpu": processor})
    machine = CpuMachine.of_features(*compat.llvm_features(named))
    assert machine.vector_bytes == 64
    assert (machine.fmas, costs_of(machine).common.l3_line) == (fmas, l3_line)
    assert (machine.l1, machine.l2) == (l1 << 10, l2 << 10)


def test_a_number_of_cores_below_one_is_none() -> None:
    """Stock TVM builds for such a target; planning divided by it."""
    some = {"kind": "llvm", "mcpu": "x86-64-v3"}
    want = compat.llvm_features(tvm.target.Target(some))
    assert want is not None
    for cores in (-1, 0):
        assert compat.llvm_features(tvm.target.Target({**some, "num-cores": cores})) == want
