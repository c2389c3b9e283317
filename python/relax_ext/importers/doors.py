# SPDX-License-Identifier: Apache-2.0
"""Putting corrections into TVM's importers, and taking them out again, exactly.

A module that holds an importer is corrected at once where somebody has imported it, else when
somebody does: TVM's importers import their frameworks, which cost seconds and may be missing.
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

from topi_ext.compat import process_state

from . import onnx, tflite, torch

Put = dict[tuple[type, str], tuple[Any, Any]]
"""What an attribute of a class was and what it became, by class and name."""


@dataclass(frozen=True)
class Door:
    """One module of TVM that holds an importer.

    Attributes
    ----------
    models : str
        What comes through it.
    needs : mapping
        Parameters of the functions that corrections replace or call, by ``CLASS.FUNCTION``.
    corrections : callable
        ``corrections(module)``: new attributes of its classes, by ``CLASS.FUNCTION``.
    """

    models: str
    needs: Mapping[str, tuple[str, ...]]
    corrections: Callable[[ModuleType], Mapping[str, Any]]


_FRONTEND = "tvm.relax.frontend"
DOORS = {
    f"{_FRONTEND}.onnx.onnx_frontend": Door("ONNX", onnx.NEEDS, onnx.corrections),
    f"{_FRONTEND}.torch.exported_program_translator": Door(
        "torch.export", torch.EXPORT_NEEDS, torch.export_corrections
    ),
    f"{_FRONTEND}.torch.fx_translator": Door("torch.fx", torch.FX_NEEDS, torch.fx_corrections),
    f"{_FRONTEND}.tflite.tflite_frontend": Door("TFLite", tflite.NEEDS, tflite.corrections),
}


def correct() -> None:
    """Correct the importers that are imported, and from here on those that will be."""
    state = _state()
    for name in DOORS:
        if name in sys.modules:
            _open(name, sys.modules[name])
    state["watcher"] = _Watcher()
    sys.meta_path.insert(0, state["watcher"])


def restore() -> None:
    """Give the importers their own functions back; what somebody has set since stays noted."""
    state = _state()
    watcher = state.pop("watcher", None)
    if watcher in sys.meta_path:
        sys.meta_path.remove(watcher)
    put: Put = state["put"]
    for (owner, name), (before, after) in list(put.items()):
        if vars(owner).get(name) is after:
            setattr(owner, name, before)
            del put[owner, name]


def give_up() -> list[str]:
    """Forget what is not ours any more; its names."""
    put: Put = _state()["put"]
    names = [f"{owner.__name__}.{name}" for owner, name in put]
    put.clear()
    return names


def _state() -> dict[str, Any]:
    # Of the process, as the classes are: a second import of this package takes the first one's out.
    state = process_state("relax_ext").setdefault("importers", {})
    state.setdefault("put", {})
    state.setdefault("refused", set())
    return state


def _open(name: str, module: ModuleType) -> None:
    door, state = DOORS[name], _state()
    if unknown := _unknown(module, door.needs):
        if name not in state["refused"]:
            state["refused"].add(name)
            warnings.warn(
                f"relax_ext: {name} has {unknown}: models of {door.models} are imported as TVM "
                "alone does it",
                stacklevel=2,
            )
        return
    for path, value in door.corrections(module).items():
        owner, attribute = _find(module, path)
        if (owner, attribute) not in state["put"]:
            state["put"][owner, attribute] = vars(owner)[attribute], value
            setattr(owner, attribute, value)


def _find(module: ModuleType, path: str) -> tuple[Any, str]:
    """The class that defines ``CLASS.FUNCTION``: itself or a base."""
    class_name, attribute = path.split(".")
    for owner in getattr(getattr(module, class_name, None), "__mro__", ()):
        if attribute in vars(owner):
            return owner, attribute
    return None, attribute


def _unknown(module: ModuleType, needs: Mapping[str, tuple[str, ...]]) -> str:
    """What of the module is not as we know it, ``""`` where nothing is."""
    for path, parameters in needs.items():
        owner, attribute = _find(module, path)
        function = owner and vars(owner)[attribute]
        function = getattr(function, "__func__", function)  # of a classmethod or staticmethod
        if not callable(function) or tuple(inspect.signature(function).parameters) != parameters:
            return f"no {path}({', '.join(parameters)})"
        # ONNX: one converter per version of the standard, and TVM takes the newest that it has.
        for other in vars(owner):
            path = f"{owner.__name__}.{other}"
            if other.startswith("_impl_v") and path not in needs:
                return f"a {path}"
    return ""


class _Watcher(MetaPathFinder):
    """Finds what others find, and corrects an importer once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in DOORS:
            return None
        for finder in [f for f in sys.meta_path if not isinstance(f, _Watcher)]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Corrected(spec.loader)
                return spec
        return None


class _Corrected(Loader):
    """The loader of an importer."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Whoever asks the module afterwards, such as inspect, finds its own loader.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _open(module.__name__, module)
