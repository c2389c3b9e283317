# SPDX-License-Identifier: Apache-2.0
"""CUDA's driver without a GPU: it remembers launches, and breaks as GPUs do where it is told to."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from cuda_emulator.host import Address, Launch, Memory, Plan
from support.gpu import bundle, clock, driver, measure
from support.gpu.requests import Request, machine_of

ILLEGAL_ADDRESS = 700


class FakeCuda:
    """CUDA's driver: it remembers launches, and may do something at each.

    Machine code is a word: ``poison`` leaves the context unusable, ``hang`` does not end, ``die``
    ends the process.
    """

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.attributes: list[int] = []
        self.then: Callable[[list[int]], None] = lambda values: None
        self.code = b""
        self.status = 0

    def cuModuleLoadData(self, module: Any, binary: bytes) -> int:  # noqa: N802
        self.code = binary
        return self.status if binary else 200

    def cuModuleUnload(self, module: Any) -> int:  # noqa: N802
        return self.status

    def cuModuleGetFunction(self, found: Any, module: Any, name: bytes) -> int:  # noqa: N802
        return 0 if name.startswith(b"main") else 500

    def cuFuncSetAttribute(self, function: Any, which: int, value: int) -> int:  # noqa: N802
        self.attributes.append(value)
        return 0

    def cuGetErrorString(self, code: int, said: Any) -> int:  # noqa: N802
        ctypes.cast(said, ctypes.POINTER(ctypes.c_char_p))[0] = b"no such thing"
        return 0

    def cuCtxSynchronize(self) -> int:  # noqa: N802
        return self.status

    def cuLaunchKernel(self, *given: Any) -> int:  # noqa: N802
        if self.code == b"poison":
            self.status = ILLEGAL_ADDRESS
        elif self.code == b"hang":
            time.sleep(600)
        elif self.code == b"die":
            os._exit(9)
        *_, shared, _, arguments, _ = given
        values = [ctypes.cast(one, ctypes.POINTER(ctypes.c_int64))[0] for one in arguments]
        self.launches.append((*given[1:7], shared))
        self.then(values)
        return self.status


class FakeClock(clock.Clock):
    """Every call takes a millisecond, but for PyTorch's, which takes three."""

    def __init__(self, flush: int) -> None:
        pass

    def cold(self, runs: Mapping[str, Any], budget: float) -> dict[str, float]:
        return {name: 3.0 if name.startswith("torch") else 1.0 for name in runs}

    def graph(self, run: Any) -> float | None:
        return None


def prepared(request: Request) -> bundle.Prepared:
    """A kernel whose machine code is the name of its case."""
    arguments = tuple(Address(number, 0) for number in range(3))
    launch = Launch("main", (7, 1, 1), (64, 1, 1), 0, arguments, ("handle",) * 3)
    memory = tuple(Memory(name, number, 0) for number, name in enumerate(request.roles))
    code, call = request.case.name.encode(), Plan(memory, (launch,))
    return bundle.Prepared(request.code, "ImplicitGemmPlan(fake)", "", code, call)


def device(cuda: FakeCuda) -> measure.Device:
    """A device whose memory is the processor's."""
    machine = machine_of("sm_90")
    opened = driver.Driver(cuda)
    return measure.Device(opened, FakeClock(0), machine, "sm_90", prepared, None, "cpu")


def open_device() -> measure.Device:
    """Open one, in whatever process this is."""
    return device(FakeCuda())
