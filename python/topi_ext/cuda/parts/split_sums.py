# SPDX-License-Identifier: Apache-2.0
"""Split sums: every share is stored, and a second kernel adds them in order.

So the result is the same in every run; with atomic additions it would not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...emit.post_ops import RowEpilogue
from ...spec.conv import DATA, Convolution
from .. import emit
from ..emit import Expr, Operand, flat, local, opaque_value, store
from ..plan.tiles import Tile

THREADS = 256


def shares_of(problem: Convolution, tile: Tile, out: Operand) -> Operand | None:
    """Allocate all shares, each stored as `out` is; return None for a sum that is not split."""
    return None if tile.splits == 1 else all_shares(problem, tile, out)


def all_shares(problem: Convolution, tile: Tile, out: Operand) -> Operand:
    """Allocate all shares, each stored as `out` is; also if there is only one."""
    order = "S" + "".join(out.sizes)
    sizes = [tile.splits, *out.sizes.values()]
    held = emit.workspace_of(tile.splits * _elements(out), problem.acc_dtype)
    return Operand(held.buffer, problem.acc_dtype, order, sizes)


def _elements(out: Operand) -> Expr:
    return prod(out.sizes.values())


def add_shares(
    problem: Convolution, tile: Tile, shares: Operand, extra: Sequence[Operand], out: Operand
) -> None:
    """Emit a kernel that adds the shares of each element, finishes the sum and writes it."""
    elements = _elements(out)
    with emit.launch(emit.ceil_div(elements, THREADS), THREADS) as (block, thread):
        number = opaque_value(flat(block) * THREADS + flat(thread))
        total = local(1, problem.acc_dtype)
        is_even = isinstance(elements, int) and elements % THREADS == 0
        for _ in emit.only_if(is_even or number < elements):
            store(total, 0, shares[number])
            for share in emit.unrolled(tile.splits - 1):
                index = number + (flat(share) + 1) * shares.strides["S"]
                store(total, 0, total[0] + shares[index])
            at = _place(out, number) if problem.epilogue or not out.is_whole else {}
            value = _finished(problem, extra, at, total[0])
            index = number if out.is_whole else out.at("".join(at), *at.values())
            store(out, index, emit.cast(value, problem.finished_dtype, out.dtype))


def _place(out: Operand, number: Expr) -> dict[str, Expr]:
    """Return where element `number` is along each axis."""
    digits = emit.unravel(number, list(out.sizes.values()))
    return dict(zip(out.sizes, map(opaque_value, digits)))


def _finished(
    problem: Convolution, extra: Sequence[Operand], at: dict[str, Expr], value: Expr
) -> Expr:
    """Apply the epilogue to the sum of an element."""
    if not problem.epilogue:
        return value
    steps = [step for step in problem.epilogue if step.order]
    sources = []
    for step, operand in zip(steps, extra):
        varies = "".join(letter for letter in "C" + DATA if letter in step.varies)
        start = operand.at(varies, *(at.get(letter, 0) for letter in varies))
        sources.append((operand, start, 0))
    return RowEpilogue(problem.epilogue, problem.acc_dtype, sources, emit.via_register)(value, 0)
