# SPDX-License-Identifier: Apache-2.0
"""Kernels for AMX, run whether or not this processor has it: by an emulator of its instructions.

They run in a process into which ``amx_emulator.c`` is preloaded, with all memory between forbidden
pages.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from helpers import guarded
from helpers.targets import quickly_compiled
from topi_ext import compat

IS_ELSEWHERE = sys.platform != "linux" or platform.machine() != "x86_64"
REASON = "AMX is of x86-64, and asked for by a call of Linux"

FEATURES = "amx-tile", "amx-bf16", "amx-int8"
FOUND = dict(tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")())
HAS_AMX = all(bool(FOUND.get(name)) for name in FEATURES)
"""True if this processor needs no emulator, whatever LLVM calls it."""


def amx_target() -> tvm.target.Target:
    """This machine's, with AMX."""
    host = compat.host_target(2)
    features = [str(one) for one in host.attrs.get("mattr", []) if "amx" not in str(one)]
    options: dict[str, Any] = {"kind": "llvm", "mcpu": str(host.attrs["mcpu"]), "num-cores": 2}
    options |= {"mattr": [*features, *(f"+{name}" for name in FEATURES)]}
    return quickly_compiled(tvm.target.Target(options))


def compiled(where: Path) -> tuple[Path, Path]:
    """The libraries of guard.c and of amx_emulator.c."""
    return guarded.compiled("guard.c", where), guarded.compiled("amx_emulator.c", where)


def products(done: subprocess.CompletedProcess[str]) -> int:
    """Return the number of tile products that the emulator counted."""
    found = re.search(r"AMX emulator: (\d+) products", done.stderr)
    assert found, done.stderr[-2000:]
    return int(found.group(1))


def check(
    libraries: tuple[Path, Path],
    where: Path,
    kernels: dict[str, object],
    operands: dict[str, list[Any]],
    *,
    granted: bool = True,
) -> dict[str, np.ndarray]:
    """Results of kernels, for which the matrix unit was used if it was granted."""
    guard, emulator = libraries
    more = {} if HAS_AMX and granted else {"LD_PRELOAD": str(emulator)}
    more.update({} if granted else {"AMX_EMULATOR_REFUSES": "1"})
    done, results = guarded.run(guard, where, kernels, operands, amx_target(), **more)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    if not (HAS_AMX and granted):
        assert bool(products(done)) == granted
    return results
