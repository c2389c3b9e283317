# SPDX-License-Identifier: Apache-2.0
"""The check of a model: load, compile twice, run, compare."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from topi_ext.tuning.rpc import Board

from .adapter import Adapter, Choices
from .args import threads_of
from .errors import CliError, NotImportedError, of_boards
from .measure import MODEL_TOLERANCE, TOLERANCE, Protocol, Side, attempt, side, timed, timed_torch
from .model import Model, imported_again, load
from .operators import Operator, random_data, torch_apply
from .targets import parse_target

GRADIENT_TOLERANCE = 10.0  # times that of a whole model: two passes, and kinks


@dataclass(frozen=True)
class Options:
    """Options of the command line; see ``--help``."""

    choices: Choices = field(default_factory=Choices)
    grad: bool = False
    target: str | None = None
    threads: int = 1
    repeat: int = 10
    budget: float = 2.0
    seed: int = 0
    tolerance: float = 1.0
    board: Board | None = None


@dataclass(frozen=True)
class Row:
    """One line of the table: the same work by stock TVM, by ours and by the reference."""

    what: str
    configuration: str
    count: int
    tolerance: float
    stock: Side
    ours: Side
    reference_ms: float

    @property
    def wrong(self) -> bool:
        """Return whether our result is incorrect."""
        return self.ours.wrong(self.tolerance)

    @property
    def speedup(self) -> float | None:
        """Stock's time over ours."""
        if self.stock.ms is None or not self.ours.ms:
            return None
        return self.stock.ms / self.ours.ms


@dataclass(frozen=True)
class Expected:
    """The expected result of a whole model: exact values, and those of its framework."""

    exact: list[Any]
    returned: list[Any]

    @property
    def dtypes(self) -> list[Any]:
        """Torch dtypes of the outputs."""
        return [y.dtype for y in self.returned]


@dataclass
class Report:
    """Results of checking one model."""

    package: str
    model: str
    framework: str
    target: str
    threads: int
    notes: list[str]
    operators: list[Row] = field(default_factory=list)
    whole: Row | None = None
    pipeline: Row | None = None
    gradients: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    board: str = ""

    @property
    def rows(self) -> list[Row]:
        """Every row."""
        return [*self.forward, *self.gradients]

    @property
    def forward(self) -> list[Row]:
        """Operators, the whole model, and the whole model through the adapter's pipeline."""
        wholes = [row for row in (self.whole, self.pipeline) if row]
        return [*self.operators, *wholes]

    @property
    def fastest(self) -> Row | None:
        """The whole model as ours runs it best."""
        return self.pipeline or self.whole

    @property
    def ok(self) -> bool:
        """Return whether all of our results are correct."""
        return not any(row.wrong for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the verdicts spelt out."""
        data = asdict(self)
        data["ok"] = self.ok
        data["machine"] = platform.processor() or platform.machine()
        for key in ("operators", "gradients"):
            data[key] = [_row(row) for row in getattr(self, key)]
        for key in ("whole", "pipeline"):
            row = getattr(self, key)
            data[key] = _row(row) if row else None
        return data


def _row(row: Row) -> dict[str, Any]:
    return {**asdict(row), "wrong": row.wrong, "speedup": row.speedup}


class Progress:
    """Reports the progress of a long check; this class reports nothing."""

    def start(self, total: int) -> None:
        """So many steps are ahead."""

    def step(self, what: str) -> None:
        """The next step begins."""


def set_threads(threads: int | None) -> int:
    """Give TVM all the cores it may use, and PyTorch as many; return how many that is."""
    threads = threads_of(threads)
    os.environ["TVM_NUM_THREADS"] = str(threads)
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(threads)
    return threads


@of_boards()
def check(
    model: Path | Model,
    adapter: Adapter,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compile a model with stock TVM and with ours, and compare both with its own framework.

    Parameters
    ----------
    model : pathlib.Path or Model
        A file that the adapter reads, or a loaded model.
    adapter : Adapter
        The adapter.
    options : Options, optional
    progress : Progress, optional

    Returns
    -------
    Report

    Raises
    ------
    CliError
        For an error that the user can correct.
    """
    options, progress = options or Options(), progress or Progress()
    start, busy = time.perf_counter(), _busy()
    adapter, target = _placed(adapter, options)
    protocol = Protocol(adapter, target, options.repeat, options.budget)
    if isinstance(model, Path):
        model = load(model, adapter.loaders, options.choices)
    adjoint = adapter.prepare(model) if options.grad else None
    found = adapter.find(model)
    report = Report(
        adapter.package,
        model.name,
        model.framework,
        target_text(target),
        options.threads,
        list(model.notes),
        board=options.board.shown if options.board else "",
    )
    report.notes.extend([*busy, *_baseline(options.board, target)])
    if model.reference is None:
        report.notes.extend(_not_imported(model, adapter))
        if not found:
            raise CliError(f"{model.name}: nothing to compare: no convolutions, and {model.lacks}")
    differentiated = [op for op in found if op.floating] if options.grad else []
    wholes = (1 + bool(adapter.pipeline)) * (model.reference is not None)
    progress.start(len(found) + wholes + len(differentiated) + (adjoint is not None))
    for op, count in found.items():
        progress.step(op.configuration())
        report.operators.append(_operator_row(op, count, protocol, options))
    if model.reference and model.exact:
        expected = Expected(model.exact(), model.reference())
        progress.step("whole model")
        report.whole = _whole_row(model, model.reference, expected, protocol, options)
        if adapter.pipeline:
            progress.step(f"whole model, {adapter.pipeline}")
            report.pipeline = _pipeline_row(model, expected, report.whole, protocol)
    for op in differentiated:
        progress.step("gradients of " + op.configuration())
        report.gradients.append(_gradient_row(op, protocol, options))
    if adjoint is not None and model.reference:
        progress.step("gradients of the whole model")
        row = _whole_gradient_row(model, model.reference(), adjoint, protocol, options)
        report.gradients.append(row)
    report.seconds = time.perf_counter() - start
    return report


def _placed(adapter: Adapter, options: Options) -> tuple[Adapter, Any]:
    """Return the adapter and the target for the place where models run; raise for an unsuitable
    board before anything is compiled.
    """
    board = options.board
    target = parse_target(options.target, options.threads, adapter.host_target, here=board is None)
    if board is None:
        return adapter, target
    with closing(board.connect()) as session:
        session.check_target(target)
        return adapter.on(board), session.planned(target)


def _baseline(board: Board | None, target: Any) -> list[str]:
    """Return a note where the target of a board leaves the processor open."""
    if board is None or target.kind.name != "llvm" or target.attrs.get("mcpu"):
        return []
    return ["--target names no mcpu, so code is for a baseline processor"]


def _not_imported(model: Model, adapter: Adapter) -> list[str]:
    """Return a note where stock TVM does not import a model, of which the table has no row."""
    try:
        with adapter.stock():
            imported_again(model.convert)
    except NotImportedError as error:
        return [f"stock: {error}"]
    return []


def _busy() -> list[str]:
    """Return a note where other processes will spoil the times."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return [f"this machine is busy (load {load:.1f}), times are rough"] if load > cores else []


def _operator_row(op: Operator, count: int, protocol: Protocol, options: Options) -> Row:
    import torch

    tensors = random_data(op, options.seed)
    expected = [_exact(op, tensors)]
    dtypes = [getattr(torch, op.dtypes[2])]
    build = partial(protocol.adapter.build, op)
    stock, ours = attempt((build, build), tensors, expected, protocol, dtypes=dtypes)
    # PyTorch has convolutions of floating-point numbers alone.
    timed_on = tensors if op.floating else [t.float() for t in tensors]
    ms = timed_torch(lambda: torch_apply(op, *timed_on), protocol)
    tolerance = _tolerance(TOLERANCE, op.dtypes[2]) * options.tolerance
    return Row(op.name, op.configuration(), count, tolerance, stock, ours, ms)


def _exact(op: Operator, tensors: list[Any]) -> Any:
    return torch_apply(op, *(t.double() for t in tensors))


def _whole_row(
    model: Model,
    reference: Callable[[], list[Any]],
    expected: Expected,
    protocol: Protocol,
    options: Options,
) -> Row:
    """Return the row of the model as each side imports it."""
    tensors = list(model.inputs.values())
    makes = partial(imported_again, model.convert), lambda: model.mod
    stock, ours = attempt(makes, tensors, expected.exact, protocol, dtypes=expected.dtypes)
    if model.framework == "torch":
        ms = timed_torch(reference, protocol)
    else:
        ms = timed(reference, protocol)[1]
    tolerance = _model_tolerance(expected.returned, model.steps) * options.tolerance
    return Row("whole model", model.name, 1, tolerance, stock, ours, ms)


def _pipeline_row(model: Model, expected: Expected, whole: Row, protocol: Protocol) -> Row:
    """Return the row of the model compiled by the adapter's own pipeline."""
    adapter = protocol.adapter
    ours = side(
        adapter.compile_whole,
        nullcontext(),
        lambda: model.mod,
        list(model.inputs.values()),
        expected.exact,
        protocol,
        dtypes=expected.dtypes,
    )
    return replace(whole, what=f"whole model, {adapter.pipeline}", ours=ours)


def _gradient_row(op: Operator, protocol: Protocol, options: Options) -> Row:
    of_stock, of_ours, ms = protocol.adapter.check_operator(op, protocol, options.seed)
    tolerance = _tolerance(TOLERANCE, op.dtypes[2]) * options.tolerance
    return Row(op.name, op.configuration(), 1, tolerance, of_stock, of_ours, ms)


def _whole_gradient_row(
    model: Model, outputs: list[Any], mod: Any, protocol: Protocol, options: Options
) -> Row:
    of_stock, of_ours, ms = protocol.adapter.check_model(model, mod, protocol, options.seed)
    tolerance = _model_tolerance(outputs) * GRADIENT_TOLERANCE * options.tolerance
    return Row("whole model", model.name, 1, tolerance, of_stock, of_ours, ms)


def _tolerance(table: Mapping[str, float], dtype: str) -> float:
    return table.get(dtype, 0.0)  # integers are exact


def _model_tolerance(outputs: list[Any], steps: float = 0.0) -> float:
    """Return the largest of the outputs; of whole numbers, so many steps, as an error is
    measured.
    """
    limits = [0.0]
    for y in outputs:
        limit = _tolerance(MODEL_TOLERANCE, str(y.dtype).removeprefix("torch."))
        if not limit and y.numel():
            limit = steps / max(y.double().abs().max().item(), 1.0)
        limits.append(limit)
    return max(limits)


def target_text(target: Any) -> str:
    """Return a target in a few words."""
    export = getattr(target, "export", None)
    attrs = dict(export()) if export else {}
    shown = [str(attrs.pop("kind", target.kind.name))]
    shown += [f"{k}={attrs[k]}" for k in ("mcpu", "arch", "num-cores") if k in attrs]
    return " ".join(shown)
