# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs on the threads of PyTorch's OpenMP runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from relax_ext.torch import openmp

SIZE = 1000


@T.prim_func
def counted(values: T.Buffer((SIZE,), "int32"), last: T.int32):
    for i in T.parallel(SIZE):
        assert i < last, "an index is too large"
        values[i] = values[i] + 1


@pytest.fixture(scope="module")
def count() -> Any:
    openmp.install()
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


def test_no_thread_is_made_beside_those_of_pytorch() -> None:
    """Its own engine makes one for the backward pass."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_TEAM], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= 1


def test_a_system_without_files_in_memory_has_tvms_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError("Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    fresh = openmp._set_team.__wrapped__
    with pytest.warns(UserWarning, match=r"TVM's threads .*: Function not implemented"):
        assert fresh() is None
