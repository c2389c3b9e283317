# SPDX-License-Identifier: Apache-2.0
"""Models of other packages: each row of docs/how-to/real-models.md is still so.

Run by `make test-models` in an environment of its own. Rows that are not among `QUICK` are marked
slow: `make models` goes through all of them.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import tvm

from helpers.documents import DOCS
from support import real_models_page as page
from support.zoo import catalog, stages

PAGE: Path = DOCS / "how-to" / "real-models.md"
ENTRIES = catalog.entries()
# Vectors of this processor take longer to compile, and are tested elsewhere.
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1})
QUICK = {
    "SpeechT5HifiGan, float16": "half precision, which TVM alone refuses",
    "MimiModel, upsample": "depthwise, rank 1",
    "SamModel, mask decoder": "rank 2, in a transformer",
    "Mask R-CNN, mask head, bfloat16": "bfloat16, which TVM alone refuses",
    "UNet": "rank 3, which TVM alone refuses",
    "KUpsample2D": "index_put, which TVM alone refuses",
    "UnivNetModel": "operators that TVM alone refuses, and a result that depends on last digits",
}
"""A row for each kind of model."""


def test_the_page_has_a_row_for_each_model() -> None:
    text = PAGE.read_text()
    assert list(page.read(text)) == list(ENTRIES)
    refused = {name for name, cells in page.read(text).items() if cells["plain"] != "correct"}
    assert set(page.blocked(text)) == refused


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in ENTRIES],
)
def test_a_row_is_as_the_page_says(name: str) -> None:
    row = stages.check(ENTRIES[name], page.WAYS, TARGET)
    assert page.differences(row, PAGE.read_text()) == [], f"{PAGE.name} is to be changed"


def row(name: str, stage: str, reason: str = "") -> SimpleNamespace:
    """A row in which every way came to one stage."""
    outcomes = {way: SimpleNamespace(stage=stage, reason=reason) for way in page.WAYS}
    return SimpleNamespace(name=name, convolutions={"conv1d": 2}, outcomes=outcomes)


def test_a_page_that_says_something_else_is_seen() -> None:
    text = (
        "| a | 2 conv1d | correct | correct |\n"
        "| b | 2 conv1d | not imported | not imported |\n"
        "## What blocks the rest\n"
        "| b | `aten.fft` | it |\n"
    )
    assert page.differences(row("a", "right"), text) == []
    assert page.differences(row("b", "import", "no aten.fft"), text) == []
    assert page.differences(row("c", "right"), text) == ["c: no row"]
    assert len(page.differences(row("a", "values"), text)) == len(page.WAYS)
    assert page.differences(row("b", "import", "no aten.sin"), text) == [
        "b: `aten.fft` does not block it: no aten.sin"
    ]
