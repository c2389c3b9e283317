# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext tune MODEL --database PLANS.json``, and ``MODEL --database PLANS.json``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers import plans
from helpers.command_line import save
from relax_ext.cli import main
from topi_ext.kernel.database import plain, read

pytest.importorskip("rich")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU())
    return save(tmp_path_factory.mktemp("tune") / "model.pt2", layers, torch.randn(1, 3, 7, 7))


def test_tuned_then_checked(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "plans.json"
    options = [str(model), "--database", str(database), "--threads", "1"]
    assert main(["tune", *options]) == 0
    out = capsys.readouterr().out
    assert "tune: 1 of 1" in out
    assert "relax_ext: 1 measured" in out
    assert f"plans are in {database}" in out
    ((entry,),) = (found.values() for found in read(database).values())
    before = dict(os.environ)
    with plans.built() as built:
        assert main([*options, "--repeat", "1", "--budget", "0.01"]) == 0
    assert entry["plan"] in map(plain, built)
    assert "all 3 correct" in capsys.readouterr().out
    assert dict(os.environ) == before
    assert main(["tune", *options]) == 0
    assert "nothing to measure" in capsys.readouterr().out


def test_a_model_without_convolutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, database = tmp_path / "model.pt2", tmp_path / "plans.json"
    torch.export.save(torch.export.export(nn.ReLU(), (torch.randn(1, 3, 7, 7),)), path)
    assert main(["tune", str(path), "--database", str(database), "--threads", "1"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"relax_ext: nothing to measure; {database} is not written"
    assert not database.exists()


def test_what_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    absent = tmp_path / "absent.json"
    for arguments, why in (
        (["tune", str(model)], "tune: say by --database PLANS.json which file takes the plans"),
        (["tune", str(model), "--database", str(absent), "--profile"], "--profile: not with tune"),
        (["tune", str(model), "--database", str(tmp_path / "no/p.json")], "--database"),
        (["tune", str(model), "--database", str(broken)], "no database of plans: not JSON"),
        ([str(model), "--database", str(absent)], "no such file"),
        ([str(model), "--database", str(tmp_path)], f"--database {tmp_path}: a folder"),
        (["tune", str(model), "--database", str(tmp_path)], "cannot be written: Is a directory"),
        ([str(model), "--database", str(broken)], "no database of plans: not JSON"),
    ):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert why in line
