# SPDX-License-Identifier: Apache-2.0
"""Plans of softmax and normalizations: the threads that share a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from ...spec.dtypes import byte_width
from ...spec.rowwise import NORMALIZE, RowWise
from ..machine import WARP, GpuMachine
from .estimate import ISSUED, L2_BYTES, LAUNCH, Blocks, bytes_time, launch_time
from .tiles import Footprint, Plan


@dataclass(frozen=True)
class RowwisePlan(Plan):
    """A plan in which a team of threads has a row, or a part of one.

    Attributes
    ----------
    team : int
        Threads of a team: a power of two.
    vector : int
        Neighbouring elements that a thread loads by one instruction.
    turns : int
        Vectors of a thread that are in registers at once.
    parts : int
        Number of parts of a row.  A launch computes mean and variance of each, and a second one
        combines them and computes the elements.
    """

    team: int
    vector: int
    turns: int
    parts: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return max(THREADS, self.team)

    @property
    def window(self) -> int:
        """Elements that a team has in registers at once."""
        return self.team * self.vector * self.turns


TEAMS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Candidates: threads that share a row."""

PARTS = (1, 2, 4, 8, 16, 32, 64)
"""Candidates: parts of a row."""

THREADS = 256
"""Minimum threads of a block, which has several short rows."""

HELD_BYTES = 128
"""Registers of a thread for elements: with 1024 threads a thread has 256 bytes of registers."""

VECTOR_BYTES = 16

SYMBOLIC = 64
"""Assumed value of a symbolic size."""

PER_ELEMENT, PER_EXPONENTIAL = 4, 12
"""Instructions of an element in each pass over a row: of a normalization, of softmax."""

REGISTERS = 64
"""Registers of a thread: nvcc takes 17 to 128, and 64 of most."""

REDUCTION = 250
"""Cycles in which a team combines what its threads have."""


def rowwise_candidates(
    rowwise: RowWise, machine: GpuMachine
) -> Iterator[tuple[float, RowwisePlan]]:
    """Yield the plans of teams that the row is long enough for, each with its estimated
    nanoseconds."""
    length, vector = _nominal(rowwise, rowwise.columns), vector_of(rowwise)
    most = HELD_BYTES // byte_width(rowwise.acc_dtype) // vector
    splits = rowwise.op == NORMALIZE and rowwise.is_static
    for team, parts in product(TEAMS, PARTS if splits else PARTS[:1]):
        if team > TEAMS[0] and team * vector * parts >= 2 * length:
            continue
        of_part = -(-length // parts)
        is_known = isinstance(rowwise.extent(rowwise.columns), int)
        turns = -(-of_part // (team * vector)) if is_known else most
        plan = RowwisePlan(team, vector, min(turns, most), parts)
        yield _time(rowwise, plan, machine), plan


def vector_of(rowwise: RowWise) -> int:
    """Return how many neighbours along the last axis a thread loads at once: a divisor of it."""
    run = dict(rowwise.sizes)[rowwise.columns[-1]]
    most = VECTOR_BYTES // max(map(byte_width, rowwise.dtypes))
    return gcd(run, most) if isinstance(run, int) else 1


def is_held(rowwise: RowWise, plan: RowwisePlan) -> bool:
    """Return whether all elements of a team stay in registers from its first pass on."""
    length = rowwise.extent(rowwise.columns)
    return isinstance(length, int) and length <= plan.parts * plan.window


def _nominal(rowwise: RowWise, letters: str) -> int:
    return prod(
        max(1, size) if isinstance(size, int) else SYMBOLIC for size in rowwise.shape(letters)
    )


def _time(rowwise: RowWise, plan: RowwisePlan, machine: GpuMachine) -> float:
    elements = _nominal(rowwise, rowwise.letters)
    passes = (3,) if plan.parts == 1 else (2, 1)
    reads = [_reads(rowwise, plan, count) for count in passes]
    times = (_launch_time(rowwise, plan, *each, machine) for each in zip(passes, reads))
    given, result = (elements * byte_width(dtype) for dtype in rowwise.dtypes)
    # What is read again comes from the L2 cache if the tensor fits into it.
    speed = 3.0 if given < machine.l2 // 2 else 1.0
    moved = given + result + given * (sum(reads) - 1) / speed
    return max(sum(times), LAUNCH * len(passes) + bytes_time(moved, machine))


def _reads(rowwise: RowWise, plan: RowwisePlan, passes: int) -> int:
    """Return how often a launch with so many passes over its elements reads them."""
    return 1 if is_held(rowwise, plan) else passes


def _launch_time(
    rowwise: RowWise, plan: RowwisePlan, passes: int, reads: int, machine: GpuMachine
) -> float:
    """Return the nanoseconds of a launch, without the time of memory."""
    rows, length = _nominal(rowwise, rowwise.rows), _nominal(rowwise, rowwise.columns)
    windows = -(-length // (plan.parts * plan.window))
    per_element = PER_ELEMENT if rowwise.op == NORMALIZE else PER_EXPONENTIAL
    held = plan.threads * plan.vector * plan.turns
    issued = passes * windows * per_element * held / ISSUED
    loaded = reads * windows * held * byte_width(rowwise.dtypes[0]) / L2_BYTES
    blocks = Blocks(
        -(-rows * plan.parts * plan.team // plan.threads),
        Footprint(plan.threads, REGISTERS, 8 * plan.threads // WARP),
        windows * reads,
        (max(issued, loaded) + REDUCTION * passes) / (windows * reads),
    )
    return launch_time(blocks, machine)
