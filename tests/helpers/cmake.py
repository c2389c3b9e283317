# SPDX-License-Identifier: Apache-2.0
"""CMake's programs, which a Python environment may have, run on projects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .documents import ROOT

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
CMAKE, CTEST = (shutil.which(name, path=PATH) for name in ("cmake", "ctest"))


def run(*command: object, **env: str) -> subprocess.CompletedProcess[str]:
    """A command, with this project's packages, and `env`, in its environment."""
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **env},
    )


def configure(
    source: Path, build: Path, *options: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """The first step."""
    python = f"-DPython_EXECUTABLE={sys.executable}"
    return run(CMAKE, "-S", source, "-B", build, python, *options, **env)


def build(folder: Path, **env: str) -> None:
    """The second."""
    done = run(CMAKE, "--build", folder, **env)
    assert done.returncode == 0, done.stdout + done.stderr


def run_project(source: Path, folder: Path, *options: str) -> str:
    """All steps; what its tests print."""
    made = configure(source, folder, *options)
    assert made.returncode == 0, made.stderr
    build(folder)
    tested = run(CTEST, "--test-dir", folder, "--verbose")
    assert tested.returncode == 0, tested.stdout
    return tested.stdout
