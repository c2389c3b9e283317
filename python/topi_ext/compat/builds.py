# SPDX-License-Identifier: Apache-2.0
"""Hooks into the step where TVM compiles lowered functions, and the settings that influence it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .versions import release, tir, tvm

Build = Callable[..., Any]

_GLOBAL = "tirx.build"


def build_of_functions() -> Build:
    """Return the function that builds the functions of a module, ``(module, target, pipeline)``."""
    return tvm.tirx.build


def replace_build(build: Build) -> None:
    """Make `build` what Relax builds functions with, and what its FoldConstant does."""
    tvm.tirx.build = build
    tvm.register_global_func(_GLOBAL, build, override=True)


def has_own_pipeline() -> bool:
    """Return whether TVM has its default pipeline of lowering, which TVM 0.17 has none of."""
    if not hasattr(tvm, "tirx"):
        return False
    registered = tvm.tirx.compilation_pipeline.PIPELINE_MAP.get("s_tir")
    return registered is tvm.s_tir.pipeline.default_s_tir_pipeline


_LLVM = "target.build.llvm"
"""The global function ``(module, target)`` that TVM's C++ looks up at each build of a module."""


def build_of_llvm() -> Build:
    """Return what turns a module of lowered functions into a module of LLVM, in TVM 0.17."""
    return tvm.get_global_func(_LLVM)


def replace_build_of_llvm(build: Build) -> None:
    """Make `build` what TVM 0.17 turns modules of lowered functions into modules of LLVM with."""
    tvm.register_func(_LLVM, build, override=True)


def as_module(functions: Any) -> Any:
    """Return the argument of TVM's build, a function or a module, as a module."""
    if isinstance(functions, tvm.IRModule):
        return functions
    return tvm.IRModule.from_expr(functions)


def ffi_fault() -> str | None:
    """Return what crashes with the apache-tvm-ffi that is loaded, and what to do; None if nothing.

    Newer ones than those that were tried are given the benefit of the doubt.
    """
    version = _ffi_version()
    if version is None or _numbers(version) != _CRASHES:
        return None
    return (
        f"apache-tvm-ffi {version} crashes in TVM's Schedule.tensorize and save_json: "
        "pip install 'apache-tvm-ffi<0.1.15'"
    )


def writes_functions() -> bool:
    """Return whether TVM can write a function as text."""
    version = _ffi_version()
    return version is not None and _numbers(version) < _CRASHES


_CRASHES = (0, 1, 15)


def _ffi_version() -> str | None:
    """Return the version of the apache-tvm-ffi that TVM has loaded; None for a TVM without it."""
    return getattr(sys.modules.get("tvm_ffi"), "__version__", None)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else (sys.maxsize,)


def function_text(func: Any) -> str:
    """Return all that a function is, exactly."""
    return tvm.ir.save_json(func)


def calls_another(text: str) -> bool:
    """Return whether the function of a text needs another of its module."""
    return '"ir.GlobalVar"' in text


def module_of_llvm(text: str) -> Any:
    """Return a module of a text in LLVM's language.

    TVM reads it from a file only.  This one is in memory, so that no disk can be full.

    Raises
    ------
    OSError
        There can be no such file.
    """
    with _file_in_memory() as (file, path):
        file.write(text.encode())
        file.flush()
        return _loader()(path, "ll")


def empty_llvm() -> str:
    """Return the text of a module of LLVM for this machine, with nothing but what each begins with:
    data layout, triple, TVM's target."""
    create = tvm.get_global_func("codegen.LLVMModuleCreate")
    return create('{"kind": "llvm"}', "empty").inspect_source("ll")


def _loader() -> Callable[[str, str], Any]:
    found = tvm.get_global_func("ffi.Module.load_from_file.ll", allow_missing=True)
    return found or tvm.get_global_func("runtime.module.loadfile_ll")  # TVM 0.17


def bytecode(executable: Any) -> bytes:
    """Return an executable of Relax without its compiled functions.

    Raises
    ------
    OSError
        There is no place for a file.
    """
    with _file_in_memory() as (file, path):
        executable.mod.write_to_file(path, "ro")
        return file.read()


def executable_of(content: bytes, library: Any) -> Any:
    """Return the executable of a :func:`bytecode` and a module of its functions.

    Raises
    ------
    OSError
        There is no place for a file.
    """
    with _file_in_memory() as (file, path):
        file.write(content)
        file.flush()
        module = tvm.get_global_func("relax.ExecutableLoadFromFile")(path)
    module.import_module(library)
    return tvm.relax.VMExecutable(module)


def object_code(module: Any) -> bytes:
    """Return the object file of a module of LLVM, which ends the process where a disk is full.

    Raises
    ------
    OSError
        There is no place for a file.
    """
    try:
        with _file_in_memory() as (file, path):
            module.write_to_file(path, "o")
            return file.read()
    except OSError:  # not Linux
        with TemporaryDirectory() as folder:
            whole = Path(folder, "kernel.o")
            module.write_to_file(str(whole), "o")
            return whole.read_bytes()


def memory_file_fault() -> str | None:
    """Return why Python cannot make files that are on no disk; None where it can."""
    return None if hasattr(os, "memfd_create") else "this Python has no os.memfd_create"


@contextmanager
def _file_in_memory() -> Iterator[tuple[Any, str]]:
    """Yield a file of Linux that is on no disk, and a path by which TVM opens it.

    Raises
    ------
    OSError
        There can be no such file.
    """
    if reason := memory_file_fault():
        raise OSError(reason)
    with open(os.memfd_create("tvm-conv-ext"), "w+b") as file:
        path = f"/proc/self/fd/{file.fileno()}"
        os.stat(path)
        yield file, path


def build_settings() -> str | None:
    """Return the settings beside function and target that influence the code; None if unknown."""
    context = tvm.transform.PassContext.current()
    config = {str(key): _plain(value) for key, value in context.config.items()}
    if context.instruments or not all(isinstance(v, (bool, int, str)) for v in config.values()):
        return None
    passes = [sorted(map(str, names)) for names in (context.required_pass, context.disabled_pass)]
    return f"{_compiler()}, {context.opt_level}, {passes}, {sorted(config.items())}"


def _plain(value: Any) -> Any:
    """Return an option of a build; numbers of TVM 0.17 as those of Python."""
    return int(value) if isinstance(value, tir.IntImm) else value


def same_settings() -> Callable[[], AbstractContextManager[Any]]:
    """Makes what another thread enters to build as this one does."""
    context = tvm.transform.PassContext.current()
    return lambda: context


@cache
def _compiler() -> str:
    """TVM and its LLVM, also where somebody has built them anew without another version."""
    folder = os.path.dirname(tvm.__file__)
    names = {getattr(library, "_name", "") for library in _libraries()}
    about = [(name, os.stat(name)) for name in sorted(names) if os.path.isabs(name)]
    built = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in about]
    llvm = tvm.target.codegen.llvm_version_major()
    return f"{release()}, {folder}, {built}, LLVM {llvm}"


def _libraries() -> list[Any]:
    if not hasattr(tvm, "base"):  # TVM 0.17
        return [tvm._ffi.base._LIB]
    loaded = getattr(tvm.base, "_LOADED_LIBS", {})
    return list(loaded.values())
