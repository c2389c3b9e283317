# SPDX-License-Identifier: Apache-2.0
"""A run on a GPU from its first check to its summary."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmark.environment import commit

from .requests import Request, makers

MISSING = "not in the bundle"

CHECK_SHARE = 0.3
"""Of the seconds, those that checks may take."""


def torch_of_cuda() -> Any:
    """PyTorch, with a GPU.

    Raises
    ------
    ValueError
        In one line: what is missing.
    """
    try:
        # Before TVM: its runtime for CUDA finds the CUDA runtime that PyTorch has loaded.
        import torch
    except ImportError as error:
        raise ValueError(f"PyTorch is missing ({error}); a build with CUDA is needed") from error
    if torch.version.cuda is None:
        raise ValueError(f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        raise ValueError(f"torch {torch.__version__} finds no NVIDIA GPU")
    return torch


def header(torch: Any, given: argparse.Namespace, arch: str) -> dict[str, Any]:
    """When, on what, by which versions."""
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
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit(),
        "device": found.name if found else "none",
        "sms": found.multi_processor_count if found else 0,
        "arch": arch,
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "tvm": version,
        "bundle": str(given.bundle.name) if given.bundle else "",
        "flush_mib": given.flush,
        "protocol": "cold: memset before each call, events, medians of 5 rounds in turns; graph: "
        "20 calls in a CUDA graph; cudnn.benchmark on; ratios are theirs / ours",
    }


def opened(given: argparse.Namespace) -> tuple[str, Any]:
    """Return the architecture, and the device with where its kernels come from.

    Raises
    ------
    ValueError
        In one line: what is missing.
    """
    torch = torch_of_cuda()
    torch.backends.cudnn.benchmark = True
    major, minor = torch.cuda.get_device_capability()
    arch = given.arch or f"sm_{major}{minor}"
    from . import bundle
    from .clock import Clock
    from .driver import Driver
    from .measure import Device

    torch.zeros(1, device="cuda")  # makes the context that the driver is to use
    get, ready = _source(given.bundle, arch)
    clock = Clock(given.flush * 2**20)
    return arch, Device(Driver(), clock, bundle.machine_of(arch), arch, get, ready)


def _source(path: Path | None, arch: str) -> tuple[Any, dict[str, Any] | None]:
    """What gives the kernels of a request, and where those are put that are compiled ahead."""
    from . import bundle

    if path is None:
        ready: dict[str, bundle.Prepared] = {}
        return (
            lambda request: ready.pop(request.key, None) or bundle.prepare(request, arch)
        ), ready
    file = bundle.Bundle(path)
    if file.header["arch"] != arch:
        raise ValueError(f"--bundle {path} is for {file.header['arch']}, not {arch}")
    return (
        lambda request: file.get(request.key) or bundle.Prepared(request.key, "", MISSING)
    ), None


def run(
    given: argparse.Namespace, device: Any, to_check: list[Request], to_time: list[Request]
) -> int:
    """Check, time, report; the exit status."""
    import torch

    begun = time.monotonic()
    found: dict[str, Any] = {"header": header(torch, given, device.arch), "checks": [], "rows": []}
    with torch.inference_mode():
        _checks(found, device, to_check, begun + CHECK_SHARE * given.seconds, given.jobs)
        write(given.json, found)
        if given.through_tvm and given.bundle is None:
            found["through_tvm"] = _through_tvm(to_check[: given.through_tvm], device.arch)
        _rows(found, device, to_time, begun + given.seconds, given)
    finish(found, given.json, given.plot)
    return int(bool(found["summary"]["wrong"]))


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Write what there is so far: a run that is stopped has not run for nothing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def compiled_ahead(
    groups: Iterable[tuple[Request, list[Request]]], device: Any, jobs: int
) -> Iterator[Request]:
    """Requests, each when all that is compiled for it is there; others compile meanwhile."""
    from .bundle import prepare_all

    if device.ready is None:
        yield from (request for request, _ in groups)
        return
    listed = list(groups)
    made = prepare_all([one for _, group in listed for one in group], device.arch, jobs)
    for request, group in listed:
        for _ in group:
            one = next(made)
            device.ready[one.key] = one
        yield request


def _checks(
    found: dict[str, Any], device: Any, requests: list[Request], until: float, jobs: int
) -> None:
    from .measure import check

    for request in compiled_ahead([(one, [one]) for one in requests], device, jobs):
        if time.monotonic() > until:
            break
        row = check(request, device)
        found["checks"].append(row)
        if not row["ok"]:
            said = row["note"] or f"off by {row['error']}, allowed {row['tolerance']:.1e}"
            print(f"wrong: {row['key']}: {said}", file=sys.stderr, flush=True)
    print(f"{len(found['checks'])} of {len(requests)} checks", file=sys.stderr, flush=True)


def _rows(
    found: dict[str, Any],
    device: Any,
    requests: list[Request],
    until: float,
    given: argparse.Namespace,
) -> None:
    from .measure import row_of

    groups = [(one, makers(one, given.plans)) for one in requests]
    for request in compiled_ahead(groups, device, given.jobs):
        if time.monotonic() > until:
            break
        try:
            found["rows"].append(row_of(request, device, given.plans))
        except Exception as failure:  # a row that fails does not end a run
            print(f"{request.key}: {failure}", file=sys.stderr, flush=True)
        if len(found["rows"]) % 50 == 1:
            write(given.json, found)
            print(f"{len(found['rows'])} rows, {request.key}", file=sys.stderr, flush=True)


def _through_tvm(requests: list[Request], arch: str) -> list[dict[str, Any]]:
    """Return the same kernels as users call them; where TVM is missing, a row that says so."""
    try:
        from .through_tvm import check
    except ImportError as error:
        return [{"key": "", "ok": True, "note": f"not run: {error}"}]
    return [check(request, arch) for request in requests]


def finish(found: dict[str, Any], json_path: Path | None, plot: Path | None) -> None:
    """Summary, files, and what is printed."""
    from .summary import summarize, text

    checks = [*found["checks"], *found.get("through_tvm", [])]
    found["summary"] = summarize(found["rows"], checks)
    write(json_path, found)
    said = text(found["header"], found["summary"], found["rows"])
    print(said)
    if json_path is not None:
        json_path.with_suffix(".md").write_text(said)
    if plot is not None and found["rows"]:
        from .plot import draw

        draw(found["rows"], found["header"], plot)
