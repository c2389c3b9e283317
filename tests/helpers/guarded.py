# SPDX-License-Identifier: Apache-2.0
"""Kernels run in a process of their own, in which all memory lies between forbidden pages."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from topi_ext.compat import tir
from topi_ext.spec.geometry import Geometry

from .faces import FaceCase

HERE = Path(__file__).parent


def compiled(source: str, where: Path) -> Path:
    """The shared library of one of the C files here."""
    library = where / Path(source).with_suffix(".so")
    command = ["cc", "-O2", "-shared", "-fPIC", str(HERE / source), "-o", str(library), "-lm"]
    subprocess.run(command, check=True)
    return library


def python(script: str, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts here by itself, with `more` in its environment."""
    return subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more},
    )


def run(
    guard: Path,
    where: Path,
    kernels: Mapping[str, Any],
    operands: Mapping[str, list[np.ndarray]],
    target: tvm.target.Target,
    **more: str,
) -> tuple[subprocess.CompletedProcess[str], dict[str, np.ndarray]]:
    """Compile `kernels` and run each on its operands, the result last.

    Returns
    -------
    done : CompletedProcess
        Dead of a signal where a kernel touched what is not its own.
    results : dict
        By name; empty unless all kernels ran.
    """
    named = {name: f.with_attr("global_symbol", name) for name, f in kernels.items()}
    library, out = str(where / "kernels.so"), str(where / "results.pickle")
    tvm.compile(tvm.IRModule(named), target).export_library(library)
    cases = where / "cases.pickle"
    cases.write_bytes(pickle.dumps((library, list(operands.items()), out)))
    done = python("guarded_run.py", guard, cases, **more)
    results = pickle.loads(Path(out).read_bytes()) if done.returncode == 0 else []
    return done, dict(zip(operands, results))


def symbolic(case: FaceCase) -> tuple[Geometry, object]:
    """The geometry of `case` with sizes that are known when the kernel runs, and its batch."""
    g = case.geometry

    def variables(name: str) -> tuple[object, ...]:
        return tuple(tir.Var(f"{name}{axis}", "int64") for axis in range(g.rank))

    sizes: dict[str, Any] = {"x_size": variables("x"), "y_size": variables("y")}
    return replace(g, **sizes), tir.Var("n", "int64")
