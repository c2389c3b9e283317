# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.kernels.phases`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from ..dtypes import byte_width
from .cost import (
    PARALLEL_CYCLES,
    candidate_channels,
    cheapest,
    divisors,
    memory_price,
    register_tile,
    row_cycles,
)
from .plans import PhasesPlan
from .problem import Machine, Problem


def plan_phases(problem: Problem, machine: Machine) -> tuple[float, PhasesPlan] | None:
    """Lanes over the phases of a row: the plan of :mod:`topi_ext.kernels.phases`, and its cycles.

    None for ``conv``, dilation, sizes that are symbolic or empty, strides below a vector, and where
    phases have different numbers of taps: products with zeros would turn infinity into NaN.
    """
    geometry, lanes = problem.geometry, problem.lanes(machine)
    if not (problem.transposed and problem.is_static) or geometry.stride[-1] < lanes:
        return None
    if min(problem.x_sizes) < 1 or max(geometry.dilation) > 1:
        return None
    if any(k % s for k, s in zip(geometry.kernel, geometry.stride)):
        return None
    return cheapest(_plans(problem, machine))


def _plans(problem: Problem, machine: Machine) -> Iterator[tuple[float, PhasesPlan]]:
    """Candidates, and their cycles."""
    geometry, lanes = problem.geometry, problem.lanes(machine)
    width = byte_width(problem.acc_dtype)
    k, stride = geometry.k_per_group, geometry.stride[-1]
    taps, positions = PhasesPlan.taps(geometry), PhasesPlan.positions(geometry)
    reads = PhasesPlan.reads(geometry)[1]
    out_rows = prod(geometry.x_size[:-1])
    for images, c_block in product(
        sorted({-(-problem.n // i) for i in (1, 2, 4, 8, 16, 64)}),
        candidate_channels(geometry.c_per_group, 1),
    ):
        tasks = -(-problem.n // images) * geometry.groups * -(-geometry.c_per_group // c_block)
        may_split = c_block == 1 and stride % lanes == 0 and tasks < 2 * machine.threads
        may_chunk = images == out_rows == 1
        for splits, chunks, widest in product(
            [i for i in divisors(stride // lanes) if i == 1 or may_split],
            [i for i in (1, 2, 4, 8, 16) if i == 1 or (may_chunk and k // i >= lanes)],
            (3, 4, 8),
        ):
            vectors = c_block * -(-stride // (lanes * splits))
            m_tile, tile = register_tile(positions, min(vectors, widest), machine)
            tiles, at_once = -(-positions // m_tile), -(-k // chunks)
            copied = prod(geometry.kernel[:-1]) * at_once * taps[-1] * vectors * lanes
            values = at_once * prod(reads)
            held = copied + values + tiles * m_tile * vectors * lanes
            full, tail = divmod(vectors, tile)
            step = row_cycles(m_tile, vectors, tile, machine)
            # A tile of vectors stays in the first cache with values, of which it reads two lines
            # for each channel; or both come from the next one, as measured.
            if at_once * (prod(taps) * tile * lanes * width + 128) > machine.l1 * 3 // 4:
                step = max(step, vectors * 2.5)
                # Values of neighbouring channels are further apart than these lines.
                step += (full + bool(tail)) * 20.0 / taps[-1] if reads[-1] * width > 128 else 0.0
            overhead = (full + bool(tail)) * (m_tile * tile * 1.5 + 15)
            step *= 1.35 if chunks > 1 else 1.0  # as measured
            row = tiles * (prod(taps) * k * step + chunks * overhead)
            row += c_block * (geometry.x_size[-1] * 0.4 / splits + positions * 6)
            # From a cache that is further away they come as they are needed.
            near = copied // prod(geometry.kernel[:-1]) * prod(taps[:-1])
            row *= 1.0 if near * width <= machine.l2 else 1.2
            copies = copied * (1.2 if stride % lanes == 0 else 2.4)
            task = 1000 + chunks * (copies + images * values) + images * out_rows * row
            count = tasks * splits
            cost = -(-count // machine.threads) * task
            cost *= memory_price(problem, min(count, machine.threads) * held)
            parallel = count * task >= PARALLEL_CYCLES
            sizes = images, lanes, c_block, m_tile, tile, parallel
            yield cost, PhasesPlan(*sizes, splits=splits, chunks=chunks)
