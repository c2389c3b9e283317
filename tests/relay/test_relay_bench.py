# SPDX-License-Identifier: Apache-2.0
"""The benchmark with ``--ir relay``: all kinds of operators on small cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from support import by_relay, by_torch, session
from support.arguments import parse
from support.cases import KINDS, Case

pytestmark = pytest.mark.usefixtures("threads_given_back")
CASES = [
    {"name": "up1d", "x": [2, 4, 5], "cout": 6, "kernel": [3], "stride": [2], "groups": 2},
    {"name": "down2d", "op": "conv", "x": [1, 3, 7, 6], "cout": 2, "kernel": 3, "stride": [2, 1]},
]


def run(tmp_path: Path, *more: str) -> tuple[int, dict]:
    cases, out = tmp_path / "cases.json", tmp_path / "rows.json"
    cases.write_text(json.dumps(CASES))
    asked = ["--ir", "relay", "--cases", str(cases), "--json", str(out), "--threads", "1"]
    status = session.run(parse([*asked, "--time-budget", "0.001", *more]))
    return status, json.loads(out.read_text())


def test_all_kinds(tmp_path: Path) -> None:
    status, found = run(tmp_path, "--kind", "all")
    assert status == 0
    assert found["header"]["ir"] == "Relay" and "tvm" in found["header"]["versions"]
    rows = {(row["name"], row["kind"]): row for row in found["rows"]}
    assert set(rows) == {(case["name"], kind) for case in CASES for kind in KINDS}
    for (name, kind), row in rows.items():
        assert row["max_rel_error"] <= row["tolerance"] < 1e-5
        assert row["ours_ms"] > 0 and row["torch_ms"] > 0
        lacks = name == "up1d" and kind == "conv_weight_grad"
        assert (row["stock_ms"] is None) == lacks or row["stock_error"] is None
    assert rows["up1d", "conv_weight_grad"]["notes"] == ["stock has no gradient of conv1d"]


def test_an_incorrect_result_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_reference = by_torch.reference

    def spoilt(case: Case, kind: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        first = tensors["y"].clone()
        first.view(-1)[0] = 0
        return true_reference(case, kind, {**tensors, "y": first})

    monkeypatch.setattr(by_torch, "reference", spoilt)
    monkeypatch.setattr(by_relay, "build_stock", by_relay.build_ours)
    status, found = run(tmp_path, "--only", "up1d")
    assert status == 1 and found["rows"][0]["incorrect"]
