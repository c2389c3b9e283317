# SPDX-License-Identifier: Apache-2.0
"""Number of threads that TVM starts: cores, affinity masks, quotas of containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers.process import in_new_process
from topi_ext import processors


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name in processors.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def siblings(pairs: dict[int, str]) -> dict[str, str]:
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text
        for cpu, text in pairs.items()
    }


def test_hyper_threads_share_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors of four cores are four; those of a mask count, not those of the machine."""
    root = write(tmp_path, siblings({cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}))
    assert processors.usable(root) == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 4}, raising=False)
    assert processors.usable(root) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert processors.usable(root) == 2


def test_processors_without_topology_are_cores(tmp_path: Path) -> None:
    """Some virtual machines and containers hide it."""
    assert processors.usable(tmp_path) == 8
    one_hidden = {cpu: f"{cpu}" for cpu in range(7)}
    assert processors.usable(write(tmp_path, siblings(one_hidden))) == 8


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"unified": "0::/", "cpu.max": "max 100000"}, 8),
        ({"unified": "0::/", "cpu.max": "200000 100000"}, 2),
        ({"unified": "0::/", "cpu.max": "150000 100000"}, 2),  # rounded up
        ({"unified": "0::/", "cpu.max": "1000 100000"}, 1),
        ({"unified": "0::/a/b", "a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ({"unified": "0::/a/b", "a/cpu.max": "300000 100000", "a/b/cpu.max": "50000 100000"}, 1),
        # A container that sees its own group as the root, and the path of the host.
        ({"unified": "0::/docker/123", "cpu.max": "400000 100000"}, 4),
        ({"unified": "0::/", "cpu.max": "nonsense"}, 8),
    ],
)
def test_a_quota_of_version_two(files: dict[str, str], count: int, tmp_path: Path) -> None:
    group = files.pop("unified")
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert processors.usable(write(tmp_path, {**files, "proc/self/cgroup": group})) == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 8), ("250000", 3), ("900000", 8)])
def test_a_quota_of_version_one(quota: str, count: int, tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/job/"
    files = {
        "proc/self/cgroup": "9:memory:/job\n4:cpu,cpuacct:/job\n3:cpuset:/job\n0::/",
        folder + "cpu.cfs_quota_us": quota,
        folder + "cpu.cfs_period_us": "100000",
    }
    assert processors.usable(write(tmp_path, files)) == count


def test_variables_decide_as_in_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processors.started() is None
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert processors.started() == 3
    monkeypatch.setenv("TVM_NUM_THREADS", "8")
    assert processors.started() == 8
    for text, number in (("0", 1), ("-3", 1), ("many", 1), ("", 1), (" +2x", 2)):  # as C reads it
        monkeypatch.setenv("TVM_NUM_THREADS", text)
        assert processors.started() == number


@pytest.mark.parametrize(
    ("told", "count", "bound"),
    [({}, None, "0"), ({"OMP_NUM_THREADS": "1", "TVM_BIND_THREADS": "1"}, 1, "1")],
)
def test_an_import_sets_threads_unless_told(
    told: dict[str, str], count: int | None, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By TVM's own count, after TVM was imported; what the environment says stays."""
    monkeypatch.undo()
    names = (*processors.VARIABLES, processors.BINDING)
    kept = {name: of for name, of in os.environ.items() if name not in names}
    code = """
import os, tvm, relax_ext
print(tvm.get_global_func('runtime.NumThreads')(), os.environ["TVM_BIND_THREADS"])
"""
    assert in_new_process(code, env={**kept, **told}).split() == [
        str(count or processors.usable()),
        bound,
    ]
