# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.kernels.scatter`."""

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
    room_for,
    row_cycles,
    widening_cycles,
)
from .plans import ScatterPlan
from .problem import Machine, Problem


def plan_scatter(problem: Problem, machine: Machine) -> tuple[float, ScatterPlan] | None:
    """Lanes over weights: the plan of :mod:`topi_ext.kernels.scatter`, and its cycles.

    None for ``conv``, and for images that are symbolic or too large.
    """
    if not (problem.transposed and problem.is_static):
        return None
    return cheapest(_plans(problem, machine))


def _plans(problem: Problem, machine: Machine) -> Iterator[tuple[float, ScatterPlan]]:
    """Candidates, and their cycles."""
    geometry, lanes = problem.geometry, problem.lanes(machine)
    n, size, taps = problem.y_sizes[0], prod(geometry.y_size), geometry.taps
    k, c = geometry.k_per_group, geometry.c_per_group
    held = prod(ScatterPlan.extents(geometry))
    for images, c_block in product(divisors(n), candidate_channels(c, 1)):
        positions, vectors = images * size, -(-c_block * taps // lanes)
        bytes_held = positions * vectors * machine.vector_bytes
        if bytes_held > machine.l2 // 2 or held > image_room(problem, machine):
            continue
        m_tile, width = register_tile(positions, vectors, machine)
        tasks = n // images * geometry.groups * -(-c // c_block)
        # As many channels at a time as are near, and as operands and result have room for.
        near = machine.l2 // 4 // (vectors * machine.vector_bytes)
        busy = min(tasks, machine.threads)
        room = room_for(problem) // busy - (positions * vectors * lanes + held)
        most = max(16, min(96, near, room // (vectors * lanes + positions)))
        k_block = -(-k // -(-k // most))
        tiles = -(-positions // m_tile)
        step = row_cycles(m_tile, vectors, width, machine)
        value = 2.0 + widening_cycles(problem.dtypes[0], problem.acc_dtype)
        products = k * tiles * (step + m_tile * value)
        if bytes_held > machine.l2 // 4:
            products *= 1.12  # as measured
        products *= 1.1 if machine.vector_bytes >= 64 else 1.0  # as measured
        # Weights come from far away, once per task.
        stored = c * k * taps * 4
        far = 10.0 if stored <= 16 * machine.l2 else 20.0
        weights = k * vectors * (3.0 if stored <= machine.l2 else far)
        sums = -(-k // k_block) * tiles * m_tile * vectors * 2.0
        scatter = positions * c_block * taps * 1.3
        scatter += images * c_block * (held * 0.5 + prod(geometry.x_size) + 20)
        task = 1000 + products + weights + sums + scatter
        cost = -(-tasks // machine.threads) * task
        parallel = tasks * task >= PARALLEL_CYCLES
        rows = tiles * m_tile
        floats = k_block * (vectors * lanes + rows) + rows * vectors * lanes + held
        cost *= memory_price(problem, busy * floats)
        sizes = (images, positions, held, lanes, c_block, k_block, m_tile, width)
        yield cost, ScatterPlan(*sizes, parallel)


def image_room(problem: Problem, machine: Machine) -> int:
    """The most elements of an image of x that a task holds."""
    return machine.l2 * 5 // 16 // byte_width(problem.acc_dtype)
