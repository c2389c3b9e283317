# SPDX-License-Identifier: Apache-2.0
"""Runs kernels whose arguments and workspaces lie between forbidden pages.

``python guarded_run.py guard.so CASES`` dies of a signal where a kernel touches what is not its
own; CASES is the pickle that ``test_memory.py`` writes.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi

from helpers import compare


class Guard:
    """The library of guard.c, its allocator put in the place of TVM's."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.library.guarded_alloc.restype = ctypes.c_void_p
        self.library.guarded_alloc.argtypes = [ctypes.c_uint64]
        register = ctypes.CDLL(str(next(_ffi_libraries()))).TVMFFIEnvModRegisterContextSymbol
        register.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        for name, ours in (("Alloc", "alloc_workspace"), ("Free", "free_workspace")):
            symbol = ctypes.cast(getattr(self.library, ours), ctypes.c_void_p)
            for prefix in (b"", b"__"):
                register(prefix + f"TVMBackend{name}Workspace".encode(), symbol)

    def array(self, values: np.ndarray) -> np.ndarray:
        """A copy that ends at a forbidden page, up to alignment to 64 bytes."""
        start = self.library.guarded_alloc(max(values.nbytes, 1))
        memory = (ctypes.c_char * values.nbytes).from_address(start)
        copy = np.frombuffer(memory, values.dtype).reshape(values.shape)
        copy[...] = values
        return copy


def tensor_of(array: np.ndarray) -> tvm.runtime.Tensor:
    """TVM's view of an array; NumPy hands bfloat16 over as its bits."""
    if array.dtype != compare.numpy_dtype("bfloat16"):
        return tvm.runtime.from_dlpack(array)
    bits = tvm.runtime.from_dlpack(array.view("uint16"))
    return bits._create_view(array.shape, "bfloat16")


def _ffi_libraries() -> list[Path]:
    return (Path(tvm_ffi.__file__).parent / "lib").glob("libtvm_ffi.*")


def main() -> None:
    """Run every function of the library on its operands, and keep the results."""
    guard = Guard(sys.argv[1])
    library, cases, out = pickle.loads(Path(sys.argv[2]).read_bytes())
    module = tvm.runtime.load_module(library)
    results = []
    for name, operands in cases:
        arrays = [guard.array(operand) for operand in operands]
        module[name](*map(tensor_of, arrays))
        results.append(arrays[-1].copy())
    Path(out).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
