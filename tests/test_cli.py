# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext``: what it says of good models, wrong kernels and bad input."""

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

from relax_ext.cli import main

pytest.importorskip("rich")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

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
    """Every kind of trouble in little: groups, output padding of stride's size, dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1)
        self.b = nn.BatchNorm2d(6)
        self.c = nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3)
        self.d = nn.ConvTranspose2d(6, 2, 3, stride=2, dilation=3, output_padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.leaky_relu(self.b(self.a(x)), 0.2)
        return torch.sigmoid(self.d(torch.relu(self.c(x))))


def save(path: Path, model: nn.Module, *inputs: torch.Tensor, **options: object) -> Path:
    torch.manual_seed(0)
    torch.export.save(torch.export.export(model.eval(), inputs, **options), path)
    return path


@pytest.fixture(scope="module")
def pt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("cli") / "decoder.pt2", Decoder(), torch.randn(2, 4, 5, 6))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = nn.ConvTranspose1d(2, 3, 4, stride=2)
    return save(tmp_path_factory.mktemp("cli") / "small.pt2", model, torch.randn(2, 2, 5))


def onnx_file(path: Path, sizes: list[int | str], **attrs: object) -> Path:
    """One ConvTranspose 3 -> 4, kernel 4 x 3."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((3, 4, 4, 3)).astype("float32")
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([*map(str, arguments), *QUICK])
    out, err = capsys.readouterr()
    return status, out, err


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The line that a refused command prints."""
    status, out, err = run(capsys, *arguments)
    lines = [line for line in err.splitlines() if line.strip()]
    assert (status, out) == (2, "")
    assert len(lines) == 1 and lines[0].startswith("relax_ext: ")
    return lines[0]


@pytest.mark.slow
def test_pt2_with_gradients(pt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    status, out, _ = run(capsys, pt2, "--grad", "--json", file)
    report = json.loads(file.read_text())
    assert status == 0 and report["ok"] and "all 9 right" in out
    names = [row["what"] for row in report["operators"]]
    assert sorted(names) == ["conv2d", "conv2d_transpose", "conv2d_transpose"]
    assert all(0 <= row["ours"]["error"] < row["tolerance"] for row in report["operators"])
    wholes = [report["whole"], report["pipeline"]]
    assert all(row["ours"]["ms"] > 0 for row in [*report["operators"], *wholes])
    assert report["pipeline"]["ours"]["error"] <= report["pipeline"]["tolerance"]
    assert len(report["gradients"]) == 4
    # Stock infers no type for output padding that stride does not bound: said, not fatal.
    assert report["whole"]["stock"]["note"]
    assert "fails" in out


def test_3d_and_free_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.ConvTranspose3d(2, 4, 3, 2, output_padding=1, groups=2), nn.ReLU())
    x = torch.randn(2, 2, 3, 4, 3)
    shapes = ({0: torch.export.Dim("n")},)
    path = save(tmp_path / "volume.pt2", model, x, dynamic_shapes=shapes)
    given = tmp_path / "x.npy"
    np.save(given, np.random.default_rng(0).standard_normal((5, 2, 3, 4, 3)).astype("float32"))
    status, out, _ = run(capsys, path, "--input", f"input={given}")
    assert status == 0 and "5x2x3x4x3 * 2x2x3x3x3 s2 op1 g2" in out


def test_gradients_at_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Relu of zeros, no batch, layer norm: TVM differentiates these otherwise or not at all."""
    model = nn.Sequential(nn.Conv1d(2, 3, 3, bias=False), nn.ReLU(), nn.LayerNorm(6))
    path = save(tmp_path / "norm.pt2", model, torch.randn(2, 8))
    given = tmp_path / "x.npy"
    x = np.random.default_rng(0).standard_normal((2, 8)).astype("float32")
    x[:, :5] = 0
    np.save(given, x)
    status, out, _ = run(capsys, path, "--grad", "--input", f"input={given}")
    assert status == 0 and "all 5 right" in out


@pytest.mark.parametrize(
    "attrs",
    [
        dict(strides=[2, 1], pads=[1, 0, 1, 1]),
        dict(strides=[2, 2], output_shape=[11, 9]),
        dict(strides=[2, 2], output_shape=[11, 10], auto_pad="SAME_UPPER"),
        dict(strides=[2, 3], output_shape=[13, 14], auto_pad="SAME_LOWER"),
    ],
    ids=["asymmetric", "output_shape", "upper", "larger"],
)
def test_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str], attrs: dict) -> None:
    pytest.importorskip("onnxruntime")
    path = onnx_file(tmp_path / "up.onnx", ["n", 3, 5, 4], **attrs)
    status, out, _ = run(capsys, path, "--dim", "n=2")
    assert status == 0 and "all 3 right" in out
    assert ("output_shape" in attrs) == ("ignores output_shape" in out)


def test_wrong_results_are_status_1(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from relax_ext.cli.door import RelaxCompiled

    get = RelaxCompiled.get

    def spoilt(self: RelaxCompiled, result: object) -> list[torch.Tensor]:
        tensors = [t.clone() for t in get(self, result)]
        for tensor in tensors:
            tensor.view(-1)[-1] += 0.01
        return tensors

    monkeypatch.setattr(RelaxCompiled, "get", spoilt)
    status, out, _ = run(capsys, small)
    assert status == 1 and "3 of 3 wrong" in out


def test_a_kernel_that_does_not_compile_is_status_1(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tvm

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(tvm, "compile", refuse)
    status, out, _ = run(capsys, small)
    assert status == 1 and "no such kernel" in out


def test_tolerance(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, small, "--tolerance", "0")
    assert status == 1 and "above 0e+00" in out


def test_refused_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing.pt2: no such file" in refusal(capsys, tmp_path / "nothing.pt2")
    for name, line in (
        ("model.h5", "unknown extension '.h5', expected .pt2 or .onnx"),
        ("model.pt2", "not a torch.export file"),
        ("model.onnx", "not an ONNX file"),
    ):
        (tmp_path / name).write_bytes(b"not a model")
        assert line in refusal(capsys, tmp_path / name)


def test_refused_inputs(pt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, whole, text = tmp_path / "short.npy", tmp_path / "int.npy", tmp_path / "text.npy"
    np.save(short, np.zeros((1, 4, 5, 6), "float32"))
    np.save(whole, np.zeros((2, 4, 5, 6), "int64"))
    text.write_text("1 2 3")
    for option, line in (
        (f"x={short}", "input x: shape (1, 4, 5, 6) does not fit the model's (2, 4, 5, 6)"),
        (f"x={whole}", "input x: dtype int64, the model wants torch.float32"),
        (f"y={short}", "input y: the model's inputs are x"),
        (f"x={text}", "not a .npy array"),
        ("x=nowhere.npy", "no such file"),
    ):
        assert line in refusal(capsys, pt2, "--input", option)


def test_refused_options(pt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = onnx_file(tmp_path / "up.onnx", ["n", 3, 5, 4])
    assert "choose it with --dim n=SIZE" in refusal(capsys, onnx)
    assert "free sizes are: n" in refusal(capsys, onnx, "--dim", "m=2")
    assert "has no autograd to compare with" in refusal(capsys, onnx, "--dim", "n=2", "--grad")
    assert "--dim is for .onnx" in refusal(capsys, pt2, "--dim", "n=2")
    assert "--target {bad" in refusal(capsys, pt2, "--target", "{bad")
    assert "--target nonsense" in refusal(capsys, pt2, "--target", "nonsense")
    with pytest.raises(SystemExit, match="2"):
        main(["--input", "nameless", str(pt2)])


def test_operator_without_gradient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Conv1d(2, 2, 3), nn.GELU())
    path = save(tmp_path / "gelu.pt2", model, torch.randn(1, 2, 8))
    assert "--grad: TVM has no gradient of relax.nn.gelu" in refusal(capsys, path, "--grad")


def test_gradients_of_bfloat16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = nn.Conv1d(2, 2, 3).bfloat16(), torch.randn(1, 2, 8, dtype=torch.bfloat16)
    path = save(tmp_path / "narrow.pt2", model, x)
    assert "--grad: TVM's Gradient does not take bfloat16" in refusal(capsys, path, "--grad")


def test_missing_package(
    pt2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert "printing the table needs rich: pip install rich" in refusal(capsys, pt2)


def test_as_a_module(pt2: Path) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "relax_ext", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)

    shown = call("--help")
    assert shown.returncode == 0
    assert "examples:" in shown.stdout and "exit status:" in shown.stdout
    missing = call("nothing.pt2")
    assert missing.returncode == 2
    assert "Traceback" not in missing.stderr
