# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.kernels.weight_columns`."""

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
    register_tile,
    row_cycles,
)
from .plans import ColumnsPlan
from .problem import Machine, Problem


def plan_columns(problem: Problem, machine: Machine) -> tuple[float, ColumnsPlan] | None:
    """Lanes over weights: the plan of :mod:`topi_ext.kernels.weight_columns`, and its cycles.

    None for positions that are symbolic or too many to be held at once.
    """
    if not problem.is_static:
        return None
    return cheapest(_plans(problem, machine))


def _plans(problem: Problem, machine: Machine) -> Iterator[tuple[float, ColumnsPlan]]:
    """Candidates, and their cycles."""
    geometry, lanes = problem.geometry, problem.lanes(machine)
    n, taps = problem.y_sizes[0], geometry.taps
    c, k = geometry.c_per_group, geometry.k_per_group
    for images, c_block in product(divisors(n), candidate_channels(c, 1)):
        positions, chunks = images * prod(geometry.y_size), n // images
        vectors = -(-c_block * taps // lanes)
        if positions * vectors * machine.vector_bytes > machine.l2 // 2:
            continue
        k_tile, width = register_tile(k, vectors, machine)
        tasks = geometry.groups * -(-c // c_block)
        splits = 1 if tasks >= 2 * machine.threads else -(-2 * machine.threads // tasks)
        splits = min(splits, -(-k // k_tile))
        tiles = -(-k // (k_tile * splits))
        step = row_cycles(k_tile, vectors, width, machine)
        # Sums that go on are read as well, from where a task's share of them fits.
        is_far = c_block * taps * -(-k // splits) * byte_width(problem.acc_dtype) > machine.l2
        rows = k_tile * (positions * 4 + vectors * (4 if chunks == 1 else 16 if is_far else 8))
        spread = (
            positions * c_block * (taps // geometry.kernel[-1]) * (4 + 1.5 * geometry.kernel[-1])
        )
        chunk = spread + tiles * (positions * step + rows)
        chunk *= 0.9 if machine.vector_bytes >= 64 else 1.0  # as measured
        task = 1000 + chunks * chunk
        cost = -(-tasks * splits // machine.threads) * task
        parallel = tasks * splits * task >= PARALLEL_CYCLES
        yield cost, ColumnsPlan(images, lanes, c_block, splits, k_tile, width, parallel)
