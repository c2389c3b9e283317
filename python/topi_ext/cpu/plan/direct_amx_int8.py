# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.direct_amx_int8`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...spec.conv import Convolution
from ..machine import CpuMachine
from .direct import DirectPlan, plan_direct
from .direct_amx import FEWEST_CHANNELS, packing_cycles, tile_candidates
from .direct_dot_int8 import DirectDotInt8Plan, Dot, plan_direct_dot_int8, weights_fit
from .window import Plan

TILE_DOTS = {
    dot.name: dot
    for dot in (
        Dot("tdpbssd", 4, "int8", "int8"),
        Dot("tdpbsud", 4, "uint8", "int8"),
        Dot("tdpbusd", 4, "int8", "uint8"),
        Dot("tdpbuud", 4, "uint8", "uint8"),
    )
}
"""Products of tiles, by name: weights are the left factor."""


@dataclass(frozen=True)
class DirectAmxInt8Plan(Plan):
    """Plan of the kernel of ``conv`` and ``conv_transpose`` of int8 and uint8 by a matrix unit.

    Attributes
    ----------
    gather : DirectPlan
        The loop nest: its lanes are the columns of a tile, its channels whole tiles, its depth
        counts steps of a tile of four input channels in 32 bits.
    refused : DirectPlan or DirectDotInt8Plan
        For where the matrix unit may not be used.
    dot : str
        The instruction, of :data:`TILE_DOTS`.
    tiles_first : bool
        Whether all output channels of a tile of positions are summed before those of the next,
        instead of all positions of a block of output channels.
    """

    gather: DirectPlan
    refused: DirectPlan | DirectDotInt8Plan
    dot: str
    tiles_first: bool = False


def direct_amx_int8_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, DirectAmxInt8Plan]]:
    """Yield plans that multiply tiles of bytes, and their cycles.

    None are yielded where there is no matrix unit, for other dtypes, for weights that are no bytes
    once they are less their zero point, and for so few output channels that tiles are nearly empty.
    """
    dot = product_of(problem)
    if not (machine.amx_int8 and dot and problem.out_channels >= FEWEST_CHANNELS):
        return
    by_vectors = plan_direct_dot_int8(problem, machine)
    refused = by_vectors[1] if by_vectors else plan_direct(problem, machine)[1]
    packing = packing_cycles(problem, machine)
    for cycles, gather, tiles_first in tile_candidates(problem.in_steps(dot.size), machine):
        yield cycles + packing, DirectAmxInt8Plan(gather, refused, dot.name, tiles_first)


def product_of(problem: Convolution) -> Dot | None:
    """Return the instruction for data and weights of these dtypes, or none."""
    if problem.acc_dtype != "int32":
        return None
    fitting = (
        dot
        for dot in TILE_DOTS.values()
        if dot.data == problem.dtypes[0] and weights_fit(problem, dot)
    )
    return next(fitting, None) if problem.dtypes[1] in ("int8", "uint8") else None
