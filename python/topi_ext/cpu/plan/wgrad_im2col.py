# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.wgrad_im2col`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod

from ...kernel.registry import require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.geometry import Geometry
from ..machine import CpuMachine
from .base import Plan
from .estimate import (
    PARALLEL_CYCLES,
    candidate_channels,
    divisors,
    memory_price,
    register_tile,
    row_cycles,
    rows_that_fit,
)
from .step_costs import costs_of


@dataclass(frozen=True)
class WgradIm2colPlan(Plan):
    """Plan of the ``conv_weight_grad`` kernel for few positions.

    Attributes
    ----------
    images : int
        Images whose positions are held at a time; divides the batch.  Of symbolic sizes all are.
    lanes : int
        Elements per vector.
    c_block : int
        Channels of x per task.
    channel_splits : int
        Into how many tasks the channels of y are divided.
    k_tile, vectors : int
        Register tile: channels of y by vectors of (channel of x, tap).
    parallel : bool
        Whether threads share the tasks.
    room : int
        For symbolic sizes, the maximum of positions that it holds.
    """

    images: int
    lanes: int
    c_block: int
    channel_splits: int
    k_tile: int
    vectors: int
    parallel: bool = True
    room: int = 0

    def row_vectors(self, geometry: Geometry) -> int:
        """Return the vectors of a row of columns: of all channels and taps of a task."""
        return -(-self.c_block * geometry.taps // self.lanes)

    def is_whole(self, geometry: Geometry) -> bool:
        """Return whether all register tiles are full, and rows of columns full vectors."""
        return (
            geometry.k_per_group % self.k_tile == 0
            and geometry.c_per_group % self.c_block == 0
            and self.c_block * geometry.taps % self.lanes == 0
        )


def wgrad_im2col_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[WgradIm2colPlan, list[float]]]:
    """Yield plans for few positions with symbolic sizes, and their cycles for all `known` sizes.

    They are infinite for what a task has no room for.
    """
    for c_block in candidate_channels(problem.geometry.c_per_group, 1):
        room = _room(problem, c_block, machine)
        if room:
            plan = _plan(problem, 1, c_block, machine)
            cycles = [
                _cycles(one, replace(plan, images=one.n), machine)[0]
                if prod(one.y_sizes) <= room
                else inf
                for one in known
            ]
            yield replace(plan, room=room), cycles


def _vectors(problem: Convolution, c_block: int, machine: CpuMachine) -> int:
    """Return the vectors of a row of columns."""
    return -(-c_block * problem.geometry.taps // machine.lanes(problem.acc_dtype))


def _room(problem: Convolution, c_block: int, machine: CpuMachine) -> int:
    """Return the positions whose columns a task holds at most."""
    return machine.l2 // 2 // (_vectors(problem, c_block, machine) * machine.vector_bytes)


def wgrad_im2col_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, WgradIm2colPlan]]:
    """Yield plans, with lanes over weights, and their cycles, where positions fit a cache."""
    require(problem.is_static, "sizes must be known")
    c, size = problem.geometry.c_per_group, prod(problem.geometry.y_size)
    for images, c_block in product(divisors(problem.n), candidate_channels(c, 1)):
        if images * size <= _room(problem, c_block, machine):
            plan = _plan(problem, images, c_block, machine)
            cycles, of_tasks = _cycles(problem, plan, machine)
            busy = min(_tasks(problem, plan), machine.threads)
            held = busy * _elements(problem, plan)
            cycles *= memory_price(problem, held, problem.elements)
            yield cycles, replace(plan, parallel=of_tasks >= PARALLEL_CYCLES)


def _plan(problem: Convolution, images: int, c_block: int, machine: CpuMachine) -> WgradIm2colPlan:
    """Return the plan with as many splits as there have to be tasks."""
    geometry = problem.geometry
    vectors = _vectors(problem, c_block, machine)
    k_tile, width = register_tile(geometry.k_per_group, vectors, machine)
    tasks = geometry.groups * -(-geometry.c_per_group // c_block)
    splits = 1 if tasks >= 2 * machine.threads else -(-2 * machine.threads // tasks)
    splits = min(splits, -(-geometry.k_per_group // k_tile))
    return WgradIm2colPlan(images, machine.lanes(problem.acc_dtype), c_block, splits, k_tile, width)


def _tasks(problem: Convolution, plan: WgradIm2colPlan) -> int:
    return (
        problem.geometry.groups
        * -(-problem.geometry.c_per_group // plan.c_block)
        * plan.channel_splits
    )


def _elements(problem: Convolution, plan: WgradIm2colPlan) -> int:
    """Return the elements that a task holds: columns, values of y, and sums that are not in
    place.
    """
    geometry = problem.geometry
    positions = plan.images * prod(geometry.y_size)
    row = plan.row_vectors(geometry) * plan.lanes
    as_summed = problem.weights_are_runs and problem.dtypes[2] == problem.acc_dtype
    sums = 0
    if not (as_summed and plan.is_whole(geometry)):
        tiles = -(-geometry.k_per_group // (plan.k_tile * plan.channel_splits))
        sums = plan.k_tile * row * (tiles if plan.images < problem.n else 1)
    return positions * (row + plan.k_tile) + sums


def _cycles(
    problem: Convolution, plan: WgradIm2colPlan, machine: CpuMachine
) -> tuple[float, float]:
    """Return the estimated cycles until the kernel is done, and of all tasks together."""
    geometry, c_block, k_tile = problem.geometry, plan.c_block, plan.k_tile
    costs = costs_of(machine).wgrad_im2col
    k, taps = geometry.k_per_group, geometry.taps
    positions, chunks = plan.images * prod(geometry.y_size), problem.n // plan.images
    vectors = plan.row_vectors(geometry)
    tasks = _tasks(problem, plan)
    tiles = -(-k // (k_tile * plan.channel_splits))
    step = row_cycles(k_tile, vectors, plan.vectors, machine)
    # Sums that go on are read as well, from where a task's share of them fits.
    is_far = (
        c_block * taps * -(-k // plan.channel_splits) * byte_width(problem.acc_dtype) > machine.l2
    )
    again = costs.sum_again_far if is_far else costs.sum_again
    sums = vectors * (costs.sum_once if chunks == 1 else again)
    rows = k_tile * (positions * costs.value + sums)
    copied = positions * c_block * taps * _element_cycles(problem, c_block, machine)
    chunk = copied + tiles * (positions * step * costs.products + rows)
    task = costs.task + chunks * chunk
    return -(-tasks // machine.threads) * task, tasks * task


def _element_cycles(problem: Convolution, c_block: int, machine: CpuMachine) -> float:
    """Return the cycles of copying elements to columns, a row of the kernel at a time."""
    # Channels that are an image apart: too many leave the first cache before the next position.
    apart = prod(problem.geometry.x_size) * byte_width(problem.dtypes[0])
    leave = problem.layouts.x[-1] != "C" and c_block > rows_that_fit(apart, machine)
    costs = costs_of(machine).wgrad_im2col
    return costs.element + (costs.line if leave else 0.0) / problem.geometry.kernel[-1]
