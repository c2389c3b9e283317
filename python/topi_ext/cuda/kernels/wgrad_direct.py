# SPDX-License-Identifier: Apache-2.0
"""conv_weight_grad of few channels in a group, such as depthwise convolutions.

There is no matrix product.  A pair is a channel of y and a channel of x of its group::

    blocks (taps by plan.taps, pairs by plan.pairs, share of the positions):
        threads (position, pair):
            for every (threads / pairs)-th position of the share:
                sums[taps] += y * the input of each tap in x
        shared[taps][threads] = sums;  added by halving          -> out, or the share's part
    of several shares: blocks of weights: the shares, in order -> out

Consecutive threads have consecutive pairs where channels are neighbours in memory
(plan.pairs = 32), otherwise consecutive positions (1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...spec.conv import Convolution
from .. import emit
from ..emit import Array, Expr, Operand, both, flat, local, opaque_value, store
from ..isa.block_sums import FUNCTIONS
from ..parts.gather_rows import opaque_bool
from ..parts.split_sums import add_shares, shares_of
from ..parts.wgrad_block import Column, WgradBlock
from ..plan.wgrad_direct import WgradDirectPlan


def emit_body(problem: Convolution, plan: WgradDirectPlan, operands: Sequence[Operand]) -> None:
    """Emit both launches: the sums, and the sums of the shares."""
    x, y, out = operands
    shares = shares_of(problem, plan.tile, out)
    pairs = problem.geometry.k * problem.geometry.c_per_group
    taps = -(-problem.geometry.taps // plan.taps)
    grid = taps * -(-pairs // plan.pairs) * plan.splits
    with emit.launch(grid, plan.threads, FUNCTIONS) as (number, thread):
        digits = emit.unravel(opaque_value(number), (taps, -(-pairs // plan.pairs), plan.splits))
        work = _Work.emitted(problem, plan, tuple(map(opaque_value, digits)), opaque_value(thread))
        sums = work.added(x, y)
        work.write(sums, shares or out)
    if shares:
        add_shares(problem, plan.tile, shares, (), out)


@dataclass(frozen=True)
class _Work:
    """The sums of a thread: `taps` of one pair, at every `apart`-th position of the share."""

    problem: Convolution
    plan: WgradDirectPlan
    thread: Expr
    inside: Expr
    channel: Expr
    columns: tuple[Column, ...]
    block: WgradBlock

    @classmethod
    def emitted(
        cls, problem: Convolution, plan: WgradDirectPlan, at: tuple[Expr, ...], thread: Expr
    ) -> _Work:
        """Compute the work of a thread in the block with these numbers of taps, pairs and share."""
        g = problem.geometry
        first_tap, first_pair, split = at
        pair = opaque_value(first_pair * plan.pairs + emit.remainder(thread, plan.pairs))
        channel, of_x = emit.unravel(pair, (g.k, g.c_per_group))
        channel, of_x = opaque_value(channel), opaque_value(of_x)
        columns = []
        for number in range(plan.taps):
            tap = opaque_value(first_tap * plan.taps + number)
            there = g.taps % plan.taps == 0 or opaque_bool(tap < g.taps)
            taps = tuple(opaque_value(digit) for digit in emit.unravel(tap, g.kernel))
            columns.append(Column(there, taps, of_x))
        group = emit.quotient(channel, g.k_per_group)
        block = WgradBlock.of_share(problem, plan.tile, split, group)
        inside = pair < g.k * g.c_per_group
        return cls(problem, plan, thread, opaque_bool(inside), channel, tuple(columns), block)

    def added(self, x: Operand, y: Operand) -> Array:
        """Emit the thread's sums and return them."""
        acc, taps = self.problem.acc_dtype, self.plan.taps
        sums = local(taps, acc)
        for i in emit.unrolled(taps):
            store(sums, i, emit.constant(0, acc))
        first = opaque_value(emit.quotient(self.thread, self.plan.pairs))
        in_group = opaque_value(self.channel - self.block.group * self.problem.geometry.k_per_group)
        for _ in emit.only_if(self.inside):
            for step in emit.loop(self.block.steps):
                position = self.block.position(step * self.plan.tile.depth + first)
                at = self.block.y_start(y, position) + flat(in_group) * emit.along(y, "C")
                grad = emit.load_if(position.inside, y, at, acc)
                grad = emit.via_register(grad, acc)
                for number, column in enumerate(self.columns):
                    meets, index = self.block.x_read(x, position, column)
                    value = emit.load_if(meets, x, index, acc)
                    store(sums, number, sums[number] + value * grad)
        return sums

    def write(self, sums: Array, out: Operand) -> None:
        """Add the sums of all threads and write them to their weights."""
        plan, acc = self.plan, self.problem.acc_dtype
        held = emit.shared(plan.taps * plan.threads, acc)
        counts = (self.thread, plan.threads, plan.pairs)
        name = f"topi_block_sums<{plan.taps}>"
        emit.call(name, held.buffer.data, sums.buffer.data, *counts)
        share = flat(self.block.split) * out.strides["S"] if "S" in out.strides else 0
        row = self.channel - self.block.group * self.problem.geometry.k_per_group
        for number, column in enumerate(self.columns):
            for _ in emit.only_if(both(self.inside, column.inside, self.thread < plan.pairs)):
                at = self.block.weight(out, row, column) + share
                store(out, at, emit.cast(sums[number], acc, out.dtype))
