# SPDX-License-Identifier: Apache-2.0
"""A model by this package or by PyTorch on a device: its error and its time."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from support.errors import finite, relative_error

from . import models, runtime, tensors
from .model_bundle import ENGINES, RUNTIME, Bundle, Model

Row = dict[str, Any]
Run = Callable[[], Any]

EAGER = ("torch", "torch_graph", "torch_last", "torch_last_graph")
"""PyTorch with cuDNN's search for algorithms; ``last``: with channels last."""
COMPILED = ("torch_compile",)
"""``torch.compile`` with CUDA graphs."""

BLOCKS = 9
BLOCK = 0.05
"""Seconds of a block of calls."""

TOLERANCE = {"float32": 2e-5, "float16": 2e-2}
"""Maximum error, relative to the largest element: roundings of some dozen layers, of sums of
thousands of products in float32, and of each layer's result in the dtype."""


@dataclass
class Device:
    """The device of a process, and a bundle.

    Attributes
    ----------
    bundle : Bundle
    """

    bundle: Bundle

    @classmethod
    def opened(cls, folder: Path) -> Device:
        """Open the device of a bundle."""
        torch.backends.cudnn.benchmark = True
        tensors.allow_tf32(False)
        return cls(Bundle(folder))

    def run(self, _: str, model: Model, engine: str) -> Row:
        """Return error and milliseconds of a model by an engine."""
        with torch.no_grad():
            module, inputs = self.made(model)
            begun = time.perf_counter()
            run = self.runs(model, engine, module, inputs)
            got = [placed(run()) for _ in range(3)]  # a graph is captured, then replayed
            self.wait()
            first = time.perf_counter() - begun
            with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
                exact = copy.deepcopy(module).double()(*(one.double() for one in inputs))
            error = max((relative_error(one, exact) for one in got), key=rank_of)
            ok = error is not None and error <= TOLERANCE[model.dtype]
            ms = self.milliseconds(run)
        more = {"ms": ms, "error": finite(error), "ok": ok, "first_s": round(first, 2)}
        return row_of(model, engine, **more)

    def made(self, model: Model) -> tuple[nn.Module, list[Tensor]]:
        """Return the module with the constants of the library, and its inputs, on the device."""
        module, inputs = models.make(model.name, model.batch, model.dtype)
        module.load_state_dict(torch.load(self.bundle.vectors(model)), strict=False)
        device = self.bundle.device
        return module.to(device), [one.to(device) for one in inputs]

    def runs(self, model: Model, engine: str, module: nn.Module, inputs: list[Tensor]) -> Run:
        """Return a call of the model by an engine."""
        if engine in ENGINES:
            state = module.state_dict()
            weights = [state[name].contiguous() for name in self.bundle.weights(model)]
            ffi = runtime.load(self.bundle.folder / RUNTIME, self.bundle.device)
            return runtime.Library(ffi, self.bundle.library(model, engine), weights, inputs)
        if engine in COMPILED:
            call = torch.compile(module, mode="reduce-overhead", dynamic=False)
            return lambda: call(*inputs)
        if "_last" in engine:
            module, inputs = copy.deepcopy(module), list(inputs)
            order = tensors.LAST[inputs[0].ndim - 2]
            inputs[0] = inputs[0].to(memory_format=order)
            _in_order(module, order)
        if engine.endswith("_graph"):
            return captured(module, inputs)
        return lambda: module(*inputs)

    def milliseconds(self, run: Run) -> float:
        """Return the median over blocks of the milliseconds of a call."""
        begun = time.perf_counter()
        run()
        self.wait()
        calls = max(1, min(100, int(BLOCK / (time.perf_counter() - begun))))
        blocks = []
        for _ in range(BLOCKS):
            begun = time.perf_counter()
            for _ in range(calls):
                run()
            self.wait()
            blocks.append((time.perf_counter() - begun) / calls * 1e3)
        return median(blocks)

    def wait(self) -> None:
        """Wait until all work on the device is done."""
        if self.bundle.device == "cuda":
            torch.cuda.synchronize()

    def is_broken(self) -> bool:
        """Return whether an earlier fault has left the GPU's context unusable."""
        try:
            self.wait()
        except RuntimeError:
            return True
        return False


def key(model: Model, engine: str) -> str:
    """Return the unique name of a row."""
    return f"{model.stem}/{engine}"


def row_of(model: Model, engine: str, **more: Any) -> Row:
    """Return a row with its results, or without results for a failure."""
    row = {"key": key(model, engine), "model": model.name, "batch": model.batch}
    row |= {"dtype": model.dtype, "engine": engine, "tolerance": TOLERANCE[model.dtype]}
    return {**row, "ms": None, "error": None, "ok": False, "first_s": None, "note": "", **more}


def baselines(device: str) -> list[Callable[[Model], tuple[str, ...]]]:
    """Return functions that list PyTorch's engines for a model, the quickest to prepare first."""

    def eager(model: Model) -> tuple[str, ...]:
        rank = len(models.MODELS[model.name][1][0]) - 2
        return tuple(name for name in EAGER if "_last" not in name or rank in tensors.LAST)

    if device == "cpu":
        return [lambda _: EAGER[:1]]
    return [eager, lambda _: COMPILED]


def rank_of(error: float | None) -> float:
    """Return a key by which errors that are not numbers, or of another shape, are the largest."""
    return error if error is not None and error == error else float("inf")


def placed(result: Any) -> Tensor:
    """Return a copy of a result of an engine as PyTorch's tensor."""
    return (
        result if isinstance(result, Tensor) else torch.utils.dlpack.from_dlpack(result)
    ).clone()


def _in_order(module: Any, order: torch.memory_format) -> None:
    """Let weights have their axes in an order, for which PyTorch's types have no call."""
    module.to(memory_format=order)


def captured(module: nn.Module, inputs: list[Tensor]) -> Run:
    """Return a call of a module as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):  # searches for algorithms, which a graph must not do
            module(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = module(*inputs)

    def run() -> Tensor:
        graph.replay()
        return result

    return run
