# SPDX-License-Identifier: Apache-2.0
"""What a plan has to know of a GPU, by its architecture: nothing is asked of a device."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

WARP = 32
"""Threads that run in step."""

STATIC_SHARED = 48 * 1024
"""Bytes of shared memory that a block has without asking the driver for more."""

GRID = 2**31 - 1
"""Most blocks of a launch along its first axis, the only one that kernels use."""


@dataclass(frozen=True)
class GpuMachine:
    """A GPU, as plans see it.

    Attributes
    ----------
    arch : int
        Compute capability: 90 for sm_90.
    sms : int
        Streaming multiprocessors.
    lanes : int
        Products of float32 that one of them begins in a cycle.
    tensor : int
        Products of float16 that the tensor cores of one of them begin in a cycle; 0 without.
    bytes_per_cycle : float
        From and to memory, of the whole device.
    l2 : int
        Bytes of the second cache.
    registers : int
        32-bit registers of a multiprocessor.
    shared : int
        Bytes of shared memory of a multiprocessor.
    threads : int
        Threads that a multiprocessor holds.
    multiplies_tf32 : bool
        Whether float32 may be multiplied by tensor cores, as three products of TF32.
    """

    arch: int
    sms: int
    lanes: int
    tensor: int
    bytes_per_cycle: float
    l2: int
    registers: int = 65536
    shared: int = 96 * 1024
    threads: int = 2048
    multiplies_tf32: bool = False

    @classmethod
    def of_arch(cls, name: str) -> GpuMachine | None:
        """That of a name such as ``sm_90``, ``sm_90a``; None where it is none.

        An architecture that is not in the table is taken for the largest one below it.
        """
        found = re.fullmatch(r"sm_(\d+)[af]?", name)
        if found is None:
            return None
        arch = int(found[1])
        known = max((key for key in _DEVICES if key <= arch), default=min(_DEVICES))
        return replace(_DEVICES[known], arch=arch)

    @property
    def has_mma(self) -> bool:
        """Whether tensor cores multiply 16 x 8 x 16, and copies to shared memory need no register:
        Ampere and later."""
        return self.arch >= 80

    @property
    def has_dp4a(self) -> bool:
        """Whether four products of bytes are one instruction."""
        return self.arch >= 61

    @property
    def has_bfloat16(self) -> bool:
        """Whether CUDA has arithmetic of bfloat16."""
        return self.arch >= 80


# The device of each architecture that is sold most: multiprocessors, clocks and bandwidth are of
# its data sheet; products per cycle of the CUDA C++ Programming Guide, "Arithmetic Instructions".
_DEVICES = {
    52: GpuMachine(52, 24, 128, 0, 190, 3 << 20),  # M60-like
    60: GpuMachine(60, 56, 64, 0, 550, 4 << 20, shared=64 * 1024),  # P100
    61: GpuMachine(61, 28, 128, 0, 300, 3 << 20),  # 1080 Ti
    70: GpuMachine(70, 80, 64, 512, 640, 6 << 20),  # V100
    75: GpuMachine(75, 40, 64, 512, 200, 4 << 20, shared=64 * 1024, threads=1024),  # T4
    80: GpuMachine(80, 108, 64, 1024, 1100, 40 << 20, shared=164 * 1024),  # A100
    86: GpuMachine(86, 84, 128, 512, 540, 6 << 20, shared=100 * 1024, threads=1536),  # A40, 3090
    87: GpuMachine(87, 16, 128, 512, 160, 4 << 20, shared=164 * 1024, threads=1536),  # Orin
    89: GpuMachine(89, 128, 128, 512, 400, 72 << 20, shared=100 * 1024, threads=1536),  # 4090
    90: GpuMachine(90, 132, 128, 2048, 1900, 50 << 20, shared=228 * 1024),  # H100
    100: GpuMachine(100, 148, 128, 1024, 4200, 126 << 20, shared=228 * 1024),  # B200
    120: GpuMachine(120, 170, 128, 512, 740, 96 << 20, shared=100 * 1024, threads=1536),  # 5090
}
