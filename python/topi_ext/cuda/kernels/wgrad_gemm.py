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

from ...problem import Problem
from .. import emit
from ..emit import Array, Expr, Operand, barrier, both, flat, local, opaque_value, pick, store, when
from ..parts.output_tile import Threads
from ..parts.simt_tile import SimtTile
from ..parts.split_sums import add_shares, shares_of
from ..parts.wgrad_block import Column, Copies, WgradBlock, wgrad_grid, write_weights
from ..plan.tiles import PAD
from ..plan.wgrad_gemm import WgradGemmPlan


def emit_body(problem: Problem, plan: WgradGemmPlan, operands: Sequence[Operand]) -> None:
    """Both launches: the product, and the sum of shares."""
    x, y, out = operands
    shares = shares_of(problem, plan.tile, out)
    with emit.launch(wgrad_grid(problem, plan.tile), plan.threads) as (number, thread):
        threads = Threads(opaque_value(thread), plan.threads)
        block = WgradBlock.emitted(problem, plan.tile, opaque_value(number))
        rows = Copies.of(threads, plan.tile.rows, plan.tile.depth, emit.along(y, "C") == 1)
        columns = Copies.of(threads, plan.tile.columns, plan.tile.depth, emit.along(x, "C") == 1)
        taken = tuple(block.column(place) for place in columns.places)
        sums = _products(Step(plan, block, (x, y), rows, columns, taken), threads)
        write_weights(block, plan.tile, sums, shares or out)
    if shares:
        add_shares(problem, plan.tile, shares, (), out)


@dataclass(frozen=True)
class Step:
    """What a thread copies in each step.

    Attributes
    ----------
    plan, block
    operands : tuple of Operand
        x and y.
    rows, columns : Copies
    taken : tuple of Column
        Of `columns`, what they are.
    """

    plan: WgradGemmPlan
    block: WgradBlock
    operands: tuple[Operand, Operand]
    rows: Copies
    columns: Copies
    taken: tuple[Column, ...]

    def fetch(self, number: Expr, held: tuple[Array, Array]) -> None:
        """What step `number` multiplies, to registers."""
        first = opaque_value(number * self.plan.tile.depth)
        self._fetch_rows(first, held[0])
        self._fetch_columns(first, held[1])

    def _fetch_rows(self, first: Expr, held: Array) -> None:
        block, y = self.block, self.operands[1]
        dtype, limit = block.problem.acc_dtype, block.problem.geometry.k_per_group
        positions = [block.position(first + k) for k in self.rows.positions]
        starts = [block.y_start(y, position) for position in positions]
        for turn, (k, i) in enumerate(self.rows.pairs()):
            row = block.first_row + self.rows.places[i]
            inside = both(positions[k].inside, limit % self.plan.tile.rows == 0 or row < limit)
            at = starts[k] + flat(row) * emit.along(y, "C")
            zero = emit.constant(0, dtype)
            store(held, turn, pick(inside, lambda at=at: y.load(at, dtype), zero))

    def _fetch_columns(self, first: Expr, held: Array) -> None:
        block, x = self.block, self.operands[0]
        dtype = block.problem.acc_dtype
        positions = [block.position(first + k) for k in self.columns.positions]
        for turn, (k, i) in enumerate(self.columns.pairs()):
            inside, at = block.x_read(x, positions[k], self.taken[i])
            zero = emit.constant(0, dtype)
            store(held, turn, pick(inside, lambda at=at: x.load(at, dtype), zero))

    def keep(self, held: tuple[Array, Array], stage: Array) -> None:
        """From registers to shared memory: ``[depth][rows]``, then ``[depth][columns]``."""
        tile, start = self.plan.tile, 0
        for copies, values, size in zip((self.rows, self.columns), held, (tile.rows, tile.columns)):
            for turn, (k, i) in enumerate(copies.pairs()):
                place = start + copies.positions[k] * (size + PAD) + copies.places[i]
                store(stage, place, values[turn])
            start += (size + PAD) * tile.depth


def _products(step: Step, threads: Threads) -> SimtTile:
    plan, tile, dtype = step.plan, step.plan.tile, step.block.problem.acc_dtype
    tiles = (tile.rows, tile.columns), (plan.thread_rows, plan.thread_columns)
    sums = SimtTile.emitted(*tiles, threads.number, dtype)
    columns_at = (tile.rows + PAD) * tile.depth
    stage = columns_at + (tile.columns + PAD) * tile.depth
    stages = [emit.shared(stage, dtype) for _ in range(2)]
    held = tuple(
        local(size * tile.depth // plan.threads, dtype) for size in (tile.rows, tile.columns)
    )
    count = step.block.steps

    def first() -> None:
        step.fetch(0, held)
        step.keep(held, stages[0])

    when(count > 0, first)
    barrier()

    def one(number: Expr, now: int) -> None:
        more = number + 1 < count
        when(more, lambda: step.fetch(number + 1, held))
        sums.add_products(tile.depth, (stages[now], 0), (stages[now], columns_at))
        when(more, lambda: step.keep(held, stages[1 - now]))
        barrier()

    def two(pair: Expr) -> None:
        one(pair * 2, 0)
        when(pair * 2 + 1 < count, lambda: one(pair * 2 + 1, 1))

    emit.loop(emit.ceil_div(count, 2), two)
    return sums
