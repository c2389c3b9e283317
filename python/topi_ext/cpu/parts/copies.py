# SPDX-License-Identifier: Apache-2.0
"""Copies of neighbouring elements by unrolled vector instructions.

LLVM makes vectors of a loop where it knows that source and destination are apart.  TVM tells it so
where a function promises that of its arguments, but 0.27 asks only the last function of a module,
by name.  Of a Relax program with symbolic shapes that may be ``shape_func``, which promises none:
then LLVM knows it neither of arguments nor of memory that a kernel reaches by its address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .. import emit
from ..emit import Array, Expr
from ..plan.vectors import MOST_STEP, NARROW


def copy(
    into: Array, at: Expr, source: Array, start: Expr, count: Expr, lanes: int, step: Expr = 1
) -> None:
    """``into[at + i] = source[start + i * step]`` for i below `count`.

    The last vector overlaps the one before it.  Elements are copied one by one where they are not
    known to be near, and where dtypes differ, unless they are neighbours and neither is bfloat16.
    """
    # Not every release of TVM converts vectors of bfloat16.
    is_same, dtypes = source.dtype == into.dtype, (source.dtype, into.dtype)
    is_near = are_near(step, MOST_STEP if is_same else 1)
    by_vectors = is_near and (is_same or "bfloat16" not in dtypes)
    for first, width in _covering(count, lanes if by_vectors else 1):
        if width == 1:
            emit.store(into, at + first, source.load(start + first * step, into.dtype))
        else:
            begin = emit.let(start + first * step)
            value = (
                every(source, begin, step, width)
                if is_same
                else source.neighbours(begin, into.dtype, width)
            )
            emit.store(into, emit.lanes_of(at + first, width), value)


def are_near(step: Expr, most: int = MOST_STEP) -> bool:
    """Return whether elements `step` apart are known to be near enough to pick from vectors."""
    return isinstance(step, int) and step <= most


def deal(
    into: Array,
    at: Mapping[int, Expr],
    source: Array,
    start: Expr,
    count: Expr,
    step: int,
    lanes: int,
) -> None:
    """``into[at[r] + i] = source[start + i * step + r]`` for i below `count` and each residue r
    below `step`; each element is read once."""
    residues = sorted(at)
    for first, width in _covering(count, lanes):
        if width == 1:
            for residue, offset in at.items():
                emit.store(into, offset + first, source[start + (first * step + residue)])
        else:
            begin = emit.let(start + first * step)
            values = _every(source, begin, step, width, residues)
            for residue, value in zip(residues, values):
                emit.store(into, emit.lanes_of(at[residue] + first, width), value)


def _covering(count: Expr, lanes: int) -> Iterator[tuple[Expr, int]]:
    """Emit ``for first, width in _covering(count, lanes)``: a loop over vectors that cover `count`
    elements, or over narrower ones if there are fewer than `lanes`, or over single elements.

    The last vector overlaps the one before it.
    """
    if lanes == 1:
        for i in emit.loop(count):
            yield i, 1
        return
    for fits in emit.sides(count >= lanes):
        if not fits:
            yield from _covering(count, NARROW if lanes > NARROW else 1)
        else:
            for i in emit.loop(emit.ceil_div(count, lanes)):
                first = i * lanes
                if not (isinstance(count, int) and count % lanes == 0):
                    first = emit.let(emit.least(first, count - lanes))
                yield first, lanes


def every(source: Array, start: Expr, step: int, lanes: int) -> Expr:
    """Return a vector of elements of `source` that are `step` apart; nothing behind the last one is
    read."""
    if step == 1:
        return source[emit.lanes_of(start, lanes)]
    return next(_every(source, start, step, lanes, [0]))


def _every(
    source: Array, start: Expr, step: int, lanes: int, residues: Sequence[int]
) -> Iterator[Expr]:
    """Yield such a vector from each of `residues` on, which ascend; each element is read once."""
    last = (lanes - 1) * (step - 1) + residues[-1]
    begins = [min(i * lanes, last) for i in range(step - 1)] + [last]
    read = [emit.let(source[emit.lanes_of(start + begin, lanes)]) for begin in begins]
    for residue in residues:
        offsets = range(residue, residue + lanes * step, step)
        vectors = [min(offset // lanes, step - 1) for offset in offsets]
        yield emit.shuffled(
            read, [v * lanes + offset - begins[v] for offset, v in zip(offsets, vectors)]
        )
