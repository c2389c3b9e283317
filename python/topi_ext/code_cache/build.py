# SPDX-License-Identifier: Apache-2.0
"""Compile each lowered function of a model once on a machine, and only assemble it later.

TVM's build of lowered functions is replaced by one that acts on modules that were :func:`marked`,
and inside :func:`keeping`; everything else it hands on.  What is not in the cache yet is compiled
by all processors, a function each: TVM gives Python's lock up meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from .. import compat
from ..emit.lowering import PIPELINE, pipeline_of_kernels
from . import disk as disk_cache
from .assembly import Assembled, assembled, can_be_assembled, together

_MARK = "topi_ext.keeps_code"
_keeping: ContextVar[dict[tuple[str, ...], Any] | None] = ContextVar("keeps_code", default=None)
"""Results of builds inside the block, by the names of their functions."""


def marked(module: Any) -> Any:
    """`module`, whose functions may come from the cache and go there."""
    return module if disk_cache.folder() is None else module.with_attr(_MARK, 1)


@contextmanager
def keeping() -> Iterator[None]:
    """Use the cache for builds inside the block, and build equal functions once."""
    before = _keeping.set(None if disk_cache.folder() is None else {})
    try:
        yield
    finally:
        _keeping.reset(before)


_recorded: ContextVar[list[tuple[str, ...]] | None] = ContextVar("built_code", default=None)
"""Names of the functions of each module that was built inside of :func:`recorded`."""


@contextmanager
def recorded() -> Iterator[list[tuple[str, ...]]]:
    """Yield the names in the cache of the functions of each module that the block builds.

    A module of which a function is not in the cache, or whose order of functions is of no concern
    because it only computes constants, is left out.
    """
    record: list[tuple[str, ...]] = []
    before = _recorded.set(record)
    try:
        yield record
    finally:
        _recorded.reset(before)


def together_again(names: Sequence[str]) -> Any:
    """Return one module of the cached functions of these names, or None if one is missing."""
    parts = [(_own(name), _kept(name)) for name in names]
    whole = [(own, part) for own, part in parts if part]
    return together(whole) if len(whole) == len(parts) else None


class _Function(NamedTuple):
    """One function, and the name that its code is kept under."""

    variable: Any
    func: Any
    name: str

    @property
    def own(self) -> str:
        """Return the prefix of the names in its code."""
        return _own(self.name)


class CachedBuild:
    """TVM's build of lowered functions, asking the cache first.

    Parameters
    ----------
    stock : callable
        The build function that is replaced.
    """

    def __init__(self, stock: compat.Build) -> None:
        self.stock = stock

    def __call__(self, mod: Any, target: Any = None, pipeline: Any = "default") -> Any:
        """Return a module of LLVM, as TVM's own."""
        module, built = compat.as_module(mod), _keeping.get()
        pipeline = pipeline_of_kernels(pipeline)
        is_asked = built is not None or _MARK in (module.attrs or ())
        if not (is_asked and _is_plain(module, target, pipeline)):
            return self.stock(mod, target, pipeline)
        target = compat.tvm.target.Target(target)
        functions = _named(module, f"{target}, {target.host}, {pipeline}")
        names = tuple(one.name for one in functions or ())
        if built and names in built:
            return built[names]
        made = functions and self._together(functions, target, pipeline)
        if not made:
            return self.stock(mod, target, pipeline)
        if built is not None:
            built[names] = made
        elif (record := _recorded.get()) is not None:
            record.append(names)
        return made

    def _together(self, functions: list[_Function], target: Any, pipeline: Any) -> Any:
        """One module of all functions; None where one cannot be assembled."""
        settings = compat.same_settings()

        def make(one: _Function) -> Assembled | None:
            with settings():
                alone = compat.tvm.IRModule({one.variable: one.func})
                part = assembled(self.stock(alone, target, pipeline), one.own)
            disk_cache.write(one.name, part.to_bytes() if part else _REFUSED)
            return part

        parts = {one.name: _kept(one.name) for one in functions}
        missing = [one for one in functions if parts[one.name] is None]
        try:
            made = _by_all_processors(make, missing)
            parts.update((one.name, part) for one, part in zip(missing, made))
            whole = [(one.own, part) for one in functions if (part := parts[one.name])]
            return together(whole) if len(whole) == len(functions) else None
        except OSError:  # LLVM's text has no place to be read from
            return None


_REFUSED = b"this function cannot be assembled"
"""Kept in the place of a function's code, so that the next process does not try again."""


def _own(name: str) -> str:
    """Return the prefix of the names in the code that is kept under a name."""
    return f"k{name[:32]}"


def _kept(name: str) -> Assembled | Literal[False] | None:
    """Return the cached code of a function; False if it is rejected, None if there is none."""
    content = disk_cache.read(name)
    if content is None or content == _REFUSED:
        return None if content is None else False
    return Assembled.of_bytes(content, _own(name))


def _by_all_processors(make: Any, functions: list[_Function]) -> list[Assembled | None]:
    """``make`` of each, in threads where there are several."""
    workers = min(len(functions), len(os.sched_getaffinity(0)))
    if workers < 2:
        return [make(one) for one in functions]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(make, functions))


def _named(module: Any, target: str) -> list[_Function] | None:
    """Return the functions of `module` by name; None if the settings of their code are unknown."""
    settings = compat.build_settings()
    if settings is None:
        return None
    found = []
    for variable, func in module.functions.items():
        text = compat.function_text(func)
        if compat.calls_another(text):
            return None
        name = disk_cache.key(settings, target, variable.name_hint, text)
        found.append(_Function(variable, func, name))
    return found


def _is_plain(module: Any, target: Any, pipeline: Any) -> bool:
    """Return whether all is for one processor, by TVM's own passes, and can be kept."""
    if target is None or pipeline not in (None, "default", PIPELINE) or not module.functions:
        return False
    target = compat.tvm.target.Target(target)
    targets = [target, target.host or target]
    targets += [
        func.attrs["target"]
        for _, func in module.functions.items()
        if "target" in (func.attrs or ())
    ]
    return "system_lib_prefix" not in (module.attrs or ()) and all(
        why_nothing_is_kept(one) is None for one in targets
    )


def why_nothing_is_kept(target: Any) -> str | None:
    """Return why code for a target is neither kept nor found, or None where it is."""
    if not compat.writes_functions():
        return compat.ffi_fault() or "its apache-tvm-ffi is not known to write functions"
    if not can_be_assembled(target):
        return "this processor or system is not one whose assembly is known to be read"
    return compat.memory_file_fault()


def install() -> None:
    """Ask the cache whenever TVM builds."""
    if not isinstance(compat.build_of_functions(), CachedBuild):
        compat.replace_build(CachedBuild(compat.build_of_functions()))


def remove() -> None:
    """Put back what :func:`install` replaced, unless somebody has replaced it since."""
    ours = compat.build_of_functions()
    if isinstance(ours, CachedBuild):
        compat.replace_build(ours.stock)
