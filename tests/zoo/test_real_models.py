# SPDX-License-Identifier: Apache-2.0
"""Models of other packages: each row of docs/measured/real_models.json is still so.

Run by `make test-models` in an environment of its own. Rows that are not among `QUICK` are marked
slow: `make models` goes through all of them.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import tvm

from support import models_page as page
from support.zoo import catalog, stages

TEXT = page.PAGE.read_text()
ROWS = json.loads(page.IMPORTED.read_text())
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


def test_every_model_has_a_row_and_every_refusal_a_reason() -> None:
    assert list(ROWS) == list(ENTRIES)
    refused = {name for name, cells in ROWS.items() if cells["plain"] != "right"}
    assert set(page.blocked(TEXT)) == refused


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in ENTRIES],
)
def test_a_row_is_as_measured(name: str) -> None:
    row = stages.check(ENTRIES[name], page.WAYS, TARGET)
    assert page.differences(row, ROWS, TEXT) == [], f"{page.IMPORTED.name} is to be changed"


def row(name: str, stage: str, reason: str = "") -> SimpleNamespace:
    """A row in which every way came to one stage."""
    outcomes = {way: SimpleNamespace(stage=stage, reason=reason) for way in page.WAYS}
    return SimpleNamespace(name=name, convolutions={"conv1d": 2}, outcomes=outcomes)


def test_a_row_that_says_something_else_is_seen() -> None:
    rows = {
        name: {"convolutions": {"conv1d": 2}, **dict.fromkeys(page.WAYS, stage)}
        for name, stage in (("a", "right"), ("b", "import"))
    }
    text = "## What blocks the rest\n| b | `aten.fft` | it |\n"
    assert page.differences(row("a", "right"), rows, text) == []
    assert page.differences(row("b", "import", "no aten.fft"), rows, text) == []
    assert page.differences(row("c", "right"), rows, text) == ["c: no row"]
    assert len(page.differences(row("a", "values"), rows, text)) == len(page.WAYS)
    assert page.differences(row("b", "import", "no aten.sin"), rows, text) == [
        "b: `aten.fft` does not block it: no aten.sin"
    ]
