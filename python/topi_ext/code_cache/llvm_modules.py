# SPDX-License-Identifier: Apache-2.0
"""Optimize each LLVM module of TVM 0.17 once on a machine.

TVM's build of modules of lowered functions is replaced by one that keeps LLVM's text of what the
optimizer has made.  A later build reads that text, and LLVM only chooses instructions.  A module is
kept as a whole, so that what TVM saves, exports or shows of it is the same as without the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import compat
from . import disk as disk_cache
from .fingerprint import fingerprint


class CachedLlvmBuild:
    """TVM's build of modules of LLVM, asking the cache first.

    Parameters
    ----------
    stock : callable
        Build a module otherwise.
    is_asked : callable
        Return whether a module may come from the cache and go there.
    """

    def __init__(self, stock: compat.Build, is_asked: Callable[[Any], bool]) -> None:
        self.stock = stock
        self.is_asked = is_asked

    def __call__(self, mod: Any, target: Any) -> Any:
        """Return a module of LLVM, as TVM's own build does."""
        name = _name(mod, target) if disk_cache.folder() and self.is_asked(mod) else None
        if name is None:
            return self.stock(mod, target)
        found = _read(name, [variable.name_hint for variable in mod.functions])
        if found is None:
            found = self.stock(mod, target)
            disk_cache.write(name, found.get_source("ll").encode())
        return found


def why_nothing_is_kept(target: Any) -> str | None:
    """Return why code for a target is neither kept nor found, or None where it is."""
    if target.kind.name != "llvm":
        return f"target kind {target.kind.name}: code is kept of llvm targets"
    if "cl-opt" in target.attrs:
        return "target option cl-opt changes LLVM itself"
    return compat.memory_file_fault()


def _read(name: str, functions: list[str]) -> Any:
    """Return the module of these functions that is kept under a name; None where LLVM cannot read
    one."""
    content = disk_cache.read(name)
    if content is None:
        return None
    try:
        text = content.decode()
        # LLVM reads an empty text, and the executor calls a function that is not there.
        is_whole = _FLAG in text and all(f"@{function}(" in text for function in functions)
        return compat.module_of_llvm(text) if is_whole else None
    except (OSError, UnicodeDecodeError, compat.tvm.TVMError):
        return None


_FLAG = '!"tvm_target"'
"""Metadata by which TVM knows the target of a text."""


def _name(mod: Any, target: Any) -> str | None:
    """Return the name that the code of a module is kept under; None where it is not kept."""
    settings = compat.build_settings()
    if settings is None or why_nothing_is_kept(target) is not None:
        return None
    functions = sorted((var.name_hint, func) for var, func in mod.functions.items())
    if not functions:
        return None
    texts = (
        text for name, func in functions for text in (name, fingerprint(compat.function_text(func)))
    )
    return disk_cache.key("llvm module", settings, f"{target}, {target.host}", *texts)
