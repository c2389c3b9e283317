# SPDX-License-Identifier: Apache-2.0
"""Parallel regions of TVM's modules on the OpenMP threads of PyTorch.

OpenMP threads spin for some milliseconds after each region of PyTorch, and would occupy the
processors that TVM's own threads need.  So one team of threads runs both: the launch of
``openmp.ll`` replaces ``TVMBackendParallelLaunch`` in all modules that are loaded after
:func:`install`.  It acts only in a thread that is inside :func:`team`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import tvm
import tvm_ffi

from topi_ext.compat import empty_llvm, module_of_llvm
from topi_ext.notices import one_line, warn_once

from .setup import BACKEND

_PARALLEL = "GOMP_parallel"
_FFI = (
    "TVMFFIEnvModRegisterContextSymbol",
    "TVMFFIErrorMoveFromRaised",
    "TVMFFIErrorSetRaised",
    "TVMFFIErrorSetRaisedFromCStr",
    "TVMFFIObjectDecRef",
)
_installing = threading.Lock()
_of_thread = threading.local()
_configure = tvm.get_global_func("runtime.config_threadpool")


def install() -> None:
    """Install the launch in TVM, once in a process, when the package is imported.

    TVM's table of launches has no lock, so no other thread should load a module meanwhile.
    Compiled graphs run on TVM's threads, with a warning, if PyTorch uses no OpenMP runtime with
    ``GOMP_parallel`` (GNU's, LLVM's and Intel's on Linux have it), or if the system has no files in
    memory.
    """
    with _installing:
        _set_team()


class team:  # noqa: N801 - a class, for it takes a third of the time of a generator
    """Run the block on `threads` threads, as many as PyTorch has if None."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        self._before = getattr(_of_thread, "team", 0)
        self._set = _set_team() or _use_pool
        _of_thread.team = self._threads or torch.get_num_threads()
        self._set(_of_thread.team)

    def __exit__(self, *_: object) -> None:
        _of_thread.team = self._before
        self._set(self._before)


@cache
def _set_team() -> Callable[[int], None] | None:
    """Load and install the launch; return the setter of a thread's team, None without OpenMP."""
    try:
        openmp, ffi = _runtime_of_pytorch(), ctypes.CDLL(tvm_ffi.core.__file__)
        functions = [(name, getattr(ffi, name)) for name in _FFI]
        functions.append((_PARALLEL, getattr(openmp, _PARALLEL)))
        constants = (
            f"@{name} = private constant ptr inttoptr (i64 {_address(function)} to ptr)"
            for name, function in functions
        )
        body = Path(__file__).with_suffix(".ll").read_text()
        text = "\n".join([empty_llvm(), *constants, body])
        module = module_of_llvm(text)
        launch = module["install"]()
        if module_of_llvm(text)["launch_of_modules"]() != launch:
            raise RuntimeError("TVM does not give the launch to its modules")
    except Exception as error:  # TVM's threads need nothing of this
        reason = one_line(error, 200)
        warn_once(f"{BACKEND}: graphs run on TVM's threads beside PyTorch's: {reason}")
        return None
    return module["team"]


def _runtime_of_pytorch() -> ctypes.CDLL:
    """Return libraries in which the first OpenMP runtime is the one that PyTorch uses.

    PyTorch's calls are bound to the first one in the process, which may have been loaded before
    its own, as by ``LD_PRELOAD``.

    Raises
    ------
    OSError
        There is none.
    """
    for path in (None, torch._C.__file__):
        libraries = ctypes.CDLL(path)  # symbols of its dependencies are found too
        if hasattr(libraries, _PARALLEL) and _is_of_pytorch(libraries):
            return libraries
    raise OSError(f"PyTorch uses no OpenMP runtime with {_PARALLEL}")


def _is_of_pytorch(openmp: ctypes.CDLL) -> bool:
    """Return whether PyTorch sees a number of threads that is set in an OpenMP runtime."""
    count, own = torch.get_num_threads(), openmp.omp_get_max_threads()
    other = count - 1 if count > 1 else 2
    try:
        openmp.omp_set_num_threads(other)
        return torch.get_num_threads() == other
    finally:
        openmp.omp_set_num_threads(own)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _use_pool(count: int) -> None:
    """Let TVM's pool run on `count` threads in this thread, at most on ``TVM_NUM_THREADS``; 0
    leaves it."""
    if count and getattr(_of_thread, "count", None) != count:
        _configure(1, count)
        _of_thread.count = count
