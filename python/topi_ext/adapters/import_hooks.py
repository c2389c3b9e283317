# SPDX-License-Identifier: Apache-2.0
"""Installing corrections into TVM's importers, and removing them exactly.

A module that holds an importer is corrected at once where somebody has imported it, else when
somebody does: TVM's importers may import their frameworks, which cost seconds and may be missing.
One that looks otherwise than the releases that we know is left as it is, with a warning.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..compat import process_state


@dataclass(frozen=True)
class Importer:
    """One module of TVM that holds an importer.

    Its contents are named by paths: ``FUNCTION``, ``CLASS.FUNCTION``, or ``TABLE[KEY]`` for an
    entry of a mapping.

    Attributes
    ----------
    models : str
        The models that it imports.
    needs : mapping of str to tuple of str
        Parameters of the functions that corrections replace or call, by path.
    corrections : callable
        ``corrections(module)``: new functions, by path, which may be that of an entry that a
        mapping lacks.
    """

    models: str
    needs: Mapping[str, tuple[str, ...]]
    corrections: Callable[[ModuleType], Mapping[str, Any]]


@dataclass(eq=False)
class _Put:
    """A correction that is in place."""

    path: str
    owner: Any
    name: str
    before: Any
    after: Any
    is_new: bool
    """True if the mapping had no such entry before."""

    def is_in_place(self) -> bool:
        return _namespace(self.owner).get(self.name) is self.after


class ImportHooks:
    """The corrections of an adapter.

    Installed corrections belong to the process, as TVM's modules do: an adapter that is imported a
    second time takes out what the first one put in.

    Parameters
    ----------
    package : str
        The adapter.
    importers : mapping of str to Importer
        By name of the module.
    """

    def __init__(self, package: str, importers: Mapping[str, Importer]) -> None:
        self.package = package
        self.importers = importers
        self.state: dict[str, Any] = process_state(package).setdefault("importers", {})
        self.put: list[_Put] = self.state.setdefault("put", [])
        self.refused: set[str] = self.state.setdefault("refused", set())

    def install(self) -> None:
        """Correct the importers that are imported, and from here on those that will be."""
        for name in self.importers:
            if name in sys.modules:
                self.correct(name, sys.modules[name])
        self.state["finder"] = _Finder(self)
        sys.meta_path.insert(0, self.state["finder"])

    def remove(self) -> None:
        """Give the importers their own functions back; what somebody has set since stays noted."""
        finder = self.state.pop("finder", None)
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for put in [p for p in self.put if p.is_in_place()]:
            if put.is_new:
                del put.owner[put.name]
            else:
                _set(put.owner, put.name, put.before)
            self.put.remove(put)

    def forget_reloaded(self, module: ModuleType) -> None:
        """Forget what loading `module` a second time has replaced in it."""
        self.put[:] = [p for p in self.put if p.owner is not module or p.is_in_place()]

    def give_up(self) -> list[str]:
        """Forget what is not ours any more; its names."""
        names = [put.path for put in self.put]
        self.put.clear()
        return names

    def correct(self, name: str, module: ModuleType) -> None:
        """Correct one importer, or warn, once, that it is not as we know it."""
        importer = self.importers[name]
        if unknown := self.unknown(name, module):
            if name not in self.refused:
                self.refused.add(name)
                warnings.warn(
                    f"{self.package}: {name} has {unknown}: models of {importer.models} are "
                    "imported as TVM alone does it",
                    stacklevel=2,
                )
            return
        for path, after in importer.corrections(module).items():
            owner, attribute = _place(module, path)
            if not any(put.owner is owner and put.name == attribute for put in self.put):
                space = _namespace(owner)
                before, is_new = space.get(attribute), attribute not in space
                self.put.append(_Put(path, owner, attribute, before, after, is_new))
                _set(owner, attribute, after)

    def unknown(self, name: str, module: ModuleType) -> str:
        """Return which part of the module is unknown to this package, ``""`` if none is."""
        needs = self.importers[name].needs
        for path, parameters in needs.items():
            owner, attribute = find(module, path)
            function = None if owner is None else _namespace(owner)[attribute]
            function = getattr(function, "__func__", function)  # of a class or static method
            if (
                not callable(function)
                or tuple(inspect.signature(function).parameters) != parameters
            ):
                return f"no {path}({', '.join(parameters)})"
            # ONNX: one converter per version of the standard, and TVM takes the newest it has.
            for other in _namespace(owner):
                path = f"{getattr(owner, '__name__', '')}.{other}"
                if str(other).startswith("_impl_v") and path not in needs:
                    return f"a {path}"
        return ""


def find(module: ModuleType, path: str) -> tuple[Any, str]:
    """Return the owner of a path and the name in it: the module, a mapping, or the class that
    defines the function (the named class or a base). Return None if there is none.
    """
    table, is_entry, key = path.partition("[")
    if is_entry:
        name = key.rstrip("]")
        entries = getattr(module, table, {})
        return (entries if name in entries else None), name
    class_name, is_method, attribute = path.partition(".")
    if not is_method:
        return (module if path in vars(module) else None), path
    for owner in getattr(getattr(module, class_name, None), "__mro__", ()):
        if attribute in vars(owner):
            return owner, attribute
    return None, attribute


def _place(module: ModuleType, path: str) -> tuple[Any, str]:
    """Return where a correction goes: the result of :func:`find`, or the mapping without the
    entry.
    """
    owner, name = find(module, path)
    table, is_entry, _ = path.partition("[")
    return (getattr(module, table) if owner is None and is_entry else owner), name


def _namespace(owner: Any) -> Mapping[str, Any]:
    return owner if isinstance(owner, Mapping) else vars(owner)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, Mapping):
        owner[name] = value  # type: ignore[index]
    else:
        setattr(owner, name, value)


class _Finder(MetaPathFinder):
    """Finds what others find, and has an importer corrected once it is loaded."""

    def __init__(self, hooks: ImportHooks) -> None:
        self.hooks = hooks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.hooks.importers:
            return None
        for finder in [f for f in sys.meta_path if not isinstance(f, _Finder)]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Corrected(spec.loader, self.hooks)
                return spec
        return None


class _Corrected(Loader):
    """The loader of an importer."""

    def __init__(self, loader: Loader, hooks: ImportHooks) -> None:
        self.loader = loader
        self.hooks = hooks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Later users of the module, such as inspect, find its own loader.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.hooks.forget_reloaded(module)
        self.hooks.correct(module.__name__, module)
