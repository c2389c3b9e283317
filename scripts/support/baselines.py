# SPDX-License-Identifier: Apache-2.0
"""Baselines that pack a constant weight when they are built, and what each has to have."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from topi_ext.spec.conv import OPERANDS

from . import by_torch, onnx_models
from .arguments import PACKED_BASELINES
from .cases import Case
from .engines import UnavailableError
from .timing import interleaved, timed

_PACKAGES = {
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "onnx"),
    "inductor": ("torch",),
}
_TRIAL = 0.1
"""Seconds of calls of each setting of inductor, of which the faster is the baseline."""


@dataclass(frozen=True)
class Call:
    """A call without arguments, and what makes its result a tensor of its own."""

    run: Callable[[], Any]
    read: Callable[[Any], Tensor]


def require(baselines: Sequence[str], dtype: str) -> dict[str, str]:
    """Return the versions of those of `baselines` that are in this module.

    Raises
    ------
    ValueError
        One line: what a baseline needs is not here, or it does not take `dtype`.
    """
    found: dict[str, str] = {}
    for name in (baseline for baseline in baselines if baseline in PACKED_BASELINES):
        if dtype != "float32":
            raise ValueError(f"--rivals {name}: --dtype {dtype} must be float32")
        for package in _PACKAGES[name]:
            if importlib.util.find_spec(package) is None:
                raise ValueError(
                    f"--rivals {name}: this Python has no {package}; "
                    "make env-rivals makes one that has, .venv-rivals/bin/python runs it"
                )
            found[package] = version(package)
        compiler = os.environ.get("CXX", "g++")
        if name == "inductor" and shutil.which(compiler) is None:
            raise ValueError(f"--rivals inductor: needs a C++ compiler, {compiler} is not here")
    return found


def call(name: str, case: Case, kind: str, tensors: Mapping[str, Tensor], threads: int) -> Call:
    """Return a baseline's call of one kind of operator.

    Raises
    ------
    UnavailableError
        Where the baseline cannot state the case.
    """
    data = tensors[OPERANDS[kind][0]]
    if name == "inductor":
        return _inductor(case, kind, tensors["w"], data, threads)
    g = case.geometry
    fits = all(extra < stride for extra, stride in zip(g.output_padding, g.stride))
    if name == "onnxruntime" and kind == "conv_transpose" and not fits:
        raise UnavailableError("onnxruntime takes output padding below the stride only")
    model = onnx_models.convolution(case, kind, tensors["w"].numpy())
    if name == "onnxruntime":
        run, read = onnx_models.by_onnxruntime(model, data.numpy(), threads)
    else:
        run, read = onnx_models.by_openvino(model, [data.numpy()], threads)
    return Call(run, lambda _: torch.from_numpy(read()))


class _Module(torch.nn.Module):
    """One convolution with a weight of its own, which inductor packs when it is frozen."""

    def __init__(self, case: Case, kind: str, weight: Tensor):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self._call = by_torch.forward(case, kind)

    def forward(self, data: Tensor) -> Tensor:
        return self._call(data, self.weight)


def _inductor(case: Case, kind: str, weight: Tensor, data: Tensor, threads: int) -> Call:
    """With or without ``max_autotune``, whichever is faster.  It uses torch's threads."""
    if kind == "conv_weight_grad":
        raise UnavailableError("a weight gradient has no weight to freeze")
    if not by_torch.states(case, kind):
        raise UnavailableError("torch cannot state this padding")
    if torch.get_num_threads() != threads:
        raise ValueError(f"torch has {torch.get_num_threads()} threads, must have {threads}")
    runs = {
        str(tuned): _compiled(_Module(case, kind, weight.clone()).eval(), data, tuned)
        for tuned in (False, True)
    }
    first = {name: timed(run)[1] for name, run in runs.items()}
    times = interleaved(runs, first, _TRIAL)
    best = min(runs, key=lambda name: times[name].ms)
    return Call(run=runs[best], read=Tensor.clone)


def _compiled(module: torch.nn.Module, data: Tensor, tuned: bool) -> Callable[[], Any]:
    torch._dynamo.reset()  # else one module recompiles for every case, and gives up at the eighth
    options: Any = {"freezing": True, "max_autotune": tuned, "compile_threads": 1}
    # Freezing asks for no_grad; a tensor of inference_mode would be another kind of input.
    with torch.inference_mode(False), torch.no_grad():
        forward = torch.compile(module, dynamic=False, options=options)
        data = data.clone()
        forward(data)

    def run() -> Any:
        with torch.no_grad():
            return forward(data)

    return run
