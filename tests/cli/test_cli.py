# SPDX-License-Identifier: Apache-2.0
"""The command line in Relax: what it says of good models, wrong kernels and bad input."""

from __future__ import annotations

import io
import json
import logging
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import relax_ext
from conv_cli import files
from conv_cli.__main__ import served
from conv_cli.measure import max_error, norm_error
from helpers import command_line
from helpers.command_line import QUICK, Decoder, one_conv_transpose, save
from relax_ext.cli import main
from relax_ext.cli.adapter import RelaxCompiled
from relax_ext.gradients import GRADIENTS
from topi_ext import compat

pytest.importorskip("rich")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("threads_given_back"),
]

IS_X86 = platform.machine() == "x86_64"
run, refusal = partial(command_line.run, main), partial(command_line.refused, main)


@pytest.fixture(scope="module")
def pt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("cli") / "decoder.pt2", Decoder(), torch.randn(2, 4, 5, 6))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = nn.ConvTranspose1d(2, 3, 4, stride=2)
    return save(tmp_path_factory.mktemp("cli") / "small.pt2", model, torch.randn(2, 2, 5))


@pytest.mark.slow
def test_pt2_with_gradients(pt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    status, out, _ = run(capsys, pt2, "--grad", "--json", file)
    report = json.loads(file.read_text())
    assert status == 0 and report["ok"] and "all 9 correct" in out
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


@pytest.mark.smoke
def test_gradients_at_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Relu of zeros, no batch, layer norm: TVM differentiates these otherwise or not at all."""
    model = nn.Sequential(nn.Conv1d(2, 3, 3, bias=False), nn.ReLU(), nn.LayerNorm(6))
    path = save(tmp_path / "norm.pt2", model, torch.randn(2, 8))
    given = tmp_path / "x.npy"
    x = np.random.default_rng(0).standard_normal((2, 8)).astype("float32")
    x[:, :5] = 0
    np.save(given, x)
    status, out, _ = run(capsys, path, "--grad", "--input", f"input={given}")
    assert status == 0 and "all 5 correct" in out


class Normalized(nn.Module):
    """Batch norm, relus and a squeeze, behind each other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, (4, 3)), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.leaky_relu(self.norm(self.conv(x)), 0.2)
        return torch.relu(y.squeeze(2))


@pytest.mark.parametrize("name", [None, "nn.relu", "nn.leakyrelu", "nn.batch_norm"])
def test_gradients_are_by_our_rules(
    name: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rule that gives twice the gradient is found, whichever it is."""
    path = save(tmp_path / "norm.pt2", Normalized(), torch.randn(2, 2, 4, 8))
    with doubled_gradient(f"relax.{name}") if name else nullcontext():
        status, out, _ = run(capsys, path, "--grad")
    assert status == bool(name) and ("1 of 5 incorrect" if name else "all 5 correct") in out


@contextmanager
def doubled_gradient(name: str) -> Iterator[None]:
    """Double the gradient of an operator's data, in our rule of it."""
    from tvm import relax

    rule = GRADIENTS[name]

    def twice(*arguments: Any) -> list[Any]:
        data, *others = rule(*arguments)
        return [relax.op.add(data, data), *others]

    with pytest.MonkeyPatch.context() as patch:
        with relax_ext.stock():
            patch.setitem(GRADIENTS, name, twice)
        yield
    with relax_ext.stock():
        pass  # behind it the rule itself is registered


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
    path = one_conv_transpose(tmp_path / "up.onnx", ["n", 3, 5, 4], **attrs)
    status, out, _ = run(capsys, path, "--dim", "n=2")
    assert status == 0 and "all 3 correct" in out


def test_wrong_results_are_status_1(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with command_line.spoilt(RelaxCompiled):
        status, out, _ = run(capsys, small)
    assert status == 1 and "3 of 3 incorrect" in out


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
        ("model.h5", "unknown extension '.h5', expected .pt2, .onnx or .tflite"),
        ("model.pt2", "not a torch.export file: it is no model of a kind known here"),
        ("model.onnx", "not an ONNX file: it is no model of a kind known here"),
    ):
        (tmp_path / name).write_bytes(b"not a model")
        assert line in refusal(capsys, tmp_path / name)
    assert f"{tmp_path}: is a directory" in refusal(capsys, tmp_path)


def test_refused_archives(pt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = pt2.read_bytes()
    torch.save({}, tmp_path / "weights.pt2")
    torch.jit.save(torch.jit.script(nn.ReLU()), tmp_path / "script.pt2")
    (tmp_path / "empty.pt2").touch()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("a.txt", "a")
    (tmp_path / "exported.onnx").write_bytes(whole)
    for name, line in (
        ("weights.pt2", "not a torch.export file: it is what torch.save writes, without a program"),
        ("script.pt2", "not a torch.export file: it is a TorchScript file"),
        ("empty.pt2", "not a torch.export file: it is empty"),
        ("cut.pt2", "not a torch.export file: it is a zip archive that is cut short or damaged"),
        ("other.pt2", "not a torch.export file: it is a zip archive of something else"),
        ("exported.onnx", "not an ONNX file: it is a torch.export file"),
    ):
        assert refusal(capsys, tmp_path / name).endswith(f"{name}: {line}")


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("model.json", b"{nonsense"),
        ("model.json", b"{}"),
        ("weight_0", b"short"),
        ("weight_0", None),
    ],
)
def test_the_loaders_noise_stays_off_the_screen(
    member: str,
    content: bytes | None,
    pt2: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoilt = tmp_path / "spoilt.pt2"
    with zipfile.ZipFile(pt2) as source, zipfile.ZipFile(spoilt, "w") as target:
        for name in source.namelist():
            if not name.endswith(member):
                target.writestr(name, source.read(name))
            elif content is not None:
                target.writestr(name, content)
    screen = io.StringIO()
    monkeypatch.setattr(
        logging.getLogger("torch.export"), "handlers", [logging.StreamHandler(screen)]
    )
    assert "spoilt.pt2: not a torch.export file: " in refusal(capsys, spoilt)
    assert screen.getvalue() == ""


def test_what_the_loader_says_in_its_noise_alone(
    pt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("An error. Please check the warnings above for possible errors. ")

    monkeypatch.setattr(torch.export, "load", refuse)
    assert refusal(capsys, pt2).endswith("not a torch.export file: torch cannot read all of it")


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def hostile(path: Path, pt2: Path, place: str, content: bytes) -> Path:
    """The archive `pt2` with a pickle in the place of its inputs or of a weight, or beside them."""
    with zipfile.ZipFile(pt2) as source, zipfile.ZipFile(path, "w") as target:
        members = {name.partition("/")[2]: source.read(name) for name in source.namelist()}
        if place == "weight":
            config = json.loads(members["data/weights/model_weights_config.json"])
            weight = next(iter(config["config"].values()))
            weight["use_pickle"] = True
            members["data/weights/model_weights_config.json"] = json.dumps(config).encode()
            place = f"data/weights/{weight['path_name']}"
        members[place] = content
        for name, data in members.items():
            target.writestr(f"{path.stem}/{name}", data)
    return path


@pytest.mark.parametrize(
    "place",
    [
        "data/sample_inputs/model.pt",
        "weight",
        "data/constants/opaque_obj_0",
        "data/constants/custom_obj_0",
        "data/aotinductor/model/model.so",
    ],
)
def test_no_pickle_of_a_file_runs(
    place: str,
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = tmp_path / "ran"
    path = hostile(tmp_path / "hostile.pt2", small, place, pickled(Hostile(ran)))
    line = refusal(capsys, path)
    what = place if place.startswith(("data/constants", "data/aot")) else "posix.mkdir"
    assert f"contains {what}: only tensors and plain data are loaded" in line
    assert not ran.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    if what == "posix.mkdir":  # to see that the file is hostile
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        run(capsys, path)
        assert ran.exists()


def test_refused_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = one_conv_transpose(tmp_path / "up.onnx", ["n", 3, 5, 4]).read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[:-30])
    line = refusal(capsys, tmp_path / "cut.onnx")
    assert line.endswith("cut.onnx: not an ONNX file: it is an ONNX file that is cut short")
    line = refusal(capsys, tmp_path / "up.onnx", "--dim", "n=99999999999")
    assert "input x: 48000 GB for shape (99999999999, 3, 5, 4), this machine has " in line


@pytest.mark.parametrize("size", [0, -1, -3])
def test_sizes_that_are_none(size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = one_conv_transpose(tmp_path / "up.onnx", [size, 3, 5, 4])
    line = refusal(capsys, path)
    assert "input x: shape (?, 3, 5, 4) has a size without a name, give --shape x=SIZES" in line


def test_an_importer_that_stops_within_a_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """TVM prints the operator, and complains of the half of the model that it drops."""
    onnx = pytest.importorskip("onnx")
    path = one_conv_transpose(tmp_path / "up.onnx", [2, 3, 5, 4])
    proto = onnx.load(str(path))
    proto.graph.node[0].output[0] = "z"
    zero = onnx.numpy_helper.from_array(np.zeros(1, "int64"))
    add = proto.graph.node.add
    add().CopyFrom(onnx.helper.make_node("Shape", ["z"], ["s"]))
    add().CopyFrom(onnx.helper.make_node("ConstantOfShape", ["s"], ["i"], value=zero))
    last = onnx.helper.make_node("ScatterElements", ["z", "i", "z"], ["y"], reduction="max")
    add().CopyFrom(last)
    onnx.save(proto, str(path))
    assert "up.onnx: TVM's importer stopped: ValueError: Only " in refusal(capfd, path)


def test_names_do_not_control_the_terminal(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "[red]a\x1b[2J.pt2").write_bytes(small.read_bytes())
    status, out, _ = run(capsys, tmp_path / "[red]a\x1b[2J.pt2")
    assert status == 0 and out.startswith("[red]a\\x1b[2J.pt2 on llvm") and "\x1b" not in out
    assert "a\\x1b[2J.pt2: no such file" in refusal(capsys, "a\x1b[2J.pt2")


def test_refused_inputs(pt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, whole, text = tmp_path / "short.npy", tmp_path / "int.npy", tmp_path / "text.npy"
    np.save(short, np.zeros((1, 4, 5, 6), "float32"))
    np.save(whole, np.zeros((2, 4, 5, 6), "int64"))
    text.write_text("1 2 3")
    objects, cut, complexes = (tmp_path / name for name in ("object.npy", "cut.npy", "c.npy"))
    np.save(objects, np.array([{}]), allow_pickle=True)
    cut.write_bytes(short.read_bytes()[:-8])
    np.save(complexes, np.zeros((2, 4, 5, 6), "complex64"))
    for option, line in (
        (f"x={short}", "input x: shape (1, 4, 5, 6) does not fit the model's (2, 4, 5, 6)"),
        (f"x={whole}", "input x: dtype int64, the model wants torch.float32"),
        (f"y={short}", "input y: the model's inputs are x"),
        (f"x={text}", "not a .npy array"),
        (f"x={tmp_path}", "not a .npy array"),
        (f"x={objects}", "not a .npy array"),
        (f"x={cut}", "not a .npy array"),
        (f"x={complexes}", "dtype complex64, which is no real numbers"),
        ("x=nowhere.npy", "no such file"),
    ):
        assert line in refusal(capsys, pt2, "--input", option)


@pytest.mark.parametrize("dtype", [">f4", "<f8", "longdouble"])
def test_arrays_of_every_kind(
    dtype: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arrays in the other byte order, in column-major order, and of dtypes that torch lacks have
    the same values."""
    x = np.random.default_rng(0).standard_normal((2, 2, 5)).astype("float32")
    np.save(tmp_path / "x.npy", np.asfortranarray(x.astype(dtype)))
    read = files.read_array("input", str(tmp_path / "x.npy"))
    assert read.dtype.isnative and read.flags.c_contiguous
    np.testing.assert_array_equal(read.astype("float32"), x)
    status, out, _ = run(capsys, small, "--input", f"input={tmp_path / 'x.npy'}")
    assert status == 0 and "all 3 correct" in out


class Rows(nn.Module):
    """A convolution of rows of a table: its input is indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(3, 4), nn.Conv1d(4, 2, 3)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.conv(self.table(i).transpose(1, 2))


def test_indices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "rows.pt2", Rows(), torch.tensor([[0, 1, 2, 1, 0]], dtype=torch.int32))
    status, out, _ = run(capsys, path)
    assert status == 0 and "all 3 correct" in out
    for array, line in (
        (np.array([[0, 1, 7, 1, 0]]), "rows.pt2: PyTorch stopped: IndexError: index out of range"),
        (np.full((1, 5), 2**40), "--input i: its numbers do not fit into the model's torch.int32"),
        (np.full((1, 5), 0.5), "--input i: dtype float64, the model wants torch.int32"),
    ):
        np.save(tmp_path / "i.npy", array)
        assert line in refusal(capsys, path, "--input", f"i={tmp_path / 'i.npy'}")


def test_random_indices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Indices of an .onnx model, which has no example inputs, are 0 and 1, valid for a table of two
    rows."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0).standard_normal
    table, weight = (random(s).astype("float32") for s in ((2, 3, 5, 4), (3, 4, 4, 3)))
    gather = helper.make_node("Gather", ["t", "i"], ["x"])
    graph = helper.make_graph(
        [gather, helper.make_node("ConvTranspose", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table, "t"), numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(made, str(tmp_path / "rows.onnx"))
    status, out, _ = run(capsys, tmp_path / "rows.onnx")
    assert status == 0 and "all 3 correct" in out


class Logarithm(nn.Module):
    """Half of its results are NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(self.conv(x))


def test_exact_results_that_are_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "log.pt2", Logarithm(), torch.randn(1, 2, 64))
    status, out, _ = run(capsys, path)
    assert status == 0 and "all 3 correct" in out


@pytest.mark.parametrize("error", [max_error, norm_error])
def test_errors_go_by_places_first(error: object) -> None:
    nan, inf = float("nan"), float("inf")

    def of(got: list[float], expected: list[float], dtype: str = "float32") -> float:
        return error(
            torch.tensor(got, dtype=getattr(torch, dtype)), torch.tensor(expected).double()
        )

    assert of([nan, inf, -inf, 2.0], [nan, inf, -inf, 2.0]) == 0.0
    assert of([nan, 2.5], [nan, 2.0]) == 0.25
    assert of([nan, 1.0], [1.0, nan]) == inf
    assert of([nan, 1.0], [2.0, 1.0]) == inf
    assert of([2.0, 1.0], [nan, 1.0]) == inf
    assert of([inf, 1.0], [-inf, 1.0]) == inf
    assert of([inf, 1.0], [3.0, 1.0]) == inf
    assert of([3.0, 1.0], [inf, 1.0]) == inf
    assert of([nan], [inf]) == inf
    assert of([], []) == 0.0
    assert of([inf, 1.0], [1e5, 1.0], "float16") == 0.0
    assert of([inf, 1.0], [-1e5, 1.0], "float16") == inf


def test_refused_options(pt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = one_conv_transpose(tmp_path / "up.onnx", ["n", 3, 5, 4])
    assert "choose it with --dim n=SIZE" in refusal(capsys, onnx)
    assert "free sizes are: n" in refusal(capsys, onnx, "--dim", "m=2")
    assert "has no autograd to compare with" in refusal(capsys, onnx, "--dim", "n=2", "--grad")
    assert "--dim is for .onnx" in refusal(capsys, pt2, "--dim", "n=2")
    assert "--target {bad" in refusal(capsys, pt2, "--target", "{bad")
    assert "--target nonsense" in refusal(capsys, pt2, "--target", "nonsense")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--input nameless", "argument --input: 'nameless' is not of the form NAME=VALUE"),
        ("--dim n=-1", "argument --dim: 'n=-1': the size must be a positive 64-bit integer"),
        ("--dim n=²", "argument --dim: 'n=²': the size must be a positive 64-bit integer"),
        (f"--dim n={2**63}", f"'n={2**63}': the size must be a positive 64-bit integer"),
        ("--dim n=1 --dim n=2", "--dim n: given twice"),
        ("--seed -1", f"argument --seed: '-1' is not an integer from 0 to {2**63 - 2}"),
        (f"--seed {2**63 - 1}", f"is not an integer from 0 to {2**63 - 2}"),
        ("--threads 0", "argument --threads: '0' is not a positive 64-bit integer"),
        ("--threads 999999", "--threads 999999: more than 8 for each of "),
        ("--json nowhere/r.json", "--json nowhere/r.json: cannot be written: No such file or dir"),
        ("--json .", "--json .: cannot be written: Is a directory"),
        ("--json /proc/r.json", "--json /proc/r.json: cannot be written: "),
        ("--nonsense", "unrecognized arguments: --nonsense"),
    ],
)
def test_refused_arguments(
    options: str, line: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Behind QUICK, whose own --threads would else be the last word.
    assert main([str(small), *QUICK, *options.split()]) == 2
    shown = capsys.readouterr()
    (said,) = shown.err.splitlines()
    assert said.startswith("relax_ext: ") and line in said and shown.out == ""


@pytest.mark.parametrize("threads", ["0", "-3", "many", "", "999999"])
def test_threads_that_tvm_could_not_start(
    threads: str, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    assert main([str(small)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"relax_ext: TVM_NUM_THREADS={threads}: ")


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ({"mtriple": "foo-bar-baz"}, "mtriple=foo-bar-baz is not of this machine, "),
        ({"mtriple": f"{platform.machine()}-windows"}, f"mtriple={platform.machine()}-windows is "),
        ({"mcpu": "nonsense"}, "mcpu=nonsense is no processor that LLVM knows"),
        *[({"mcpu": "pentium"}, "mcpu=pentium has no 64-bit instructions")] * IS_X86,
        ({"num-cores": 0}, "num-cores=0 must be positive"),
        ({"num-cores": -1}, "num-cores=-1 must be positive"),
    ],
)
def test_targets_that_llvm_dies_of(
    target: dict, line: str, small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = json.dumps({"kind": "llvm", **target})
    assert f"--target {spec}: {line}" in refusal(capfd, small, "--target", spec)


def test_instructions_that_this_processor_lacks(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compat, "missing_vectors", lambda _: ["avx10.2"])
    assert "this processor has no avx10.2" in refusal(capsys, small, "--target", "llvm")


def test_outputs_are_tried_without_a_trace(tmp_path: Path) -> None:
    files.check_output("--json", tmp_path / "new.json")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.json").write_text("{}")
    files.check_output("--json", tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "{}"


def test_operator_without_gradient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Largest(nn.Conv1d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).topk(2)[0]

    path = save(tmp_path / "largest.pt2", Largest(2, 2, 3), torch.randn(1, 2, 8))
    assert "--grad: TVM has no gradient of relax.topk" in refusal(capsys, path, "--grad")


def test_gradients_of_bfloat16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = nn.Conv1d(2, 2, 3).bfloat16(), torch.randn(1, 2, 8, dtype=torch.bfloat16)
    path = save(tmp_path / "narrow.pt2", model, x)
    assert "--grad: TVM's Gradient does not take bfloat16" in refusal(capsys, path, "--grad")


def test_missing_package(
    pt2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert "printing the table needs rich: pip install rich" in refusal(capsys, pt2)


TVM_CONV = "conv_cli"  # `tvm-conv`, as a module


def call(
    *arguments: str,
    module: str = TVM_CONV,
    options: tuple[str, ...] = (),
    tvm: Path | None = None,
) -> Any:
    """A run of ``tvm-conv``, or of another module, with the package in that folder for TVM."""
    path = os.pathsep.join(filter(None, (tvm and str(tvm), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, *options, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        # A shell has what runs in its background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def stand_in(folder: Path, text: str) -> Path:
    """A folder with a package ``tvm``."""
    (folder / "tvm").mkdir()
    (folder / "tvm" / "__init__.py").write_text(text)
    return folder


def test_before_tvm(tmp_path: Path) -> None:
    """Help and refusals come without TVM, whose import takes seconds."""
    tvm = stand_in(tmp_path, "raise SystemExit(77)")
    helped = call("--help", tvm=tvm)
    shown = helped.communicate()[0]
    assert helped.returncode == 0 and "\n  tvm-conv decoder.pt2 --grad   " in shown
    assert "relax_ext" in shown and "exit status:" in shown
    named = call("--version", tvm=tvm)
    assert re.fullmatch(r"tvm-conv-ext \d+\.\d+\.\d+\n", named.communicate()[0])
    assert named.returncode == 0
    missing = call("nothing.pt2", tvm=tvm)
    assert missing.communicate() == ("", "relax_ext: nothing.pt2: no such file\n")
    assert missing.returncode == 2
    examined = call("doctor", tvm=tvm)
    examined.communicate()
    assert examined.returncode == 77


def test_as_a_module() -> None:
    """Beside the console script, by the name of the adapter."""
    helped = call("--help", module="relax_ext")
    shown = helped.communicate()[0]
    assert helped.returncode == 0 and "\n  python -m relax_ext decoder.pt2 --grad   " in shown
    missing = call("nothing.pt2", module="relax_ext")
    assert missing.communicate() == ("", "relax_ext: nothing.pt2: no such file\n")
    assert missing.returncode == 2
    examined = call("doctor", module="relax_ext", options=("-W", "error::UserWarning"))
    assert "relax.nn.conv2d: ours" in examined.communicate()[0] and examined.returncode == 0


@pytest.mark.parametrize(
    ("folders", "package"),
    [(["tvm"], "relax_ext"), (["tvm/relay", "bitblas"], "relay_ext"), (["bitblas"], "relay_ext")],
)
def test_the_installed_tvm_chooses_the_adapter(
    folders: list[str], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
        (tmp_path / folder).with_name("__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tvm")
    assert served().package == package


def test_no_tvm_that_is_served(tmp_path: Path) -> None:
    """One line, with the releases that are."""
    process = call("doctor", tvm=stand_in(tmp_path, "raise ImportError('none')"))
    assert process.communicate() == (
        "",
        "relax_ext: needs TVM (pip install apache-tvm): none; "
        "relax_ext serves TVM 0.25 to 0.27, relay_ext TVM 0.17\n",
    )
    assert process.returncode == 2


def test_warnings_made_errors_end_nothing(tmp_path: Path) -> None:
    tvm = stand_in(tmp_path, "import warnings\nwarnings.warn('old')\nraise SystemExit(77)")
    run_so = call("doctor", options=("-W", "error"), tvm=tvm)
    assert "UserWarning: old" in run_so.communicate()[1]
    assert run_so.returncode == 77


def test_a_reader_that_has_ended() -> None:
    """A closed pipe, as in ``doctor | head``, prints no traceback."""
    process = call("doctor")
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 141


TABLE = """
from rich.console import Console
from conv_cli.launch import run
def main():
    for _ in range(10000):
        Console().print("2 \\u00d7 \\u2013 \\udc80")
    return 0
run("relax_ext", main)
"""


@pytest.mark.parametrize("command", [["-m", TVM_CONV, "--help"], ["-c", TABLE]])
@pytest.mark.parametrize(
    ("streams", "status", "said"),
    [
        (">&-", 3, "it is closed"),
        (">/dev/full", 3, "No space left on device"),
        (">&- 2>&-", 3, ""),
        (">/dev/full 2>/dev/full", 3, ""),
        ("2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
    ],
)
def test_output_that_cannot_be_written(
    command: list[str], streams: str, status: int, said: str, tmp_path: Path
) -> None:
    """The status is never 1, which says that a result is incorrect."""
    line = f"{shlex.join([sys.executable, *command])} {streams}"
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    stand_in(tmp_path, "raise SystemExit(77)")
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    told = f"relax_ext: standard output cannot be written: {said}\n" if said else ""
    assert (done.returncode, done.stderr) == (status, told)


def test_a_table_whose_reader_has_ended() -> None:
    line = f"{shlex.join([sys.executable, '-c', TABLE])} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (141, 1, "")


def test_output_without_its_characters() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TABLE],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"2 ? ? ?\n" * 10000


@pytest.mark.parametrize("module", [TVM_CONV, "relax_ext"])
@pytest.mark.parametrize("streams", [">&-", "2>&-", ">/dev/full", "2>/dev/full"])
def test_a_refusal_that_cannot_be_printed(streams: str, module: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m {module} nothing.pt2 {streams}"
    assert subprocess.run(["bash", "-c", line]).returncode == (3 if streams == ">&-" else 2)


@pytest.mark.parametrize("waits", ["import time; time.sleep(60)", "ctypes.CDLL(None).pause()"])
def test_interrupted(waits: str, tmp_path: Path) -> None:
    """While TVM is imported, in Python or in C: one line, at once."""
    tvm = stand_in(tmp_path, f"import ctypes\nprint('here', flush=True)\nwhile True:\n    {waits}")
    process = call("doctor", tvm=tvm)
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "relax_ext: interrupted\n")
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize("module", [TVM_CONV, "relax_ext"])
def test_interrupted_while_it_measures(small: Path, module: str) -> None:
    process = call(str(small), "--budget", "60", "--repeat", "1000000", module=module)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=10)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (out, err.splitlines()[-1], process.returncode) == ("", "relax_ext: interrupted", 130)
    assert "Traceback" not in err
