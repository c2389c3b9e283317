# SPDX-License-Identifier: Apache-2.0
"""Corrections of importers, for the tests of both adapters: taken out, and seen to be refused."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from topi_ext.adapters.import_hooks import ImportHooks, find


@contextlib.contextmanager
def without(hooks: ImportHooks) -> Iterator[None]:
    """TVM's own importers before our operators: what a correction is seen to correct."""
    hooks.remove()
    try:
        yield
    finally:
        hooks.install()


def is_right(check: Callable[[], None]) -> bool:
    """Return True if a check passes; importers raise whatever they like."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check()
        except Exception:
            return False
    return True


def functions(hooks: ImportHooks, name: str) -> dict[str, Any]:
    """Return the current functions of an importer that the corrections may replace."""
    module = importlib.import_module(name)
    owners = {path: find(module, path) for path in hooks.importers[name].needs}
    return {
        path: (owner if isinstance(owner, dict) else vars(owner))[attribute]
        for path, (owner, attribute) in owners.items()
    }


def assert_given_back(adapter: ModuleType, hooks: ImportHooks, name: str) -> None:
    """This release of an importer is known, and ``stock()`` and ``unregister()`` restore it."""
    module = importlib.import_module(name)
    ours = functions(hooks, name)
    with adapter.stock():
        stock = functions(hooks, name)
        assert hooks.unknown(name, module) == ""
        replaced = set(hooks.importers[name].corrections(module)) & set(stock)
        with adapter.stock():
            assert functions(hooks, name) == stock
    assert replaced and {path for path in ours if ours[path] is not stock[path]} == replaced
    adapter.unregister()
    assert functions(hooks, name) == stock
    adapter.register()
    adapter.register()
    again = functions(hooks, name)
    assert {path for path in again if again[path] is not stock[path]} == replaced


@contextlib.contextmanager
def stock_converter(adapter: ModuleType, converter: type, name: str) -> Iterator[type]:
    """TVM's own converter of ONNX, given back at the end, whatever was made of it."""
    adapter.unregister()
    stock = vars(converter)[name]
    yield converter
    adapter.unregister()
    setattr(converter, name, stock)
    if "_impl_v22" in vars(converter):
        del converter._impl_v22  # type: ignore[attr-defined]  # a test set it
    adapter.register()


def unknown_converters(name: str, parameters: str) -> dict[str, tuple[Callable[[Any], None], str]]:
    """Changes of a converter of ONNX that make it unknown, and what is said of each."""
    return {
        "other parameters": (
            lambda conv: setattr(conv, name, classmethod(lambda cls, node: None)),
            f"has no Conv.{name}({parameters})",
        ),
        "none": (lambda conv: delattr(conv, name), f"has no Conv.{name}({parameters})"),
        "a newer one": (
            lambda conv: setattr(conv, "_impl_v22", classmethod(lambda cls: None)),
            "has a Conv._impl_v22",
        ),
    }


def assert_left_alone(
    adapter: ModuleType, hooks: ImportHooks, importer: str, converter: type, said: str
) -> None:
    """Registering and ``stock()`` leave an unknown importer of ONNX as it is, with one warning."""
    before = dict(vars(converter))
    hooks.refused.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter.register()
        with adapter.stock():
            pass
    (line,) = [str(warning.message) for warning in caught]
    assert line.startswith(f"{adapter.__name__}: {importer} {said}") and "\n" not in line
    assert line.endswith("models of ONNX are imported as TVM alone does it")
    assert dict(vars(converter)) == before
