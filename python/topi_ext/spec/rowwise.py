# SPDX-License-Identifier: Apache-2.0
"""Softmax and normalizations to be built: what is computed of each row of a tensor.

A letter names each axis of the tensor, in memory order; the last of them make a row, but for a
group norm with channels last, whose rows are apart in memory.

=====================  ========  ==================================
operator               letters   a row is
=====================  ========  ==================================
softmax of last axis   b, k      k
layer norm             b, k      k
group norm             n, g, cs  the channels c of a group, places s
with channels last     n, s, gc  the same
instance norm          n, c, s   the places s of a channel
=====================  ========  ==================================

Scale and shift are steps of the epilogue, as what follows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from .dtypes import accumulator
from .geometry import Size
from .post_ops import Epilogue, without_letters
from .problem import Argument, LetteredProblem, by

STRIDED_NORMALIZE = "strided_normalize"
"""Kind of a normalization of rows whose elements are apart in memory."""

NORMALIZE, SOFTMAX, MASKED_SOFTMAX = OPS = ("normalize", "softmax", "masked_softmax")
"""To mean 0 and variance 1; softmax; the same, but zeros where all of a row is minus infinity."""


@dataclass(frozen=True)
class RowWise(LetteredProblem):
    """One such operator.

    Attributes
    ----------
    op : str
        One of `OPS`.
    sizes : tuple of (str, int or symbolic)
        Size of each letter, in memory order.
    columns : str
        The letters of a row, in memory order: the last ones, unless they are apart.
    dtypes : tuple of str
        Dtypes of the operand and of the result.
    epsilon : float
        Number that is added to the variance.
    epilogue : tuple of PostOp
        Operands have the letters that they vary along, and no others.
    """

    op: str
    sizes: tuple[tuple[str, Size], ...]
    columns: str
    dtypes: tuple[str, str]
    epsilon: float = 0.0
    epilogue: Epilogue = ()

    @property
    def kind(self) -> str:
        """Kind of operator, as :mod:`topi_ext.kernel.info` names it."""
        return STRIDED_NORMALIZE if self.is_strided else self.op

    @property
    def is_strided(self) -> bool:
        """Return whether elements of a row are apart in memory."""
        return not self.letters.endswith(self.columns)

    @property
    def shape_text(self) -> str:
        """Sizes of the tensor, and those of a row."""
        return f"{by(self.shape(self.letters))}, rows of {by(self.shape(self.columns))}"

    @property
    def letters(self) -> str:
        """All of them."""
        return "".join(a for a, _ in self.sizes)

    @property
    def rows(self) -> str:
        """The letters that number rows."""
        return "".join(a for a, _ in self.sizes if a not in self.columns)

    @property
    def acc_dtype(self) -> str:
        """Dtype in which it is computed."""
        return accumulator(self.op, self.dtypes[0], *self.dtypes)

    def arguments(self) -> Iterator[Argument]:
        """Yield the tensor, operands of the epilogue, and the result."""
        of_x, of_y = self.dtypes
        yield Argument("x", self.letters, self.shape(self.letters), of_x)
        for number, step in enumerate(step for step in self.epilogue if step.order):
            yield Argument(f"operand{number}", step.order, self.shape(step.order), of_y)
        yield Argument("out", self.letters, self.shape(self.letters), of_y)

    def extent(self, letters: str) -> Size:
        """Return how many combinations of these letters there are."""
        return prod(self.shape(letters), start=1)

    def shape(self, letters: str) -> tuple[Size, ...]:
        """Return the shape of a tensor with these letters."""
        size = dict(self.sizes)
        return tuple(size[a] for a in letters)

    def merged(self) -> RowWise:
        """Return the operator with as few letters as possible, but one for a row and one for
        rows.
        """
        made = self
        while True:
            pair = next(made._pairs(), None)
            if pair is None:
                return made
            made = made._as_one(*pair)

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Neighbouring letters that are neighbours in every operand that has one of them."""
        orders = [step.order for step in self.epilogue if step.order]
        for one, other in zip(self.letters, self.letters[1:]):
            same = (one in self.columns) == (other in self.columns)
            if same and all((one + other in a) or not {one, other} & set(a) for a in orders):
                yield one, other

    def _as_one(self, kept: str, gone: str) -> RowWise:
        size = dict(self.sizes)
        size[kept] = size[kept] * size.pop(gone)
        steps = without_letters(self.epilogue, gone)
        sizes, columns = tuple(size.items()), self.columns.replace(gone, "")
        return replace(self, sizes=sizes, columns=columns, epilogue=steps)
