# SPDX-License-Identifier: Apache-2.0
"""Settings that every test shares: threads, a seed that replays a run, profiles, and a failure if
no test ran.

Environment variables: ``HYPOTHESIS_PROFILE`` (``ci`` or ``fuzz``); ``EXPECT_TVM`` (a release such
as ``0.26``: under any other TVM the run is refused). The ``ci`` profile uses the same seed in every
run, so that a change and not chance turns it red; ``fuzz`` draws one. ``--hypothesis-seed=N``
replays a run whose header printed ``seed: N``.
"""

from __future__ import annotations

import os

# Before TVM or torch is loaded. Workers of pytest-xdist share the cores, so TVM's threads must
# neither be pinned nor spin.
os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("TVM_BIND_THREADS", "0")
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What is compiled here is to be compiled, and nobody's home is to be written to.
os.environ.setdefault("TVM_CONV_CACHE", "0")

import importlib.metadata
import platform
import random
import zlib
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest

# No network before the first build: Relay would look for schedules that others have tuned.
os.environ.setdefault("TOPHUB_LOCATION", "NONE")

hypothesis.settings.register_profile(
    "ci",
    max_examples=25,
    deadline=None,  # the first example of a shape compiles
    derandomize=False,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "fuzz", hypothesis.settings.get_profile("ci"), max_examples=500
)


def _release(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


# Relax and Relay are two TVMs, in two environments; TensorFlow and models of others have their own.
collect_ignore = [
    folder
    for folder, packages in (
        ("relay", ["bitblas"]),
        ("relay_tf", ["bitblas", "tensorflow-cpu"]),
        ("zoo", ["monai"]),
    )
    if "absent" in map(_release, packages)
]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose profile and seed before hypothesis and pytest-xdist read their options."""
    profile = os.environ.get("HYPOTHESIS_PROFILE", "ci")
    hypothesis.settings.load_profile(profile)
    if config.option.hypothesis_seed is None:
        seed = "0" if profile == "ci" else str(random.SystemRandom().randrange(2**32))
        config.option.hypothesis_seed = getattr(config, "workerinput", {}).get("seed", seed)
    expected = os.environ.get("EXPECT_TVM")
    if expected and not _release("apache-tvm").startswith(expected):
        raise pytest.UsageError(
            f"EXPECT_TVM={expected} but apache-tvm is {_release('apache-tvm')} in this environment"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the controller's seed to a worker of pytest-xdist."""
    node.workerinput["seed"] = node.config.option.hypothesis_seed


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what ran where, and how to replay it."""
    packages = ("apache-tvm", "apache-tvm-ffi", "torch", "numpy", "onnxruntime", "tensorflow-cpu")
    threads = f"{os.environ['TVM_NUM_THREADS']} TVM threads, {os.environ['OMP_NUM_THREADS']} OpenMP"
    return [
        "packages: " + ", ".join(f"{name} {_release(name)}" for name in packages),
        f"machine: {platform.machine()}, {os.cpu_count()} cores, {threads} per process",
        f"seed: {config.option.hypothesis_seed} (replay with --hypothesis-seed)",
    ]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Refuse a green run in which every test was skipped."""
    config = session.config
    if config.option.collectonly or hasattr(config, "workerinput"):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.OK and reporter and not reporter.stats.get("passed"):
        reporter.write_line("no test passed: a run of skips alone is refused", red=True)
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.fixture
def threads_given_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what command lines set for their process."""
    import torch

    for name in ("TVM_NUM_THREADS", "TVM_BIND_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator seeded by the session's seed and the test's name, whatever ran before."""
    name = zlib.crc32(request.node.nodeid.encode())
    return np.random.default_rng([int(request.config.option.hypothesis_seed), name])
