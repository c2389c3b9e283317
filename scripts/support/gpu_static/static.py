# SPDX-License-Identifier: Apache-2.0
"""Properties of kernels that are known without running them: one row for each launch of a plan."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cuda_emulator.host import Launch
from cuda_emulator.lowering import Lowered, lower
from support.gpu import toolchain
from support.gpu.requests import machine_of
from topi_ext.cuda import kernels
from topi_ext.cuda.machine import WARP, GpuMachine
from topi_ext.cuda.plan.tiles import Plan
from topi_ext.cuda.registry import KERNELS

from . import shapes
from .accesses import accesses
from .sass import Code, disassemble, read

Row = dict[str, Any]

RESERVED = 1024
"""Bytes of a block that the driver takes for itself, from Ampere on."""

MOST_BLOCKS = {75: 16, 86: 16, 87: 16, 89: 24, 120: 24}
"""Resident blocks per multiprocessor, where the limit is not 32."""


@dataclass(frozen=True)
class Spot:
    """A plan for a kind of operator and a shape on an architecture."""

    shape: shapes.AnyShape
    kind: str
    plan: Plan
    arch: str

    @property
    def machine(self) -> GpuMachine:
        """Return the GPU that the plan was chosen for."""
        return machine_of(self.arch)


def chosen_spots(archs: tuple[str, ...]) -> Iterator[Spot]:
    """Yield the plans that the backend chooses for every shape, operator kind and architecture."""
    for arch in archs:
        machine = machine_of(arch)
        for shape, kind in shapes.spots():
            plan = shapes.chosen(shape, kind, machine)
            if plan is not None and (machine.has_bfloat16 or shape.dtype != "bfloat16"):
                yield Spot(shape, kind, plan, arch)


def tile_spots(archs: tuple[str, ...]) -> Iterator[Spot]:
    """Yield every tile of every kernel."""
    for arch in archs:
        machine = machine_of(arch)
        for kernel in KERNELS:
            if kernel.name.endswith("_mma") and not machine.has_mma:
                continue
            for shape, kind, plan in shapes.tiles(kernel, machine):
                yield Spot(shape, kind, plan, arch)


@lru_cache(maxsize=256)
def lowered(shape: shapes.AnyShape, kind: str, plan: Plan, arch: str) -> Lowered:
    """Return the kernels of a plan."""
    return lower(kernels.build(shape.problem(kind), plan), arch)


def rows_of(spot: Spot, *, with_code: bool = True) -> list[Row]:
    """One row for every launch: the kernel itself, and what packs weights or adds shares."""
    made = lowered(spot.shape, spot.kind, spot.plan, spot.arch)
    launches = made.plan(*spot.shape.stored(spot.kind)).launches
    usage, code = compiled(made.source, spot.arch) if with_code else ({}, {})
    main = max(launches, key=lambda one: len(str(made.kernels[one.kernel].body)))
    rows = []
    for launch in launches:
        row = _identity(spot, launch, "main" if launch is main else "around")
        row["addresses"] = addresses(made, launch)
        if with_code:
            row.update(_resources(spot, launch, usage[launch.kernel]))
        if launch.kernel in code:
            row.update(_mix(code[launch.kernel]))
        if launch is main:
            row.update(_stated(spot))
        rows.append(row)
    return rows


@lru_cache(maxsize=256)
def compiled(source: str, arch: str) -> tuple[dict[str, toolchain.Usage], dict[str, Code]]:
    """Return the assembler's report and the instructions of each kernel; no instructions if no
    disassembler is installed."""
    with tempfile.TemporaryDirectory() as folder:
        binary, usage = toolchain.compile_source(source, arch, Path(folder))
        try:
            return usage, read(disassemble(binary))
        except toolchain.MissingError:
            return usage, {}


def addresses(made: Lowered, launch: Launch) -> list[Row]:
    """Conflicts and sectors of one block's accesses: one in the middle of the grid."""
    kernel = made.kernels[launch.kernel]
    scalars = {
        parameter.name: value
        for parameter, value in zip(kernel.params, launch.arguments)
        if isinstance(value, int)
    }
    found = accesses(kernel, launch.block[0], scalars, block=launch.grid[0] // 2)
    return [{**site._asdict(), **asdict(count)} for site, count in sorted(found.items())]


def _identity(spot: Spot, launch: Launch, part: str) -> Row:
    shape = spot.shape
    return {
        "arch": spot.arch,
        "shape": shape.name + (", any size" if shape.symbolic else ""),
        "kind": spot.kind,
        "dtype": shape.dtype,
        "layout": "channels last" if shape.channels_last else "channels first",
        "kernel": KERNELS.of_plan(spot.plan).name,
        "plan": str(spot.plan),
        "launch": launch.kernel,
        "part": part,
        "blocks": launch.grid[0],
        "threads": launch.block[0],
    }


def _resources(spot: Spot, launch: Launch, usage: toolchain.Usage) -> Row:
    shared = usage.shared + launch.dynamic_shared
    held = resident(spot.machine, usage.registers, launch.block[0], shared)
    return {
        "registers": usage.registers,
        "spills": usage.spills,
        "stack": usage.stack,
        "shared_static": usage.shared,
        "shared_dynamic": launch.dynamic_shared,
        "resident": held,
        "occupancy": held * launch.block[0] / spot.machine.threads,
    }


def resident(machine: GpuMachine, registers: int, threads: int, shared: int) -> int:
    """Return the blocks of a multiprocessor: registers are given to warps by 256, shared memory by
    128 bytes.
    """
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // 256) * 256
    reserved = RESERVED if machine.arch >= 80 else 0
    taken = -(-shared // 128) * 128 + reserved
    return min(
        machine.threads // (warps * WARP),
        machine.registers // of_warp // warps,
        machine.shared // taken if taken else MOST_BLOCKS.get(machine.arch, 32),
        MOST_BLOCKS.get(machine.arch, 32),
    )


def _mix(code: Code) -> Row:
    per_load = code.per_load
    return {
        "products": code.products,
        "loop": sum(code.loop.values()),
        "share": code.share,
        "per_load": None if per_load == float("inf") else per_load,
        "mix": dict(code.loop.most_common(14)),
        "hmma": code.has("HMMA") or code.has("IMMA"),
        "global_loads": code.widths("LDG"),
        "global_stores": code.widths("STG"),
        "copies": code.widths("LDGSTS"),
    }


def _stated(spot: Spot) -> Row:
    problem: Any = spot.shape.problem(spot.kind)
    stated = spot.plan.footprint(problem)
    return {
        "stated_registers": stated and stated.registers,
        "stated_shared": stated and stated.shared,
    }


def conflicts(row: Row, *, looped: bool | None = None) -> float:
    """Return the cycles of shared memory that conflicts of banks cost, in those that it would take
    without.
    """
    found = [
        one
        for one in row["addresses"]
        if one["space"] == "shared" and looped in (None, one["looped"])
    ]
    least = sum(one["least"] for one in found)
    return (sum(one["taken"] for one in found) - least) / least if least else 0.0


def coalescing(row: Row, verb: str) -> float | None:
    """Return the bytes that are asked for in those of the sectors that are moved."""
    found = [one for one in row["addresses"] if (one["space"], one["verb"]) == ("global", verb)]
    taken = sum(one["taken"] for one in found)
    return sum(one["least"] for one in found) / taken if taken else None
