# SPDX-License-Identifier: Apache-2.0
"""Limits of the machine code of kernels, in one place for the report and the tests."""

from __future__ import annotations

from collections.abc import Iterator

from topi_ext.cuda.machine import GpuMachine

from .static import Row, conflicts

MORE_REGISTERS = 16
"""Registers that a thread may take beyond what its plan states."""

MORE_SHARED = 1024
"""Bytes of shared memory likewise."""

SHARE, PER_LOAD = 0.75, 8.0
"""Minimum products per instruction of the main loop, and per 16 bytes read, for large tiles of
float32."""

LARGE = ("rows=128, columns=128", "rows=128, columns=64")

CONFLICTS = 0.01
"""Maximum share of bank conflicts in the cycles of shared memory."""


def broken(row: Row) -> Iterator[str]:
    """One line for every rule that a launch breaks."""
    if row["spills"]:
        yield f"spills {row['spills']} bytes"
    if row["stack"]:
        yield f"stack of {row['stack']} bytes"
    if row["part"] == "main":
        yield from _resources(row)
        if "share" in row:
            yield from _instructions(row)
    for looped, where in ((True, "main loop"), (False, "ends")):
        cost = conflicts(row, looped=looped)
        if cost > CONFLICTS:
            yield f"conflicts of banks in the {where}: {cost:.0%} more cycles"


def _resources(row: Row) -> Iterator[str]:
    stated = row["stated_registers"]
    if stated is not None and row["registers"] > stated + MORE_REGISTERS:
        yield f"{row['registers']} registers, stated {stated}"
    shared, stated = row["shared_static"] + row["shared_dynamic"], row["stated_shared"]
    if stated is not None and shared > stated + MORE_SHARED:
        yield f"{shared} bytes of shared memory, stated {stated}"


def _instructions(row: Row) -> Iterator[str]:
    machine = GpuMachine.of_arch(row["arch"])
    if row["kernel"].endswith("_mma") and machine and machine.has_mma and not row["hmma"]:
        yield "no product of tensor cores"
    is_float = row["dtype"] == "float32" and row["kernel"].endswith("_gemm")
    if is_float and any(tile in row["plan"] for tile in LARGE):
        if row["share"] < SHARE:
            yield f"products are {row['share']:.0%} of the main loop"
        if (row["per_load"] or PER_LOAD) < PER_LOAD:
            yield f"{row['per_load']:.1f} products for 16 bytes of shared memory"
