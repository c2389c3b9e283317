# SPDX-License-Identifier: Apache-2.0
"""A run on a GPU from its first check to its summary."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..environment import commit, today
from ..output import write_json
from ..processes import InProcess, Row, Runner, TaskError, Workers
from .record import Record
from .requests import TELLING, Request, machine_of, makers, smoke

Groups = Sequence[tuple[Request, list[Request]]]
"""Requests, each with those that are compiled for it."""

MISSING = "not in the bundle"

PROTOCOL = (
    "cold: memset before each call, events, medians of 5 rounds in turns; graph: 20 calls in a "
    "CUDA graph; cudnn.benchmark on; ratios are theirs / ours"
)

LISTS = ("checks", "rows", "through_tvm")
"""Lists of a record."""

SMOKE_SHARE, TELLING_SHARE, CHECK_SHARE = 0.1, 0.5, 0.2
"""Shares of the seconds: the ends of the first checks and of the rows of `TELLING`, and the length
of the other checks."""


def torch_of_cuda() -> Any:
    """Return PyTorch with a GPU.

    Raises
    ------
    ValueError
        If a requirement is missing, with its name.
    """
    try:
        # It is imported before TVM, whose CUDA runtime finds the one that PyTorch has loaded.
        import torch
    except ImportError as error:
        raise ValueError(f"PyTorch is missing ({error}); a build with CUDA is needed") from error
    if torch.version.cuda is None:
        raise ValueError(f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        raise ValueError(f"torch {torch.__version__} finds no NVIDIA GPU")
    return torch


def arch_of(torch: Any) -> str:
    """Return the architecture of the GPU."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def header(torch: Any, arch: str, bundle: Path | None, protocol: str) -> dict[str, Any]:
    """Return the date, device and versions."""
    driver = ""
    with suppress(OSError):
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        driver = done.stdout.strip().split("\n")[0]
    version = ""
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("apache-tvm")
    found = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "date": today(),
        "commit": commit(),
        "device": found.name if found else "none",
        "sms": found.multi_processor_count if found else 0,
        "arch": arch,
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "tvm": version,
        "bundle": bundle.name if bundle else "",
        "protocol": protocol,
    }


def opened(given: argparse.Namespace) -> tuple[str, Runner]:
    """Return the architecture, and the runner of tasks on the GPU.

    Raises
    ------
    ValueError
        If a requirement is missing, with its name.
    """
    arch = given.arch or arch_of(torch_of_cuda())
    if given.bundle is not None:
        _opened_bundle(given.bundle, arch)
    elif importlib.util.find_spec("tvm") is None:
        raise ValueError("without TVM kernels come from a file: --bundle FILE.zip")
    open_device = partial(device_of, given.bundle, arch, given.flush)
    return arch, InProcess(open_device()) if given.in_process else Workers(open_device)


def device_of(path: Path | None, arch: str, flush: int) -> Any:
    """Open the GPU in this process."""
    torch = torch_of_cuda()
    torch.backends.cudnn.benchmark = True
    from .clock import Clock
    from .driver import Driver
    from .measure import Device

    torch.zeros(1, device="cuda")  # makes the context for the driver
    get, ready = _source(path, arch)
    clock = Clock(flush * 2**20)
    return Device(Driver(), clock, machine_of(arch), arch, get, ready)


def _source(path: Path | None, arch: str) -> tuple[Any, dict[str, Any] | None]:
    """Return the getter of a request's kernels, and the table of those that are compiled ahead."""
    from . import bundle

    if path is None:
        ready: dict[str, bundle.Prepared] = {}
        return (
            lambda request: ready.pop(request.code, None) or bundle.prepare(request, arch)
        ), ready
    file = _opened_bundle(path, arch)
    return (
        lambda request: file.get(request.code) or bundle.Prepared(request.code, "", MISSING)
    ), None


def _opened_bundle(path: Path, arch: str) -> Any:
    from . import bundle

    file = bundle.Bundle(path)
    if file.header["arch"] != arch:
        raise ValueError(f"--bundle {path} is for {file.header['arch']}, not {arch}")
    return file


def run(
    given: argparse.Namespace,
    runner: Runner,
    arch: str,
    to_check: list[Request],
    to_time: list[Request],
) -> int:
    """Run first checks, first rows, other checks and other rows; return the exit status."""
    import torch

    begun = time.monotonic()
    about = header(torch, arch, given.bundle, PROTOCOL)
    record = Record(given.json, {**about, "flush_mib": given.flush}, *LISTS)
    first = smoke(to_check)
    rest = [one for one in to_check if one not in first][: max(0, given.checks - len(first))]
    telling = [one for one in to_time if one.case.name in TELLING]
    others = [one for one in to_time if one.case.name not in TELLING]
    tasks = Tasks(record, runner, arch, given)
    tasks.measure_ceilings()
    end = begun + given.seconds
    tasks.check(first[: given.checks], begun + SMOKE_SHARE * given.seconds if to_time else end)
    tasks.time(telling, begun + TELLING_SHARE * given.seconds)
    tasks.check(rest, time.monotonic() + CHECK_SHARE * given.seconds if to_time else end)
    tasks.time(others, end)
    if given.through_tvm and given.bundle is None:
        for row in _through_tvm(to_check[: given.through_tvm], arch):
            record.add("through_tvm", row)
    found = record.found
    finish(found, given.json, given.plot)
    return int(bool(found["summary"]["incorrect"]))


@dataclass
class Tasks:
    """Lists of tasks, which run one after the other, each until a deadline.

    Attributes
    ----------
    record : Record
    runner : Runner
    arch : str
    given : argparse.Namespace
    """

    record: Record
    runner: Runner
    arch: str
    given: argparse.Namespace

    def measure_ceilings(self) -> None:
        """Write the ceilings of the device into the header."""
        try:
            self.record.describe({"ceilings": self.runner.result("ceilings")})
        except TaskError as failure:
            self._failed("ceilings", failure)

    def check(self, requests: Sequence[Request], until: float) -> None:
        """Compare results with PyTorch."""
        done = 0
        for row in self._results("check", [(one, [one]) for one in requests], until):
            done += 1
            self.record.add("checks", row)
            if not row["ok"]:
                said = row["note"] or f"off by {row['error']}, allowed {row['tolerance']:.1e}"
                print(f"incorrect: {row['key']}: {said}", file=sys.stderr, flush=True)
        print(f"{done} of {len(requests)} checks", file=sys.stderr, flush=True)

    def time(self, requests: Sequence[Request], until: float) -> None:
        """Time kernels and baselines."""
        plans = self.given.plans
        groups = [(one, makers(one, plans)) for one in requests]
        for row in self._results("row", groups, until, plans):
            self.record.add("rows", row)
            count = len(self.record.found["rows"])
            if count % 50 == 1:
                print(f"{count} rows, {row['key']}", file=sys.stderr, flush=True)

    def _results(self, task: str, groups: Groups, until: float, *more: Any) -> Iterator[Row]:
        """Yield the results of a list of tasks until a deadline, and record failures."""
        for request, ready in compiled_ahead(groups, self.arch, self.given):
            if time.monotonic() > until:
                return
            try:
                row = self.runner.result(task, ready, request, *more)
            except TaskError as failure:
                self._failed(request.key, failure)
            else:
                yield row

    def _failed(self, key: str, failure: TaskError) -> None:
        """Record a task without a result as incorrect."""
        print(f"{key}: {failure}", file=sys.stderr, flush=True)
        row = {"key": key, "ok": False, "error": None, "tolerance": None, "note": str(failure)}
        self.record.add("checks", row)


def compiled_ahead(
    groups: Groups, arch: str, given: argparse.Namespace
) -> Iterator[tuple[Request, list[Any]]]:
    """Yield requests, each with its compiled kernels, while later ones are compiled.

    Kernels of several requests are compiled once.
    """
    from .bundle import prepare_all

    if given.bundle is not None:
        yield from ((request, []) for request, _ in groups)
        return
    last = {one.code: number for number, (_, group) in enumerate(groups) for one in group}
    missing = {one.code: one for _, group in groups for one in group}
    made, kept = prepare_all(missing.values(), arch, given.jobs), {}
    for number, (request, group) in enumerate(groups):
        for code in (one.code for one in group if one.code not in kept):
            kept[code] = next(made)
        yield request, [kept[one.code] for one in group]
        kept = {code: one for code, one in kept.items() if last[code] > number}


def _through_tvm(requests: list[Request], arch: str) -> list[dict[str, Any]]:
    """Return rows of the same kernels as users call them; without TVM, one row that says so."""
    try:
        from .through_tvm import check
    except ImportError as error:
        return [{"key": "", "ok": True, "note": f"not run: {error}"}]
    return [check(request, arch) for request in requests]


def finish(found: dict[str, Any], json_path: Path | None, plot: Path | None) -> None:
    """Summarize a run, write its files and print the summary."""
    from .summary import summarize, text

    checks = [*found["checks"], *found.get("through_tvm", [])]
    found["summary"] = summarize(found["rows"], checks)
    write_json(json_path, found)
    said = text(found["header"], found["summary"], found["rows"])
    print(said)
    if json_path is not None:
        json_path.with_suffix(".md").write_text(said)
    if plot is not None and found["rows"]:
        from .plot import draw

        draw(found["rows"], found["header"], plot)
