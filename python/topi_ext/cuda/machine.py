# SPDX-License-Identifier: Apache-2.0
"""Properties of GPUs that plans use, by architecture; no device is queried."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

WARP = 32
"""Threads of a warp, which run in step."""

STATIC_SHARED = 48 * 1024
"""Bytes of shared memory that a block has by default, without a call of the driver."""

GRID = 2**31 - 1
"""Maximum number of blocks of a launch along its first axis, the only one that kernels use."""


@dataclass(frozen=True)
class GpuMachine:
    """Properties of a GPU that plans use.

    Attributes
    ----------
    arch : int
        Compute capability: 90 for sm_90.
    sms : int
        Streaming multiprocessors.
    lanes : int
        Float32 products that a multiprocessor starts per cycle.
    tensor : int
        Float16 products that the tensor cores of a multiprocessor start per cycle; 0 without tensor
        cores.
    bytes_per_cycle : float
        Bytes of memory that the whole device reads and writes per cycle.
    l2 : int
        Bytes of the L2 cache.
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
        """Return the machine of a name such as ``sm_90``, ``sm_90a``; None for other names.

        An architecture that is not in the table is treated as the largest one below it.
        """
        found = re.fullmatch(r"sm_(\d+)[af]?", name)
        if found is None:
            return None
        arch = int(found[1])
        known = max((key for key in _DEVICES if key <= arch), default=min(_DEVICES))
        return replace(_DEVICES[known], arch=arch)

    @property
    def has_mma(self) -> bool:
        """Return whether tensor cores multiply 16 x 8 x 16 and copies to shared memory need no
        register: Ampere and later.
        """
        return self.arch >= 80

    @property
    def has_dp4a(self) -> bool:
        """Return whether four products of bytes are one instruction."""
        return self.arch >= 61

    @property
    def has_bfloat16(self) -> bool:
        """Return whether CUDA has bfloat16 arithmetic."""
        return self.arch >= 80


# The best-selling device of each architecture.  Multiprocessors, clocks and bandwidth are those of
# its data sheet; products per cycle are those of the CUDA C++ Programming Guide, "Arithmetic
# Instructions".
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
