# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.gemm_col2im`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from ...kernel.registry import require
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.geometry import Geometry
from ..machine import CACHE_LINE, CpuMachine
from .base import Plan
from .estimate import (
    PARALLEL_CYCLES,
    SHARED_CACHES,
    candidate_channels,
    divisors,
    memory_price,
    register_tile,
    room_for,
    row_cycles,
    widening_cycles,
)
from .step_costs import costs_of
from .vectors import odd_vectors


@dataclass(frozen=True)
class GemmCol2imPlan(Plan):
    """Plan of the ``conv_transpose`` kernel for small images.

    Attributes
    ----------
    images : int
        Images per task; divides the batch.  Symbolic sizes choose it when the kernel runs.
    positions, held : int
        Room of a task: positions of y, and elements of an image of x with its padding: none for
        images of one position whose columns are what is written.
    lanes : int
        Elements per vector.
    c_block : int
        Channels of x per task.
    k_block : int
        Channels of y that are summed at a time.
    m_tile, vectors : int
        Register tile: positions by vectors of (channel of x, tap).
    parallel : bool
        Whether threads share the tasks.
    ahead : int
        Cache lines of the next chunk's weights for which a register tile asks with each term.
    """

    images: int
    positions: int
    held: int
    lanes: int
    c_block: int
    k_block: int
    m_tile: int
    vectors: int
    parallel: bool = True
    ahead: int = 0

    def row_vectors(self, geometry: Geometry) -> int:
        """Return the vectors of a row of columns: of all channels and taps of a task."""
        return -(-self.c_block * geometry.taps // self.lanes)

    def pitch(self, geometry: Geometry) -> int:
        """Return the elements from one row of columns to the next: of vectors never a power of
        two.
        """
        return odd_vectors(self.row_vectors(geometry)) * self.lanes

    @staticmethod
    def extents(geometry: Geometry, most: Callable[..., Any] = max) -> list[Any]:
        """Extents of an image of x before its padding is cut off, and of what lies behind it.

        With symbolic sizes `most` has to be a maximum of expressions.
        """
        return [
            max(0, -pad) + most((y - 1) * s + (r - 1) * d + 1, x + pad)
            for y, x, r, s, d, pad in zip(
                geometry.y_size, geometry.x_size, geometry.kernel, geometry.stride,
                geometry.dilation, geometry.pad_before,
            )
        ]  # fmt: skip

    @classmethod
    def elements_held(cls, geometry: Geometry) -> int:
        """Return the elements of such an image of known size; none if the columns of a position are
        it.
        """
        extents = cls.extents(geometry)
        is_image = prod(geometry.y_size) == 1 and extents == list(geometry.kernel)
        return 0 if is_image else prod(extents)


CHUNKS = (16, 32, 64, 96)
"""Candidates: the most channels of y that are summed at a time."""

ASKING_TILES = 4
"""Most tiles of positions for each cache line of a vector tile that ask for the next weights."""

COPY_BYTES = 16
"""To copy a vector takes as long as its bytes and so many more."""

FEW_TILES = 2
"""Tiles of positions that share the lines where their number is not known."""


def gemm_col2im_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, GemmCol2imPlan]]:
    """Yield plans, with lanes over weights, and their cycles, where an image fits a cache."""
    require(problem.is_static, "sizes must be known")
    geometry, lanes = problem.geometry, machine.lanes(problem.acc_dtype)
    n, size = problem.n, prod(geometry.y_size)
    held = GemmCol2imPlan.elements_held(geometry)
    blocks = candidate_channels(geometry.c_per_group, 1)
    for images, c_block, most in product(divisors(n), blocks, CHUNKS):
        positions, vectors = images * size, -(-c_block * geometry.taps // lanes)
        bytes_held = positions * vectors * machine.vector_bytes
        if bytes_held > machine.l2 // 2 or held > _image_room(problem, machine):
            continue
        m_tile, width = register_tile(positions, vectors, machine)
        # As many channels at a time as operands and result have room for.
        busy = min(_tasks(problem, images, c_block), machine.threads)
        room = room_for(problem) // busy - (positions * vectors * lanes + held)
        most = min(most, room // (vectors * lanes + positions))
        k_block = _chunk(problem, vectors, machine, most)
        plan = GemmCol2imPlan(images, positions, held, lanes, c_block, k_block, m_tile, width)
        plan = replace(plan, ahead=_ahead(problem, plan, machine))
        cycles, of_tasks = _cycles(problem, plan, machine)
        rows = -(-positions // m_tile) * m_tile
        floats = k_block * (vectors * lanes + rows) + rows * plan.pitch(geometry) + held
        cycles *= memory_price(problem, busy * floats)
        yield cycles, replace(plan, parallel=of_tasks >= PARALLEL_CYCLES)


def _tasks(problem: Convolution, images: int, c_block: int) -> int:
    geometry, n = problem.geometry, int(problem.n)
    return -(-n // images) * geometry.groups * -(-geometry.c_per_group // c_block)


def _chunk(problem: Convolution, vectors: int, machine: CpuMachine, most: int) -> int:
    """Return the channels at a time: as many as are near, in equal parts."""
    near, k = machine.l2 // 4 // (vectors * machine.vector_bytes), problem.geometry.k_per_group
    return -(-k // -(-k // max(16, min(near, most))))


def _stored(problem: Convolution) -> int:
    """Return the bytes of the weights of a group."""
    return problem.weights_per_group * byte_width(problem.dtypes[1])


def _ahead(problem: Convolution, plan: GemmCol2imPlan, machine: CpuMachine) -> int:
    """Return the lines to ask for: where weights come from far away, and products hide that."""
    lines = -(-plan.vectors * plan.lanes * byte_width(problem.dtypes[1]) // CACHE_LINE)
    tiles = -(-plan.positions // plan.m_tile)
    if not problem.is_static:
        tiles = FEW_TILES
    is_far = problem.weights_are_runs and _stored(problem) > machine.l2
    pays = is_far and plan.positions > 1 and tiles <= ASKING_TILES * lines
    return -(-lines // tiles) if pays else 0


def _copy_cycles(
    problem: Convolution, plan: GemmCol2imPlan, chunk: int, machine: CpuMachine
) -> float:
    """Return the cycles to copy a vector of a chunk of so many bytes, as measured for cache
    lines.
    """
    costs, stored = costs_of(machine).gemm_col2im, _stored(problem)
    sizes = machine.l1 // 2, machine.l1, machine.l2 // 8, chunk
    cycles = costs.copy, costs.copy_l1, costs.copy_l2, costs.copy_large
    near = next(each for size, each in zip(sizes, cycles) if chunk <= size)
    far = costs.copy_far if stored <= SHARED_CACHES * machine.l2 else costs.copy_memory
    far = far if stored > machine.l2 else 0.0
    share, whole = machine.vector_bytes + COPY_BYTES, CACHE_LINE + COPY_BYTES
    return (near + far * (costs.asked if plan.ahead else 1.0)) * share / whole


def _cycles(
    problem: Convolution, plan: GemmCol2imPlan, machine: CpuMachine, *, ones: bool = False
) -> tuple[float, float]:
    """Return the estimated cycles until the kernel is done, and of all tasks together.

    Positions after the whole tiles are one more tile, or single positions (`ones`).
    """
    geometry, c_block, m_tile = problem.geometry, plan.c_block, plan.m_tile
    k, taps = geometry.k_per_group, geometry.taps
    costs, common = costs_of(machine).gemm_col2im, costs_of(machine).common
    positions, vectors = plan.images * prod(geometry.y_size), plan.row_vectors(geometry)
    bytes_held = positions * vectors * machine.vector_bytes
    tasks, tiles = _tasks(problem, plan.images, c_block), -(-positions // m_tile)
    single = positions % m_tile if ones else 0
    tiles -= single > 0
    value = costs.value + costs.widened * widening_cycles(
        problem.dtypes[0], problem.acc_dtype, common
    )  # channel by channel
    products = k * tiles * (row_cycles(m_tile, vectors, plan.vectors, machine) + m_tile * value)
    products += k * single * (row_cycles(1, vectors, plan.vectors, machine) + value)
    if bytes_held > machine.l2 // 4:
        products *= costs.columns_far
    products *= costs.products
    chunk = plan.k_block * vectors * machine.vector_bytes
    if chunk > machine.l1:
        products *= costs.rows_far  # rows come from the second cache
    weights = k * vectors * _copy_cycles(problem, plan, chunk, machine)
    sums = -(-k // plan.k_block) * (tiles * m_tile + single) * vectors * costs.sum_again
    scatter = plan.images * c_block * (prod(geometry.x_size) * costs.out_element + costs.out_image)
    if plan.held:
        scatter += c_block * (
            positions * taps * costs.scatter + plan.images * plan.held * costs.clear
        )
    task = costs.task + products + weights + sums + scatter
    return -(-tasks // machine.threads) * task, tasks * task


def gemm_col2im_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[GemmCol2imPlan, list[float]]]:
    """Yield plans for small images with symbolic sizes, and their cycles for all `known` sizes.

    They are infinite for what a task has no room for.
    """
    geometry, lanes = problem.geometry, machine.lanes(problem.acc_dtype)
    held = _image_room(problem, machine)
    for c_block, most in product(candidate_channels(geometry.c_per_group, 1), CHUNKS):
        vectors = -(-c_block * geometry.taps // lanes)
        positions = machine.l2 // 2 // (vectors * machine.vector_bytes)
        if positions < 1:
            continue
        m_tile, width = register_tile(positions, vectors, machine)
        k_block, tile = _chunk(problem, vectors, machine, most), (m_tile, width)
        # Of a batch, each task has as many images as there is room for.
        plan = GemmCol2imPlan(1, positions, held, lanes, c_block, k_block, *tile)
        plan = replace(plan, ahead=_ahead(problem, plan, machine))
        yield plan, [_fitted_cycles(one, plan, machine) for one in known]


def _fitted_cycles(known: Convolution, plan: GemmCol2imPlan, machine: CpuMachine) -> float:
    """Return the estimated cycles of a plan for symbolic sizes: it has as many images in a task as
    fit.
    """
    size, held = prod(known.geometry.y_size), prod(GemmCol2imPlan.extents(known.geometry))
    if size > plan.positions or held > plan.held:
        return float("inf")
    images = -(-known.n // -(-known.n // (plan.positions // size)))
    return _cycles(known, replace(plan, images=images, held=held), machine, ones=True)[0]


def _image_room(problem: Convolution, machine: CpuMachine) -> int:
    """Return the most elements of an image of x that a task holds."""
    return machine.l2 * 5 // 16 // byte_width(problem.acc_dtype)
