# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.direct`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from ...spec.axis_access import AxisAccess
from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from ...spec.size_hints import nominal
from ..machine import CACHE_LINE, CpuMachine
from .base import Plan
from .estimate import (
    MOST_CHANNELS,
    PARALLEL_CYCLES,
    SHARED_CACHES,
    blocks_in,
    candidate_blocks,
    candidate_depths,
    candidate_splits,
    memory_price,
    most_of,
    pack_cycles,
    register_tile,
    row_cycles,
    rows_that_fit,
    usable_registers,
    widening_cycles,
)
from .step_costs import costs_of
from .vectors import square_size
from .window import Window

UNROLLED_TAPS = 8
"""Taps written out in an innermost loop; with more, LLVM runs out of registers."""


MOST_COPIED = 4096
"""Weights that are copied at a time before they are packed."""

TURNED_CHANNELS = 8
"""Least output channels of a register tile for which transposing weights in registers pays, as
measured."""


def read_through(problem: Convolution, *, plane_per_tap: bool) -> tuple[AxisAccess, ...]:
    """Return how the data of `problem` is read along the four axes; with `plane_per_tap` each tap
    of a ``conv`` has its own plane.
    """
    return tuple(a.with_planes for a in problem.accesses) if plane_per_tap else problem.accesses


@dataclass(frozen=True)
class DirectPlan(Plan):
    """Plan of the kernel that serves ``conv`` and ``conv_transpose``.

    Attributes
    ----------
    window : Window
        Block of positions per task and what it reads; of symbolic sizes the room for it, which the
        kernel fills when it runs.
    lanes : int
        Elements per vector.
    channels, vectors : int
        Register tile: output channels by vectors of positions.
    channel_splits : int
        Into how many tasks the output channels of one block are divided.
    depth : int
        Input channels that are summed at a time.
    packed : bool
        Whether the weights are packed first, or read where they are.
    parallel : bool
        Whether threads share the tasks.
    plane_per_tap : bool
        Whether each tap of a ``conv`` has a plane of its own, so that no lane is in a halo.
    tasks : int
        For symbolic sizes, the number of tasks to aim for: `channel_splits` follows at run time.
    unrolled : int
        Most taps that are written out in an innermost loop.
    streamed : bool
        Whether the result is written by non-temporal stores.
    all_phases : bool
        Whether a register tile of a ``conv_transpose`` has all phases of its rows: what they read
        is loaded once for all of them.
    shared : int
        Number of axes of depth, height and width, from the first on, along which phases with
        different numbers of taps share code: slower, and sooner built.
    """

    window: Window
    lanes: int
    channels: int
    vectors: int
    channel_splits: int
    depth: int
    packed: bool = True
    parallel: bool = True
    plane_per_tap: bool = False
    tasks: int = 1
    unrolled: int = UNROLLED_TAPS
    streamed: bool = False
    all_phases: bool = False
    shared: int = 1

    def copies_squares(self, problem: Convolution) -> bool:
        """Return whether weights are transposed in registers before they are packed."""
        return (
            self.channels >= TURNED_CHANNELS and square_size(problem, self.channels, self.lanes) > 0
        )

    def copied_channels(self, problem: Convolution) -> int:
        """Input channels whose weights are copied at a time for that: what a cache holds."""
        most: int = MOST_COPIED // (problem.geometry.taps * self.channels)
        return min(problem.in_channels, most) if self.copies_squares(problem) else 0

    def with_non_temporal(self, enabled: bool) -> DirectPlan:
        """See :class:`~.base.Plan`."""
        return replace(self, streamed=enabled)

    def non_temporal_run(self, problem: Convolution, machine: CpuMachine) -> int:
        """See :class:`~.base.Plan`: a block's part of a row, and whole rows that follow it."""
        block = self.window.block
        run: int = min(problem.out_sizes[-1], block[-1] * problem.accesses[-1].out_step)
        for axis in (3, 2):
            if block[axis] < problem.positions[axis]:
                break
            run *= block[axis - 1] * problem.accesses[axis - 1].out_step
        return run

    def accesses(self, problem: Convolution) -> tuple[AxisAccess, ...]:
        """Return how the data of `problem` is read along the four axes."""
        return read_through(problem, plane_per_tap=self.plane_per_tap)


FEW_CHANNELS = 8
"""With so many output channels, register tiles of one phase load little for their products."""

MOST_ROW_TAPS = 64
"""Longest kernel along a row whose taps are all written out."""

MANY_PHASES = 64
"""With more of them, the lines in which their packed weights begin are too many for a cache."""

MOST_ROW_PRODUCTS = 4 * MOST_ROW_TAPS
"""Products of a register tile of whole rows that are written out."""

ROW_SUMS_LEFT = 4
"""Fewer phases of a row than half of the registers, by at least so many: for what they read."""

MOST_PHASES = 1 << 12
"""With symbolic sizes and more phases than this, a task has room for one position."""


@lru_cache(maxsize=64)
def plan_direct(problem: Convolution, machine: CpuMachine) -> tuple[float, DirectPlan]:
    """Return the lanes over positions: the plan of kernels/direct.py, and its cycles."""
    best: tuple[float, float, DirectPlan] | None = None
    for cost, plan in _plans(problem, machine):
        if best is None or cost < best[0]:
            priced = cost * _price(problem, plan, machine)
            if best is None or priced < best[0]:
                best = priced, cost, plan
    assert best is not None
    _, cost, plan = best
    return cost + _packing_cycles(problem, plan, machine), plan


def direct_candidates(
    problem: Convolution, machine: CpuMachine
) -> Iterator[tuple[float, DirectPlan]]:
    """Yield the candidates of :func:`plan_direct` and their cycles, without those of packing
    weights.
    """
    for cost, plan in _plans(problem, machine):
        cost *= _price(problem, plan, machine)
        yield cost + _packing_cycles(problem, plan, machine), plan


def direct_of_any_size(
    problem: Convolution, known: Sequence[Convolution], machine: CpuMachine
) -> Iterator[tuple[DirectPlan, list[float]]]:
    """Return the plan for symbolic sizes, and its cycles for all `known` sizes."""
    yield plan_direct(problem, machine)[1], [plan_direct(one, machine)[0] for one in known]


def _plans(problem: Convolution, machine: CpuMachine) -> Iterator[tuple[float, DirectPlan]]:
    """Yield the candidates, and their cycles but for packing weights."""
    lanes = machine.lanes(problem.acc_dtype)
    positions = nominal(problem.positions)
    if not problem.is_static and prod(access.out_step for access in problem.accesses) > MOST_PHASES:
        positions = (1,) * len(positions)  # each holds a result for every phase
    kinds = prod(len(access.groups) for access in problem.accesses)
    most = MOST_CHANNELS
    if problem.weights_are_rows:
        stride = problem.in_channels * problem.geometry.taps * byte_width(problem.acc_dtype)
        most = min(most, rows_that_fit(stride, machine))
    may_spread = problem.is_static and not problem.transposed and problem.geometry.taps > 1
    orders = [(False, False)]
    orders += [(True, False)] if may_spread else []
    orders += [(False, True)] if _may_take_rows(problem, machine) else []
    for block, (plane_per_tap, all_phases) in product(candidate_blocks(positions, lanes), orders):
        window = Window.of(block, read_through(problem, plane_per_tap=plane_per_tap))
        vectors = -(-window.length // lanes)
        channels, width = (
            _row_tile(problem, vectors, machine)
            if all_phases
            else register_tile(problem.out_channels, vectors, machine, kinds, most)
        )
        tasks = problem.geometry.groups * blocks_in(positions, block)
        blocks, of_block = -(-problem.out_channels // channels), None
        for splits, depth in product(
            candidate_splits(tasks, blocks, machine), candidate_depths(problem.in_channels)
        ):
            plan = DirectPlan(
                window, lanes, channels, width, splits, depth, not problem.weights_are_rows,
                plane_per_tap=plane_per_tap, tasks=2 * machine.threads, all_phases=all_phases,
            )  # fmt: skip
            of_block = of_block or _Block.of(problem, plan, machine)
            cycles = _cycles(problem, plan, of_block, machine)
            if problem.is_static and tasks * splits * cycles < PARALLEL_CYCLES:
                plan = replace(plan, parallel=False)
            yield -(-tasks * splits // machine.threads) * cycles, plan


def direct_tasks(problem: Convolution, plan: DirectPlan) -> int:
    """Tasks that may run at once."""
    blocks = blocks_in(nominal(problem.positions), plan.window.block)
    return problem.geometry.groups * blocks * plan.channel_splits


def _price(problem: Convolution, plan: DirectPlan, machine: CpuMachine) -> float:
    """Return the cost multiplier of its memory, for known sizes."""
    if not problem.is_static:
        return 1.0
    busy = min(machine.threads if plan.parallel else 1, direct_tasks(problem, plan))
    return memory_price(problem, direct_elements(problem, plan, busy))


def _packing_cycles(problem: Convolution, plan: DirectPlan, machine: CpuMachine) -> float:
    """Return the estimated cycles of packing weights before the kernel runs."""
    if not plan.packed or problem.prepacked:
        return 0.0
    weights, costs = problem.weights, costs_of(machine)
    direct, size = costs.direct, weights * byte_width("float32")
    if plan.copies_squares(problem):
        each = direct.turn_weight_memory
        if size <= machine.l2 * machine.threads:
            each = direct.turn_weight
        elif size <= machine.l2 * SHARED_CACHES:
            each = direct.turn_weight_far
        return weights * each / machine.threads
    each = direct.pack_weight if size <= machine.l2 else direct.pack_weight_far
    if prod(access.out_step for access in problem.accesses) > MANY_PHASES:
        each = max(each, direct.pack_weight_apart)
    each += widening_cycles(problem.dtypes[1], problem.acc_dtype, costs.common)
    return weights * each / machine.threads


def direct_elements(problem: Convolution, plan: DirectPlan, busy: int) -> int:
    """Return the elements that the kernel allocates while `busy` tasks run."""
    lanes, accesses = plan.lanes, plan.accesses(problem)
    slots, phases = prod(g.slots for g in accesses), prod(g.out_step for g in accesses)
    row = -(-plan.window.length // lanes) * lanes
    blocks = -(-problem.out_channels // plan.channels)
    together = -(-blocks // plan.channel_splits) if plan.depth < problem.in_channels else 1
    task = plan.depth * slots * plan.window.pitch(lanes) + plan.channels * phases * row * together
    packed = 0
    if plan.packed and not problem.prepacked:
        groups, taps = problem.geometry.groups, problem.geometry.taps
        packed = groups * blocks * plan.channels * problem.in_channels * taps
        # Copied before the tasks begin.
        task = max(task, taps * (plan.copied_channels(problem) * plan.channels + lanes))
    return packed + busy * task


class _Block(NamedTuple):
    """A block of positions and its register tiles, whatever the channels of a task.

    Attributes
    ----------
    slots, phases, busy : int
        Planes of an input channel; phases of all axes, and those of them that have taps.
    passes : int
        How often a block of output channels goes over the panel.
    vectors, tiles : int
        Vectors of the positions of the window, and register tiles of them.
    panel, held : int
        Bytes of what it reads of an input channel, and of the sums of a block of channels.
    pack, step : float
        Cycles of packing all input channels, and of a tap of one of them.
    """

    slots: int
    phases: int
    busy: int
    passes: int
    vectors: int
    tiles: int
    panel: int
    held: int
    pack: float
    step: float

    @classmethod
    def of(cls, problem: Convolution, plan: DirectPlan, machine: CpuMachine) -> _Block:
        """Return the block of a plan."""
        lanes, width, accesses = plan.lanes, byte_width(problem.acc_dtype), plan.accesses(problem)
        slots, phases = prod(g.slots for g in accesses), prod(g.out_step for g in accesses)
        last, busy = accesses[-1], prod(g.busy_phases for g in accesses)
        vectors = -(-plan.window.length // lanes)
        # Rows of symbolic length are copied in another way.
        wide = problem.is_static and machine.vector_bytes >= CACHE_LINE
        common, channels = costs_of(machine).common, plan.channels
        if plan.all_phases:
            step = _whole_row_cycles(last, channels, vectors, plan.vectors, machine) / last.kernel
        else:
            shifted = plan.window.extent != plan.window.block
            step = row_cycles(channels, vectors, plan.vectors, machine, shifted=shifted)
        return cls(
            slots, phases, busy, busy // (last.busy_phases if plan.all_phases else 1), vectors,
            tiles=-(-vectors // plan.vectors),
            panel=slots * plan.window.pitch(lanes) * width,
            held=channels * phases * vectors * lanes * width,
            pack=pack_cycles(accesses, plan.window, problem.in_channels, common, wide=wide),
            step=step,
        )  # fmt: skip


class _Task(NamedTuple):
    """Sizes of one task, of which all parts of its estimate are made.

    Attributes
    ----------
    block : _Block
    per_split, chunks : int
        Blocks of output channels; parts of the input channels that are summed at a time.
    panel : int
        Bytes of what it reads at a time.
    """

    block: _Block
    per_split: int
    chunks: int
    panel: int

    @classmethod
    def of(cls, problem: Convolution, plan: DirectPlan, block: _Block) -> _Task:
        """Return the task of a plan."""
        blocks = -(-problem.out_channels // plan.channels)
        return cls(
            block,
            per_split=-(-blocks // plan.channel_splits),
            chunks=-(-problem.in_channels // plan.depth),
            panel=plan.depth * block.panel,
        )


def _cycles(problem: Convolution, plan: DirectPlan, of_block: _Block, machine: CpuMachine) -> float:
    """Return the estimated cycles of one task."""
    task, costs = _Task.of(problem, plan, of_block), costs_of(machine).direct
    pack = _panel_cycles(problem, task, machine)
    compute = _product_cycles(problem, plan, task, machine)
    compute += _lines_again(problem, plan, task, machine)
    # Phases of long strides are put together one by one, and narrowed so.
    narrowed = 0.0 if problem.dtypes[2] == problem.acc_dtype else costs.out_narrowed
    is_short = problem.accesses[-1].out_step < plan.lanes
    element = costs.out_element if is_short else costs.out_element_alone + narrowed
    block, held = plan.window.block, of_block.held
    copy = prod(block[:-1]) * costs.out_row + prod(block) * element
    copy *= task.per_split * plan.channels * of_block.phases
    if task.chunks > 1:
        held *= task.per_split
        sums = task.per_split * task.chunks * of_block.busy * plan.channels * of_block.vectors
        compute += sums * costs.sum_again * (1 if held <= machine.l2 // 2 else costs.sums_far)
    if held > machine.l2 // 2:
        copy *= costs.sums_far
    # Every block reads the weights again, from wherever they fit.
    is_far = problem.weights_per_group * byte_width(problem.acc_dtype) > machine.l2
    weights = task.per_split * problem.in_channels * problem.geometry.taps * plan.channels
    return (
        costs.task
        + pack
        + compute
        + copy
        + weights * (costs.weight_far if is_far else costs.weight)
    )


def _panel_cycles(problem: Convolution, task: _Task, machine: CpuMachine) -> float:
    """Return the cycles of packing the input of a task."""
    costs, pack = costs_of(machine).direct, task.block.pack
    if task.panel > machine.l2 // 2:
        return pack * costs.panel_far
    is_near = task.panel <= most_of(machine.l1) and machine.vector_bytes >= CACHE_LINE
    return pack * costs.panel_near if is_near and problem.is_static else pack


def _product_cycles(
    problem: Convolution, plan: DirectPlan, task: _Task, machine: CpuMachine
) -> float:
    """Return the cycles of all products of a task, in register tiles, from a near or far panel."""
    block, spill = task.block, _spill(plan, task, machine)
    compute = task.per_split * problem.in_channels * problem.geometry.taps * block.step * spill
    if task.panel > most_of(machine.l2):
        # It is read once for every block of output channels, and phase that has taps.
        rows = task.per_split * problem.in_channels * block.slots * block.passes
        lines = rows * block.vectors * machine.vector_bytes // CACHE_LINE
        compute = max(compute, lines * costs_of(machine).common.l3_line)
    return compute


def _spill(plan: DirectPlan, task: _Task, machine: CpuMachine) -> float:
    """Return how many times as long products take as from the first cache."""
    costs, panel = costs_of(machine).direct, task.panel
    if plan.plane_per_tap:
        return costs.planes if panel <= machine.l2 // 4 else costs.planes_far
    if panel <= machine.l2 // 2:
        return 1.0
    return costs.half_full if panel <= most_of(machine.l2) else costs.full


def _lines_again(problem: Convolution, plan: DirectPlan, task: _Task, machine: CpuMachine) -> float:
    """Return the cycles of panel lines that every block of output channels reads again, once per
    phase with taps; none if they stay in the first cache beside the weights.
    """
    costs, width = costs_of(machine).direct, byte_width(problem.acc_dtype)
    taps = problem.geometry.taps
    weights = plan.depth * taps * plan.channels * width
    if task.panel + weights <= most_of(machine.l1):
        return 0.0
    block = task.block
    lines = block.slots * block.passes * (block.vectors + block.tiles)
    # Planes that one tap reads come in order, and most of the way is hidden.
    slice_ = plan.depth * taps * (plan.vectors * plan.lanes + plan.channels) * width
    has_one_tap = block.slots == 1 and taps <= block.phases
    is_hidden = has_one_tap or (plan.plane_per_tap and slice_ <= machine.l1 // 2)
    each = costs.line_hidden if is_hidden else costs.line
    return task.per_split * problem.in_channels * lines * each


def _may_take_rows(problem: Convolution, machine: CpuMachine) -> bool:
    """Return whether a register tile has room for all phases of a row, of one output channel."""
    last = problem.accesses[-1]
    phases = last.busy_phases
    few = problem.out_channels < FEW_CHANNELS and last.kernel <= MOST_ROW_TAPS
    return few and 1 < phases <= machine.registers // 2 - ROW_SUMS_LEFT


def _row_tile(problem: Convolution, vectors: int, machine: CpuMachine) -> tuple[int, int]:
    """Output channels and vectors of the cheapest register tile of whole rows."""
    last, usable = problem.accesses[-1], usable_registers(machine)
    phases = last.busy_phases
    best: tuple[float, int, int] | None = None
    for channels, width in product(range(1, problem.out_channels + 1), range(1, 9)):
        fits = (channels * phases + 1) * width < usable
        fits = fits and channels * width * last.kernel <= MOST_ROW_PRODUCTS
        if width > vectors or not (fits or channels == width == 1):
            continue
        cycles = _whole_row_cycles(last, channels, vectors, width, machine)
        cycles *= -(-problem.out_channels // channels)
        if best is None or cycles < best[0]:
            best = cycles, channels, width
    return best[1:] if best else (1, 1)


def _whole_row_cycles(
    access: AxisAccess, channels: int, vectors: int, width: int, machine: CpuMachine
) -> float:
    """Return the cycles of all taps along a row of `vectors` vectors, for one tap along the other
    axes.
    """
    costs = costs_of(machine)
    common, touched = costs.common, 2 if machine.vector_bytes >= CACHE_LINE else 1

    def tile(count: int) -> float:
        products = access.kernel * channels * count / machine.fmas
        loads = len(access.reads) * count * touched + access.kernel * channels
        slowest = max(products, loads * common.load, common.sum_ready)
        return costs.direct.whole_rows * slowest + common.tap

    full, tail = divmod(vectors, width)
    return full * tile(width) + (tile(tail) if tail else 0)
