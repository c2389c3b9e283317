# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs on the threads of PyTorch's OpenMP runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from tvm.script import tirx as T

from helpers.process import in_new_process
from relax_ext.torch import openmp

SIZE = 1000


@T.prim_func
def counted(values: T.Buffer((SIZE,), "int32"), last: T.int32):
    for i in T.parallel(SIZE):
        assert i < last, "an index is too large"
        values[i] = values[i] + 1


@pytest.fixture(scope="module")
def count() -> Any:
    return tvm.tirx.build(tvm.IRModule({"counted": counted}), "llvm")["counted"]


def counts(count: Any, last: int = SIZE) -> set[int]:
    values = tvm.runtime.tensor(np.zeros(SIZE, "int32"))
    count(values, last)
    return set(values.numpy().tolist())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_task_runs_once(count: Any, threads: int) -> None:
    for _ in range(20):
        with openmp.team(threads):
            assert counts(count) == {1}
        assert counts(count) == {1}  # on TVM's pool


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_of_a_task_is_raised(count: Any, threads: int) -> None:
    with openmp.team(threads):
        with pytest.raises(Exception, match="an index is too large"):
            counts(count, SIZE - 1)
        assert counts(count) == {1}


def test_each_thread_of_python_has_its_team(count: Any) -> None:
    found: list[set[int]] = []

    def work(threads: int) -> None:
        for _ in range(50):
            with openmp.team(threads):
                found.append(counts(count))

    workers = [threading.Thread(target=work, args=(1 + i % 3,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [{1}] * 200


ONE_TEAM = """
import os, torch
import relax_ext.torch
from relax_ext.torch import openmp
assert openmp._set_team.cache_info().currsize == 1  # installed when it is imported
torch.set_num_threads(3)
model, images = torch.nn.Conv2d(8, 64, 3), torch.rand(4, 8, 64, 64)
model(images)
(images + 1).sum()
def threads():
    return len(os.listdir("/proc/self/task"))
before = threads()
run = torch.compile(model, backend="tvm_conv", options={"unknown": "raise"})
run(images).sum().backward()
made = threads()
for _ in range(3):
    run(images).sum().backward()
assert before >= 3, before
print(made - before)
"""


def _another_runtime(folder: Path) -> Path:
    """PyTorch's OpenMP library under another name, so that the loader takes both for different."""
    library = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    if not library.exists():
        pytest.skip("PyTorch has no OpenMP library of its own")
    name = b"libgomp.so.1\0"
    other = folder / "libgomq.so.1"
    other.write_bytes(library.read_bytes().replace(name, b"libgomq.so.1\0"))
    return other


def test_no_thread_is_made_beside_those_of_pytorch() -> None:
    """Its own engine makes one for the backward pass."""
    assert int(in_new_process(ONE_TEAM)) <= 1


PRELOADED = """
import os, sys, numpy as np, torch, tvm
import relax_ext.torch
from relax_ext.torch import openmp
torch.set_num_threads(3)
torch.ones(10**6).add(1)
before = len(os.listdir("/proc/self/task"))
count = tvm.tirx.build(tvm.ir.load_json(sys.stdin.read()), "llvm")["counted"]
with openmp.team(None):
    count(tvm.runtime.tensor(np.zeros(1000, "int32")), 1000)
assert before >= 3, before
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_a_runtime_that_is_loaded_before_pytorchs_own(tmp_path: Path) -> None:
    """PyTorch uses it, so it runs the tasks too."""
    environment = {**os.environ, "LD_PRELOAD": str(_another_runtime(tmp_path))}
    done = subprocess.run(
        [sys.executable, "-c", PRELOADED],
        input=tvm.ir.save_json(tvm.IRModule({"counted": counted})),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
    assert "TVM's threads" not in done.stderr


def _refuse(*_: Any) -> Any:
    raise OSError("not implemented")


@pytest.mark.parametrize(
    ("place", "name", "value", "reason"),
    [
        (os, "memfd_create", _refuse, "not implemented"),
        (os, "memfd_create", None, "this Python has no os.memfd_create"),
        (openmp, "_FFI", ("TVMFFINothing",), "undefined symbol: TVMFFINothing"),
        (openmp, "_PARALLEL", "GOMP_nothing", "no OpenMP runtime with GOMP_nothing"),
        (openmp, "_is_of_pytorch", lambda _: False, "no OpenMP runtime with GOMP_parallel"),
        (tvm_ffi.core, "__file__", None, "AttributeError: .*__file__"),
    ],
)
def test_what_is_missing_leaves_tvms_threads(
    place: Any, name: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delattr(place, name)
    else:
        monkeypatch.setattr(place, name, value)
    with pytest.warns(UserWarning, match=f"TVM's threads .*: .*{reason}"):
        assert openmp._set_team.__wrapped__() is None


def test_a_tvm_that_keeps_its_own_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = {"install": lambda: 1, "launch_of_modules": lambda: 2}
    monkeypatch.setattr(openmp, "module_of_llvm", lambda _: module)
    with pytest.warns(UserWarning, match="TVM does not give the launch to its modules"):
        assert openmp._set_team.__wrapped__() is None


@pytest.mark.parametrize("has_openmp", [True, False])
def test_a_team_in_a_team_gives_it_back(has_openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 is the team of a thread outside any."""
    given: list[int] = []
    monkeypatch.setattr(openmp, "_use_pool", given.append)
    monkeypatch.setattr(openmp, "_set_team", lambda: given.append if has_openmp else None)
    with openmp.team(3):
        with pytest.raises(KeyError), openmp.team(1):
            raise KeyError
        with openmp.team(2):
            pass
    assert given == [3, 1, 3, 2, 3, 0]


def test_a_python_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles without the cache; sums of 72 products in float32 differ by less than 1e-5."""
    monkeypatch.delattr(os, "memfd_create")
    model, images = torch.nn.Conv2d(8, 16, 3), torch.rand(2, 8, 16, 16)
    run = torch.compile(model, backend="tvm_conv", options={"unknown": "raise"})
    with torch.no_grad():
        torch.testing.assert_close(run(images), model(images), atol=1e-5, rtol=0)
