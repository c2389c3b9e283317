# SPDX-License-Identifier: Apache-2.0
"""The command lines as their users call them, in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

Main = Callable[[list[str]], int]

STORED = Path(__file__).parents[1] / "data" / "tflite.npz"
QUICK = ["--repeat", "1", "--budget", "0.1", "--threads", "1"]


@contextmanager
def threads_given_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what the command line sets for its process after the block."""
    for name in ("TVM_NUM_THREADS", "TVM_BIND_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def report(main: Main, path: Path, *options: object) -> dict[str, Any]:
    """Return the report that ``--json`` writes; ``status`` is the exit status."""
    out = path.with_suffix(".json")
    status = main([str(path), *map(str, options), "--json", str(out), *QUICK])
    return {**json.loads(out.read_text()), "status": status}


def refused(main: Main, capsys: pytest.CaptureFixture[str], path: Path, *options: object) -> str:
    """The one line that refuses these arguments, without the package's name."""
    capsys.readouterr()
    status = main([str(path), *map(str, options), *QUICK])
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (status, out) == (2, "") and line.startswith(("relax_ext: ", "relay_ext: "))
    return line.partition(": ")[2]


def stored_tflite(kind: str, folder: Path) -> Path:
    """The model of tests/data/tflite.npz whose name begins so, as a file."""
    found = np.load(STORED)
    (name,) = {n for n in found.files if n.startswith(kind) and n.endswith("|model")}
    path = folder / f"{kind.split()[-1]}.tflite"
    path.write_bytes(found[name].tobytes())
    return path


def one_conv_transpose(path: Path, sizes: list[int | str], **attrs: Any) -> Path:
    """An ``.onnx`` of one ConvTranspose 3 -> 4, kernel 4 x 3."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((3, 4, 4, 3)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attrs)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))
    return path
