# SPDX-License-Identifier: Apache-2.0
"""Compiles, runs, times and compares. Nothing that stock TVM does here stops the program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

import tvm

from topi_ext.notices import one_line
from topi_ext.tuning.rpc import BoardError

from .errors import CliError, NotImportedError

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
MODEL_TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2, "bfloat16": 8e-2}


@dataclass(frozen=True)
class Protocol:
    """Options for compiling and timing.

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
    """The result of one implementation: error and time, or a short reason why there is none."""

    error: float | None = None
    ms: float | None = None
    note: str = ""

    def wrong(self, tolerance: float) -> bool:
        """Return whether it failed, or its error is above ``tolerance``."""
        return bool(self.note) or self.error is None or not self.error <= tolerance


def device(target: Any) -> Any:
    """Return the first device of a target; one clear line where the machine has none."""
    kind = str(target.kind.name)
    dev = tvm.device("cpu" if kind in ("llvm", "c") else kind, 0)
    if not dev.exist:
        raise CliError(f"--target {kind}: this machine has no such device")
    return dev


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
    """Return the milliseconds of PyTorch: the better of all its threads and one.

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


def side(
    compiler: Callable[[Any, Any, str], Any],
    implementation: AbstractContextManager[Any],
    make: Callable[[], Any],
    tensors: list[Any],
    expected: list[Any],
    protocol: Protocol,
    *,
    function: str = "main",
    take: Callable[[Any], Any] | None = None,
    compare: Callable[[Any, Any], float] | None = None,
    dtypes: Sequence[Any] = (),
) -> Side:
    """Compile, run, compare and time.

    Parameters
    ----------
    compiler : callable
        ``compiler(module, target, function) -> Compiled``.
    implementation : context manager
        Registers the rules with which the module is built and compiled.
    make : callable
        Gives the module, for what it builds may depend on what is registered.
    tensors, expected : list of torch.Tensor
    protocol : Protocol
    function : str
        Name of the function to call.
    take : callable, optional
        The part of the function's result that is compared; all of it unless given.
    compare : callable, optional
        ``compare(result, expected)``; :func:`max_error` unless given.
    dtypes : sequence of torch.dtype, optional
        Dtypes that the results must have; the expected ones are wider.
    """
    try:
        with implementation:
            compiled = compiler(make(), protocol.target, function)
        with closing(compiled):
            result, ms = compiled.timed(compiled.put(tensors), protocol)
            got = compiled.get(take(result) if take else result)
    except (CliError, BoardError):
        raise
    except NotImportedError as error:
        return Side(note=str(error))
    except Exception as error:
        return Side(note=one_line(error))
    if difference := _different_kind(got, expected, dtypes):
        return Side(ms=ms, note=difference)
    compare = compare or max_error
    return Side(max((compare(g, e) for g, e in zip(got, expected)), default=0.0), ms)


def _different_kind(got: list[Any], expected: list[Any], dtypes: Sequence[Any]) -> str:
    """Return how results differ from the expected ones in number, shape or dtype."""
    if len(got) != len(expected):
        return f"{len(got)} outputs, not {len(expected)}"
    for g, e in zip(got, expected):
        if tuple(g.shape) != tuple(e.shape):
            return f"wrong shape {tuple(g.shape)}, not {tuple(e.shape)}"
    for g, dtype in zip(got, dtypes):
        # Whole numbers are the same ones whatever their width: TVM narrows indices.
        if g.dtype != dtype and (g.is_floating_point() or dtype.is_floating_point):
            return "wrong dtype {}, not {}".format(
                *(str(d).removeprefix("torch.") for d in (g.dtype, dtype))
            )
    return ""


def max_error(got: Any, expected: Any) -> float:
    """``max |got - expected| / max |expected|`` over what is finite; infinite where only one is."""
    difference, expected = _finite(got, expected)
    return _ratio(difference.abs().max().item(), expected.abs().max().item())


def norm_error(got: Any, expected: Any) -> float:
    """``|got - expected| / |expected|`` in the Euclidean norm, which forgives a relu's kink."""
    difference, expected = _finite(got, expected)
    return _ratio(difference.norm().item(), expected.norm().item())


def _finite(got: Any, expected: Any) -> tuple[Any, Any]:
    """``got - expected`` and ``expected``, zero wherever the exact result is NaN or infinite and
    ours is the same, or infinite because its dtype goes no further."""
    import torch

    largest = torch.finfo(got.dtype).max if got.dtype.is_floating_point else float("inf")
    got, expected = (t.double().reshape(-1) for t in (got, expected))
    same = (got == expected) | (got.isnan() & expected.isnan())
    same |= got.isinf() & (expected.abs() > largest) & (got.sign() == expected.sign())
    zero = torch.zeros(1, dtype=torch.float64)
    difference = torch.where(same, zero, got - expected)
    return torch.cat([difference, zero]), torch.cat(
        [torch.where(expected.isfinite(), expected, zero), zero]
    )


def _ratio(error: float, scale: float) -> float:
    error /= scale if scale > 0 else 1.0
    return error if error == error else float("inf")
