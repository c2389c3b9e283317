# SPDX-License-Identifier: Apache-2.0
"""Software pipelines: the operands of later steps are copied while a step is multiplied.

Two stages of shared memory, filled by way of registers (:func:`double_buffered`)::

    fetch step 0 -> registers -> stage 0; barrier
    for each step:
        fetch the next step -> registers
        products of this step
        registers -> the other stage; barrier

Several stages, filled by copies that need no register (:func:`multistage`)::

    start the copies of the first stages - 1 steps
    for each step:
        wait for its copies; barrier
        start the copies of the step stages - 1 ahead
        products of this step
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from .. import emit
from ..emit import Array, Expr
from ..plan.tiles import WarpTiles

SHARED = "shared.dyn"
"""Scope of the shared memory of several stages."""


class BufferedCopies(Protocol):
    """Copies of the operands of a step by a thread, by way of registers."""

    def fetch(self, number: Expr) -> None:
        """Read the operands of step `number` to registers; steps are read in order."""

    def keep(self, stage: int) -> None:
        """Write registers to a stage of shared memory."""


def double_buffered(count: Expr, copies: BufferedCopies) -> Iterator[int]:
    """Emit ``for stage in double_buffered(count, copies)``: a loop over `count` steps.

    The body multiplies the operands that `stage` holds.  It runs in Python once for each of the two
    stages.
    """
    for _ in emit.only_if(count > 0):
        copies.fetch(0)
        copies.keep(0)
    emit.barrier()
    for pair in emit.loop(emit.ceil_div(count, 2)):
        yield from _buffered_step(pair * 2, count, 0, copies)
        for _ in emit.only_if(pair * 2 + 1 < count):
            yield from _buffered_step(pair * 2 + 1, count, 1, copies)


def _buffered_step(number: Expr, count: Expr, stage: int, copies: BufferedCopies) -> Iterator[int]:
    more = number + 1 < count
    for _ in emit.only_if(more):
        copies.fetch(number + 1)
    yield stage
    for _ in emit.only_if(more):
        copies.keep(1 - stage)
    emit.barrier()


class StagedCopies(Protocol):
    """Copies of the operands of a step by a thread, to one of several stages."""

    def ask(self, number: Expr, stage: Expr) -> None:
        """Start the copies of step `number`; read to registers the elements that need them."""

    def keep(self, stage: Expr) -> None:
        """Write registers, if there are any, to a stage of shared memory."""


def copies_of(tensors: Sequence[Array]) -> Iterator[str]:
    """Emit ``for copy in copies_of(tensors)``: a branch by the alignment of the tensors.

    Yields the name of the device function that copies 16 bytes: first for tensors that begin at
    multiples of 16, then for others.  The copies of the first side need no register.
    """
    are_aligned: Expr = True
    if tensors:
        flag = emit.local(1, "int32")
        emit.store(flag, 0, 1)
        for tensor in tensors:
            emit.call("topi_begins_at_16", flag.buffer.data, tensor.buffer.data)
        are_aligned = flag[0] != 0
    for aligned in emit.sides(are_aligned):
        yield "topi_copy16" if aligned else "topi_copy16_anywhere"


def multistage(
    count: Expr, plan: WarpTiles, copies: StagedCopies, *, is_async: bool
) -> Iterator[Expr]:
    """Emit ``for start in multistage(count, plan, copies, ...)``: a loop over `count` steps.

    The body multiplies the operands that begin at byte `start` of shared memory.  If copies are
    asynchronous, those of each step are committed as a group, for which a later step waits.
    """
    ahead = plan.stages - 1
    for stage in range(ahead):
        for _ in emit.only_if(count > stage):
            copies.ask(stage, stage)
            copies.keep(stage)
        if is_async:
            emit.call("topi_commit")
    for number, now, later in _stages(count, plan.stages):
        if is_async:
            emit.call(f"topi_wait{plan.stages - 2}")
        emit.barrier(SHARED)
        more = number + ahead < count
        for _ in emit.only_if(more):
            copies.ask(number + ahead, later)
        if is_async:
            emit.call("topi_commit")
        yield emit.opaque_value(now * plan.stage_bytes)
        for _ in emit.only_if(more):
            copies.keep(later)


def _stages(count: Expr, stages: int) -> Iterator[tuple[Expr, Expr, Expr]]:
    """Emit a loop over steps: the number of each, its stage, and the stage of the previous step,
    which the copies of the last step ahead fill.
    """
    if stages & (stages - 1) == 0:
        for number in emit.loop(count):
            now, before = (emit.remainder(number + more, stages) for more in (0, stages - 1))
            yield number, emit.opaque_value(now), emit.opaque_value(before)
        return
    # Stages are counted, because a remainder by three takes seven instructions.
    held = emit.local(2, "int32")
    emit.store(held, 0, 0)
    emit.store(held, 1, stages - 1)
    for number in emit.loop(count):
        yield number, held[0], held[1]
        emit.store(held, 1, held[0])
        is_last = held[0] == stages - 1
        emit.store(held, 0, emit.pick(is_last, lambda: emit.typed(0), held[0] + 1))
