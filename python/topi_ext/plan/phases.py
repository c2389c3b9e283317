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
    values = k * prod(PhasesPlan.reads(geometry)[1])
    out_rows = prod(geometry.x_size[:-1])
    for images, c_block in product(
        sorted({-(-problem.n // i) for i in (1, 2, 4, 8, 16, 64)}),
        candidate_channels(geometry.c_per_group, 1),
    ):
        vectors = c_block * -(-stride // lanes)
        m_tile, tile = register_tile(positions, vectors, machine)
        tiles = -(-positions // m_tile)
        weights = prod(geometry.kernel[:-1]) * k * taps[-1] * vectors * lanes
        held = weights + values + tiles * m_tile * vectors * lanes
        full, tail = divmod(vectors, tile)
        step = row_cycles(m_tile, vectors, tile, machine)
        # As measured: values of many channels are far apart.
        step *= 1.4 if k >= lanes else 1.0
        overhead = (full + bool(tail)) * (m_tile * tile * 1.5 + 15)
        row = tiles * (prod(taps) * k * step + overhead)
        row += c_block * geometry.x_size[-1] * 0.4 + c_block * positions * 6
        # From a cache that is further away they come as they are needed.
        near = weights // prod(geometry.kernel[:-1]) * prod(taps[:-1])
        row *= 1.0 if near * width <= machine.l2 else 1.2
        copies = weights * (1.2 if stride % lanes == 0 else 2.4)
        task = 1000 + copies + images * (values * 1.0 + out_rows * row)
        tasks = -(-problem.n // images) * geometry.groups * -(-geometry.c_per_group // c_block)
        cost = -(-tasks // machine.threads) * task
        cost *= memory_price(problem, held * width, machine)
        parallel = tasks * task >= PARALLEL_CYCLES
        yield cost, PhasesPlan(images, lanes, c_block, m_tile, tile, parallel)
