# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.phase_lanes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from ...kernel.registry import require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.geometry import Geometry
from ..machine import CACHE_LINE, CpuMachine
from .base import Plan
from .estimate import (
    PARALLEL_CYCLES,
    candidate_channels,
    divisors,
    memory_price,
    most_of,
    register_tile,
    row_cycles,
)
from .step_costs import costs_of


@dataclass(frozen=True)
class PhaseLanesPlan(Plan):
    """Plan of the ``conv_transpose`` kernel for strides along a row of a vector or more.

    Kernels are multiples of the strides, so that every phase has as many taps.

    Attributes
    ----------
    images : int
        Images per task.
    lanes : int
        Elements per vector.
    c_block : int
        Channels of x per task.
    m_tile, vectors : int
        Register tile: positions by vectors of (channel of x, phase).
    parallel : bool
        Whether threads share the tasks.
    streamed : bool
        Whether the result is written by non-temporal stores.
    phase_splits : int
        Into how many tasks the phases of one channel are divided: equal numbers of whole vectors.
    chunks : int
        Into how many parts the channels of y are divided, which are summed one after the other; of
        tasks that have one row of one image.
    """

    images: int
    lanes: int
    c_block: int
    m_tile: int
    vectors: int
    parallel: bool = True
    streamed: bool = False
    phase_splits: int = 1
    chunks: int = 1

    def with_non_temporal(self, enabled: bool) -> PhaseLanesPlan:
        """See :class:`~.base.Plan`."""
        return replace(self, streamed=enabled)

    def non_temporal_run(self, problem: Convolution, machine: CpuMachine) -> int | None:
        """See :class:`~.base.Plan`: whole rows, unless tasks share them or do not fit a cache."""
        row: int = problem.out_sizes[-1]
        is_small = row * byte_width(problem.acc_dtype) <= machine.l2 // 4
        return row if self.phase_splits == 1 and is_small else None

    @staticmethod
    def taps(geometry: Geometry) -> tuple[int, ...]:
        """Return the taps of a phase along each axis."""
        return tuple(k // s for k, s in zip(geometry.kernel, geometry.stride))

    @classmethod
    def reads(cls, geometry: Geometry) -> tuple[list[int], list[int]]:
        """Return the first position of y that is read along each axis, and their number."""
        firsts = [pad // s for pad, s in zip(geometry.pad_before, geometry.stride)]
        before = [t - 1 for t in cls.taps(geometry)]
        lasts = [
            (pad + size - 1) // s
            for pad, size, s in zip(geometry.pad_before, geometry.x_size, geometry.stride)
        ]
        return [a - t for a, t in zip(firsts, before)], [
            b - a + 1 + t for a, b, t in zip(firsts, lasts, before)
        ]

    @classmethod
    def positions(cls, geometry: Geometry) -> int:
        """Return the positions of a row that have outputs."""
        return cls.reads(geometry)[1][-1] - (cls.taps(geometry)[-1] - 1)


def phase_lanes_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, PhaseLanesPlan]]:
    """Yield plans, with lanes over the phases of a row, and their cycles."""
    _require_phases(problem, machine)
    require(problem.is_static, "sizes must be known")
    require(min(problem.x_sizes) > 0, "x must have elements")
    for images in sorted({-(-problem.n // i) for i in (1, 2, 4, 8, 16, 64)}):
        for plan in _candidates(problem, images, machine):
            tasks, task, held = _cycles(problem, plan, machine)
            cost = -(-tasks // machine.threads) * task
            cost *= memory_price(problem, min(tasks, machine.threads) * held)
            yield cost, replace(plan, parallel=tasks * task >= PARALLEL_CYCLES)


def phase_lanes_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[PhaseLanesPlan, list[float]]]:
    """Yield plans with one image per task for symbolic sizes, and their cycles for all `known`
    sizes.
    """
    _require_phases(problem, machine)
    for plan in _candidates(problem, 1, machine):
        rated = (_cycles(one, plan, machine) for one in known)
        yield plan, [-(-tasks // machine.threads) * task for tasks, task, _ in rated]


def _require_phases(problem: Convolution, machine: CpuMachine) -> None:
    """Require phases that fill vectors, all with the same number of taps: products with zeros would
    turn infinity into NaN.
    """
    geometry, lanes = problem.geometry, machine.lanes(problem.acc_dtype)
    require(geometry.stride[-1] >= lanes, f"stride along a row must be at least {lanes}")
    evenly = all(k % s == 0 for k, s in zip(geometry.kernel, geometry.stride))
    require(evenly, "kernel must be a multiple of the stride")
    require(max(geometry.dilation) == 1, "dilation must be 1")


def _candidates(problem: Convolution, images: int, machine: CpuMachine) -> Iterator[PhaseLanesPlan]:
    """Yield the candidates with so many images in a task."""
    geometry, lanes = problem.geometry, machine.lanes(problem.acc_dtype)
    k, stride = geometry.k_per_group, geometry.stride[-1]
    # Of symbolic sizes, as if there were many positions, and rows.
    positions, is_row, are_few = lanes, False, True
    if problem.is_static:
        positions = PhaseLanesPlan.positions(geometry)
        is_row = images == prod(geometry.x_size[:-1]) == 1
        are_few = _tasks(problem, images, 1) < 2 * machine.threads
    for c_block in candidate_channels(geometry.c_per_group, 1):
        may_split = c_block == 1 and stride % lanes == 0 and are_few
        for splits, chunks, widest in product(
            [i for i in divisors(stride // lanes) if i == 1 or may_split],
            [i for i in (1, 2, 4, 8, 16) if i == 1 or (is_row and k // i >= lanes)],
            (3, 4, 8),
        ):
            vectors = c_block * -(-stride // (lanes * splits))
            m_tile, tile = register_tile(positions, min(vectors, widest), machine)
            yield PhaseLanesPlan(
                images, lanes, c_block, m_tile, tile, phase_splits=splits, chunks=chunks
            )


def _tasks(problem: Convolution, images: int, c_block: int) -> int:
    """Tasks, but for splits."""
    geometry, n = problem.geometry, int(problem.n)
    return -(-n // images) * geometry.groups * -(-geometry.c_per_group // c_block)


def _cycles(
    problem: Convolution, plan: PhaseLanesPlan, machine: CpuMachine
) -> tuple[int, float, int]:
    """Return the number of tasks, the cycles of one and its elements, for known sizes."""
    geometry, lanes, m_tile = problem.geometry, plan.lanes, plan.m_tile
    width = byte_width(problem.acc_dtype)
    k, stride = geometry.k_per_group, geometry.stride[-1]
    taps, positions = PhaseLanesPlan.taps(geometry), PhaseLanesPlan.positions(geometry)
    reads = PhaseLanesPlan.reads(geometry)[1]
    vectors = plan.c_block * -(-stride // (lanes * plan.phase_splits))
    tiles, at_once = -(-positions // m_tile), -(-k // plan.chunks)
    copied = prod(geometry.kernel[:-1]) * at_once * taps[-1] * vectors * lanes
    values = at_once * prod(reads)
    held = copied + values + tiles * m_tile * vectors * lanes
    full, tail = divmod(vectors, plan.vectors)
    costs = costs_of(machine).phase_lanes
    step = row_cycles(m_tile, vectors, plan.vectors, machine)
    # A tile of vectors stays in the first cache with values, of which it reads two lines for each
    # channel; or both come from the next one, as measured.
    if at_once * (prod(taps) * plan.vectors * lanes * width + 2 * CACHE_LINE) > most_of(machine.l1):
        step = max(step, vectors * costs.vector_far)
        # Values of neighbouring channels are further apart than these lines.
        step += (
            (full + bool(tail)) * costs.values_far / taps[-1]
            if reads[-1] * width > 2 * CACHE_LINE
            else 0.0
        )
    overhead = (full + bool(tail)) * (m_tile * plan.vectors * costs.sum_vector + costs.tile)
    step *= costs.chunk if plan.chunks > 1 else 1.0
    row = tiles * (prod(taps) * k * step + plan.chunks * overhead)
    row += plan.c_block * (
        geometry.x_size[-1] * costs.out_element / plan.phase_splits + positions * costs.out_position
    )
    # From a cache that is further away they come as they are needed.
    near = copied // prod(geometry.kernel[:-1]) * prod(taps[:-1])
    row *= 1.0 if near * width <= machine.l2 else costs.far
    copies = copied * (costs.weight if stride % lanes == 0 else costs.weight_apart)
    rows = plan.images * prod(geometry.x_size[:-1])
    task = costs.task + plan.chunks * (copies + plan.images * values) + rows * row
    return _tasks(problem, plan.images, plan.c_block) * plan.phase_splits, task, held
