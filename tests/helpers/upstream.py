# SPDX-License-Identifier: Apache-2.0
"""Copies of installed TVMs with the patches of ``scripts/upstream.py`` in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHONS = {"0.27": ".venv", "0.26": ".venv-tvm026", "relay-0.17": ".venv-relay"}
"""Environments of the bases that are installed."""


def series(base: str, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the program that writes patches."""
    command = [sys.executable, "scripts/upstream.py", "--base", base, "--out", str(out), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def patches(base: str, scratch: Path) -> list[Path]:
    """The patches for an installed TVM, in order."""
    place(base)
    out = scratch / f"patches-{base}"
    if not out.exists():
        done = series(base, out)
        assert done.returncode == 0, done.stderr
    return sorted(out.glob("*.patch"))


def place(base: str) -> Path:
    """Return the folder that contains the package ``tvm`` of a base."""
    environment = ROOT / PYTHONS[base]
    pattern = "bitblas/3rdparty/tvm/python" if base.startswith("relay") else "tvm/.."
    found = sorted(environment.glob(f"lib/python3*/site-packages/{pattern}"))
    if not found:
        pytest.skip(f"{PYTHONS[base]} is not there: make env-all env-relay")
    return found[0].resolve()


def patched(base: str, scratch: Path, some: Sequence[Path]) -> Path:
    """A directory with the package ``tvm`` of a base and `some` patches applied, as ``PYTHONPATH``.

    Files that no patch touches are links.
    """
    copy = scratch / "python"
    touched = {
        line.split()[2].removeprefix("a/python/")
        for patch in some
        for line in patch.read_text().splitlines()
        if line.startswith("diff --git a/python/")
    }
    _link(place(base), copy, "tvm", touched)
    build = place(base).parent / "build"
    if base.startswith("relay"):
        (scratch / "build").symlink_to(build)  # where TVM 0.17 looks for its library
    for patch in some:
        command = ["git", "apply", "-p2", "--include=tvm/*", str(patch)]
        subprocess.run(command, cwd=copy, check=True)
    return copy


def own_tests(scratch: Path, some: Sequence[Path]) -> Path:
    """A directory with the tests that patches add."""
    tests = scratch / "own"
    tests.mkdir()
    for patch in some:
        names = {
            line.split(maxsplit=1)[1].removeprefix("b/")
            for line in patch.read_text().splitlines()
            if line.startswith("+++ b/tests/")
        }
        if names:
            command = ["git", "apply", "--include=tests/*", str(patch)]
            subprocess.run(command, cwd=tests, check=True)
    return tests


def run(base: str, copy: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python where ``import tvm`` finds a copy."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{copy}{os.pathsep}{ROOT / 'tests'}",
        "TVM_NUM_THREADS": "1",
        "TOPHUB_LOCATION": "NONE",
    }
    python = ROOT / PYTHONS[base] / "bin" / "python"
    if base.startswith("relay"):
        # Stand-ins for the libraries of CUDA are made when the bundled TVM is first imported.
        subprocess.run([str(python), "-c", "import tvm"], check=True, capture_output=True)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvm-conv-ext"
        paths = [os.environ.get("LD_LIBRARY_PATH", ""), str(cache)]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    command = [str(python), "-P", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def _link(source: Path, copy: Path, path: str, touched: set[str]) -> None:
    (copy / path).mkdir(parents=True)
    for found in sorted((source / path).iterdir()):
        inside = f"{path}/{found.name}"
        if found.is_dir() and any(name.startswith(f"{inside}/") for name in touched):
            _link(source, copy, inside, touched)
        elif inside in touched:
            shutil.copy(found, copy / inside)
        elif found.name != "__pycache__":
            (copy / inside).symlink_to(found)
