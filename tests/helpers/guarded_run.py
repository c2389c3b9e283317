# SPDX-License-Identifier: Apache-2.0
"""Runs kernels whose arguments and workspaces lie between forbidden pages.

``python guarded_run.py guard.so CASES`` dies of a signal where a kernel touches what is not its
own; CASES is the pickle that ``test_memory.py`` writes.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

    def array(self, values: np.ndarray, offset: int = 0) -> np.ndarray:
        """A copy that ends at a forbidden page, up to alignment to 64 bytes, of its end.

        It begins `offset` bytes behind a multiple of 64.
        """
        start = self.library.guarded_alloc(max(values.nbytes + offset, 1)) + offset
        memory = (ctypes.c_char * values.nbytes).from_address(start)
        copy = np.frombuffer(memoryview(memory), values.dtype).reshape(values.shape)
        copy[...] = values
        return copy


def tensor_of(array: np.ndarray) -> tvm.runtime.Tensor:
    """TVM's view of an array; NumPy hands bfloat16 over as its bits."""
    if array.dtype != compare.numpy_dtype("bfloat16"):
        return tvm_ffi.from_dlpack(array, require_alignment=0)
    bits: Any = tvm_ffi.from_dlpack(array.view("uint16"), require_alignment=0)
    return bits._create_view(array.shape, "bfloat16")


def _ffi_libraries() -> Iterator[Path]:
    return (Path(tvm_ffi.__file__).parent / "lib").glob("libtvm_ffi.*")


def offsets_of(operands: list[np.ndarray]) -> Iterator[list[int]]:
    """Yield offsets of all operands: none, then each by itself by one element, 16 and 32 bytes,
    then all."""
    yield [0] * len(operands)
    for which, operand in enumerate(operands):
        for offset in sorted({operand.itemsize, 16, 32}):
            yield [offset if number == which else 0 for number in range(len(operands))]
    yield [operand.itemsize for operand in operands]


def main() -> None:
    """Run every function of the library on its operands, and keep the results.

    Wherever operands and result begin, the result has the same bits.
    """
    guard = Guard(sys.argv[1])
    library, cases, out = pickle.loads(Path(sys.argv[2]).read_bytes())
    module = tvm.runtime.load_module(library)
    results = []
    for name, operands in cases:
        found = []
        for offsets in offsets_of(operands):
            arrays = [guard.array(*one) for one in zip(operands, offsets)]
            module[name](*map(tensor_of, arrays))
            found.append((offsets, arrays[-1].copy()))
        results.append(found[0][1])
        for offsets, result in found:
            if result.tobytes() != results[-1].tobytes():
                sys.exit(f"{name}: another result with operands {offsets} bytes off")
    Path(out).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
