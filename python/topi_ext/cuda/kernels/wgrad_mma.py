# SPDX-License-Identifier: Apache-2.0
"""conv_weight_grad of float16 and bfloat16 as a matrix product over positions, on tensor cores.

M = channels of y of a group, N = taps x channels of x, K = positions of y; sums in float32::

    blocks (group, share of K, M by tile.rows, N by tile.columns):
        for parts of the share, of at most MOST_TERMS positions:
            start the copies of the first stages - 1 steps   -> shared[stage]
            for steps (tile.depth positions):
                wait for this step; barrier
                start the copies of the step stages - 1 ahead
                for 16 of depth: ldmatrix; sums[warp's rows, its columns] += mma.sync m16n8k16
            sums + those of earlier parts -> out, or the share's part of a workspace
    of a split K, or of parts and a narrow result: blocks of weights: the shares, in order -> out

Tensor cores truncate sums, and the float32 lanes round them, so parts are added by the lanes.

Where eight channels are neighbours, in x and in y, they are copied as stored, ``[depth][rows]`` and
``[depth][columns]``.  Otherwise elements are copied by way of registers to ``[rows][depth]`` and
``[columns][depth]``: read before the products of a step, and written to shared memory after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr, Operand, both, call, flat, opaque_value, store
from ..isa.tensor_core import functions
from ..parts.mma_tile import MmaTile, swizzled
from ..parts.output_tile import Threads
from ..parts.pipeline import SHARED, copies_of, multistage
from ..parts.split_sums import add_shares, all_shares
from ..parts.wgrad_block import Column, Copies, WgradBlock, wgrad_grid, write_weights
from ..plan.wgrad_mma import WgradMmaPlan, copies_chunks

CHUNK = 8
"""Elements of float16 or bfloat16 in 16 bytes."""


def emit_body(problem: Convolution, plan: WgradMmaPlan, operands: Sequence[Operand]) -> None:
    """Emit both launches: the product, and the sum of shares."""
    x, y, out = operands
    shares = all_shares(problem, plan.tile, out) if plan.needs_workspace(problem) else None
    called = functions(problem.dtypes[0])
    bounds = plan.threads, called, plan.least_blocks(problem)
    with emit.launch(wgrad_grid(problem, plan.tile), *bounds) as (number, thread):
        threads = Threads(opaque_value(thread), plan.threads)
        block = WgradBlock.emitted(problem, plan.tile, opaque_value(number))
        arena = emit.shared(plan.stages * plan.stage_bytes // 4, "float32", SHARED)
        by_chunks = copies_chunks(problem)
        kind: type[ChunkStep | ElementStep] = ChunkStep if by_chunks else ElementStep
        step = kind.emitted(plan, block, threads, (x, y, arena))
        # Chunks are stored in shared memory by depth.
        sums = MmaTile.emitted(plan, problem.dtypes[0], threads.number, by_chunks, by_chunks)
        for number, part in parts_of(block, plan):
            sums.clear()
            for copy in copies_of((x, y) if by_chunks else ()):
                copies = step.of_part(part, copy)
                for start in multistage(part.steps, plan, copies, is_async=by_chunks):
                    sums.add_products(arena, start, start + plan.row_bytes)
            write_weights(block, plan.tile, sums, shares or out, adds=number > 0)
    if shares:
        add_shares(problem, plan.tile, shares, (), out)


def parts_of(block: WgradBlock, plan: WgradMmaPlan) -> Iterator[tuple[Expr, WgradBlock]]:
    """Emit ``for number, part in parts_of(block, plan)``: a loop over parts of a block's share."""
    if not plan.has_parts(block.problem):
        yield 0, block
        return
    steps = plan.part_steps
    # At least one part: the weights of an empty share are zeros.
    for number in emit.loop(emit.most(1, emit.ceil_div(block.steps, steps))):
        # Threads may still read the last step of the previous part in shared memory.
        emit.barrier(SHARED)
        done = number * steps
        first = opaque_value(block.first + done * plan.tile.depth)
        count = opaque_value(emit.least(steps, block.steps - done))
        yield number, replace(block, first=first, steps=count)


@dataclass(frozen=True)
class ChunkStep:
    """The copies of a thread in each step: chunks of eight channels, at some positions.

    Attributes
    ----------
    plan, block
    memory : tuple of Array
        x, y, and shared memory.
    rows, columns : Copies
        Divisions of the chunks.
    column : Column
        First column of the thread's chunk, in x.
    copy : str
        Name of the device function that copies 16 bytes.
    """

    plan: WgradMmaPlan
    block: WgradBlock
    memory: tuple[Operand, Operand, Array]
    rows: Copies
    columns: Copies
    column: Column
    copy: str = "topi_copy16"

    @classmethod
    def emitted(
        cls,
        plan: WgradMmaPlan,
        block: WgradBlock,
        threads: Threads,
        memory: tuple[Operand, Operand, Array],
    ) -> ChunkStep:
        """Divide copies: neighbouring threads copy neighbouring chunks."""
        tile = plan.tile
        rows = Copies.of(threads, tile.rows // CHUNK, tile.depth, places_first=True)
        columns = Copies.of(threads, tile.columns // CHUNK, tile.depth, places_first=True)
        return cls(plan, block, memory, rows, columns, block.column(columns.places[0] * CHUNK))

    def of_part(self, block: WgradBlock, copy: str) -> ChunkStep:
        """Return the copies of a part of the share, by another device function."""
        return replace(self, block=block, copy=copy)

    def ask(self, number: Expr, stage: Expr) -> None:
        """Start the copies of a step."""
        tile, (x, y, arena) = self.plan.tile, self.memory
        first = opaque_value(number * tile.depth)
        base = opaque_value(stage * self.plan.stage_bytes)
        limit = self.block.problem.geometry.k_per_group
        row = opaque_value(self.block.first_row + self.rows.places[0] * CHUNK)
        for k, there in self.rows.taken(tile.depth):
            position = self.block.position(first + k)
            inside = both(there, position.inside, limit % tile.rows == 0 or row < limit)
            at = self.block.y_start(y, position) + flat(row)
            place = base + swizzled(k, self.rows.places[0], tile.rows // CHUNK)
            self._copy(there, (arena, place), (y, at), inside)
        base = base + self.plan.row_bytes
        for k, there in self.columns.taken(tile.depth):
            position = self.block.position(first + k)
            inside, at = self.block.x_read(x, position, self.column)
            place = base + swizzled(k, self.columns.places[0], tile.columns // CHUNK)
            self._copy(there, (arena, place), (x, at), inside)

    def keep(self, stage: Expr) -> None:
        """Do nothing: no element is copied by way of registers."""

    def _copy(
        self, there: Expr, to: tuple[Array, Expr], source: tuple[Operand, Expr], inside: Expr
    ) -> None:
        """Copy a chunk, or zeros where it is not `inside`, in the threads that have one."""
        arena, place = to[0].buffer.data, to[1]
        data, at, here = source[0].buffer.data, emit.wide(source[1]), emit.condition(inside)
        for _ in emit.only_if(there):
            call(self.copy, arena, place, data, at, here)


@dataclass(frozen=True)
class ElementStep:
    """The copies of a thread in each step: elements, by way of registers.

    Attributes
    ----------
    plan, block
    memory : tuple of Array
        x, y, and shared memory.
    rows, columns : Copies
    taken : tuple of Column
        Tap and channel of each of `columns`.
    held : tuple of Array
        Registers for rows and for columns.
    """

    plan: WgradMmaPlan
    block: WgradBlock
    memory: tuple[Operand, Operand, Array]
    rows: Copies
    columns: Copies
    taken: tuple[Column, ...]
    held: tuple[Array, Array]

    @classmethod
    def emitted(
        cls,
        plan: WgradMmaPlan,
        block: WgradBlock,
        threads: Threads,
        memory: tuple[Operand, Operand, Array],
    ) -> ElementStep:
        """Divide copies: neighbouring threads copy neighbours in memory, channels or positions."""
        tile, (x, y, _) = plan.tile, memory
        rows = Copies.of(threads, tile.rows, tile.depth, emit.along(y, "C") == 1)
        columns = Copies.of(threads, tile.columns, tile.depth, emit.along(x, "C") == 1)
        taken = tuple(block.column(place) for place in columns.places)
        of_rows, of_columns = (emit.local(len(a.pairs()), x.dtype) for a in (rows, columns))
        return cls(plan, block, memory, rows, columns, taken, (of_rows, of_columns))

    def of_part(self, block: WgradBlock, _: str) -> ElementStep:
        """Return the copies of a part of the share."""
        return replace(self, block=block)

    def ask(self, number: Expr, _: Expr) -> None:
        """Read the elements of a step to registers."""
        block, (x, y, _) = self.block, self.memory
        tile, limit = self.plan.tile, self.block.problem.geometry.k_per_group
        first = opaque_value(number * tile.depth)
        positions = [block.position(first + k) for k in self.rows.positions]
        starts = [block.y_start(y, position) for position in positions]
        for turn, (k, i) in enumerate(self.rows.pairs()):
            row = block.first_row + self.rows.places[i]
            inside = both(positions[k].inside, limit % tile.rows == 0 or row < limit)
            at = starts[k] + flat(row) * emit.along(y, "C")
            store(self.held[0], turn, emit.load_if(inside, y, at, x.dtype))
        positions = [block.position(first + k) for k in self.columns.positions]
        for turn, (k, i) in enumerate(self.columns.pairs()):
            inside, at = block.x_read(x, positions[k], self.taken[i])
            store(self.held[1], turn, emit.load_if(inside, x, at, x.dtype))

    def keep(self, stage: Expr) -> None:
        """Write registers to shared memory."""
        tile, arena = self.plan.tile, self.memory[2].buffer.data
        base = opaque_value(stage * self.plan.stage_bytes)
        for copies, held in zip((self.rows, self.columns), self.held):
            for turn, (k, i) in enumerate(copies.pairs()):
                position = copies.positions[k]
                chunk, behind = emit.quotient(position, CHUNK), emit.remainder(position, CHUNK)
                place = swizzled(copies.places[i], chunk, tile.depth // CHUNK) + behind * 2
                call("topi_keep2", arena, base + place, held[turn])
            base = base + self.plan.row_bytes
