# SPDX-License-Identifier: Apache-2.0
"""Correctness and time of one request on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from support.errors import allowed, finite, one_line, relative_error
from topi_ext.cuda.machine import GpuMachine
from topi_ext.cuda.plan.estimate import CLOCK, DOUBLE_RATE
from topi_ext.cuda.registry import KERNELS
from topi_ext.spec.dtypes import byte_width

from . import tensors
from .bundle import Prepared
from .clock import Clock
from .driver import Driver, DriverError, Kernel
from .requests import Request, makers

Row = dict[str, Any]
Get = Callable[[Request], Prepared]

BUDGET = 0.03
"""Seconds of timed calls for each implementation."""

LONG = 20.0
"""Milliseconds from which on a call is not captured into a graph."""


@dataclass
class Device:
    """The device, and settings that all rows share.

    Attributes
    ----------
    driver : Driver
    clock : Clock
    machine : GpuMachine
    arch : str
    get : callable
        Returns the compiled kernels of a request.
    ready : dict or None
        Kernels that are compiled ahead, by key; None if they come from a bundle.
    name : str
        Name of the device in PyTorch.
    """

    driver: Driver
    clock: Clock
    machine: GpuMachine
    arch: str
    get: Get
    ready: dict[str, Prepared] | None = None
    name: str = "cuda"

    def run(self, task: str, *arguments: Any) -> Row:
        """Run the task ``ceilings``, ``check`` or ``row``; the last two take compiled kernels, the
        request, and other arguments of :func:`check` or :func:`row_of`.
        """
        if task == "ceilings":
            return ceilings(self)
        prepared, request, *rest = arguments
        if self.ready is not None:
            self.ready.update({one.key: one for one in prepared})
        return {"check": check, "row": row_of}[task](request, self, *rest)

    def stream(self) -> int:
        """Return PyTorch's current stream."""
        return torch.cuda.current_stream().cuda_stream if self.name == "cuda" else 0

    def wait(self) -> None:
        """Wait until all work on the device is done."""
        if self.name == "cuda":
            torch.cuda.synchronize()

    def is_broken(self) -> bool:
        """Return whether an earlier fault has left the GPU's context unusable."""
        try:
            self.driver.synchronize()
        except DriverError:
            return True
        return False


def ceilings(device: Device) -> Row:
    """Measure the ceilings of the device by PyTorch: products in TFLOP/s and copies in GB/s."""
    if device.name != "cuda":
        return {}
    size, found = 8192, {}
    for name, dtype, with_tf32 in (
        ("float16", torch.float16, False), ("tf32", torch.float32, True),
        ("float32", torch.float32, False),
    ):  # fmt: skip
        a = torch.randn(size, size, device=device.name, dtype=dtype)
        tensors.allow_tf32(with_tf32)
        time = device.clock.cold({name: partial(torch.matmul, a, a)}, BUDGET)[name]
        found[f"{name}_tflops"] = 2 * size**3 / time * 1e-9
    tensors.allow_tf32(False)
    a = torch.empty(2**28, device=device.name)
    time = device.clock.cold({"copy": a.clone}, BUDGET)["copy"]
    return {**found, "copy_gbs": 2 * a.nbytes / time * 1e-6}


class Bound:
    """A prepared request with memory for its operands, result and workspaces."""

    def __init__(self, device: Device, request: Request, placed: dict[str, Tensor]) -> None:
        """Load the request; raise ValueError if nothing was prepared for it."""
        self.prepared = device.get(request)
        if self.prepared.error:
            raise ValueError(self.prepared.error)
        *begins, end = request.offsets
        data = [
            tensors.beginning(tensors.stored(request, role, placed[role]), offset)
            for role, offset in zip(request.roles, begins)
        ]
        if self.prepared.packed:
            # It is only timed: the result is checked with weights that the kernel packs.
            numbers = torch.randn(self.prepared.packed, device=device.name)
            data[1] = numbers.to(data[1].dtype)
        self.out = tensors.beginning(tensors.result(request, device.name), end)
        self._device = device
        self._memory = tensors.memory_of(self.prepared.call.memory, (*data, self.out), device.name)
        places = [one.data_ptr() for one in self._memory]
        self._kernel = Kernel(device.driver, self.prepared, places)

    def __call__(self) -> None:
        """Launch the request on PyTorch's stream."""
        self._kernel(self._device.stream())

    def close(self) -> None:
        """Unload the request once the device is done."""
        self._device.wait()
        self._kernel.close()


def check(request: Request, device: Device) -> Row:
    """Return whether the kernel of this package equals PyTorch in float64."""
    row: Row = {"key": request.key, "error": None, "tolerance": None, "note": ""}
    try:
        placed = tensors.operands(request, device.name)
        bound = Bound(device, request, placed)
        bound()
        device.wait()
        error, tolerance = _error(request, tensors.reference(request, placed), bound)
        bound.close()
    except Exception as failure:  # a failure is a result
        return {**row, "ok": False, "note": one_line(failure)}
    ok = error is not None and error <= tolerance
    return {**row, "ok": ok, "error": finite(error), "tolerance": tolerance}


def _error(request: Request, want: Tensor, bound: Bound) -> tuple[float | None, float]:
    got = tensors.canonical(request, bound.out)
    return relative_error(got, want), allowed(request.case.terms(request.kind), request.dtype)


def row_of(request: Request, device: Device, plans: int = 0) -> Row:
    """Return milliseconds of this package and of the baselines; None for missing ones."""
    case = request.case
    row: Row = {
        "key": request.key,
        "name": case.name,
        "configuration": str(case),
        "kind": request.kind,
        "dtype": request.dtype,
        "channels": request.channels,
        "plan": "",
        "ok": False,
        "notes": [],
    }
    bounds: dict[str, Bound] = {}
    runs: dict[str, Callable[[], Any]] = {}
    placed = tensors.operands(request, device.name)
    for maker in ("ours", "prepacked", "stock"):
        try:
            bounds[maker] = runs[maker] = Bound(device, replace(request, maker=maker), placed)
        except Exception as failure:
            if maker == "ours":
                row["notes"].append(f"ours: {one_line(failure)}")
    want = tensors.reference(request, placed)
    if "ours" in bounds:
        row["plan"] = bounds["ours"].prepared.plan
        bounds["ours"]()
        error, tolerance = _error(request, want, bounds["ours"])
        row.update(error=finite(error), tolerance=tolerance)
        row["ok"] = error is not None and error <= tolerance
    row.update(_times(request, device, placed, runs, row["notes"]))
    for bound in bounds.values():
        bound.close()
    others = (one for one in makers(request, plans) if one.place)
    row["plans"] = [_other_plan(one, device, placed, want) for one in others]
    row["ok"] = row["ok"] and all(one["ok"] for one in row["plans"])
    return {**row, **_shares(request, row, device.machine)}


def _other_plan(request: Request, device: Device, placed: dict[str, Tensor], want: Tensor) -> Row:
    """Return the time of another plan in a graph, and whether its result is correct."""
    try:
        estimate, plan = request.rated(device.machine)
    except ValueError:  # there are fewer plans
        return {"plan": "", "graph_ms": None, "estimate_ms": None, "ok": True, "note": ""}
    row: Row = {"plan": str(plan), "graph_ms": None, "estimate_ms": estimate * 1e-6, "note": ""}
    try:
        bound = Bound(device, request, placed)
        bound()
        error, tolerance = _error(request, want, bound)
        row["graph_ms"] = device.clock.graph(bound)
        bound.close()
    except Exception as failure:  # a failure is a result
        return {**row, "ok": False, "note": one_line(failure)}
    return {**row, "ok": error is not None and error <= tolerance}


def _times(
    request: Request,
    device: Device,
    placed: dict[str, Tensor],
    runs: dict[str, Callable[[], Any]],
    notes: list[str],
) -> Row:
    """Return interleaved cold times, and the time of each in a graph."""
    for name, (call, with_tf32) in tensors.baselines(request, placed).items():

        def run(call: Callable[[], Tensor] = call, with_tf32: bool = with_tf32) -> Tensor:
            tensors.allow_tf32(with_tf32)
            return call()

        try:
            run()
            runs[name] = run
        except RuntimeError as failure:
            notes.append(f"{name}: {one_line(failure)}")
    cold = device.clock.cold(runs, BUDGET)
    graphs = {name: device.clock.graph(run) for name, run in runs.items() if cold[name] < LONG}
    tensors.allow_tf32(False)
    found: Row = {}
    for name in ("ours", "prepacked", "stock", "torch", "torch_tf32"):
        found[f"{name}_ms"], found[f"{name}_graph_ms"] = cold.get(name), graphs.get(name)
    return found


def _shares(request: Request, row: Row, machine: GpuMachine) -> Row:
    """Return the shares of the machine's peaks that are reached, and the error of the estimate."""
    ours = row["ours_graph_ms"] or row["ours_ms"]
    ratios = {
        f"ratio_{name}": _ratio(row[f"{name}_ms"], row["ours_ms"])
        for name in ("torch", "torch_tf32", "stock")
    }
    ratios["ratio_torch_graph"] = _ratio(row["torch_graph_ms"], row["ours_graph_ms"])
    ratios["ratio_torch_prepacked"] = _ratio(row["torch_ms"], row["prepacked_ms"])
    if not ours:
        return {**ratios, "share": None, "bound_by": None, "estimate_ms": None}
    flops, bytes_ = limits(request, machine)
    times = [nanoseconds for nanoseconds, _ in KERNELS.candidates(request.problem, machine)]
    return {
        **ratios,
        "share": max(flops, bytes_) / ours,
        "bound_by": "products" if flops > bytes_ else "memory",
        "estimate_ms": min(times) * 1e-6 if times else None,
    }


def limits(request: Request, machine: GpuMachine) -> tuple[float, float]:
    """Return the milliseconds of the products, and of moving the operands, at the peaks that
    plans assume.
    """
    halves = request.dtype in ("float16", "bfloat16")
    width = byte_width(request.dtype)
    slower = DOUBLE_RATE.get(machine.arch, 32) if request.dtype == "float64" else 1
    speed = machine.tensor if halves else machine.lanes / slower
    products = request.case.products / (speed * machine.sms * CLOCK) * 1e-6
    return products, request.moved * width / (machine.bytes_per_cycle * CLOCK) * 1e-6


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs and ours else None
