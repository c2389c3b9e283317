# SPDX-License-Identifier: Apache-2.0
"""Hooks into ``relay.build``: cached code, cached type questions, an omitted pass, merged scales
and shifts.

All replace functions of TVM that belong to the process.  ``remove`` puts TVM's own back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple

import tvm

from topi_ext.code_cache.llvm_modules import CachedLlvmBuild
from topi_ext.compat import build_of_llvm, build_settings, relay, replace_build_of_llvm

from .affine import merged
from .structural_cache import StructuralCache

R = relay()


def is_of_relay(mod: Any) -> bool:
    """Return whether Relay's compilers made a module of lowered functions, but those of AOT.

    Tuners build modules too, thousands of them.  The main function of AOT calls others by symbol.
    """
    attrs = dict(mod.attrs.items()) if mod.attrs else {}
    if getattr(attrs.get("executor"), "name", "") == "aot":
        return False
    runtime = attrs.get("runtime")
    options = dict(runtime.attrs.items()) if runtime is not None and runtime.attrs else {}
    if runtime is not None and (runtime.name != "cpp" or options.get("system-lib")):
        return False
    names = [variable.name_hint for variable in mod.functions]
    return "external_mods" in attrs or all(name.startswith((_FOLDING, PACK)) for name in names)


_FOLDING = "intrp_"
"""Names of the functions of FoldConstant's interpreter begin so."""

PACK = "relay_ext_pack"
"""Name of a function that packs a weight while a model is compiled."""


class _Place(NamedTuple):
    """A function of TVM that ours takes the place of.

    Attributes
    ----------
    read, write : callable
        Get and set the function.
    same : callable
        Return whether two functions that were read are one.
    ours : callable
        Make our function from TVM's.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]
    same: Callable[[Any, Any], bool]
    ours: Callable[[Any], Any]


def _cached_build(stock: Any) -> Any:
    build = CachedLlvmBuild(stock, is_of_relay)
    return lambda mod, target: build(mod, target)  # TVM takes functions, not objects


def _remembering_build(stock: Any) -> Any:
    """Build each of the small functions of FoldConstant's interpreter once.

    It folds one operator at a time: parameters of a batch norm take six functions, and the next
    batch norm of that width the same.
    """
    built = StructuralCache(_REMEMBERED)

    def build(mod: Any, target: Any, host: Any = None) -> Any:
        settings = build_settings()
        if settings is None or not isinstance(mod, tvm.IRModule):
            return stock(mod, target, host)
        name = f"{settings}, {target}, {host}"
        found = built.get(name, (mod,))
        if found is None:
            found = stock(mod, target, host)
            built.put(name, (mod,), found)
        return found

    return build


def _without_elimination(stock: Any) -> Any:
    """Omit TVM's elimination of common subexpressions, unless the user has enabled it.

    It does not end in minutes on some of our kernels, and compilers behind TVM do the same.  A
    context with instruments stays: another one within it would tell them that theirs has ended.
    """

    def build(*args: Any, **kwargs: Any) -> Any:
        context = tvm.transform.PassContext.current()
        config = dict(context.config.items())
        if _ELIMINATION in config or context.instruments:
            return stock(*args, **kwargs)
        with tvm.transform.PassContext(
            context.opt_level,
            context.required_pass,
            context.disabled_pass,
            config={**config, _ELIMINATION: True},
        ):
            return stock(*args, **kwargs)

    return build


def _of_merged(stock: Any) -> Any:
    """Build modules in which :mod:`.affine` has merged what it can."""
    signature, without = inspect.signature(stock), _without_elimination(stock)

    @wraps(stock)
    def build(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if isinstance(given["mod"], tvm.IRModule):
            params = given.get("params") or given["self"].get_params()
            given["mod"] = merged(given["mod"], params)
        return without(**given)

    return build


def _method(owner: Any, name: str) -> _Place:
    """Return the place of a method of one of TVM's compilers."""
    return _Place(
        lambda: vars(owner)[name],
        lambda function: setattr(owner, name, function),
        lambda one, other: one is other,
        _of_merged,
    )


_ELIMINATION = "tir.disable_cse_tir"
_REMEMBERED = 256
_BUILD = "relay.backend.build"


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two functions of TVM that were looked up are one."""
    return bool(one.handle.value == other.handle.value)


PLACES = {
    "target.build.llvm": _Place(
        build_of_llvm,
        replace_build_of_llvm,
        _is_same,
        _cached_build,
    ),
    _BUILD: _Place(
        lambda: tvm.get_global_func(_BUILD),
        lambda function: tvm.register_func(_BUILD, function, override=True),
        _is_same,
        _remembering_build,
    ),
    # te_compiler calls it for every axis of every shape: a sixth of the time of a build.
    "te_compiler.libinfo": _Place(
        lambda: R.backend.te_compiler.libinfo,
        lambda function: setattr(R.backend.te_compiler, "libinfo", function),
        lambda one, other: one is other,
        cache,
    ),
    "BuildModule.build": _method(R.build_module.BuildModule, "build"),
    "VMCompiler.lower": _method(R.backend.vm.VMCompiler, "lower"),
}
"""By name, what is replaced."""


class BuildTime:
    """The replaced functions, noted in the state of the process.

    Parameters
    ----------
    state : dict
        Where the notes are, by name: TVM's function, and ours as it was read back.
    """

    def __init__(self, state: dict[str, tuple[Any, Any]]) -> None:
        self.noted = state

    def install(self) -> None:
        """Put our functions in place; what is still noted was replaced by others, and stays."""
        for name, place in PLACES.items():
            if name not in self.noted:
                stock = place.read()
                place.write(place.ours(stock))
                self.noted[name] = stock, place.read()

    def remove(self) -> None:
        """Put TVM's functions back where ours are in place."""
        for name, (stock, ours) in list(self.noted.items()):
            place = PLACES[name]
            if place.same(place.read(), ours):
                place.write(stock)
                del self.noted[name]

    def give_up(self) -> list[str]:
        """Forget what others have replaced; return its names."""
        names = list(self.noted)
        self.noted.clear()
        return names
