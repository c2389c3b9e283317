# SPDX-License-Identifier: Apache-2.0
"""conv_weight_grad as a matrix product over positions, on the lanes of a multiprocessor.

M = channels of y of a group, N = taps x channels of x, K = positions of y::

    blocks (group, share of K, M by tile.rows, N by tile.columns):
        fetch step 0                                             -> registers -> shared[0]
        for steps (tile.depth positions):
            fetch the next step                                  -> registers
            sums[thread_rows, thread_columns] += shared[step % 2] products
            registers                                            -> shared[(step + 1) % 2]
            barrier
        sums -> out, or the share's part of a workspace
    of a split K: blocks of weights: the shares, in order -> out
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr, Operand, both, flat, local, opaque_value, store
from ..parts.output_tile import Threads
from ..parts.pipeline import double_buffered
from ..parts.simt_tile import SimtTile
from ..parts.split_sums import add_shares, shares_of
from ..parts.wgrad_block import Column, Copies, WgradBlock, wgrad_grid, write_weights
from ..plan.tiles import PAD
from ..plan.wgrad_gemm import WgradGemmPlan


def emit_body(problem: Convolution, plan: WgradGemmPlan, operands: Sequence[Operand]) -> None:
    """Emit both launches: the product, and the sum of shares."""
    x, y, out = operands
    shares = shares_of(problem, plan.tile, out)
    with emit.launch(wgrad_grid(problem, plan.tile), plan.threads) as (number, thread):
        threads = Threads(opaque_value(thread), plan.threads)
        block = WgradBlock.emitted(problem, plan.tile, opaque_value(number))
        rows = Copies.of(threads, plan.tile.rows, plan.tile.depth, emit.along(y, "C") == 1)
        columns = Copies.of(threads, plan.tile.columns, plan.tile.depth, emit.along(x, "C") == 1)
        taken = tuple(block.column(place) for place in columns.places)
        sums = SimtTile.emitted(
            (plan.tile.rows, plan.tile.columns),
            (plan.thread_rows, plan.thread_columns),
            threads.number,
            problem.acc_dtype,
        )
        step = Step.emitted(plan, block, (x, y), (rows, columns), taken)
        for stage in double_buffered(block.steps, step):
            array = step.stages[stage]
            sums.add_products(plan.tile.depth, (array, 0), (array, plan.columns_at))
        write_weights(block, plan.tile, sums, shares or out)
    if shares:
        add_shares(problem, plan.tile, shares, (), out)


@dataclass(frozen=True)
class Step:
    """The copies of a thread in each step.

    Attributes
    ----------
    plan, block
    operands : tuple of Operand
        x and y.
    rows, columns : Copies
    taken : tuple of Column
        Tap and channel of each of `columns`.
    stages : list of Array
        Shared memory of two steps, each ``[depth][rows]``, then ``[depth][columns]``.
    held : tuple of Array
        Registers for rows and for columns.
    """

    plan: WgradGemmPlan
    block: WgradBlock
    operands: tuple[Operand, Operand]
    rows: Copies
    columns: Copies
    taken: tuple[Column, ...]
    stages: list[Array]
    held: tuple[Array, ...]

    @classmethod
    def emitted(
        cls,
        plan: WgradGemmPlan,
        block: WgradBlock,
        operands: tuple[Operand, Operand],
        copies: tuple[Copies, Copies],
        taken: tuple[Column, ...],
    ) -> Step:
        """Allocate shared memory and registers."""
        tile, dtype = plan.tile, block.problem.acc_dtype
        stages = [emit.shared(plan.stage_elements, dtype) for _ in range(2)]
        sizes = (tile.rows, tile.columns)
        held = tuple(local(size * tile.depth // plan.threads, dtype) for size in sizes)
        return cls(plan, block, operands, *copies, taken, stages, held)

    def fetch(self, number: Expr) -> None:
        """Read the operands of step `number` to registers."""
        first = opaque_value(number * self.plan.tile.depth)
        self._fetch_rows(first, self.held[0])
        self._fetch_columns(first, self.held[1])

    def _fetch_rows(self, first: Expr, held: Array) -> None:
        block, y = self.block, self.operands[1]
        dtype, limit = block.problem.acc_dtype, block.problem.geometry.k_per_group
        positions = [block.position(first + k) for k in self.rows.positions]
        starts = [block.y_start(y, position) for position in positions]
        for turn, (k, i) in enumerate(self.rows.pairs()):
            row = block.first_row + self.rows.places[i]
            inside = both(positions[k].inside, limit % self.plan.tile.rows == 0 or row < limit)
            at = starts[k] + flat(row) * emit.along(y, "C")
            store(held, turn, emit.load_if(inside, y, at, dtype))

    def _fetch_columns(self, first: Expr, held: Array) -> None:
        block, x = self.block, self.operands[0]
        dtype = block.problem.acc_dtype
        positions = [block.position(first + k) for k in self.columns.positions]
        for turn, (k, i) in enumerate(self.columns.pairs()):
            inside, at = block.x_read(x, positions[k], self.taken[i])
            store(held, turn, emit.load_if(inside, x, at, dtype))

    def keep(self, stage: int) -> None:
        """Write registers to a stage of shared memory."""
        tile, start = self.plan.tile, 0
        sizes = tile.rows, tile.columns
        for copies, values, size in zip((self.rows, self.columns), self.held, sizes):
            for turn, (k, i) in enumerate(copies.pairs()):
                place = start + copies.positions[k] * (size + PAD) + copies.places[i]
                store(self.stages[stage], place, values[turn])
            start += (size + PAD) * tile.depth
