# SPDX-License-Identifier: Apache-2.0
"""The command lines as their users call them, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

Main = Callable[[list[str]], int]

STORED = Path(__file__).parents[1] / "data" / "tflite.npz"
QUICK = ["--repeat", "1", "--budget", "0.1", "--threads", "1"]


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


def save(path: Path, model: nn.Module, *inputs: torch.Tensor, **options: Any) -> Path:
    """Write a model as ``torch.export`` does, with the weights of one seed."""
    torch.manual_seed(0)
    torch.export.save(torch.export.export(model.eval(), inputs, **options), path)
    return path


def report(main: Main, path: Path, *options: object) -> dict[str, Any]:
    """Return the report that ``--json`` writes; ``status`` is the exit status."""
    out = path.with_suffix(".json")
    status = main([str(path), *map(str, options), "--json", str(out), *QUICK])
    return {**json.loads(out.read_text()), "status": status}


def run(main: Main, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return the status of a command line, and what it prints on both streams."""
    capsys.readouterr()
    status = main([*map(str, arguments), *QUICK])
    return status, *capsys.readouterr()


def refused(main: Main, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that refuses these arguments, without the package's name."""
    status, out, err = run(main, capsys, *arguments)
    (line,) = filter(str.strip, err.splitlines())
    assert (status, out) == (2, "") and line.startswith(("relax_ext: ", "relay_ext: "))
    return line.partition(": ")[2]


@contextmanager
def spoilt(compiled: Any) -> Iterator[None]:
    """Every result of this class of compiled functions is wrong in its last element."""
    get = compiled.get

    def wrong(self: Any, result: object) -> list[torch.Tensor]:
        tensors = [t.clone() for t in get(self, result)]
        for tensor in tensors:
            tensor.view(-1)[-1] += 0.01
        return tensors

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "get", wrong)
        yield


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
