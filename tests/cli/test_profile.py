# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext MODEL --profile``: which operators take the time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from conv_cli.adapter import Ran
from conv_cli.profiling import MEMORY, Entry, Profile, entries_of
from helpers.command_line import save
from relax_ext.cli import main

pytest.importorskip("rich")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = nn.Sequential(
        nn.ConvTranspose2d(2, 3, 4, stride=2), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.MaxPool2d(3)
    )
    return save(tmp_path_factory.mktemp("profile") / "model.pt2", layers, torch.randn(1, 2, 7, 7))


def test_calls_are_put_together() -> None:
    """Equal operators on equal shapes; of several runs the median."""
    shapes = ((1, 2), (1, 4))
    run = [
        Ran("conv2d_relu", shapes, 3_000_000),
        Ran("conv2d_relu12", shapes, 3_000_000),
        Ran("conv2d_relu3", ((9,), (9,)), 1_000_000),
        Ran("fused_max_pool2d1", shapes, 2_000_000),
        Ran("vm.builtin.alloc_storage", ((8,),), 500_000),
        Ran("vm.builtin.reshape", (), 500_000),
    ]
    slow = [Ran(call.symbol, call.shapes, 9 * call.ns) for call in run]
    found = entries_of(
        [run, slow, run], dict.fromkeys(("conv2d_relu", "conv2d_relu12", "conv2d_relu3"), "gemm")
    )
    assert found == [
        Entry("conv2d_relu", shapes, 2, 6.0, 0.6, True, "gemm"),
        Entry("max_pool2d", shapes, 1, 2.0, 0.2, False),
        Entry("conv2d_relu", ((9,), (9,)), 1, 1.0, 0.1, True, "gemm"),
        Entry(MEMORY, (), 2, 1.0, 0.1, False),
    ]
    profile = Profile("p", "m", "torch", "llvm", 1, found, 10.0)
    assert profile.weakest == ("max_pool2d", 0.2)
    assert profile.ours == pytest.approx(0.7)
    strong = Profile("p", "m", "torch", "llvm", 1, found[:1], 6.0)
    assert strong.weakest is None


def test_kernels_are_told_from_the_rest(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.json"
    options = ["--repeat", "2", "--budget", "0.1", "--threads", "1", "--json", str(out)]
    assert main([str(model), "--profile", *options]) == 0
    found = json.loads(out.read_text())
    by_name = {one["operator"]: one for one in found["entries"]}
    ours = {name: one["shapes"] for name, one in by_name.items() if one["is_ours"]}
    ends = {name: (shapes[0], shapes[-1]) for name, shapes in ours.items()}
    assert ends == {
        "conv2d_transpose_add_relu": ([1, 2, 7, 7], [1, 3, 16, 16]),
        "conv2d_add": ([1, 3, 16, 16], [1, 3, 14, 14]),
    }
    assert by_name["max_pool2d"]["count"] == 1
    assert sum(one["share"] for one in found["entries"]) == pytest.approx(1)
    assert found["ms"] == pytest.approx(sum(one["ms"] for one in found["entries"]))
    assert found["reference_ms"] > 0
    printed = capsys.readouterr().out
    kernel = by_name["conv2d_transpose_add_relu"]["kernel"]
    assert kernel and kernel in printed and "1x2x7x7 → 1x3x16x16" in printed
    assert by_name["max_pool2d"]["kernel"] == ""
    assert "of it in kernels of relax_ext; PyTorch" in printed
    assert f"weakest link: {found['weakest'][0]}, " in printed


@pytest.mark.parametrize(
    "more",
    [["--grad"], ["--rpc", "localhost:9190", "--key", "board", "--target", "llvm"]],
    ids=["grad", "rpc"],
)
def test_what_does_not_go_together(
    model: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(model), "--profile", *more]) == 2
    assert capsys.readouterr().err == f"relax_ext: --profile: not with {more[0]}\n"
