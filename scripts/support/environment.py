# SPDX-License-Identifier: Apache-2.0
"""Environment of a run: threads and malloc, set before anything is imported, and the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

# PyTorch allocates its output in every call. With glibc's defaults a large one is mapped and
# unmapped each time, and page faults double some of its times.
LARGE_MALLOC = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"
_PACKAGES = ("torch", "numpy")


def prepare(threads: int) -> None:
    """Set what TVM, OpenMP and malloc read when a process starts: start it again if need be.

    A ``GLIBC_TUNABLES`` that is already set is left alone.
    """
    wanted = {
        "TVM_NUM_THREADS": str(threads),
        "TVM_BIND_THREADS": "0",  # pinned workers would share their cores with torch's
        "OMP_NUM_THREADS": str(threads),
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", LARGE_MALLOC),
        # Relay would look for schedules that others have tuned, on the network, before each build.
        "TOPHUB_LOCATION": os.environ.get("TOPHUB_LOCATION", "NONE"),
    }
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def is_malloc_set() -> bool:
    """Return whether this process runs with the large thresholds, and another could without."""
    return os.environ.get("GLIBC_TUNABLES") == LARGE_MALLOC


def describe(
    target: Any, features: Collection[str], threads: int, tvm: dict[str, str]
) -> dict[str, Any]:
    """Return the header of a report: when, by which commit, processor, threads, versions, load."""
    wide = ("amx-bf16", "avx512bf16", "avx512f", "avx2", "fma", "neon", "sve")
    return {
        "date": today(),
        "commit": commit(),
        "cpu": processor_name(),
        "isa": [name for name in wide if name in features],
        "mcpu": str(target.attrs.get("mcpu", "")),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load": [round(value, 2) for value in os.getloadavg()],
        "malloc": os.environ.get("GLIBC_TUNABLES", "default"),
        "versions": {
            "python": platform.python_version(),
            **tvm,
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
    }


def host_features(target: Any) -> tuple[frozenset[str], int]:
    """Return the CPU features and threads of an llvm target."""
    from topi_ext.compat import llvm_features

    found = llvm_features(target)
    assert found is not None
    return found


def today() -> str:
    """Return the date."""
    return datetime.now(timezone.utc).date().isoformat()


def commit() -> str:
    """Return that of this checkout, with a + where files differ from it; empty where there is
    none.
    """
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
