# SPDX-License-Identifier: Apache-2.0
"""Corrections of a module that holds an importer: in, and out again, exactly."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from topi_ext.adapters.import_hooks import Importer, ImportHooks

NAME = "an_importer_for_this_test"


def stock(node: Any) -> str:
    return f"stock {node}"


def ours(node: Any) -> str:
    return f"ours {node}"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(NAME)
    made.table = {"Conv": stock}
    monkeypatch.setitem(sys.modules, NAME, made)
    return made


def test_an_entry_that_a_table_lacks_is_added_and_taken_out(module: ModuleType) -> None:
    corrections = {"table[Conv]": ours, "table[ConvTranspose]": ours}
    importer = Importer("a test", {"table[Conv]": ("node",)}, lambda _: corrections)
    hooks = ImportHooks("topi_ext.test_import_hooks", {NAME: importer})
    for _ in range(2):
        hooks.install()
        assert module.table == {"Conv": ours, "ConvTranspose": ours}
        hooks.correct(NAME, module)  # a second time changes nothing
        hooks.remove()
        assert module.table == {"Conv": stock}


def test_an_added_entry_that_another_has_replaced_stays(module: ModuleType) -> None:
    importer = Importer("a test", {"table[Conv]": ("node",)}, lambda _: {"table[New]": ours})
    hooks = ImportHooks("topi_ext.test_import_hooks_kept", {NAME: importer})
    hooks.install()
    module.table["New"] = print
    hooks.remove()
    assert module.table == {"Conv": stock, "New": print}
    assert hooks.give_up() == ["table[New]"]
