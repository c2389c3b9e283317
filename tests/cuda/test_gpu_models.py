# SPDX-License-Identifier: Apache-2.0
"""Whole models for a machine with a GPU, PyTorch and no TVM: compiled here, run on this CPU."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bench_gpu_models
from support.gpu import model_summary, runtime, toolchain
from support.gpu.model_bundle import Bundle, Model

BENCHMARK = Path(bench_gpu_models.__file__)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LAYER = Model("one layer", 2, "float16")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark where ``import tvm`` fails, and ``tvm_ffi`` is found last."""
    (folder / "tvm.py").write_text("raise ImportError('there is no TVM on that machine')\n")
    command = [sys.executable, str(BENCHMARK), *arguments]
    environment = {"PYTHONPATH": str(folder), "PATH": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_models_run_without_tvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a run on a GPU, for the CPU: prepared, run, and run again."""
    bundle, out = tmp_path / "bundle", tmp_path / "models.json"
    how = ["--only", LAYER.name, "--batch", str(LAYER.batch), "--dtypes", LAYER.dtype]
    here = ["--arch", "llvm", "--python", PYTHON, "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["", "--prepare", str(bundle), *here, *how])
    assert bench_gpu_models.main() == 0
    assert LAYER in Bundle(bundle)
    done = run(tmp_path, "--bundle", str(bundle), *how, "--json", str(out))
    assert done.returncode == 0, done.stderr
    rows = {row["engine"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows.keys() == {"ours", "torch"} and rows["ours"]["ok"] and rows["ours"]["ms"] > 0
    # One sum of 32 products in float32, rounded to float16.
    assert rows["ours"]["error"] < 1e-3
    assert "| one layer | 2 | float16 |" in out.with_suffix(".md").read_text()


def test_a_second_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the file are kept, and none begins after the time is over."""
    bundle = Bundle(tmp_path / "bundle", {"arch": "llvm", "commit": "1", "python": PYTHON})
    (bundle.folder / f"{LAYER.stem}.json").write_text(
        json.dumps({"model": {"name": LAYER.name, "batch": 2, "dtype": "float16"}})
    )
    out = tmp_path / "models.json"
    row = {"key": f"{LAYER.stem}/ours", "model": LAYER.name, "batch": 2, "dtype": "float16"}
    row |= {"engine": "ours", "ms": None, "error": None, "ok": False, "note": "it ended"}
    out.with_suffix(".jsonl").write_text(json.dumps(["rows", row]) + "\n")
    arguments = ["", "--bundle", str(bundle.folder), "--json", str(out), "--seconds", "0"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert bench_gpu_models.main() == 1
    assert json.loads(out.read_text())["rows"] == [row]
    assert f"- {row['key']}: it ended" in out.with_suffix(".md").read_text()


def test_a_library_for_cuda_has_machine_code_and_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both libraries have the same code, which nvcc compiled for the GPU's architecture."""
    try:
        toolchain.find("nvcc")
    except toolchain.MissingError as error:
        pytest.skip(str(error))
    bundle = Bundle(tmp_path, {"arch": "sm_90", "commit": "1", "python": PYTHON})
    compiled: list[str] = []
    real = runtime.add_machine_code

    def add(folder: Path, source: str, arch: str) -> None:
        compiled.append(source)
        real(folder, source, arch)

    monkeypatch.setattr(runtime, "add_machine_code", add)
    bundle.add(LAYER)
    (binary,) = tmp_path.glob("*.cubin.gz")
    code = gzip.decompress(binary.read_bytes())
    kernels = {name.decode() for name in re.findall(rb"\.text\.(\w+)", code)}
    assert any(name.startswith("conv2d_transpose") for name in kernels), kernels
    for engine, source in zip(bundle.engines, compiled):
        assert runtime.machine_code(tmp_path, source) == binary
        library = gzip.decompress(bundle.library(LAYER, engine).read_bytes())
        # TVM asks for the machine code of the text in the library.
        assert source.encode() in library and len(library) < 100_000
    assert bundle.weights(LAYER) == ["0.weight"]


def test_a_bundle_of_another_commit_is_refused(tmp_path: Path) -> None:
    header = {"arch": "sm_90", "commit": "1", "python": PYTHON}
    Bundle(tmp_path, header)
    with pytest.raises(ValueError, match="commit 1, not 2: remove it"):
        Bundle(tmp_path, {**header, "commit": "2"})
    with pytest.raises(ValueError, match="no bundle of models"):
        Bundle(tmp_path / "absent")


def test_the_runtime_is_small_and_without_python_code_of_tvm(tmp_path: Path) -> None:
    runtime.copy_into(tmp_path, PYTHON)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {*runtime.LIBRARIES, "tvm_ffi/lib/libtvm_ffi.so"} <= names
    assert not any(name.startswith("tvm/") or "compiler" in name for name in names)
    assert sum((tmp_path / name).stat().st_size for name in names) < 12 * 2**20


def test_the_fastest_correct_engine_counts() -> None:
    row = {"model": "m", "batch": 1, "dtype": "float32", "error": 1e-7, "note": ""}
    rows = [
        {**row, "key": f"m/{engine}", "engine": engine, "ms": ms, "ok": ok}
        for engine, ms, ok in (
            ("ours", 2.0, True), ("ours_graph", 1.0, False), ("torch", 3.0, True),
            ("torch_graph", 2.5, True), ("torch_compile", None, False),
        )
    ]  # fmt: skip
    header = dict.fromkeys(("device", "driver", "torch", "cudnn", "commit", "date"), "")
    said = model_summary.text({"header": header, "rows": rows})
    assert "| 2.000 (ours) | 2.500 (torch_graph) | 1.25 |" in said
    assert "- m/ours_graph: 1e-07" in said
