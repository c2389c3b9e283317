# SPDX-License-Identifier: Apache-2.0
"""Compiles, runs, times and compares. Nothing that stock TVM does here stops the program."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from relax_ext.cli.errors import CliError, one_line

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
MODEL_TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2, "bfloat16": 8e-2}


@dataclass(frozen=True)
class Protocol:
    """How to compile and time.

    Attributes
    ----------
    target : tvm.target.Target
    repeat : int
        Timed runs wanted, after one untimed run.
    budget : float
        Seconds of timed runs after which no further one starts.
    """

    target: Any
    repeat: int = 10
    budget: float = 2.0


@dataclass(frozen=True)
class Side:
    """What one implementation did: its error and time, or in a few words why there is none."""

    error: float | None = None
    ms: float | None = None
    note: str = ""

    def wrong(self, tolerance: float) -> bool:
        """Whether it failed, or its error is above ``tolerance``."""
        return bool(self.note) or self.error is None or not self.error <= tolerance


def stock() -> AbstractContextManager[Any]:
    """Stock TVM inside the block."""
    import relax_ext

    return relax_ext.stock()


def ours() -> AbstractContextManager[Any]:
    """TVM with relax_ext, which importing it has registered."""
    return nullcontext()


def parse_target(text: str | None, threads: int) -> Any:
    """The target of ``--target``: a kind, a JSON dict, or this machine."""
    import json

    import tvm

    import relax_ext

    if text is None:
        return relax_ext.host_target(num_cores=threads)
    try:
        spec = json.loads(text) if text.lstrip().startswith("{") else {"kind": text}
        return tvm.target.Target(spec)
    except Exception as error:
        raise CliError(f"--target {text}: {one_line(error)}") from error


def device(target: Any) -> Any:
    """The first device of a target; one clear line where the machine has none."""
    import tvm

    kind = str(target.kind.name)
    dev = tvm.device("cpu" if kind in ("llvm", "c") else kind, 0)
    if not dev.exist:
        raise CliError(f"--target {kind}: this machine has no such device")
    return dev


class Compiled:
    """A compiled module that takes and gives torch tensors."""

    def __init__(self, mod: Any, target: Any, function: str = "main") -> None:
        import tvm
        from tvm import relax

        self.device = device(target)
        self.on_cpu = self.device.dlpack_device_type() == tvm.cpu().dlpack_device_type()
        executable = tvm.compile(mod, target)
        self.function = relax.VirtualMachine(executable, self.device)[function]

    def put(self, tensors: list[Any]) -> list[Any]:
        """Arguments on the device, copied: TVM wants the 64-byte alignment of torch's own data."""
        import tvm

        arrays = [tvm.runtime.from_dlpack(t.detach().clone().contiguous()) for t in tensors]
        if self.on_cpu:
            return arrays
        return [a.copyto(self.device) for a in arrays]

    def run(self, arrays: list[Any]) -> Any:
        """One run, finished when this returns."""
        result = self.function(*arrays)
        self.device.sync()
        return result

    def get(self, result: Any) -> list[Any]:
        """The tensors of a result, in order, as torch tensors."""
        import torch
        import tvm

        if not isinstance(result, tvm.runtime.Tensor):
            return [t for item in result for t in self.get(item)]
        return [torch.from_dlpack(result if self.on_cpu else result.copyto(tvm.cpu()))]


def timed(run: Callable[[], Any], protocol: Protocol) -> tuple[Any, float]:
    """Result of the first, untimed run, and the milliseconds of the best of the timed ones.

    There are at least ``protocol.repeat`` of these and at least 0.1 s of them, within the budget. A
    first run that takes longer than the whole budget is its own measurement.
    """
    start = time.perf_counter()
    result = run()
    first = time.perf_counter() - start
    best, spent, runs = first, 0.0, 0
    while first <= protocol.budget and (runs < protocol.repeat or spent < 0.1):
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
        if spent >= protocol.budget:
            break
    return result, best * 1e3


def timed_torch(run: Callable[[], Any], protocol: Protocol) -> float:
    """Milliseconds of PyTorch: the better of all its threads and one.

    Its threads wait for each other by spinning, which costs tens of milliseconds per operator
    where other processes want the same cores.
    """
    import torch

    threads = torch.get_num_threads()
    _, best = timed(run, protocol)
    if threads > 1:
        torch.set_num_threads(1)
        try:
            best = min(best, timed(run, protocol)[1])
        finally:
            torch.set_num_threads(threads)
    return best


def attempt(
    make: Callable[[], Any],
    implementation: Callable[[], AbstractContextManager[Any]],
    tensors: list[Any],
    expected: list[Any],
    protocol: Protocol,
    function: str = "main",
    take: Callable[[Any], Any] | None = None,
    compare: Callable[[Any, Any], float] | None = None,
) -> Side:
    """Compile ``make()`` inside ``implementation()``, run it on ``tensors``, compare and time.

    Parameters
    ----------
    make : callable
        Gives the module. Called inside the implementation, for what it builds may depend on it.
    implementation : callable
        :func:`stock` or :func:`ours`.
    tensors, expected : list of torch.Tensor
    protocol : Protocol
    function : str
        What to call in the module.
    take : callable, optional
        The part of the function's result that is compared; all of it unless given.
    compare : callable, optional
        ``compare(result, expected)``; :func:`max_error` unless given.
    """
    try:
        with implementation():
            compiled = Compiled(make(), protocol.target, function)
        arrays = compiled.put(tensors)
        result, ms = timed(lambda: compiled.run(arrays), protocol)
        got = compiled.get(take(result) if take else result)
    except CliError:
        raise
    except Exception as error:
        return Side(note=one_line(error))
    if len(got) != len(expected):
        return Side(ms=ms, note=f"{len(got)} outputs, not {len(expected)}")
    for g, e in zip(got, expected):
        if tuple(g.shape) != tuple(e.shape):
            return Side(ms=ms, note=f"wrong shape {tuple(g.shape)}, not {tuple(e.shape)}")
    compare = compare or max_error
    return Side(max((compare(g, e) for g, e in zip(got, expected)), default=0.0), ms)


def max_error(got: Any, expected: Any) -> float:
    """``max |got - expected| / max |expected|``; infinite where a number is missing."""
    got, expected = got.double(), expected.double()
    if expected.numel() == 0:
        return 0.0
    scale = expected.abs().max().item()
    error = (got - expected).abs().max().item() / (scale if scale > 0 else 1.0)
    return error if error == error else float("inf")


def norm_error(got: Any, expected: Any) -> float:
    """``|got - expected| / |expected|`` in the Euclidean norm, which forgives a relu's kink."""
    got, expected = got.double(), expected.double()
    scale = expected.norm().item()
    error = (got - expected).norm().item() / (scale if scale > 0 else 1.0)
    return error if error == error else float("inf")
