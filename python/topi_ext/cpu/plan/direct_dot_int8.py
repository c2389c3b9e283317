# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.direct_dot_int8`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...spec.conv import QUANTIZED, Convolution
from ..machine import CpuMachine
from .cost import cheapest
from .direct import DirectPlan, direct_candidates, plan_direct
from .window import Plan


@dataclass(frozen=True)
class Dot:
    """An instruction that multiplies numbers that share a lane of 32 bits, and adds the products.

    Attributes
    ----------
    name : str
    size : int
        Numbers in a lane.
    data, weights : str
        Dtypes of the numbers that it multiplies.
    """

    name: str
    size: int
    data: str
    weights: str


DOTS = {
    dot.name: dot
    for dot in (
        Dot("pmaddwd", 2, "int16", "int16"),
        Dot("vpdpbusd", 4, "uint8", "int8"),
        Dot("sdot", 4, "int8", "int8"),
        Dot("udot", 4, "uint8", "uint8"),
        Dot("usdot", 4, "uint8", "int8"),
    )
}
"""The instructions that kernels use, by name."""


@dataclass(frozen=True)
class DirectDotInt8Plan(Plan):
    """Plan of the kernel of ``conv`` and ``conv_transpose`` of int8 and uint8.

    Attributes
    ----------
    gather : DirectPlan
        The loop nest: its depth counts lanes of input channels.
    dot : str
        The instruction, of :data:`DOTS`.
    """

    gather: DirectPlan
    dot: str


def plan_direct_dot_int8(
    problem: Convolution, machine: CpuMachine
) -> tuple[float, DirectDotInt8Plan] | None:
    """Products within lanes: the plan of kernels/direct_dot_int8.py, and its cycles.

    None for other dtypes, and for processors without an instruction for it.
    """
    return cheapest(
        (cycles, DirectDotInt8Plan(gather, dot))
        for dot, asked in _asked(problem, machine)
        for cycles, gather in [plan_direct(*asked)]
    )


def direct_dot_int8_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, DirectDotInt8Plan]]:
    """Yield the candidates of :func:`plan_direct_dot_int8` and their cycles."""
    for dot, asked in _asked(problem, machine):
        for cycles, gather in direct_candidates(*asked):
            yield cycles, DirectDotInt8Plan(gather, dot)


def _asked(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[str, tuple[Convolution, CpuMachine]]]:
    """Return the instructions that serve the problem, and the arguments for the direct kernel's
    planner.
    """
    if problem.acc_dtype != "int32" or not set(problem.dtypes[:2]) <= set(QUANTIZED):
        return
    for name, rate in machine.int_dots:
        if weights_fit(problem, DOTS[name]):
            # One holds products before they are added; without another, LLVM may spill sums.
            registers = machine.registers - 2 if DOTS[name].size == 2 else machine.registers
            as_floats = replace(machine, fmas=rate, registers=registers)
            yield name, (problem.in_steps(DOTS[name].size), as_floats)


def shift_of(dtype: str, dot: Dot) -> int:
    """Return the offset, modulo 256, that converts data to the signedness of the instruction."""
    return 128 if dot.size == 4 and dtype != dot.data else 0


def zero_of(problem: Convolution, dot: Dot) -> int:
    """Return the zero point of data as an instruction for bytes takes them; of others zero: they
    are less it.
    """
    if dot.size == 2:
        return 0
    sign = 1 if dot.data == "uint8" else -1
    return problem.zero_points[0] + sign * shift_of(problem.dtypes[0], dot)


def weights_fit(problem: Convolution, dot: Dot) -> bool:
    """Return whether weights, less their zero point, are numbers that an instruction multiplies."""
    if dot.weights == "int16":
        return True
    low, high = (limit - problem.zero_points[1] for limit in QUANTIZED[problem.dtypes[1]])
    least, most = QUANTIZED[dot.weights]
    return least <= low and high <= most
