# SPDX-License-Identifier: Apache-2.0
"""Concatenations of channels of which a kernel writes its result as one part: the others are
copied by a launch behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd, prod

from ...spec.conv import Convolution
from ...spec.dtypes import byte_width
from .. import emit
from ..emit import Channels, Expr, Operand, both, flat, local, narrow, opaque_value, wide
from ..isa.runs import FUNCTIONS

THREADS = 256
BYTES = 16
"""Bytes that a thread copies at most."""

Copy = tuple[Operand, Channels]
"""A tensor, and its part of the concatenation."""


def divided(
    problem: Convolution, operands: Sequence[Operand]
) -> tuple[Sequence[Operand], list[Copy]]:
    """Return the operands of the kernel that computes a part, and the other parts."""
    (before, after), (*given, whole) = problem.joined, operands
    count = len(given) - len(before) - len(after)
    own = problem.geometry.groups * problem.out_channels
    channels = (*before, own, *after)
    parts = [Channels(whole, *pair) for pair in zip(accumulate((0, *channels)), channels)]
    result = parts.pop(len(before))
    return (*given[:count], result), list(zip(given[count:], parts))


def copy_others(copies: Sequence[Copy]) -> None:
    """Emit one launch, whose blocks are divided among the parts."""
    works = [_Rows.of(*copy) for copy in copies]
    *firsts, blocks = accumulate((work.blocks for work in works), initial=0)
    with emit.launch(blocks, THREADS, FUNCTIONS) as (block, thread):
        for work, first, end in zip(works, firsts, [*firsts[1:], None]):
            is_ours = both(block >= narrow(first), end is None or block < narrow(end))
            for _ in emit.only_if(is_ours):
                work.copy(opaque_value((block - narrow(first)) * THREADS + thread))


@dataclass(frozen=True)
class _Rows:
    """A copy by rows: what lies between two neighbours of the axis before the channels.

    Attributes
    ----------
    source : Operand
    to : Channels
    lanes : int
        Elements that a thread copies, a power of two that divides rows and distances.
    rows, length, apart : Expr
        Number of rows, elements of each, and distance in the concatenation.
    """

    source: Operand
    to: Channels
    lanes: int
    rows: Expr
    length: Expr
    apart: Expr

    @classmethod
    def of(cls, source: Operand, to: Channels) -> _Rows:
        sizes = list(source.sizes.values())
        axis = list(source.sizes).index("C")
        known = prod(size for size in sizes[axis + 1 :] if isinstance(size, int))
        # All distances are these, times sizes that are symbolic.
        length, apart, start = (n * known for n in (sizes[axis], to.of, to.first))
        lanes = gcd(BYTES // byte_width(source.dtype), length, apart, start)
        inner = prod(sizes[axis + 1 :])
        channels = sizes[axis] * inner, to.of * inner
        return cls(source, to, lanes, prod(sizes[:axis]), *channels)

    @property
    def count(self) -> Expr:
        """Number of threads that copy."""
        return self.rows * emit.quotient(self.length, self.lanes)

    @property
    def blocks(self) -> Expr:
        return emit.ceil_div(self.count, THREADS)

    def copy(self, number: Expr) -> None:
        """Emit the copy of a thread."""
        is_even = isinstance(self.count, int) and self.count % THREADS == 0
        for _ in emit.only_if(is_even or number < narrow(self.count)):
            each = narrow(emit.quotient(self.length, self.lanes))
            row, chunk = map(opaque_value, emit.unravel(number, (0, each)))
            held = local(self.lanes, self.source.dtype)
            source = self.source.buffer.data, wide(flat(number) * self.lanes)
            place = self.to.start + flat(row) * flat(self.apart) + flat(chunk) * self.lanes
            run = f"_run<{self.lanes}>"
            emit.call("topi_read" + run, held.buffer.data, 0, *source, emit.condition(True))
            to = self.to.buffer.data, wide(place)
            emit.call("topi_store" + run, *to, held.buffer.data, self.lanes)
