# SPDX-License-Identifier: Apache-2.0
"""The benchmark: it reads its files, computes what it says, and detects incorrect results."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import oracle
from support import baselines, by_relax, by_torch, measure, session, summary, tables, timing
from support.arguments import parse
from support.cases import KINDS, Case, read_cases
from support.engines import UnavailableError
from topi_ext.spec.conv import RESULT

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"

# What readers of the JSON rely on.
KEYS = {
    "name",
    "kind",
    "dtype",
    "torch_ms",
    "torch_default_ms",
    "ours_ms",
    "ours_prepacked_ms",
    "stock_ms",
    "symbolic_ms",
    "ratio_torch",
    "ratio_torch_prepacked",
    "ratio_torch_default",
    "ratio_stock",
    "ratio_symbolic",
    "onnxruntime_ms",
    "ratio_onnxruntime",
    "openvino_ms",
    "inductor_ms",
    "best_rival",
    "ratio_best",
    "max_rel_error",
    "build_s",
    "workspace_bytes",
    "gflops",
    "share_of_peak",
    "share_of_bandwidth",
}

SMALL: list[dict[str, Any]] = [
    {
        "name": "up1d",
        "x": [2, 4, 5],
        "cout": 6,
        "kernel": [3],
        "stride": [2],
        "padding": [1],
        "output_padding": [1],
        "groups": 2,
    },
    {
        "name": "lopsided",
        "op": "conv",
        "x": [1, 3, 7, 6],
        "cout": 2,
        "kernel": [3, 2],
        "stride": [2, 1],
        "padding": [0, 1, 2, -1],
        "dilation": [1, 2],
    },
]

MORE: list[dict[str, Any]] = [
    # The gradient in x needs an output padding, and the last row of x is in no window of conv.
    {"name": "rest", "op": "conv", "x": [2, 4, 8, 9], "cout": 6, "kernel": [3, 3], "stride": 3},
    # More output padding than conv can have of remainder.
    {
        "name": "dilated",
        "x": [1, 2, 4],
        "cout": 3,
        "kernel": [3],
        "dilation": [4],
        "output_padding": [3],
    },
    {"name": "volume", "x": [1, 4, 2, 3, 4], "cout": 4, "kernel": [2, 3, 1], "padding": 1},
    {"name": "gaps", "x": [1, 2, 3, 3], "cout": 2, "kernel": [2, 2], "stride": 3, "groups": 2},
]


def written(tmp_path: Path, entries: object) -> Path:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(entries))
    return path


def options(tmp_path: Path, *more: str, entries: object = SMALL) -> Any:
    cases = ["--cases", str(written(tmp_path, entries))]
    return parse([*cases, "--threads", "1", "--time-budget", "0.001", *more])


@pytest.mark.slow
def test_command_line(tmp_path: Path) -> None:
    """Run the command line as a user does: all operator kinds, all baselines, table, JSON and
    plot."""
    out, plot = tmp_path / "out" / "rows.json", tmp_path / "plot.png"
    command = [sys.executable, str(SCRIPTS / "bench.py"), "--kind", "all", "--threads", "1"]
    command += ["--cases", str(written(tmp_path, SMALL)), "--time-budget", "0.001"]
    command += [
        "--json",
        str(out),
        "--plot",
        str(plot),
        "--rivals",
        "torch,stock,symbolic,onnxruntime",
    ]
    environment = {key: value for key, value in os.environ.items() if "TUNABLES" not in key}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())

    rows = found["rows"]
    assert [(row["name"], row["kind"]) for row in rows] == [
        (case["name"], kind) for kind in KINDS for case in SMALL
    ]
    for row in rows:
        assert not KEYS - set(row)
        assert row["dtype"] == "float32"
        assert 0 <= row["max_rel_error"] <= row["tolerance"] < 1e-5
        assert row["ours_ms"] > 0 and row["build_s"] > 0 and row["workspace_bytes"] >= 0
        assert row["ratio_symbolic"] == pytest.approx(row["symbolic_ms"] / row["ours_ms"])
        assert (row["ours_prepacked_ms"] is None) == (row["kind"] == "conv_weight_grad")
        assert (row["torch_default_ms"] is None) == (row["torch_ms"] is None)
        assert 0 < row["share_of_peak"] < 1 and 0 < row["share_of_bandwidth"] < 1
        packed, theirs = row["ours_prepacked_ms"], row["onnxruntime_ms"]
        assert (theirs is None) == (row["ratio_best"] is None) == (row["best_rival"] is None)
        if theirs:
            assert row["ratio_onnxruntime"] == pytest.approx(theirs / packed)
            assert row["ratio_best"] <= row["ratio_onnxruntime"]
    by_name = {(row["name"], row["kind"]): row for row in rows}
    for kind in KINDS:
        up, lopsided = by_name["up1d", kind], by_name["lopsided", kind]
        assert up["ratio_torch"] == pytest.approx(up["torch_ms"] / up["ours_ms"])
        assert lopsided["torch_ms"] is None
        assert (up["onnxruntime_ms"] is None) == (kind == "conv_weight_grad")
        assert lopsided["onnxruntime_ms"] is None
        assert any("cannot state" in note for note in lopsided["notes"])
    assert by_name["up1d", "conv_transpose"]["stock_ms"] > 0
    assert by_name["up1d", "conv_weight_grad"]["stock_ms"] is None
    assert by_name["up1d", "conv_weight_grad"]["notes"] == [
        "stock has no gradient of conv1d",
        "ONNX has no weight gradient",
    ]

    assert set(found["summary"]) == set(KINDS)
    assert found["header"]["threads"] == 1
    assert "mmap_threshold" in found["header"]["malloc"]
    assert {"apache-tvm", "torch", "numpy", "onnxruntime"} <= set(found["header"]["versions"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["header"]["date"])
    for kind in KINDS:
        summary = tables.kinds([found])
        assert re.search(rf"^\| `{kind}` \| \S+\.json \| {len(SMALL)} \|", summary, re.MULTILINE)
    assert f"| {len(SMALL)} |" in tables.packed([found])
    for said in ("up1d", "lopsided", "geomean", "incorrect: none", "mmap_threshold"):
        assert said in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("threads_given_back")
def test_an_incorrect_result_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a reference that misses one product, our result is incorrect and the status 1."""
    true_reference = by_torch.reference

    def spoilt(case: Case, kind: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        first = tensors["y"].clone()
        first.view(-1)[0] = 0
        return true_reference(case, kind, {**tensors, "y": first})

    out = tmp_path / "rows.json"
    asked = options(tmp_path, "--only", "up1d", "--rivals", "torch", "--json", str(out))
    assert session.run(asked) == 0
    monkeypatch.setattr(by_torch, "reference", spoilt)
    assert session.run(asked) == 1
    (row,) = json.loads(out.read_text())["rows"]
    assert row["incorrect"] and row["max_rel_error"] > row["tolerance"]
    assert json.loads(out.read_text())["summary"]["conv_transpose"]["incorrect"] == ["up1d"]


def test_the_other_ir_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--ir relay: .*; make env-relay makes one"):
        session.run(options(tmp_path, "--ir", "relay"))


@pytest.mark.usefixtures("threads_given_back")
def test_a_failing_build_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("a traceback\nno such kernel")

    monkeypatch.setattr(by_relax, "build_ours", refuse)
    out = tmp_path / "rows.json"
    asked = options(tmp_path, "--only", "up1d", "--rivals", "torch", "--json", str(out))
    assert session.run(asked) == 1
    (row,) = json.loads(out.read_text())["rows"]
    assert row["incorrect"] and row["ours_ms"] is None and row["ratio_torch"] is None
    assert row["torch_ms"] > 0
    assert row["notes"] == ["ours fails: RuntimeError: no such kernel"]


@pytest.mark.usefixtures("threads_given_back")
def test_an_incorrect_result_of_any_size_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ours, though it stands among the baselines."""

    def spoilt(case: Case, kind: str, *_: object) -> Any:
        zeros = torch.zeros(case.shape(RESULT[kind]))
        return SimpleNamespace(seconds=0.0, bound=lambda _: lambda: zeros)

    out = tmp_path / "rows.json"
    asked = options(tmp_path, "--only", "up1d", "--rivals", "symbolic", "--json", str(out))
    assert session.run(asked) == 0
    monkeypatch.setattr(by_relax, "build_symbolic", spoilt)
    assert session.run(asked) == 1
    (row,) = json.loads(out.read_text())["rows"]
    assert row["incorrect"] and row["notes"] == ["symbolic is off by 1.0e+00"]


@pytest.mark.parametrize("kind", KINDS)
def test_reference_and_baseline_compute_the_kind(kind: str, tmp_path: Path) -> None:
    """Both against the tests' own oracle; the baseline where PyTorch can state the padding."""
    timed = 0
    for case in read_cases(written(tmp_path, SMALL + MORE)):
        tensors = by_torch.operands(case, "float64")
        want = by_oracle(case, kind, tensors)
        np.testing.assert_allclose(by_torch.reference(case, kind, tensors), want, atol=1e-12)
        if by_torch.states(case, kind):
            np.testing.assert_allclose(by_torch.baseline(case, kind, tensors)(), want, atol=1e-12)
            timed += 1
    assert timed >= 4


PACKED = {
    "onnxruntime": (),
    "openvino": pytest.mark.skipif(
        importlib.util.find_spec("openvino") is None, reason="OpenVINO is in .venv-rivals only"
    ),
    "inductor": pytest.mark.skipif(
        os.environ.get("HYPOTHESIS_PROFILE") != "fuzz", reason="compiles C++: in make fuzz only"
    ),
}


@pytest.mark.usefixtures("threads_given_back")
@pytest.mark.parametrize(
    "baseline", [pytest.param(name, marks=marks) for name, marks in PACKED.items()]
)
def test_baselines_with_packed_weights_compute_the_kind(baseline: str, tmp_path: Path) -> None:
    """Against the tests' own oracle, wherever the baseline can state the case."""
    torch.set_num_threads(1)
    timed = 0
    entries = SMALL + (MORE if baseline != "inductor" else [])
    for case in read_cases(written(tmp_path, entries)):
        for kind in KINDS:
            tensors = by_torch.operands(case, "float32")
            try:
                made = baselines.call(baseline, case, kind, tensors, threads=1)
            except UnavailableError:
                continue
            want = by_oracle(case, kind, by_torch.operands(case, "float64"))
            # Sums of at most 100 products of magnitude 1 in float32.
            np.testing.assert_allclose(made.read(made.run()), want, atol=2e-5)
            timed += 1
    assert timed >= (2 if baseline == "inductor" else 8)


def test_a_baseline_that_is_missing_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(_: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    said = r"--rivals openvino: this Python has no openvino; make env-rivals .*"
    with pytest.raises(ValueError, match=said) as raised:
        session.run(options(tmp_path, "--rivals", "openvino"))
    assert "\n" not in str(raised.value)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="--rivals onnxruntime: --dtype float16 must be float32"):
        session.run(options(tmp_path, "--rivals", "onnxruntime", "--dtype", "float16"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"--rivals inductor: .* no-such-compiler is not here"):
        session.run(options(tmp_path, "--rivals", "inductor"))


def test_the_best_rival() -> None:
    """The fastest baseline of a row is one with packed weights or PyTorch; there is none if only
    PyTorch ran."""
    found = measure.against_packed({"torch": 2.0, "openvino": 3.0, "inductor": 4.0}, 1.0)
    assert (found["best_rival"], found["ratio_best"]) == ("torch", 2.0)
    assert (found["ratio_openvino"], found["ratio_onnxruntime"]) == (3.0, None)
    assert measure.against_packed({"torch": 2.0}, 1.0)["best_rival"] is None


def by_oracle(case: Case, kind: str, tensors: dict[str, torch.Tensor]) -> np.ndarray:
    g, (x, w, y) = case.geometry, (tensors[role] for role in "xwy")
    if kind == "conv_transpose":
        return oracle.conv_transpose(
            y, w, g.stride, g.padding, g.output_padding, g.dilation, g.groups
        ).numpy()
    attributes = (g.stride, g.fitted().padding, g.dilation, g.groups)
    if kind == "conv":
        return oracle.conv(x, w, *attributes).numpy()
    return oracle.conv_weight_grad(x, y, g.kernel, *attributes).numpy()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_tolerance_sees_a_missing_product(dtype: str) -> None:
    """Up to a thousand terms, for rounding of the result itself leaves less room in 16 bits."""
    terms = 1000 if dtype.startswith("float") and dtype != "float16" else 50
    assert measure.allowed(terms, dtype) < 1 / (4.5 * math.sqrt(terms))
    assert measure.allowed(terms, dtype) > torch.finfo(getattr(torch, dtype)).eps


def test_relative_error() -> None:
    want = torch.tensor([1.0, -4.0])
    assert measure.relative_error(torch.tensor([1.0, -5.0]), want) == 0.25
    assert measure.relative_error(torch.tensor([1.0]), want) is None
    assert math.isnan(measure.relative_error(torch.tensor([math.nan, -4.0]), want))


def test_summary() -> None:
    base = {"kind": "conv", "incorrect": False, "max_rel_error": 0.0, "tolerance": 1.0}
    base |= {"build_s": 1.0}
    base |= dict.fromkeys([*(f"ratio_{baseline}" for baseline in summary.RATIOS), "others_cores"])
    base |= {"workspace_bytes": 50, "operand_bytes": 100}
    rows = [
        {**base, "name": "a", "ratio_torch": 4.0},
        {**base, "name": "b", "ratio_torch": 0.25, "workspace_bytes": 75},
        {**base, "name": "c", "ratio_torch": 8.0, "incorrect": True, "workspace_bytes": None},
    ]
    found = summary.summarize(rows)["conv"]
    assert found["torch"]["geomean"] == pytest.approx(2.0)
    assert found["torch"]["worst"] == {"name": "b", "value": 0.25}
    assert found["torch"]["slower"] == ["b"]
    assert found["stock"] is None
    assert found["incorrect"] == ["c"]
    assert found["workspace_share_max"] == {"name": "b", "value": 0.75}


def test_turns() -> None:
    """Every implementation gets its turn in every round; a long first call is enough."""
    calls: list[str] = []
    runs = {name: lambda name=name: calls.append(name) for name in ("a", "b", "slow")}
    times = timing.interleaved(runs, {"a": 0.0, "b": 0.0, "slow": 2.0}, budget=0.2)
    assert "slow" not in calls
    assert times["slow"].ms == times["slow"].best_ms == 2000.0
    turns = [name for name, before in zip(calls, [None, *calls]) if name != before]
    assert turns[:4] == ["a", "b"] * 2
    assert 0 < times["a"].best_ms <= times["a"].ms < 200


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stride": [0]}, "up1d: stride=(0,) must be at least 1"),
        ({"groups": 4}, "up1d: groups=4 must divide cout=6"),
        ({"op": "pool"}, "up1d: op='pool' must be conv_transpose or conv"),
        ({"op": "conv"}, "up1d: output_padding=[1] must be 0 for op conv"),
        ({"strides": [2]}, "up1d: unknown key strides"),
    ],
)
def test_bad_case(
    change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        options(tmp_path, entries=[{**SMALL[0], **change}])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "up1d,nowhere"], "--only nowhere: not in"),
        (["--rivals", "onednn"], "--rivals onednn: must be of torch, stock"),
        (["--threads", "0"], "0 must be at least 1"),
    ],
)
def test_bad_arguments(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        options(tmp_path, *arguments)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("random_decoders.json", "--op conv_transpose --seed 5"),
        ("random_encoders.json", "--op conv --seed 6"),
        ("few_channels_decoders.json", "--op conv_transpose --seed 7 --count 24 --few-channels"),
        ("few_channels_encoders.json", "--op conv --seed 7 --count 24 --few-channels"),
    ],
)
def test_random_cases_are_drawn_again(file: str, arguments: str, tmp_path: Path) -> None:
    """The random cases in the repository are those of their seed, not a selection."""
    out = tmp_path / file
    command = [sys.executable, str(SCRIPTS / "random_cases.py"), str(out), *arguments.split()]
    subprocess.run(command, check=True)
    assert out.read_text() == (SCRIPTS / "cases" / file).read_text()
    assert len(read_cases(out)) == (24 if "few" in file else 60)


def test_names_are_unique(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name up1d must be unique"):
        read_cases(written(tmp_path, [SMALL[0], SMALL[0]]))


QUANTIZED = [
    {"name": "up", "x": [1, 4, 5, 6], "cout": 6, "kernel": [3, 2], "stride": 2, "groups": 2},
    {"name": "down", "op": "conv", "x": [2, 3, 9], "cout": 8, "kernel": [4], "padding": [1]},
]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["bench_int8.py", "tune_gain.py"])
def test_benchmarks_beside(script: str, tmp_path: Path) -> None:
    """Quantized layers beside float32 and a baseline, and what measured plans gain."""
    out, plot = tmp_path / "out.json", tmp_path / "plot.png"
    command = [sys.executable, str(SCRIPTS / script), "--threads", "1", "--json", str(out)]
    command += ["--cases", str(written(tmp_path, QUANTIZED)), "--plot", str(plot)]
    command += ["--rivals", "float32,onnxruntime"] if script == "bench_int8.py" else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["up", "down"] and plot.stat().st_size > 5000
    for row in rows:
        if script == "bench_int8.py":
            assert row["steps"] <= 1 and row["unavailable"] == {}
            assert row["ratio_float32"] == pytest.approx(row["float32_ms"] / row["ours_ms"])
            assert row["ratio_onnxruntime"] > 0
        else:
            assert row["gain"] >= 1 and row["healed"] >= row["misstated"] > 0
