# SPDX-License-Identifier: Apache-2.0
"""The list of functions of TVM and PyTorch that this project replaces, or uses though they are
private; and the private names in its source."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import foreign_functions

RENEW = "read what has changed, then renew the list by scripts/foreign_functions.py"
PYTHON = Path(__file__).parents[2] / "python"
_OF_TUPLES = {"_asdict", "_fields", "_replace"}


def listed() -> foreign_functions.Entries:
    """Return the entries as they are written."""
    entries: foreign_functions.Entries = json.loads(foreign_functions.LIST.read_text())
    return entries


def assert_this_release_is_known(adapter: str) -> None:
    """Assert that the entries name what they named when the list was written."""
    with import_module(adapter).stock():
        found = foreign_functions.differences(foreign_functions.read(adapter))
    assert not found, "\n".join([RENEW, *found])


def assert_importers_are_listed(adapter: str) -> None:
    """Assert that the list has what an adapter's corrections replace and call, and nothing else."""
    place = f"{adapter}/importers"
    names = {name for name, entry in listed().items() if place in entry["used"]}
    with import_module(adapter).stock():
        assert names == foreign_functions.of_importers(adapter).keys(), RENEW


def private_names() -> dict[str, set[str]]:
    """Return names that begin with an underscore and are not the project's own, by file.

    They are those of attributes, and ``MODULE:NAME`` of imports.  Operators of PyTorch do not
    count: their names are part of its files.
    """
    trees = {
        str(path.relative_to(PYTHON)): ast.parse(path.read_text())
        for path in PYTHON.rglob("*.py")
        if path.relative_to(PYTHON).parts[0] != "cuda_emulator"
    }
    own = _OF_TUPLES.union(*map(_defined, trees.values()))
    found = {place: {*_imported(tree), *(set(_read(tree)) - own)} for place, tree in trees.items()}
    return {place: names for place, names in sorted(found.items()) if names}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            yield node.attr


def _read(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Attribute) and not ast.unparse(node.value).endswith("aten"):
            name = node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            name = getattr(node.args[1], "value", None)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).startswith("vars("):
            name = getattr(node.slice, "value", None)
        if isinstance(name, str) and _is_private(name):
            yield name


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in (alias.name for alias in node.names):
                if any(map(_is_private, (*node.module.split("."), name))):
                    yield f"{node.module}:{name}"
