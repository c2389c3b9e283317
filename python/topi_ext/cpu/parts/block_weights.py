# SPDX-License-Identifier: Apache-2.0
"""The weights of a block of output channels, copied next to each other.

::

    copied[tap][input channel][channels]

Where a kernel's taps lie one after the other in memory, squares of them are transposed in
registers::

    for each input channel, for some of its output channels at a time:
        for some taps at a time:
            load these taps of each output channel, transpose, store     -> copied

Otherwise weights are copied one by one, in the order in which they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ... import compat
from ...emit.arguments import as_stored, tap_number, weight_index
from ...spec.conv import TAPS, Convolution
from .. import emit
from ..emit import Array, Expr, Operand
from ..plan.vectors import square_size
from .transpose import Pitched, transpose_squares

Row = Callable[[Expr, Expr], Expr]
"""The index of the first tap between an input and an output channel."""


class BlockWeights:
    """The copy of the weights of one block.

    Behind the last output channel the last one is copied again; its sums are dropped.

    Parameters
    ----------
    problem, weight
        The problem, and its weights as the user stores them.
    channels, blocks : int
        Output channels of a block, and blocks of a group.
    count : int
        Input channels at a time.
    lanes : int
        Elements per vector.

    Attributes
    ----------
    pitch : int
        Distance of two taps: whole vectors.
    elements : int
        Elements of the copy.
    """

    def __init__(
        self,
        problem: Convolution,
        weight: Operand,
        channels: int,
        blocks: int,
        count: int,
        lanes: int,
    ):
        self.problem, self.weight = problem, weight
        self.channels, self.count, self.lanes = channels, count, lanes
        self.is_whole = problem.out_channels >= blocks * channels
        self.dtype = problem.acc_dtype
        self.pitch = -(-count * channels // lanes) * lanes
        self.elements = problem.geometry.taps * self.pitch

    def copy(self, into: Array, group: Expr, block: Expr, first: Expr, at: Expr = 0) -> None:
        """Copy the weights of a block of output channels of a group, and of its input channels from
        `first` on, to ``into[at]`` and behind."""
        row = partial(self._row, group, block * self.channels, first)
        square = square_size(self.problem, self.channels, self.lanes)
        # Weights that a copy holds in another dtype come one by one.
        if square and self.weight.dtype == self.problem.dtypes[1]:
            self._by_squares(into, at, row, square)
        else:
            self._one_by_one(into, at, row)

    def _row(self, group: Expr, first_out: Expr, first_in: Expr, i: Expr, o: Expr) -> Expr:
        """Return the index of the first tap between two channels."""
        problem, number = self.problem, first_out + o
        if not self.is_whole:
            number = emit.least(number, problem.out_channels - 1)
        origin = (0,) * len(TAPS)
        return weight_index(problem, self.weight, group, first_in + i, number, origin)

    def _by_squares(self, into: Array, at: Expr, row: Row, size: int) -> None:
        """Copy by squares of `size` weights, which are transposed in registers."""
        channels, taps = self.channels, self.problem.geometry.taps
        # As many squares side by side as a vector has room for.
        wide = min(self.lanes, channels) // size * size
        # In the order in which they are stored.
        counts = self.count, -(-channels // wide)
        swaps = not self.problem.transposed
        for outer, inner in emit.grid(*(counts[::-1] if swaps else counts)):
            i, number = (inner, outer) if swaps else (outer, inner)
            # The last begin earlier, where there are not enough channels for whole ones.
            o = emit.let(emit.least(number * wide, channels - wide))
            rows = [emit.opaque_base(row(i, o + k)) for k in range(wide)]
            start = emit.opaque_base(at + i * channels + o)
            vector = partial(self._vector, size=size)
            transpose_squares(Pitched(into, start, self.pitch), rows, size, taps, vector)

    def _vector(self, start: Expr, size: int) -> Expr:
        """Load `size` neighbouring weights in the dtype of the sums."""
        value = self.weight[emit.lanes_of(start, size)]
        if self.weight.dtype == self.dtype:
            return emit.let(value)
        # As in emit.via_memory.
        ((register, index),) = emit.registers(1, size, self.dtype)
        if compat.converts_vectors(self.weight.dtype):
            emit.store(register, index, self.weight.converted(value, self.dtype, size))
        else:
            for i in range(size):
                emit.store(register, i, self.weight.load(start + i, self.dtype))
        return emit.let(register[index])

    def _one_by_one(self, into: Array, at: Expr, row: Row) -> None:
        """Copy weight by weight."""
        problem, weight = self.problem, self.weight
        source, result = ("O", "I") if problem.transposed else ("I", "O")
        extents = {
            source: self.count,
            result: self.channels,
            **dict(zip(TAPS, problem.geometry.kernel)),
        }

        for index in as_stored(weight, extents):
            taps = [index[letter] for letter in TAPS]
            first_tap = row(index[source], index[result])
            value = weight.load(first_tap + weight.at(TAPS, *taps), self.dtype)
            if weight.dtype != self.dtype:
                value = emit.via_memory(value, self.dtype)
            offset = at + tap_number(problem, taps) * self.pitch
            emit.store(into, offset + index[source] * self.channels + index[result], value)
