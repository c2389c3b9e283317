# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext``: each column is what TVM's public importer gives that side."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from conv_cli import tflite_model
from conv_cli.adapter import Compiled
from conv_cli.measure import Protocol, side
from helpers.command_line import one_conv_transpose, refused, report, save, stored_tflite
from relax_ext.cli import main
from relax_ext.cli.adapter import RelaxAdapter

pytest.importorskip("rich")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("threads_given_back"),
]


@pytest.mark.parametrize(
    ("model", "x", "note"),
    [
        (
            nn.ConvTranspose3d(2, 3, 2, 2),
            torch.randn(1, 2, 3, 3, 2),
            "not imported: ValueError: Unsupported transposed convolution",
        ),
        (
            nn.Conv2d(2, 3, 3).half(),
            torch.randn(1, 2, 6, 6).half(),
            "not imported: TypeError: Binary operators must have the same datatype",
        ),
        (
            nn.Conv2d(2, 3, 3, bias=False).half(),
            torch.randn(1, 2, 6, 6).half(),
            "wrong dtype float32, not float16",
        ),
    ],
    ids=["three axes", "float16", "float16 as float32"],
)
def test_pt2_that_stock_imports_otherwise(
    model: nn.Module, x: torch.Tensor, note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(main, save(tmp_path / "net.pt2", model, x))
    whole = found["whole"]
    assert found["status"] == 0 and whole["ours"]["error"] <= whole["tolerance"]
    assert whole["stock"]["note"].startswith(note) and whole["stock"]["error"] is None
    shown = " ".join(capsys.readouterr().out.split())
    assert "stock: " + " ".join(note.split()[:4]) in shown


def test_gradients_of_what_stock_does_not_import(tmp_path: Path) -> None:
    path = save(tmp_path / "net.pt2", nn.Conv1d(2, 3, 3).half(), torch.randn(1, 2, 8).half())
    of_operator, of_model = report(main, path, "--grad")["gradients"]
    assert of_model["stock"]["note"].startswith("not imported: TypeError: Binary operators")
    assert not of_model["wrong"] and not of_operator["wrong"]


def test_onnx_output_shape_that_stock_ignores(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    attrs = {"strides": [2, 2], "output_shape": [11, 10]}
    path = one_conv_transpose(tmp_path / "up.onnx", ["n", 3, 5, 4], **attrs)
    found = report(main, path, "--shape", "x=2,3,5,4")
    assert found["status"] == 0 and found["notes"] == [
        note for note in found["notes"] if "busy" in note
    ]
    assert found["whole"]["stock"]["note"] == "wrong shape (2, 4, 12, 9), not (2, 4, 11, 10)"


class Constant(Compiled):
    """A compiled function with the same result each time."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        self.result = result

    def put(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return tensors

    def run(self, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        return self.result

    def get(self, result: list[torch.Tensor]) -> list[torch.Tensor]:
        return result


@pytest.mark.parametrize(
    ("got", "wanted", "note"),
    [
        ("float32", "float16", "wrong dtype float32, not float16"),
        ("float32", "int8", "wrong dtype float32, not int8"),
        ("int32", "int64", ""),
        ("float64", "float64", ""),
    ],
)
def test_dtypes_of_results(got: str, wanted: str, note: str) -> None:
    found = side(
        lambda *_: Constant([torch.ones(2, dtype=getattr(torch, got))]),
        nullcontext(),
        lambda: None,
        [],
        [torch.ones(2).double()],
        Protocol(None, repeat=1),
        dtypes=[getattr(torch, wanted)],
    )
    assert found.note == note and found.error == (None if note else 0.0)


def test_shapes_by_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = one_conv_transpose(tmp_path / "up.onnx", ["n", 3, "h", "h"])
    for options, line in (
        (["x=2,3,5"], "--shape x: shape (2, 3, 5) does not fit the model's (n, 3, h, h)"),
        (["x=2,3,5,4"], "input x: size 'h' is 4 here, 5 elsewhere"),
        (["y=2,3,5,4"], "--shape y: the model's inputs are x"),
    ):
        assert refused(main, capsys, onnx, "--shape", *options) == line
    assert "size 'n' is 2 here, 3 elsewhere" in refused(
        main, capsys, onnx, "--shape", "x=2,3,5,5", "--dim", "n=3"
    )
    free = {"input": {0: torch.export.Dim("n")}}
    program = torch.export.export(nn.Conv1d(2, 3, 3), (torch.randn(2, 2, 5),), dynamic_shapes=free)
    torch.export.save(program, tmp_path / "net.pt2")
    found = report(main, tmp_path / "net.pt2", "--shape", "input=4,2,5")
    assert found["status"] == 0 and found["operators"][0]["configuration"].startswith("4x2x5 ")


litert = pytest.mark.skipif(
    not any(map(tflite_model.is_installed, tflite_model.LITERT)),
    reason="LiteRT tells what is right",
)


@litert
@pytest.mark.parametrize(
    ("kind", "options", "note"),
    [
        ("TRANSPOSE_CONV SAME bias fused activation T37", [], "CodeGenVM cannot emit"),
        ("CONV_3D_TRANSPOSE SAME other output_shape T150", [], "CodeGenVM cannot emit"),
        ("Keras Conv2DTranspose unknown batch T99", ["--shape", "v=3,5,5,2"], "not imported: "),
        ("TRANSPOSE_CONV float16 T92", [], ""),
    ],
)
def test_tflite(kind: str, options: list[str], note: str, tmp_path: Path) -> None:
    pytest.importorskip("tflite")
    found = report(main, stored_tflite(kind, tmp_path), *options)
    assert found["status"] == 0 and found["framework"] == "LiteRT"
    assert note in found["whole"]["stock"]["note"]
    batch = options[1].partition("=")[2][:1] if options else ""
    assert found["operators"][0]["configuration"].startswith(batch)


@litert
def test_int8_is_right_up_to_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of rounding more or less is right, two are not."""
    from relax_ext.cli.adapter import RelaxCompiled

    pytest.importorskip("tflite")
    path = stored_tflite("TRANSPOSE_CONV int8 T85", tmp_path)
    get = RelaxCompiled.get
    for steps, wrong in ((1, False), (2, True)):
        monkeypatch.setattr(
            RelaxCompiled,
            "get",
            lambda self, result, steps=steps: [
                t + (steps * (t < 100)).to(t.dtype) if t.dtype == torch.int8 else t
                for t in get(self, result)
            ],
        )
        assert report(main, path)["whole"]["wrong"] == wrong


def test_tflite_without_litert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tflite")
    monkeypatch.setattr(tflite_model, "LITERT", {})
    path = stored_tflite("Keras Conv2DTranspose unknown batch T99", tmp_path)
    found = report(main, path)
    needs = "comparing the whole model needs LiteRT: pip install ai-edge-litert"
    assert found["status"] == 0 and found["whole"] is None and len(found["operators"]) == 1
    assert f"operators alone are compared: {needs}" in found["notes"]
    assert any("free sizes, taken as 1,5,5,2" in note for note in found["notes"])
    assert any(note.startswith("stock: not imported: TypeError") for note in found["notes"])
    monkeypatch.setattr(RelaxAdapter, "find", lambda *_: Counter())
    assert refused(main, capsys, path).endswith(f"nothing to compare: no convolutions, and {needs}")


def test_refused_tflite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tflite")
    whole = stored_tflite("CONV_2D T113", tmp_path)
    (tmp_path / "cut.tflite").write_bytes(whole.read_bytes()[:600])
    (tmp_path / "empty.tflite").touch()
    (tmp_path / "text.tflite").write_text("no model")
    one_conv_transpose(tmp_path / "onnx.tflite", [1, 3, 5, 4])
    for name, line in (
        ("cut", "it is cut short or damaged"),
        ("empty", "it is empty"),
        ("text", "it is no model of a kind known here"),
        ("onnx", "it is an ONNX file"),
    ):
        path = tmp_path / f"{name}.tflite"
        assert refused(main, capsys, path) == f"{path}: not a TFLite file: {line}"
    assert refused(main, capsys, whole, "--shape", "v=2,10,11,2") == (
        "--shape v: shape (2, 10, 11, 2) does not fit the model's (2, 10, 11, 1)"
    )
    np.save(tmp_path / "x.npy", np.zeros((2, 10, 11, 1), "int64"))
    assert "dtype int64, the model wants torch.float32" in refused(
        main, capsys, whole, "--input", f"v={tmp_path / 'x.npy'}"
    )
    assert refused(main, capsys, whole, "--dim", "n=2").startswith("--dim is for .onnx models")
