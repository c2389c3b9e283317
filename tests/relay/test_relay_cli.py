# SPDX-License-Identifier: Apache-2.0
"""``python -m relay_ext``: what it says of good models, wrong kernels and bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from helpers import command_line
from helpers.command_line import Decoder, one_conv_transpose
from relay_ext.cli import main
from relay_ext.cli.adapter import RelayCompiled

pytestmark = pytest.mark.usefixtures("threads_given_back")
run, refusal = partial(command_line.run, main), partial(command_line.refused, main)


class WithLine(Decoder):
    """A decoder whose last layer has one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.e = nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.e(super().forward(x).flatten(2))


def save(path: Path, model: nn.Module, x: torch.Tensor) -> Path:
    torch.manual_seed(0)
    torch.jit.save(torch.jit.trace(model.eval(), x), path)
    return path


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = torch.randn(2, 4, 5, 6)
    return save(tmp_path_factory.mktemp("cli") / "decoder.pt", WithLine(), x)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = nn.ConvTranspose1d(2, 3, 4, stride=2)
    return save(tmp_path_factory.mktemp("cli") / "small.ts", model, torch.randn(2, 2, 5))


def test_torchscript_with_gradients(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    arguments = ["--shape", "x=2,4,5,6", "--grad", "--json", out]
    status, shown, _ = run(capsys, script, *arguments)
    assert status == 0 and "relay_ext: all 9 correct" in shown
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
    attributes = {"strides": [2, 3], "output_shape": [11, 13], "group": 1}
    one_conv_transpose(tmp_path / "up.onnx", ["n", 3, 5, 4], **attributes)
    status, out, _ = run(capsys, tmp_path / "up.onnx", "--dim", "n=2")
    assert status == 0 and "relay_ext: all 2 correct" in out and "onnxruntime" in out
    assert "choose it with --dim n=SIZE" in refusal(capsys, tmp_path / "up.onnx")


def test_wrong_results_are_status_1(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with command_line.spoilt(RelayCompiled):
        status, out, _ = run(capsys, small, "--shape", "input=1,2,5")
    assert status == 1 and "2 of 2 incorrect" in out


def test_refused(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "states no shapes, give --shape x=1,3,64,64 or --input x=FILE.npy" in refusal(
        capsys, script
    )
    assert "--shape y: the model's inputs are x" in refusal(capsys, script, "--shape", "y=1,2")
    assert "PyTorch stopped" in refusal(capsys, script, "--shape", "x=1,3,5,6")
    assert "--dim is for .onnx" in refusal(capsys, script, "--dim", "n=2")
    assert "no such file" in refusal(capsys, tmp_path / "nothing.pt")
    for name, line in (
        ("model.pt2", "unknown extension '.pt2', expected .pt, .ts, .onnx, .tflite, .pb or .keras"),
        ("model.pt", "not a TorchScript file: it is no model of a kind known here"),
        ("model.onnx", "not an ONNX file: it is no model of a kind known here"),
    ):
        (tmp_path / name).write_bytes(b"not a model")
        assert line in refusal(capsys, tmp_path / name)
    torch.save({}, tmp_path / "weights.pt")
    line = "weights.pt: not a TorchScript file: it is what torch.save writes, without a program"
    assert line in refusal(capsys, tmp_path / "weights.pt")
    np.save(tmp_path / "x.npy", np.zeros((2, 4, 5, 6), "float32"))
    shape, array = ["--shape", "x=2,4,5,6"], ["--input", f"x={tmp_path / 'x.npy'}"]
    assert "--shape x: --input x has a shape" in refusal(capsys, script, *shape, *array)
    assert "--shape x: given twice" in refusal(capsys, script, *shape, *shape)
    line = "argument --shape: 'x=1,-3': sizes must be positive 64-bit integers, as in 1,3,8,8"
    assert line in refusal(capsys, script, "--shape", "x=1,-3")
    line = "input x: 3200 GB for shape (1, 4, 1, 99999999999), this machine has "
    assert line in refusal(capsys, script, "--shape", "x=1,4,1,99999999999")
    assert "--json nowhere/r.json: cannot be written" in refusal(
        capsys, script, *shape, "--json", "nowhere/r.json"
    )


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ({"mtriple": "foo-bar-baz"}, "mtriple=foo-bar-baz is not of this machine, "),
        ({"mcpu": "nonsense"}, "mcpu=nonsense is no processor that LLVM knows"),
        ({"num-cores": 0}, "num-cores=0 must be positive"),
    ],
)
def test_targets_that_llvm_dies_of(
    target: dict, line: str, small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = json.dumps({"kind": "llvm", **target})
    options = ["--shape", "input=1,2,5", "--target", spec]
    assert f"--target {spec}: {line}" in refusal(capfd, small, *options)


def test_kernels_of_a_model_are_not_told(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said before the model is loaded."""

    def load(*_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("conv_cli.kernels.load", load)
    assert main(["doctor", str(script)]) == 2
    told = "relay_ext: doctor MODEL: relay_ext does not tell which kernels it has chosen\n"
    assert capsys.readouterr().err == told


def test_arrays_of_every_kind(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(np.ones((1, 2, 3), ">f8")))
    status, _, _ = run(capsys, small, "--input", f"input={tmp_path / 'x.npy'}")
    assert status == 0
    np.save(tmp_path / "x.npy", np.ones((1, 2, 3), ">i4"))
    line = refusal(capsys, small, "--input", f"input={tmp_path / 'x.npy'}")
    assert line.startswith("small.ts: PyTorch stopped: ")


@pytest.mark.parametrize(
    ("module", "program"), [("conv_cli", "tvm-conv"), ("relay_ext", "python -m relay_ext")]
)
def test_in_a_process(module: str, program: str) -> None:
    """The console script, which chooses Relay here, and the adapter as a module."""
    # Importing TVM 0.17 gives warnings, which `-W error` would make errors.
    options = ["-W", "error"] if module == "conv_cli" else []

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *options, "-m", module, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)

    shown = call("--help")
    assert shown.returncode == 0
    assert "--shape" in shown.stdout and f"\n  {program} net.onnx --grad   " in shown.stdout
    missing = call("nothing.pt")
    assert (missing.returncode, missing.stderr) == (2, "relay_ext: nothing.pt: no such file\n")
    examined = call("doctor")
    assert examined.returncode == 0 and "nn.conv2d: ours" in examined.stdout


def test_interrupted() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "conv_cli", "doctor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell has what runs in its background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.5)  # TVM is being imported
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "relay_ext: interrupted\n")
    assert process.returncode == 130
