# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples of its operators by ``torch.compile``, some of them.

``make fuzz`` runs all of them by ``scripts/operator_database.py``, whose functions are used here.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("expecttest", reason="torch.testing._internal imports it")

import operator_database as database
from relax_ext.torch import aten

CASES = list(database.cases())
BY_KEY = {case.key: case for case in CASES}
TRAINED = [
    *(f"nn.functional.conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)),
    *(f"nn.functional.{kind}_pool2d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max")),
    *(f"nn.functional.{kind}_norm" for kind in ("batch", "group", "layer", "instance")),
    *("nn.functional.interpolate.bilinear", "nn.functional.pad.reflect", "logsumexp", "var"),
]


@pytest.mark.parametrize("name", TRAINED)
def test_trained(name: str) -> None:
    """With gradients, in float64."""
    result = database.run(BY_KEY[f"{name} float64 trained"])
    assert result["status"] in ("compiled", "partly"), result


@pytest.mark.parametrize("number", range(12))
def test_drawn(number: int, rng: np.random.Generator) -> None:
    """Any operator, dtype and form; the name of a failing case is in its result."""
    case = random.Random(int(rng.integers(1 << 30)) + number).choice(CASES)
    result = database.run(case)
    assert result["status"] not in database.FAULTS, (case.key, result)


def test_results_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_KEY["sin float32 plain"]
    assert database.run(case)["status"] == "compiled"
    monkeypatch.setitem(aten.CONVERTERS, "sin.default", aten.CONVERTERS["cos.default"])
    assert database.run(case)["status"] == "incorrect"
    monkeypatch.delitem(aten.CONVERTERS, "sin.default")
    result = database.run(case)
    assert (result["status"], list(result["in_pytorch"])) == ("partly", ["aten.sin.default"])
