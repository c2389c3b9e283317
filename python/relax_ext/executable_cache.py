# SPDX-License-Identifier: Apache-2.0
"""Compilation of modules without weights, from which later processes load the whole executable.

The cache of compiled functions (:mod:`topi_ext.code_cache`) saves LLVM's share of a compilation.
This module saves the rest: passes over the module, plans, and the emission of kernels.  An entry
has the bytecode of TVM's virtual machine and the names of the functions in that cache.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import tvm

import topi_ext
from topi_ext import compat
from topi_ext.code_cache import disk
from topi_ext.code_cache.build import recorded, together_again, why_nothing_is_kept
from topi_ext.kernel.database import AnyPath, current
from topi_ext.kernel.info import VARIABLE as VERBOSE
from topi_ext.kernel.selection import VARIABLE as KERNELS

from .pipeline import pipeline, with_packed_parameters
from .registry import registered


def compiled(
    module: Any, target: Any, database: AnyPath | None = None, *, packs_parameters: bool = False
) -> Any:
    """Compile a module by :func:`relax_ext.pipeline`, or load what an earlier process compiled.

    Parameters
    ----------
    module : tvm.IRModule
        Its text should be small: weights are arguments.
    target : tvm.target.Target
    database : str or path, optional
        As for :func:`relax_ext.pipeline`.
    packs_parameters : bool
        Whether the function is split by :func:`.pipeline.with_packed_parameters` first.

    Returns
    -------
    tvm.relax.VMExecutable
    """
    name = _name(module, target, database, packs_parameters)
    found = _found(name)
    if found is not None:
        return found
    if packs_parameters:
        module = with_packed_parameters(module, target, database)
    with recorded() as built:
        executable = tvm.compile(module, target, relax_pipeline=pipeline(target, database))
    if name is not None and len(built) == 1:
        head = json.dumps(built[0]).encode()
        disk.write(name, head + b"\n" + compat.bytecode(executable))
    if name is not None:
        _in_use[name] = executable
    return executable


def kept(
    module: Any, target: Any, database: AnyPath | None = None, *, packs_parameters: bool = False
) -> Any:
    """Return what :func:`compiled` has compiled for equal arguments, or None.

    It is in use in this process, or was kept by an earlier one.
    """
    return _found(_name(module, target, database, packs_parameters))


_in_use: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Executables of this process by the names of their entries."""


def _found(name: str | None) -> Any:
    if name is None:
        return None
    executable = _in_use.get(name)
    if executable is None:
        executable = _loaded(disk.read(name))
        if executable is not None:
            _in_use[name] = executable
    return executable


def _loaded(content: bytes | None) -> Any:
    """Return the executable of an entry, or None if there is none or a function is missing."""
    if content is None:
        return None
    names, _, bytecode = content.partition(b"\n")
    try:
        library = together_again(json.loads(names))
        return None if library is None else compat.executable_of(bytecode, library)
    except OSError:  # there is no place for the file that TVM reads
        return None


def _name(module: Any, target: Any, database: AnyPath | None, packs_parameters: bool) -> str | None:
    """Return the name of the entry, or None if not all that the executable follows from is known.

    Plans of a database and a user who asks which kernels are used are such cases.
    """
    settings, features = compat.build_settings(), compat.llvm_features(target)
    is_known = (
        database is None
        and current() is None
        and not os.environ.get(VERBOSE)
        and all(registered().values())
        and why_nothing_is_kept(target) is None
    )
    if settings is None or features is None or not is_known:
        return None
    options = (os.environ.get(KERNELS, ""), packs_parameters)
    about = f"{target}, {target.host}, {sorted(features[0])}, {features[1]}, {options}"
    return disk.key(settings, _source(), about, compat.function_text(module))


def _source() -> str:
    """Return a text that differs between versions of both packages."""
    folders = (Path(__file__).parent, Path(topi_ext.__file__).parent)
    return "".join(disk.source(folder).hex() for folder in folders)
