# SPDX-License-Identifier: Apache-2.0
"""``python -m relay_ext``: each column is what TVM's public importer gives that side."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from conv_cli import tflite_model
from helpers.command_line import one_conv_transpose, refused, report, stored_tflite
from relay_ext.cli import main

pytestmark = pytest.mark.usefixtures("threads_given_back")


def test_torchscript_that_stock_does_not_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = nn.Conv1d(2, 3, 4, padding="same").eval()
    torch.jit.save(torch.jit.script(model), tmp_path / "net.pt")
    found = report(main, tmp_path / "net.pt", "--shape", "input=1,2,8")
    assert found["status"] == 0 and not found["whole"]["wrong"]
    assert found["whole"]["stock"]["note"].startswith("not imported: ")
    assert "stock: not imported: " in " ".join(capsys.readouterr().out.split())


def test_onnx_output_shape_that_stock_ignores(tmp_path: Path) -> None:
    """Beside ONNX 1.19 and newer, stock does not import at all."""
    attrs = {"strides": [2, 3], "output_shape": [11, 13]}
    path = one_conv_transpose(tmp_path / "up.onnx", ["n", 3, 5, 4], **attrs)
    found = report(main, path, "--shape", "x=2,3,5,4")
    assert found["status"] == 0 and found["whole"]["stock"]["error"] is None
    note = found["whole"]["stock"]["note"]
    assert note.startswith(("wrong shape (2, 4, 12, 12)", "not imported: ImportError"))


litert = pytest.mark.skipif(
    not any(map(tflite_model.is_installed, tflite_model.LITERT)),
    reason="LiteRT tells what is right",
)


@litert
@pytest.mark.parametrize(
    ("kind", "options", "note"),
    [
        ("CONV_2D T113", [], ""),
        ("TRANSPOSE_CONV VALID other output_shape T72", [], "wrong shape (2, 12, 22, 1)"),
        ("Keras Conv2DTranspose unknown batch T99", ["--shape", "v=3,5,5,2"], "not imported: "),
    ],
)
def test_tflite(kind: str, options: list[str], note: str, tmp_path: Path) -> None:
    found = report(main, stored_tflite(kind, tmp_path), *options)
    assert found["status"] == 0 and found["framework"] == "LiteRT"
    assert found["whole"]["stock"]["note"].startswith(note)


@litert
def test_int8_tflite(tmp_path: Path) -> None:
    """The convolution of whole numbers is compared alone too, and exactly."""
    found = report(main, stored_tflite("TRANSPOSE_CONV int8 T85", tmp_path))
    (row,) = found["operators"]
    assert found["status"] == 0 and row["configuration"].endswith("int16/int16/int32")
    assert row["tolerance"] == row["ours"]["error"] == 0.0
    assert 0 < found["whole"]["tolerance"] < 0.1


def test_tflite_without_litert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tflite_model, "LITERT", {})
    found = report(main, stored_tflite("CONV_2D T113", tmp_path))
    assert found["status"] == 0 and found["whole"] is None and len(found["operators"]) == 1


def test_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    contents = {
        "a.pb": b"\x0a\x02\x0a\x00",
        "b.pb": b"\x0a\x02\x0a\x00\x0a\x20\x0a\x00",
        "c.pb": b"\x08\x01\x12\x00",
        "d.pb": b"hello, this is a text",
        "e.keras": b"hello, this is a text",
        "f.keras": b"\x89HDF\r\n\x1a\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    lines = [
        "reading .pb needs tensorflow: pip install tensorflow-cpu==2.15.1",
        "not a frozen TensorFlow graph: it is a frozen TensorFlow graph that is cut short",
        "not a frozen TensorFlow graph: it is a SavedModel: freeze its graph",
        "not a frozen TensorFlow graph: it is no model of a kind known here",
        "not a Keras file: it is no model of a kind known here",
        "not a Keras file: it is an HDF5 file: save the model as .keras",
    ]
    said = [refused(main, capsys, tmp_path / name) for name in contents]
    assert [line.removeprefix(f"{tmp_path}/{n}: ") for n, line in zip(contents, said)] == lines
    assert refused(main, capsys, tmp_path / "a.pb", "--dim", "n=1").startswith("--dim is for .onnx")
    path = stored_tflite("CONV_2D T113", tmp_path)
    assert refused(main, capsys, path, "--output", "y").startswith("--output is for .pb graphs")
