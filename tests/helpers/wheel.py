# SPDX-License-Identifier: Apache-2.0
"""A wheel of this package, built without network from a copy of what it is made of."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from .documents import ROOT


def built(folder: Path) -> Path:
    """Build a wheel in a folder."""
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "python", tree / "python", ignore=shutil.ignore_patterns("*.egg-info"))
    code = f"import setuptools.build_meta as b\nb.build_wheel({str(folder)!r})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel
