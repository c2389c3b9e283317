# SPDX-License-Identifier: Apache-2.0
"""conv and conv_transpose as an implicit matrix product on tensor cores: float16 and bfloat16, and
float32 as three TF32 products where that is enabled.

M = positions of a phase, N = output channels of a group, K = its taps x input channels; sums in
float32::

    blocks (phase, group, share of K, M by tile.rows, N by tile.columns):
        start the copies of the first stages - 1 steps       cp.async -> shared[stage]
        for steps (tile.depth input channels, one tap of the phase):
            wait for this step; barrier
            start the copies of the step stages - 1 ahead
            for 32 bytes of depth: ldmatrix; sums[warp's rows, its columns] += mma.sync m16n8k16
        sums -> shared -> epilogue -> out, or the share's part of a workspace
    of a split K: blocks of outputs: the shares, in order -> epilogue -> out

Weights are packed.  Data whose channels are not neighbours, or not a multiple of eight, is copied
by way of registers: read before the products of a step, and written to shared memory after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...emit.arguments import Packed, tap_number
from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr, Operand, both, call, flat, opaque_value, store
from ..isa.tensor_core import functions
from ..isa.vectors import FUNCTIONS as VECTORS
from ..parts.gather_block import GatherBlock, blocks_of
from ..parts.gather_rows import GatherRow
from ..parts.mma_tile import MmaTile, swizzled
from ..parts.output_tile import OutputTile, Threads
from ..parts.packed_weights import PackedShape, packed_first, packed_of
from ..parts.packed_weights import pack_weights as pack
from ..parts.pipeline import SHARED, copies_of, multistage
from ..parts.split_sums import add_shares, shares_of
from ..parts.tap_steps import TapSteps
from ..plan.implicit_gemm_mma import ImplicitGemmMmaPlan, reads_chunks


def packed_weights(problem: Convolution, plan: ImplicitGemmMmaPlan) -> Packed:
    """Return the form of packed weights."""
    return packed_of(problem, _shape(problem, plan))


def pack_weights(
    problem: Convolution, plan: ImplicitGemmMmaPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of weights."""
    pack(problem, _shape(problem, plan), weight, packed)


def _shape(problem: Convolution, plan: ImplicitGemmMmaPlan) -> PackedShape:
    """Return the shape of packed weights: rows of output channels; for float32, which ``ldmatrix``
    cannot transpose, 16 bytes of input channels each.
    """
    return PackedShape.of(problem, plan.tile, run=1 if plan.width == 2 else plan.chunk)


def emit_body(problem: Convolution, plan: ImplicitGemmMmaPlan, operands: Sequence[Operand]) -> None:
    """Emit all launches: packing, the product, the sum of shares."""
    data, weight, *extra, out = operands
    source = weight if problem.prepacked else packed_first(problem, _shape(problem, plan), weight)
    shares = shares_of(problem, plan.tile, out)
    called = VECTORS + functions(problem.dtypes[0])
    bounds = plan.threads, called, plan.least_blocks(problem)
    with emit.launch(blocks_of(problem, plan.tile), *bounds) as (block, thread):
        threads = Threads(opaque_value(thread), plan.threads)
        place = GatherBlock.emitted(problem, plan.tile, opaque_value(block))
        sums = MmaTile.emitted(plan, problem.dtypes[0], threads.number, False, plan.width == 2)
        sums.clear()
        arena = emit.shared(plan.arena_bytes // 4, "float32", SHARED)
        step = Step.emitted(problem, plan, place, threads, (data, source, arena))
        # Weights that this function has packed begin at a multiple of 16.
        given = ([data] if step.held is None else []) + ([source] if problem.prepacked else [])
        for copy in copies_of(given):
            copies = replace(step, copy=copy)
            # After the loop, threads may still read the last step in shared memory.
            for start in multistage(step.steps.count, plan, copies, is_async=True):
                sums.add_products(arena, start, start + plan.row_bytes)
        results = OutputTile.of(problem, place, plan.tile, threads, (shares, extra, out))
        results.write(sums, arena, is_free=False)
    if shares:
        add_shares(problem, plan.tile, shares, extra, out)


@dataclass(frozen=True)
class Step:
    """The copies of a thread in each step.

    Attributes
    ----------
    problem, plan, block, threads
        The problem, its plan, and the block and thread that compute it.
    data, weight : Array
    arena : Array
        Shared memory: a stage's rows, then its columns.
    row, chunk : Expr
        First row and first chunk of the tile that this thread copies; a chunk is eight channels of
        a position.
    rows : tuple of GatherRow
        Positions that the thread copies, at equal distances.
    held : Array or None
        Registers of elements that cannot be copied directly.
    steps : TapSteps
    copy : str
        Name of the device function that copies 16 bytes.
    """

    problem: Convolution
    plan: ImplicitGemmMmaPlan
    block: GatherBlock
    threads: Threads
    data: Operand
    weight: Array
    arena: Array
    row: Expr
    chunk: Expr
    rows: tuple[GatherRow, ...]
    held: Array | None
    steps: TapSteps
    copy: str = "topi_copy16"

    @classmethod
    def emitted(
        cls,
        problem: Convolution,
        plan: ImplicitGemmMmaPlan,
        block: GatherBlock,
        threads: Threads,
        memory: tuple[Operand, Array, Array],
    ) -> Step:
        """Divide copies: neighbouring threads copy neighbours in memory, channels or positions."""
        data, weight, arena = memory
        tile, chunks = plan.tile, plan.tile.depth // plan.chunk
        if reads_chunks(problem, plan.chunk):
            row, chunk = emit.unravel(threads.number, (0, chunks))
            apart, held = plan.threads // chunks, None
        else:
            chunk, row = emit.unravel(threads.number, (0, tile.rows))
            apart = min(tile.rows, plan.threads)
            held = emit.local(tile.rows * tile.depth // plan.threads, problem.dtypes[0])
        row, chunk = opaque_value(row), opaque_value(chunk)
        rows = tuple(
            GatherRow.emitted(problem, data, block, row + number * apart)
            for number in range(-(-tile.rows // apart))
        )
        steps = TapSteps.emitted(problem, tile, block)
        return cls(
            problem, plan, block, threads, data, weight, arena, row, chunk, rows, held, steps
        )

    @property
    def rows_apart(self) -> int:
        """Distance in the tile of the positions that a thread copies."""
        return self.plan.tile.rows // len(self.rows)

    @property
    def chunks(self) -> list[int]:
        """Offsets of the chunks that a thread copies of a position from the first of them."""
        total = self.plan.tile.depth // self.plan.chunk
        each = max(1, self.plan.tile.rows * total // self.threads.count // len(self.rows))
        return [number * (total // each) for number in range(each)]

    def ask(self, number: Expr, stage: Expr) -> None:
        """Start the copies of the next step; read to registers the elements that need them."""
        base = opaque_value(stage * self.plan.stage_bytes)
        channel = opaque_value(self.steps.chunk * self.plan.tile.depth)
        for number, row in enumerate(self.rows):
            inside, index = row.read(self.problem, self.data, self.block, self.steps)
            if self.held is None:
                self._copy(number, base, channel, inside, index)
            else:
                self._fetch(self.held, number, channel, inside, index)
        self._copy_weights(base + self.plan.row_bytes, channel)
        self.steps.advance()

    def _place(self, number: int, behind: int) -> Expr:
        """Return the byte offset in a stage of a chunk that this thread copies."""
        row = self.row + number * self.rows_apart
        return swizzled(row, self.chunk + behind, self.plan.tile.depth // self.plan.chunk)

    def _copy(self, number: int, base: Expr, channel: Expr, inside: Expr, index: Expr) -> None:
        problem, depth = self.problem, self.plan.tile.depth
        first = opaque_value(channel + self.chunk * self.plan.chunk)
        there = both(inside, problem.in_channels % depth == 0 or first < problem.in_channels)
        place, at = base + self._place(number, 0), index + flat(first)
        data = self.data.buffer.data
        call(self.copy, self.arena.buffer.data, place, data, at, emit.condition(there))

    def _fetch(self, held: Array, number: int, channel: Expr, inside: Expr, index: Expr) -> None:
        problem, size = self.problem, self.plan.chunk
        stride = emit.along(self.data, "C")
        for turn, behind in enumerate(self.chunks):
            first = opaque_value(channel + (self.chunk + behind) * size)
            start = opaque_value(index + flat(first) * stride)
            for one in range(size):
                whole = problem.in_channels % self.plan.tile.depth == 0
                there = both(inside, whole or first + one < problem.in_channels)
                value = emit.load_if(there, self.data, start + one * stride, problem.dtypes[0])
                store(held, (number * len(self.chunks) + turn) * size + one, value)

    def keep(self, stage: Expr) -> None:
        """Write elements from registers to shared memory."""
        if self.held is None:
            return
        base = opaque_value(stage * self.plan.stage_bytes)
        for number in range(len(self.rows)):
            for turn, behind in enumerate(self.chunks):
                at = (number * len(self.chunks) + turn) * self.plan.chunk
                place = base + self._place(number, behind)
                call("topi_keep16", self.arena.buffer.data, place, self.held.buffer.data, at)

    def _copy_weights(self, base: Expr, channel: Expr) -> None:
        problem, tile, size = self.problem, self.plan.tile, self.plan.chunk
        shape, by_run = _shape(problem, self.plan), self.plan.width > 2
        axes = zip(self.block.axes, self.steps.taps, problem.accesses[1:])
        taps = [axis.first_tap + tap * access.tap_step for axis, tap, access in axes]
        row = emit.quotient(channel, shape.run)
        at = self.block.group, tap_number(problem, taps), row, self.block.first_column
        start = opaque_value(flat(shape.at(*at)))
        rows, chunks = tile.depth, tile.columns // size
        if by_run:
            rows, chunks = tile.depth // size, tile.columns
        count = rows * chunks
        for turn in range(-(-count // self.threads.count)):
            number = opaque_value(self.threads.number + turn * self.threads.count)
            within = (turn + 1) * self.threads.count <= count
            for _ in emit.only_if(within or number < count):
                row, chunk = emit.unravel(number, (0, chunks))
                place = swizzled(chunk, row, rows) if by_run else swizzled(row, chunk, chunks)
                behind = row * shape.columns * shape.run + chunk * size
                source = (self.weight.buffer.data, start + flat(behind), emit.condition(True))
                call(self.copy, self.arena.buffer.data, base + place, *source)
