# SPDX-License-Identifier: Apache-2.0
"""What an installed package needs: numpy, for the adapter TVM; all else waits until it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OPTIONAL = ("torch", "onnx", "onnxruntime", "rich", "tqdm", "matplotlib", "sklearn", "scipy")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numpy_is_the_only_hard_dependency() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert project["dependencies"] == ["numpy>=1.22"]


@pytest.mark.parametrize("package", ["topi_ext", "relax_ext"])
def test_import_needs_no_extra_and_changes_no_environment(package: str) -> None:
    run(
        "import os, sys\n"
        f"for name in {OPTIONAL}: sys.modules[name] = None\n"
        f"before = dict(os.environ)\nimport {package}\n"
        f"assert {package}.__file__\nassert dict(os.environ) == before\n"
    )


def test_import_leaves_the_threads_alone() -> None:
    count = "print(tvm.get_global_func('runtime.NumThreads')())"
    assert run(f"import tvm; {count}") == run(f"import tvm, relax_ext; {count}")
