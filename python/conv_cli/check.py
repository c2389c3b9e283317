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

from .adapter import Adapter
from .args import threads_of
from .errors import CliError, NotImportedError, of_boards
from .measure import MODEL_TOLERANCE, TOLERANCE, Protocol, Side, side, timed, timed_torch
from .model import Model, Options, imported_again, load
from .operators import Operator, gradients_by_torch, random_data, torch_apply, with_cotangent
from .targets import parse_target

GRADIENT_TOLERANCE = 10.0  # times that of a whole model: two passes, and kinks


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
    """The expected result of a whole model: its framework, exact values, and the framework's."""

    reference: Callable[[], list[Any]]
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
    adapter: Adapter,
    model: Path | Model,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compile a model with stock TVM and with ours, and compare both with its own framework.

    Parameters
    ----------
    adapter : Adapter
    model : pathlib.Path or Model
        A file that the adapter reads, or a loaded model.
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
    if isinstance(model, Path):
        model = load(model, adapter.loaders, options)
    prepared = adapter.prepare(model) if options.grad else None
    found = adapter.find(model)
    report = Report(
        adapter.package,
        model.name,
        model.framework,
        target_text(target),
        options.threads,
        [*model.notes, *busy, *_baseline(options.board, target)],
        board=options.board.shown if options.board else "",
    )
    expected = _expected(model)
    if expected is None:
        report.notes.extend(_not_imported(model, adapter))
        if not found:
            raise CliError(f"{model.name}: nothing to compare: no convolutions, and {model.lacks}")
    rows = _Rows(adapter, Protocol(target, options.repeat, options.budget), options)
    differentiated = [op for op in found if op.floating] if options.grad else []
    wholes = (1 + bool(adapter.pipeline)) * (expected is not None)
    progress.start(len(found) + wholes + len(differentiated) + (prepared is not None))
    for op, count in found.items():
        progress.step(op.configuration())
        report.operators.append(rows.operator(op, count))
    if expected:
        progress.step("whole model")
        report.whole = rows.whole(model, expected)
        if adapter.pipeline:
            progress.step(f"whole model, {adapter.pipeline}")
            report.pipeline = rows.by_pipeline(model, expected, report.whole)
    for op in differentiated:
        progress.step("gradients of " + op.configuration())
        report.gradients.append(rows.gradients(op))
    if expected and prepared is not None:
        progress.step("gradients of the whole model")
        report.gradients.append(rows.whole_gradients(model, expected, prepared))
    report.seconds = time.perf_counter() - start
    return report


def _expected(model: Model) -> Expected | None:
    """Return what a model should compute; None where its framework is not installed."""
    if model.reference is None or model.exact is None:
        return None
    return Expected(model.reference, model.exact(), model.reference())


def _placed(adapter: Adapter, options: Options) -> tuple[Adapter, Any]:
    """Return the adapter and the target for the place where models run; raise for an unsuitable
    board before anything is compiled.
    """
    board = options.board
    target = parse_target(options.target, options.threads, here=board is None)
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


@dataclass(frozen=True)
class _Rows:
    """Makes the rows of a table."""

    adapter: Adapter
    protocol: Protocol
    options: Options

    def operator(self, op: Operator, count: int) -> Row:
        """Return the row of an operator alone."""
        import torch

        tensors = random_data(op, self.options.seed)
        expected = [torch_apply(op, *(t.double() for t in tensors))]
        # PyTorch has convolutions of floating-point numbers alone.
        timed_on = tensors if op.floating else [t.float() for t in tensors]
        build = partial(self.adapter.build, op)
        dtypes = [getattr(torch, op.dtypes[2])]
        sides = self._attempt((build, build), tensors, expected, dtypes=dtypes)
        ms = timed_torch(lambda: torch_apply(op, *timed_on), self.protocol)
        return Row(op.name, op.configuration(), count, self._tolerance(op), *sides, ms)

    def gradients(self, op: Operator) -> Row:
        """Return the row of the gradients of an operator alone."""
        adapter, tensors = self.adapter, with_cotangent(op, self.options.seed)
        expected = gradients_by_torch(op, [t.double() for t in tensors])
        make = partial(adapter.differentiated, op)
        taken: dict[str, Any] = dict(function=adapter.adjoint, take=adapter.gradients)
        sides = self._attempt((make, make), tensors, expected, **taken)
        ms = timed_torch(lambda: gradients_by_torch(op, tensors), self.protocol)
        return Row(op.name, op.configuration(), 1, self._tolerance(op), *sides, ms)

    def whole(self, model: Model, expected: Expected) -> Row:
        """Return the row of the model as each side imports it."""
        tensors, reference = list(model.inputs.values()), expected.reference
        makes = partial(imported_again, model.convert), lambda: model.mod
        sides = self._attempt(makes, tensors, expected.exact, dtypes=expected.dtypes)
        if model.framework == "torch":
            ms = timed_torch(reference, self.protocol)
        else:
            ms = timed(reference, self.protocol)[1]
        tolerance = _model_tolerance(expected.returned, model.steps) * self.options.tolerance
        return Row("whole model", model.name, 1, tolerance, *sides, ms)

    def by_pipeline(self, model: Model, expected: Expected, whole: Row) -> Row:
        """Return the row of the model compiled by the adapter's own pipeline."""
        ours = side(
            self.adapter.compile_whole,
            nullcontext(),
            lambda: model.mod,
            list(model.inputs.values()),
            expected.exact,
            self.protocol,
            dtypes=expected.dtypes,
        )
        return replace(whole, what=f"whole model, {self.adapter.pipeline}", ours=ours)

    def whole_gradients(self, model: Model, expected: Expected, prepared: Any) -> Row:
        """Return the row of the gradients of the whole model."""
        sides = self.adapter.check_model(model, prepared, self.protocol, self.options.seed)
        tolerance = _model_tolerance(expected.returned) * GRADIENT_TOLERANCE
        return Row("whole model", model.name, 1, tolerance * self.options.tolerance, *sides)

    def _attempt(
        self, makes: Any, tensors: Any, expected: Any, **options: Any
    ) -> tuple[Side, Side]:
        return self.adapter.attempt(makes, tensors, expected, self.protocol, **options)

    def _tolerance(self, op: Operator) -> float:
        return _tolerance(TOLERANCE, op.dtypes[2]) * self.options.tolerance


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
