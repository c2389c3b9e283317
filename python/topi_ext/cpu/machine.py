# SPDX-License-Identifier: Apache-2.0
"""The properties of a processor that plans depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..spec.dtypes import byte_width

CACHE_LINE = 64
"""Bytes of a line of any cache."""


@dataclass(frozen=True)
class CpuMachine:
    """The properties of a processor that plans depend on.

    Attributes
    ----------
    vector_bytes : int
        Width of a vector register.
    registers : int
        Number of vector registers.
    fmas : float
        Vectors that are multiplied and added in a cycle.
    threads : int
        Cores that share the work.
    l1, l2 : int
        Bytes of data cache per core.
    amx : bool
        Whether it has a matrix unit for bfloat16.
    amx_int8 : bool
        Whether that multiplies int8 and uint8.
    dots : float
        Vectors of pairs of bfloat16 that are multiplied, and both products added, in a cycle; 0
        without an instruction for it.  As measured, 1 on Zen 4, and 1/2 on Emerald Rapids, which
        multiplies twice as many numbers of float32; taken for the same on all of AMD and of Intel.
    int_dots : tuple
        Instructions that multiply integers and add products within lanes of 32 bits, by the names
        of :mod:`topi_ext.cpu.products`, and how many vectors of them, added to sums, in
        a cycle.  Measured on Zen 3; elsewhere by data sheets.
    streams : bool
        Whether vectors can be written by non-temporal stores.
    family : str
        Whose costs it has, of :data:`topi_ext.cpu.plan.step_costs.FAMILIES`; if empty, by the width
        of its vectors.
    """

    vector_bytes: int = 16
    registers: int = 16
    fmas: float = 2
    threads: int = 1
    l1: int = 32 << 10
    l2: int = 512 << 10
    amx: bool = False
    amx_int8: bool = False
    dots: float = 0.0
    int_dots: tuple[tuple[str, float], ...] = ()
    streams: bool = False
    family: str = ""

    @classmethod
    def of_features(cls, features: frozenset[str], threads: int) -> CpuMachine:
        """Return the machine that LLVM's CPU `features` describe."""
        streams = "non-temporal-stores" in features
        if "amx-tile" in features:
            other = cls.of_features(features - {"amx-tile"}, threads)
            return replace(other, amx="amx-bf16" in features, amx_int8="amx-int8" in features)
        machine = cls._of_vectors(features, threads, streams)
        return replace(machine, int_dots=_int_dots(features, machine.fmas))

    @classmethod
    def _of_vectors(cls, features: frozenset[str], threads: int, streams: bool) -> CpuMachine:
        """Return the machine without instructions that only some dtypes have."""
        if "avx512f" in features:
            known = cls(vector_bytes=64, registers=32, threads=threads, streams=streams)
            dots = float("avx512bf16" in features)
            if "sse4a" in features:  # AMD's
                # The first of them (Zen 4) pass such vectors through in two halves.
                halves = "avxvnni" not in features
                fmas, l1 = (1, 32 << 10) if halves else (2, 48 << 10)
                return replace(known, fmas=fmas, l1=l1, l2=1 << 20, dots=dots, family="zen4")
            l1, l2 = _caches_of_intel(features)
            return replace(known, l1=l1, l2=l2, dots=dots / 2, family="emerald_rapids")
        if "avx2" in features:
            return cls(vector_bytes=32, registers=16, threads=threads, streams=streams)
        if "neon" in features or "v" in features:  # Arm, and RISC-V with vectors
            return cls(vector_bytes=16, registers=32, threads=threads)
        if "zicsr" in features:  # RISC-V without: 32 numbers, which hold 8 vectors of float32
            return cls(vector_bytes=16, registers=8, threads=threads)
        return cls(threads=threads)

    def lanes(self, dtype: str) -> int:
        """Return the elements of a vector of this dtype."""
        return max(1, self.vector_bytes // byte_width(dtype))


def _int_dots(features: frozenset[str], fmas: float) -> tuple[tuple[str, float], ...]:
    """Return the instructions for products of integers that `features` name, of the widest
    vectors.
    """
    if "neon" in features:
        # Of equally fast ones the first is taken.
        names = [*(("usdot",) if "i8mm" in features else ())]
        names += ["sdot", "udot"] if "dotprod" in features else []
        return tuple((name, fmas) for name in names)
    wide = "avx512f" in features
    quads = {"avx512vnni"} if wide else {"avxvnni", "avx512vnni"}
    found = (("vpdpbusd", fmas),) if quads & features else ()
    if wide:
        # The multiplication takes the place of one of float32, the addition sometimes.
        return (*found, ("pmaddwd", fmas * 3 / 4)) if "avx512bw" in features else found
    if "avx2" in features:
        return (*found, ("pmaddwd", fmas))
    return (("pmaddwd", fmas * 3 / 4),) if "sse2" in features else ()


def _caches_of_intel(features: frozenset[str]) -> tuple[int, int]:
    """First and second cache of a core of its processors with AVX-512 that have such features."""
    if "avx512fp16" in features:  # Sapphire Rapids and later
        return 48 << 10, 2 << 20
    if "avx512vbmi2" in features:  # Ice Lake
        return 48 << 10, 5 << 18
    return 32 << 10, 1 << 20
