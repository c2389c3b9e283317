# SPDX-License-Identifier: Apache-2.0
"""Peak rates of this machine: multiply-adds from registers, and copying memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from topi_ext.cpu import emit
from topi_ext.cpu.emit import ATTRIBUTES
from topi_ext.cpu.machine import CpuMachine
from topi_ext.spec.dtypes import byte_width

from .environment import host_features

_SUMS = 12
"""Enough independent sums for the latency of a multiply-add, few enough for any register file."""

_STEPS = 4_000_000
_COPIED = 1 << 28
_TRIES = 15


@dataclass(frozen=True)
class Peaks:
    """Peak rates of all threads together.

    Attributes
    ----------
    gflops : float
        Multiplications and additions of float32 per nanosecond.
    copy_gbs : float
        Bytes read and written per nanosecond by a copy that no cache holds.
    """

    gflops: float
    copy_gbs: float


def measure(engine: Any, target: Any, threads: int) -> Peaks:
    """Return the best of several tries of both."""
    source = torch.ones(_COPIED // 4)
    into = torch.zeros(_COPIED // 4)
    copy_gbs = 2 * _COPIED / _best(lambda: into.copy_(source)) / 1e9
    return Peaks(gflops(engine, target, threads), copy_gbs)


def gflops(engine: Any, target: Any, threads: int) -> float:
    """Return the best rate of several tries of multiply-adds."""
    machine = CpuMachine.of_features(*host_features(target))
    lanes = machine.vector_bytes // byte_width("float32")
    run = engine.kernel(_multiply_adds(threads, lanes), target)
    factors, sums = torch.ones(2 * lanes), torch.zeros(threads * _SUMS * lanes)
    arrays = [engine.array(tensor) for tensor in (factors, sums)]
    flops = 2 * threads * _SUMS * lanes * _STEPS
    return flops / _best(lambda: run(*arrays)) / 1e9


def _multiply_adds(threads: int, lanes: int) -> Any:
    """Return a PrimFunc ``(factors, sums)`` that multiplies and adds in registers, a task per
    thread.
    """
    with emit.kernel(ATTRIBUTES) as made:
        factors = emit.argument("factors", "A", (2 * lanes,), "float32")
        sums = emit.argument("sums", "A", (threads * _SUMS * lanes,), "float32")
        with emit.body(factors, sums) as (given, out):
            with emit.tasks(threads, parallel=True) as task:
                held = emit.registers(_SUMS, lanes, "float32")
                a, b = (given[emit.lanes_of(i * lanes, lanes)] for i in range(2))
                for register, index in held:
                    emit.store(register, index, a)
                for _ in emit.loop(_STEPS):
                    for register, index in held:
                        emit.store(register, index, register[index] + a * b)
                for number, (register, index) in enumerate(held):
                    place = (task * _SUMS + number) * lanes
                    emit.store(out, emit.lanes_of(place, lanes), register[index])
    return made[0]


def _best(run: Callable[[], Any]) -> float:
    """Return the seconds of the shortest of several calls."""
    run()
    times = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
