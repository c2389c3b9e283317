# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver through ctypes: it launches machine code on the streams and memory of PyTorch.

A kernel is thus timed alone, also where TVM is not installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from cuda_emulator.host import Address, Launch

from .bundle import Prepared

_C_TYPES: dict[str, Any] = {
    "handle": ctypes.c_void_p,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
}
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class DriverError(Exception):
    """An error of the driver, with its message."""


class Driver:
    """The CUDA driver, in the context that PyTorch has made current."""

    def __init__(self, library: Any = None) -> None:
        """Load the driver; raise OSError if there is none."""
        self._library = library or ctypes.CDLL("libcuda.so.1")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            said = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(said))
            raise DriverError(f"{name}: {(said.value or b'error').decode()} ({code})")

    def synchronize(self) -> None:
        """Wait for the device; raise its error, from which the context does not recover."""
        self._call("cuCtxSynchronize")

    def load(self, binary: bytes) -> ctypes.c_void_p:
        """Load machine code."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), binary)
        return module

    def unload(self, module: ctypes.c_void_p) -> None:
        """Unload machine code."""
        self._call("cuModuleUnload", module)

    def function(self, module: ctypes.c_void_p, launch: Launch) -> ctypes.c_void_p:
        """Return a kernel that may use the shared memory of its launch."""
        found = ctypes.c_void_p()
        name = launch.kernel.encode()
        self._call("cuModuleGetFunction", ctypes.byref(found), module, name)
        if launch.dynamic_shared:
            # Static memory counts too, so any dynamic amount may exceed the default of 48 KiB.
            self._call("cuFuncSetAttribute", found, _DYNAMIC_SHARED, launch.dynamic_shared)
        return found

    def launch(self, function: Any, launch: Launch, arguments: Any, stream: int) -> None:
        """Launch a kernel with `arguments` from :func:`packed`."""
        at = ctypes.c_void_p(stream)
        sizes = (*launch.grid, *launch.block, launch.dynamic_shared)
        self._call("cuLaunchKernel", function, *sizes, at, arguments, None)


def packed(launch: Launch, memory: Sequence[int]) -> tuple[Any, list[Any]]:
    """Return the arguments for the driver, as pointers to each, and the objects that own them.

    Parameters
    ----------
    memory : sequence of int
        Address of each memory of the launch's plan.
    """
    values = (
        memory[value.number] + value.offset if isinstance(value, Address) else value
        for value in launch.arguments
    )
    held = [_C_TYPES[kind](value) for kind, value in zip(launch.types, values)]
    pointers = (ctypes.c_void_p * max(1, len(held)))(
        *(ctypes.cast(ctypes.pointer(one), ctypes.c_void_p) for one in held)
    )
    return pointers, held


class Kernel:
    """A prepared request that is loaded on the device and bound to its memory."""

    def __init__(self, driver: Driver, prepared: Prepared, memory: Sequence[int]) -> None:
        """Load the request.

        Parameters
        ----------
        memory : sequence of int
            Address of each memory of the call; the caller owns it.
        """
        self._driver = driver
        self._module = driver.load(prepared.binary)
        self._calls = []
        for launch in prepared.call.launches:
            function = driver.function(self._module, launch)
            arguments, held = packed(launch, memory)
            self._calls.append((function, launch, arguments, held))

    def __call__(self, stream: int) -> None:
        """Launch all kernels in order."""
        for function, launch, arguments, _ in self._calls:
            self._driver.launch(function, launch, arguments, stream)

    def close(self) -> None:
        """Unload the machine code."""
        self._driver.unload(self._module)
