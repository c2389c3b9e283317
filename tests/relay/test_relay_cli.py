# SPDX-License-Identifier: Apache-2.0
"""``python -m relay_ext``: what it says of good models, wrong kernels and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from relay_ext.cli import main
from relay_ext.cli.door import RelayCompiled

QUICK = ["--repeat", "1", "--budget", "0.1", "--threads", "1"]


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give back what the command line sets for its process."""
    for name in ("TVM_NUM_THREADS", "TVM_BIND_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Decoder(nn.Module):
    """Every kind of trouble in little: groups, output padding of stride's size, dilation, 1-D."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1)
        self.b = nn.BatchNorm2d(6)
        self.c = nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3)
        self.d = nn.ConvTranspose2d(6, 2, 3, stride=2, dilation=3, output_padding=2)
        self.e = nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.leaky_relu(self.b(self.a(x)), 0.2)
        x = torch.sigmoid(self.d(torch.relu(self.c(x))))
        return self.e(x.flatten(2))


def save(path: Path, model: nn.Module, x: torch.Tensor) -> Path:
    torch.manual_seed(0)
    torch.jit.save(torch.jit.trace(model.eval(), x), path)
    return path


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = torch.randn(2, 4, 5, 6)
    return save(tmp_path_factory.mktemp("cli") / "decoder.pt", Decoder(), x)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = nn.ConvTranspose1d(2, 3, 4, stride=2)
    return save(tmp_path_factory.mktemp("cli") / "small.ts", model, torch.randn(2, 2, 5))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([*map(str, arguments), *QUICK])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that refuses these arguments."""
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "") and err.startswith("relay_ext: ")
    (line,) = err.splitlines()
    return line


def test_torchscript_with_gradients(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    arguments = ["--shape", "x=2,4,5,6", "--grad", "--json", out]
    status, shown, _ = run(capsys, script, *arguments)
    assert status == 0 and "relay_ext: all 9 right" in shown
    found = json.loads(out.read_text())
    assert found["ok"] and found["package"] == "relay_ext" and found["framework"] == "torch"
    names = ["conv2d_transpose", "conv2d", "conv2d_transpose", "conv1d_transpose"]
    assert [row["what"] for row in found["operators"]] == names
    assert [row["what"] for row in found["gradients"]] == names
    assert "op2 d3" in found["operators"][2]["configuration"]
    for row in (*found["operators"], found["whole"], *found["gradients"]):
        assert row["ours"]["error"] <= row["tolerance"] <= 1e-4 and row["ours"]["ms"] > 0
    # Stock's own word on what it lacks.
    assert "dilate" in found["operators"][2]["stock"]["note"]


def test_own_input(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 2, 3), "float32"))
    status, out, _ = run(capsys, small, "--input", f"input={tmp_path / 'x.npy'}")
    assert status == 0 and "1x2x3 * 2x3x4" in out


def test_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from onnx import TensorProto, helper, numpy_helper, save_model

    weight = np.random.default_rng(0).standard_normal((3, 4, 4, 3)).astype("float32")
    attributes = {"strides": [2, 3], "output_shape": [11, 13], "group": 1}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 5, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    opset = [helper.make_opsetid("", 13)]
    save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "up.onnx")
    status, out, _ = run(capsys, tmp_path / "up.onnx", "--dim", "n=2")
    assert status == 0 and "relay_ext: all 2 right" in out and "onnxruntime" in out
    assert "choose it with --dim n=SIZE" in refusal(capsys, tmp_path / "up.onnx")


def test_wrong_results_are_status_1(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    get = RelayCompiled.get

    def spoilt(self: RelayCompiled, result: object) -> list[torch.Tensor]:
        tensors = [t.clone() for t in get(self, result)]
        for tensor in tensors:
            tensor.view(-1)[-1] += 0.01
        return tensors

    monkeypatch.setattr(RelayCompiled, "get", spoilt)
    status, out, _ = run(capsys, small, "--shape", "input=1,2,5")
    assert status == 1 and "2 of 2 wrong" in out


def test_refused(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "states no shapes, give --shape x=1,3,64,64 or --input x=FILE.npy" in refusal(
        capsys, script
    )
    assert "input y: the model's inputs are x" in refusal(capsys, script, "--shape", "y=1,2")
    assert "PyTorch stopped" in refusal(capsys, script, "--shape", "x=1,3,5,6")
    assert "--dim is for .onnx" in refusal(capsys, script, "--dim", "n=2")
    assert "no such file" in refusal(capsys, tmp_path / "nothing.pt")
    for name, line in (
        ("model.pt2", "unknown extension '.pt2', expected .pt or .ts or .onnx"),
        ("model.pt", "not a TorchScript file"),
        ("model.onnx", "not an ONNX file"),
    ):
        (tmp_path / name).write_bytes(b"not a model")
        assert line in refusal(capsys, tmp_path / name)
    with pytest.raises(SystemExit, match="2"):
        main(["--shape", "x=1,-3", str(script)])


def test_as_a_module() -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "relay_ext", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)

    shown = call("--help")
    assert shown.returncode == 0
    assert "--shape" in shown.stdout and "exit status:" in shown.stdout
    missing = call("nothing.pt")
    assert missing.returncode == 2 and "Traceback" not in missing.stderr
