# SPDX-License-Identifier: Apache-2.0
"""CUDA's driver, through ctypes: machine code, launched on the streams and memory of PyTorch.

So a kernel is timed by itself, and where TVM is not installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from .bundle import Prepared
from .host import ARGUMENT, Launch, Memory

_C_TYPES: dict[str, Any] = {
    "pointer": ctypes.c_void_p,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
}
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class DriverError(Exception):
    """The driver refused; the message is its own."""


class Driver:
    """The driver of NVIDIA GPUs, with the context that PyTorch has made current."""

    def __init__(self, library: Any = None) -> None:
        """Load it; raises OSError where there is none."""
        self._library = library or ctypes.CDLL("libcuda.so.1")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            said = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(said))
            raise DriverError(f"{name}: {(said.value or b'error').decode()} ({code})")

    def load(self, binary: bytes) -> ctypes.c_void_p:
        """Load machine code."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), binary)
        return module

    def unload(self, module: ctypes.c_void_p) -> None:
        """Forget it."""
        self._call("cuModuleUnload", module)

    def function(self, module: ctypes.c_void_p, launch: Launch) -> ctypes.c_void_p:
        """A kernel, with as much shared memory as its launch asks for."""
        found = ctypes.c_void_p()
        name = launch.kernel.encode()
        self._call("cuModuleGetFunction", ctypes.byref(found), module, name)
        if launch.shared:
            # Beside the static memory of a block, so that any of it may take more than 48 KiB.
            self._call("cuFuncSetAttribute", found, _DYNAMIC_SHARED, launch.shared)
        return found

    def launch(self, function: Any, launch: Launch, arguments: Any, stream: int) -> None:
        """Launch it; `arguments` are what :func:`packed` gives."""
        at = ctypes.c_void_p(stream)
        grid_and_block = (*launch.grid, *launch.block)
        self._call("cuLaunchKernel", function, *grid_and_block, launch.shared, at, arguments, None)


def values_of(launch: Launch, operands: Sequence[int], workspaces: Sequence[int]) -> list[int]:
    """Arguments of a launch, with the addresses of operands and workspaces in their places."""
    return [
        (operands if value.kind == ARGUMENT else workspaces)[value.number]
        if isinstance(value, Memory)
        else value
        for value in launch.arguments
    ]


def packed(launch: Launch, values: Sequence[int]) -> tuple[Any, list[Any]]:
    """As the driver takes them: pointers to each; the second keeps them alive."""
    held = [_C_TYPES[kind](value) for kind, value in zip(launch.types, values)]
    pointers = (ctypes.c_void_p * max(1, len(held)))(
        *(ctypes.cast(ctypes.pointer(one), ctypes.c_void_p) for one in held)
    )
    return pointers, held


class Kernel:
    """A prepared request on the device, bound to its operands."""

    def __init__(
        self,
        driver: Driver,
        prepared: Prepared,
        operands: Sequence[int],
        workspaces: Sequence[int],
    ) -> None:
        """Load it.

        Parameters
        ----------
        operands, workspaces : sequence of int
            Their addresses; memory that its owner keeps.
        """
        self._driver = driver
        self._module = driver.load(prepared.binary)
        self._calls = []
        for launch in prepared.launches.launches:
            function = driver.function(self._module, launch)
            arguments, held = packed(launch, values_of(launch, operands, workspaces))
            self._calls.append((function, launch, arguments, held))

    def __call__(self, stream: int) -> None:
        """Launch all kernels in order."""
        for function, launch, arguments, _ in self._calls:
            self._driver.launch(function, launch, arguments, stream)

    def close(self) -> None:
        """Unload the machine code."""
        self._driver.unload(self._module)
