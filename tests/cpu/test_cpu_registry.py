# SPDX-License-Identifier: Apache-2.0
"""A kernel is one row: its planner, its file, its line in the documents and its tests are there."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from topi_ext.cpu import kernels
from topi_ext.cpu.plan.base import Plan
from topi_ext.cpu.registry import KERNELS
from topi_ext.kernel.registry import Kernel
from topi_ext.spec.conv import OPERANDS

ROOT = Path(__file__).parents[2]
ROWS = pytest.mark.parametrize("row", KERNELS, ids=lambda row: row.name)


@ROWS
def test_a_row_has_its_files(row: Kernel) -> None:
    planner = import_module(f"topi_ext.cpu.plan.{row.name}")
    kernel = import_module(f"topi_ext.cpu.kernels.{row.name}")
    assert row.plan.__module__ == planner.__name__ and issubclass(row.plan, Plan)
    needed = {"kernel_of" if row.is_bounded else "emit_body"}
    needed |= {"packed_weights", "pack_weights"} if row.prepacks else set()
    assert needed <= vars(kernel).keys()
    assert row.candidates or row.name == "runtime_dispatch"


@ROWS
def test_a_row_is_in_the_documents_and_tests(row: Kernel) -> None:
    design = (ROOT / "docs/developer/design.md").read_text()
    assert re.search(rf"\b{row.name}\b", design), "no row in docs/developer/design.md"
    tests = [path.read_text() for path in (ROOT / "tests/cpu").glob("test_*.py")]
    assert any(re.search(rf"\b{row.plan.__name__}\(", text) for text in tests), (
        "no plan of it built"
    )


def test_every_file_has_a_row() -> None:
    folder = Path(kernels.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == {k.name for k in KERNELS}


def test_rows_are_found_by_face_and_plan() -> None:
    for face in OPERANDS:
        assert KERNELS.of_kind(face)[0].candidates
    kinds = {kind for kernel in KERNELS for kind in kernel.kinds}
    assert {kernel.name for kernel in KERNELS} == {
        kernel.name for kind in kinds for kernel in KERNELS.of_kind(kind)
    }
    assert all(KERNELS.of_plan(object.__new__(kernel.plan)) is kernel for kernel in KERNELS)
