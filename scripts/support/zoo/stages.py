# SPDX-License-Identifier: Apache-2.0
"""One model through torch.export, TVM's importer and compiler, and what came out.

The exact result is PyTorch's in float64, of the same weights and inputs. Errors are the largest
difference divided by the largest exact result.
"""

from __future__ import annotations

import contextlib
import copy
import io
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
import tvm
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

import relax_ext

from .. import by_relax
from .catalog import Entry
from .weights import draw

WAYS = ("stock", "plain", "pipeline")
"""TVM alone; ``tvm.compile`` after ``import relax_ext``; the same with ``relax_ext.pipeline``."""

ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""A dozen roundings or more of each dtype: the minimum error of an incorrect result."""
TIMES_TORCH = 8
"""Nor is an error of at most this many times PyTorch's own in that dtype, since deep models amplify
roundings, and both sum in orders of their own ..."""
MOST = 4
"""... up to this many times `ROUNDING`: a model that amplifies more than that shows nothing."""

CONVOLUTION = re.compile(r"aten\.(conv(?:_transpose)?\dd)\.")


@dataclass
class Outcome:
    """Last stage of a model on one way: ``right``, or the stage that failed and why; error and
    seconds."""

    stage: str
    reason: str = ""
    error: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    ms: float | None = None


@dataclass
class Row:
    """All about one model."""

    name: str
    package: str
    dtype: str
    convolutions: dict[str, int] = field(default_factory=dict)
    torch_error: float | None = None
    limit: float | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class StageError(Exception):
    """A stage failed: `args` are its name and the reason."""


@contextlib.contextmanager
def stage(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Take the time of a stage; whatever it raises is why it failed."""
    start = time.perf_counter()
    try:
        yield
    except StageError:
        raise
    except Exception as error:
        raise StageError(name, f"{type(error).__name__}: {error}".strip()) from error
    finally:
        seconds[name] = time.perf_counter() - start


def check(
    entry: Entry,
    ways: tuple[str, ...],
    target: Any,
    repeat: int = 0,
    step: Callable[[str], None] = lambda _: None,
) -> Row:
    """Take a model through every way; time `repeat` runs of it where that is asked for."""
    row = Row(entry.name, entry.package, entry.dtype)
    step("export")
    try:
        model, inputs = prepare(entry)
        program = export(model, inputs)
    except StageError as failed:
        row.outcomes = {way: Outcome(*failed.args) for way in ways}
        return row
    names = (CONVOLUTION.match(str(node.target)) for node in program.graph.nodes)
    row.convolutions = dict(sorted(Counter(name.group(1) for name in names if name).items()))
    with torch.no_grad():
        own = tensors_of(model(*inputs))
    want = exact(model, inputs)
    row.torch_error = error_of(own, want)
    least = ROUNDING[entry.dtype]
    row.limit = min(max(least, TIMES_TORCH * row.torch_error), MOST * least)
    for group in (("stock",), ("plain", "pipeline")):
        with relax_ext.stock() if group == ("stock",) else contextlib.nullcontext():
            imported = _Imported(program)
            for way in group:
                if way in ways:
                    step(way)
                    row.outcomes[way] = ran = _take(way, imported, inputs, target, repeat)
                    _judge(ran, want, row.limit)
    return row


def prepare(entry: Entry) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the model with its random weights, and its inputs: the same in every run."""
    torch.manual_seed(0)
    with stage("construct", {}):
        model, inputs = entry.make()
    draw(model)
    dtype = getattr(torch, entry.dtype)
    model = model.eval().requires_grad_(False).to(dtype)
    return model, tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def export(model: nn.Module, inputs: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    with contextlib.ExitStack() as stack:
        # torch prints the graph of what it refuses.
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            stack.enter_context(redirect(io.StringIO()))
        stack.enter_context(torch.no_grad())
        stack.enter_context(stage("export", {}))
        return torch.export.export(model, inputs)


def exact(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """PyTorch's results in float64; constants that a model makes when it runs are float64 too."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            wide = [x.double() if x.is_floating_point() else x for x in inputs]
            return tensors_of(copy.deepcopy(model).double()(*wide))
    finally:
        torch.set_default_dtype(default)


def tensors_of(results: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]


def error_of(got: list[Tensor], want: list[Tensor]) -> float:
    """Return the largest difference over the largest exact number, of the worst result."""
    return max(
        float((g.double() - w).abs().max() / w.abs().max().clamp_min(1e-300))
        for g, w in zip(got, want)
    )


class _Imported:
    """A program and, once it is asked for, what the importer of the moment makes of it."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program

    @cached_property
    def module(self) -> tvm.IRModule:
        return from_exported_program(self.program)


@dataclass
class _Ran(Outcome):
    results: list[Tensor] = field(default_factory=list)


def _take(
    way: str,
    imported: _Imported,
    inputs: tuple[Tensor, ...],
    target: Any,
    repeat: int,
) -> _Ran:
    """Import, unless that is done; compile and run."""
    ran = _Ran("values")
    try:
        with stage("import", ran.seconds):
            module = imported.module
        with stage("compile", ran.seconds):
            passes = relax_ext.pipeline(target) if way == "pipeline" else "default"
            executable = tvm.compile(module, target, relax_pipeline=passes)
            machine = relax.VirtualMachine(executable, tvm.cpu())  # LLVM runs here
        with stage("run", ran.seconds):
            tensors = [by_relax.array(x.contiguous()) for x in inputs]
            ran.results = by_relax.results(machine["main"](*tensors))
        if repeat:
            ran.ms = _median_ms(lambda: machine["main"](*tensors), repeat)
    except StageError as failed:
        ran.stage, ran.reason = failed.args
    return ran


def _median_ms(run: Callable[[], Any], repeat: int) -> float:
    """Return the milliseconds of processor time: with one thread, other work on the machine counts
    little.
    """
    times = []
    for _ in range(repeat):
        start = time.process_time()
        run()
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times)


def _judge(ran: _Ran, want: list[Tensor], limit: float) -> None:
    """Compare what ran with the exact results: shapes, dtypes, values."""
    got, ran.results = ran.results, []
    if ran.stage != "values":
        return
    shapes = [[tuple(x.shape) for x in results] for results in (got, want)]
    if shapes[0] != shapes[1]:
        ran.reason = f"shapes {shapes[0]}, not {shapes[1]}"
        return
    ran.error = error_of(got, want)
    if ran.error <= limit:
        ran.stage = "right"
    else:
        ran.reason = f"error {ran.error:.1e}"
