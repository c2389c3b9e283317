# SPDX-License-Identifier: Apache-2.0
"""Estimated time of GPU kernels, in nanoseconds.

A step of a block takes as long as its products, or as a load from memory if too few threads hide
it.  Blocks run side by side within the registers, threads and shared memory of a multiprocessor.
The total is at least the time of memory.  Constants come from data sheets, not from measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.size_hints import nominal
from ..machine import WARP, GpuMachine
from .tiles import Footprint, Tile, WarpTiles

CLOCK = 1.6
"""Cycles per nanosecond."""

LAUNCH = 2500.0
"""Nanoseconds from the launch of a kernel to its first step, and from its last to its end."""

LATENCY = 700
"""Cycles until a load from memory arrives."""

BUSY_WARPS = 8
"""Number of warps that keep the lanes of a multiprocessor busy."""


@dataclass(frozen=True)
class Blocks:
    """The blocks of a launch.

    Attributes
    ----------
    count : float
    footprint : Footprint
        Resources of a block.
    steps : float
        Mean number of steps of a block.
    cycles : float
        Cycles of a step that runs alone on its multiprocessor and waits for nothing.
    stages : int
        Steps whose loads are in flight together.
    """

    count: float
    footprint: Footprint
    steps: float
    cycles: float
    stages: int = 1


def resident(footprint: Footprint, machine: GpuMachine) -> int:
    """Return the number of blocks that a multiprocessor holds at once, which may be 0."""
    granted = -(-footprint.registers // 8) * 8
    return min(
        machine.threads // footprint.threads,
        machine.registers // (granted * footprint.threads),
        machine.shared // max(1, footprint.shared + 1024),
        32,
    )


def mma_cycles(plan: WarpTiles, products: float, loads: float, by_registers: float) -> float:
    """Return the cycles of a step on tensor cores, by the slowest of the parallel resources.

    Parameters
    ----------
    plan : WarpTiles
    products, loads : float
        Cycles of the products, and of reads from memory.
    by_registers : float
        Instructions of all threads that copy elements by way of registers.
    """
    issued = (plan.instructions * plan.threads + by_registers) / ISSUED
    return max(products, loads, plan.shared_cycles, issued)


def launch_time(blocks: Blocks, machine: GpuMachine) -> float:
    """Return the nanoseconds of a launch, without the time of memory."""
    together = resident(blocks.footprint, machine)
    per_sm = ceil(blocks.count / machine.sms)
    side_by_side = max(1, min(together, per_sm))
    turns = ceil(per_sm / side_by_side)
    warps = side_by_side * blocks.footprint.threads / WARP
    busy = min(1.0, warps / BUSY_WARPS)
    step = max(blocks.cycles * side_by_side / busy, LATENCY / blocks.stages)
    return LAUNCH + turns * (blocks.steps * step + LATENCY) / CLOCK


def positions(problem: Convolution) -> int:
    """Return the positions of a phase; symbolic sizes count as their nominal values."""
    sizes = zip(nominal(problem.out_sizes), problem.accesses)
    return prod(-(-size // access.out_step) for size, access in sizes)


def memory_time(problem: Convolution, machine: GpuMachine) -> float:
    """Return the nanoseconds in which memory moves the operands and the result, each once."""
    g, (first, second, result) = problem.geometry, map(byte_width, problem.dtypes)
    x, y = prod(nominal(problem.x_sizes)) * g.c, prod(nominal(problem.y_sizes)) * g.k
    if problem.kind == "conv_weight_grad":
        return bytes_time(x * first + y * second + problem.weights * result, machine)
    data, out = (y, x) if problem.transposed else (x, y)
    return bytes_time(data * first + problem.weights * second + out * result, machine)


def bytes_time(moved: float, machine: GpuMachine) -> float:
    """Return the nanoseconds in which memory moves this number of bytes."""
    return moved / (0.8 * machine.bytes_per_cycle * CLOCK)


DOUBLE_RATE = {60: 2, 70: 2, 80: 2, 90: 2, 100: 2}
"""Cycles of a float64 product in cycles of a float32 product; 32 for other architectures."""

ISSUED = 128
"""Lanes to which a multiprocessor issues instructions per cycle."""

L2_BYTES = 24.0
"""Bytes per cycle that the L2 cache delivers to a multiprocessor."""


@dataclass(frozen=True)
class SimtStep:
    """Costs of a step on the lanes of a multiprocessor.

    Attributes
    ----------
    threads : int
        Threads of a block.
    elements : int
        Elements of the step along the axis that is summed over.
    thread_tile : tuple of int
        Sums of a thread.
    loads : float
        Instructions of a thread that load the next step.
    lines : float
        Cache lines, or parts of one, that the block's loads touch.
    moved : float
        Bytes that come from the L2 cache.
    """

    threads: int
    elements: int
    thread_tile: tuple[int, int]
    loads: float
    lines: float
    moved: float

    def cycles(self, width: int, machine: GpuMachine) -> float:
        """Return the cycles for sums of `width` bytes, by the slowest of the parallel resources."""
        rows, columns = self.thread_tile
        rate = 1 if width == 4 else DOUBLE_RATE.get(machine.arch, 32)
        products = rows * columns * self.elements
        reads = (rows + columns) * width / 16 * self.elements
        issued = (products + reads + self.loads + 40) * self.threads / ISSUED
        multiplied = products * rate * self.threads / machine.lanes
        return max(issued, multiplied, self.lines, self.moved / L2_BYTES)


LOAD = 5
"""Instructions that compute the index of an element, load it and store it to shared memory."""

PACKING = 4.0
"""Factor on the time of moving the weights once: they are read and written in two orders."""

MMA_SHARE = 0.6
"""Share of the tensor cores' peak that ``mma.sync`` reaches."""


def steps_of(problem: Convolution, tile: Tile) -> float:
    """Return the steps of a block, averaged over phases: every tap belongs to one phase."""
    phases = prod(access.out_step for access in problem.accesses)
    return -(-problem.in_channels // tile.depth) * problem.geometry.taps / phases


def block_count(problem: Convolution, tile: Tile) -> int:
    """Return the number of blocks of a launch."""
    phases = prod(access.out_step for access in problem.accesses)
    rows, columns = -(-positions(problem) // tile.rows), -(-problem.out_channels // tile.columns)
    return rows * columns * phases * problem.geometry.groups * tile.splits


def split_time(problem: Convolution, tile: Tile, machine: GpuMachine) -> float:
    """Return the nanoseconds in which the shares of a split sum are written, read and added."""
    if tile.splits == 1:
        return 0.0
    elements = problem.weights
    if problem.kind != "conv_weight_grad":
        channels = problem.geometry.groups * problem.out_channels
        elements = prod(nominal(problem.out_sizes)) * channels
    shares = elements * byte_width(problem.acc_dtype) * tile.splits
    # Shares that fit into the L2 cache stay there.
    speed = 3.0 if shares < machine.l2 // 2 else 1.0
    return LAUNCH + bytes_time(2 * shares, machine) / speed


def packing_time(problem: Convolution, machine: GpuMachine) -> float:
    """Return the nanoseconds of the kernel that packs weights; 0 if they are packed ahead."""
    if problem.prepacked:
        return 0.0
    moved = problem.weights * byte_width(problem.dtypes[1])
    return LAUNCH + PACKING * bytes_time(moved, machine)


def joining_time(problem: Convolution, machine: GpuMachine) -> float:
    """Return the nanoseconds of the kernel that copies other parts of a concatenation; 0 if the
    result is no part of one.
    """
    if not problem.is_part:
        return 0.0
    elements = prod(nominal(problem.out_sizes)) * sum(map(sum, problem.joined))
    return LAUNCH + bytes_time(2 * elements * byte_width(problem.dtypes[2]), machine)


def wgrad_steps(problem: Convolution, tile: Tile) -> int:
    """Return the steps of a sum over positions that is not split."""
    return -(-prod(nominal(problem.y_sizes)) // tile.depth)


def wgrad_blocks(problem: Convolution, tile: Tile) -> int:
    """Return the number of blocks of a launch."""
    g = problem.geometry
    rows, columns = -(-g.k_per_group // tile.rows), -(-g.taps * g.c_per_group // tile.columns)
    return rows * columns * g.groups * tile.splits
