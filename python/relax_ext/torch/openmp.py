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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """Install the launch in TVM, once in a process.

    Nothing changes if PyTorch has no OpenMP runtime with ``GOMP_parallel`` (GNU's, LLVM's and
    Intel's on Linux have it), or, with a warning, if the system has no files in memory: compiled
    graphs then run on TVM's threads.
    """
    with _installing:
        _set_team()


@contextmanager
def team(threads: int | None) -> Iterator[None]:
    """Run the block on `threads` threads, as many as PyTorch has if None."""
    count = threads or torch.get_num_threads()
    set_team = _set_team()
    if set_team is None:
        _use_pool(count)
        yield
        return
    set_team(count)
    try:
        yield
    finally:
        set_team(0)


@cache
def _set_team() -> Callable[[int], None] | None:
    """Load and install the launch; return the setter of a thread's team, None without OpenMP."""
    openmp = ctypes.CDLL(torch._C.__file__)  # symbols of its dependencies are found too
    if not hasattr(openmp, _PARALLEL):
        return None
    ffi = ctypes.CDLL(tvm_ffi.core.__file__)
    functions = [(name, getattr(ffi, name)) for name in _FFI]
    functions.append((_PARALLEL, getattr(openmp, _PARALLEL)))
    constants = (
        f"@{name} = private constant ptr inttoptr (i64 {_address(function)} to ptr)"
        for name, function in functions
    )
    body = Path(__file__).with_suffix(".ll").read_text()
    try:
        module = module_of_llvm("\n".join([empty_llvm(), *constants, body]))
    except (AttributeError, OSError) as error:  # the system has no files in memory
        warn_once(f"{BACKEND}: graphs run on TVM's threads beside PyTorch's: {one_line(error)}")
        return None
    module["install"]()
    return module["team"]


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _use_pool(count: int) -> None:
    """Let TVM's pool run on `count` threads in this thread, at most on ``TVM_NUM_THREADS``."""
    if getattr(_of_thread, "count", None) != count:
        _configure(1, count)
        _of_thread.count = count
