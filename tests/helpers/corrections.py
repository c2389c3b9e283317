# SPDX-License-Identifier: Apache-2.0
"""Corrections of importers, for the tests of both adapters: taken out, and seen to be refused."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType

from topi_ext.adapters.import_hooks import ImportHooks


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
