# SPDX-License-Identifier: Apache-2.0
"""Memory of kernels as flat arrays: what is allocated, and arguments with a stride per axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..compat import script
from .expressions import Expr, broadcast, cast, constant, converted, lanes_of, wide


class Array:
    """A flat buffer; ``array[i]`` loads one element, ``array[lanes_of(i, n)]`` a vector.

    Attributes
    ----------
    zero : int
        The zero point: what elements and vectors are less, in a wider dtype.
    """

    zero = 0

    def __init__(self, buffer: Any, dtype: str):
        self.buffer = buffer
        self.dtype = dtype

    def __getitem__(self, index: Expr) -> Expr:
        return self.buffer[wide(index)]

    def load(self, index: Expr, dtype: str) -> Expr:
        """One element as `dtype`, less the zero point."""
        value = cast(self[index], self.dtype, dtype)
        return value - constant(self.zero, dtype) if self.zero else value

    def neighbours(self, start: Expr, dtype: str, lanes: int) -> Expr:
        """Return the vector of elements from `start` on in another dtype, less the zero point."""
        return self.converted(self[lanes_of(start, lanes)], dtype, lanes)

    def converted(self, vector: Expr, dtype: str, lanes: int) -> Expr:
        """Return a vector of elements in another dtype, less the zero point."""
        value = converted(vector, dtype, lanes)
        return value - broadcast(constant(self.zero, dtype), lanes) if self.zero else value


class Operand(Array):
    """An argument of the kernel as a flat array with a stride per stored axis.

    Attributes
    ----------
    is_whole : bool
        Whether its elements are neighbours in memory, from the first on.
    """

    is_whole = True

    def __init__(self, buffer: Any, dtype: str, order: str, shape: Sequence[Expr]):
        super().__init__(buffer, dtype)
        self.strides: dict[str, Expr] = {}
        self.sizes = dict(zip(order, shape))
        stride: Expr = 1
        for letter, size in reversed(list(zip(order, shape))):
            self.strides[letter] = stride
            stride = stride * size

    def at(self, letters: str, *where: Expr) -> Expr:
        """Flat index of the element whose axes `letters` have the values `where`.

        Letters that the operand does not store are unit axes: they are left out.
        """
        return sum(i * self.strides[a] for a, i in zip(letters, where) if a in self.strides)

    def is_run(self, letters: str) -> bool:
        """Return whether the axes `letters` lie in memory as one run, the last one fastest.

        Other axes of one element do not count.
        """
        counts = {a for a, size in self.sizes.items() if not isinstance(size, int) or size != 1}
        stored = [a for a in self.sizes if a in letters or a in counts]
        wanted = [a for a in letters if a in self.sizes]
        return stored[len(stored) - len(wanted) :] == wanted


class Part(Operand):
    """Elements of `whole` from `start` on, as an operand of its own that is only read."""

    def __init__(self, whole: Array, start: int, order: str, shape: Sequence[Expr]):
        super().__init__(whole.buffer, whole.dtype, order, shape)
        self.start = start

    def __getitem__(self, index: Expr) -> Expr:
        return self.buffer[wide(index + self.start)]


class Channels(Operand):
    """Neighbouring channels of `whole` as an operand of its own, whose elements only
    :meth:`~Operand.at` finds.

    Attributes
    ----------
    first, of : int
        Number of the first channel, and channels of `whole`.
    start : Expr
        Index of the first element.
    """

    is_whole = False

    def __init__(self, whole: Operand, first: int, count: int):
        sizes = {**whole.sizes, "C": count}
        super().__init__(whole.buffer, whole.dtype, "".join(sizes), list(sizes.values()))
        self.first, self.of = first, whole.sizes["C"]
        self.strides, self.start = whole.strides, first * whole.strides["C"]

    def at(self, letters: str, *where: Expr) -> Expr:
        """See :meth:`Operand.at`."""
        return super().at(letters, *where) + self.start


def store(array: Array, index: Expr, value: Expr) -> None:
    """Write one element, or a vector when `index` is one."""
    script.buffer_store(array.buffer, value, [wide(index)])
