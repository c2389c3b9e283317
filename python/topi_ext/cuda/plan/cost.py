# SPDX-License-Identifier: Apache-2.0
"""What kernels of GPUs are estimated to take, in nanoseconds.

A block's step takes as long as its products, or as a load from memory where too few threads hide
it; blocks run side by side as far as registers, threads and shared memory of a multiprocessor go;
the whole takes no less than memory gives.  The numbers are of data sheets, not fitted to a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from ...dtypes import byte_width
from ...nominal import nominal
from ...problem import Problem
from ..machine import WARP, GpuMachine

CLOCK = 1.6
"""Cycles in a nanosecond."""

LAUNCH = 2500.0
"""Nanoseconds from the launch of a kernel to its first step, and from its last to its end."""

LATENCY = 700
"""Cycles until a load from memory arrives."""

BUSY_WARPS = 8
"""Warps on a multiprocessor that keep its lanes busy."""


@dataclass(frozen=True)
class Blocks:
    """The blocks of a launch.

    Attributes
    ----------
    count : float
    threads, registers, shared : int
        Of a block, of a thread, bytes of a block.
    steps : float
        Of a block, in the mean.
    cycles : float
        That a step takes where nothing else runs on its multiprocessor and nothing is waited for.
    stages : int
        Steps whose loads are on their way together.
    """

    count: float
    threads: int
    registers: int
    shared: int
    steps: float
    cycles: float
    stages: int = 1


def resident(blocks: Blocks, machine: GpuMachine) -> int:
    """Blocks that a multiprocessor holds at once; 0 where it does not hold one."""
    granted = -(-blocks.registers // 8) * 8
    return min(
        machine.threads // blocks.threads,
        machine.registers // (granted * blocks.threads),
        machine.shared // max(1, blocks.shared + 1024),
        32,
    )


def launch_time(blocks: Blocks, machine: GpuMachine) -> float:
    """Nanoseconds of a launch, memory aside."""
    together = resident(blocks, machine)
    per_sm = ceil(blocks.count / machine.sms)
    side_by_side = max(1, min(together, per_sm))
    turns = ceil(per_sm / side_by_side)
    warps = side_by_side * blocks.threads / WARP
    busy = min(1.0, warps / BUSY_WARPS)
    step = max(blocks.cycles * side_by_side / busy, LATENCY / blocks.stages)
    return LAUNCH + turns * (blocks.steps * step + LATENCY) / CLOCK


def positions(problem: Problem) -> int:
    """Positions of a phase; unknown sizes are taken for nominal ones."""
    sizes = zip(nominal(problem.out_sizes), problem.gathers)
    return prod(-(-size // gather.out_step) for size, gather in sizes)


def memory_time(problem: Problem, machine: GpuMachine) -> float:
    """Nanoseconds in which memory gives the operands and takes the result, each once."""
    g, (first, second, result) = problem.geometry, map(byte_width, problem.dtypes)
    x, y = prod(nominal(problem.x_sizes)) * g.c, prod(nominal(problem.y_sizes)) * g.k
    if problem.face == "conv_weight_grad":
        return bytes_time(x * first + y * second + problem.weights * result, machine)
    data, out = (y, x) if problem.transposed else (x, y)
    return bytes_time(data * first + problem.weights * second + out * result, machine)


def bytes_time(moved: float, machine: GpuMachine) -> float:
    """Nanoseconds in which memory moves so many bytes."""
    return moved / (0.8 * machine.bytes_per_cycle * CLOCK)


DOUBLE_RATE = {60: 2, 70: 2, 80: 2, 90: 2, 100: 2}
"""Cycles of float64's products, in those of float32's, where they are not 32 or more."""

ISSUED = 128
"""Lanes to which a multiprocessor issues an instruction in a cycle."""

L2_BYTES = 24.0
"""Bytes that the second cache gives a multiprocessor in a cycle."""


@dataclass(frozen=True)
class SimtStep:
    """What a step costs on the lanes of a multiprocessor.

    Attributes
    ----------
    threads : int
        Of a block.
    elements : int
        Along what is summed over.
    thread_tile : tuple of int
        Sums of a thread.
    loads : float
        Instructions of a thread that bring the next step.
    lines : float
        Cache lines, or parts of one, that the block's loads touch.
    moved : float
        Bytes that come from the second cache.
    """

    threads: int
    elements: int
    thread_tile: tuple[int, int]
    loads: float
    lines: float
    moved: float

    def cycles(self, width: int, machine: GpuMachine) -> float:
        """Of sums of so many bytes; the longest of what a multiprocessor does side by side."""
        rows, columns = self.thread_tile
        rate = 1 if width == 4 else DOUBLE_RATE.get(machine.arch, 32)
        products = rows * columns * self.elements
        reads = (rows + columns) * width / 16 * self.elements
        issued = (products + reads + self.loads + 40) * self.threads / ISSUED
        multiplied = products * rate * self.threads / machine.lanes
        return max(issued, multiplied, self.lines, self.moved / L2_BYTES)
