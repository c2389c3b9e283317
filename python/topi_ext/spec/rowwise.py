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
from dataclasses import dataclass
from typing import ClassVar

from .dtypes import accumulator
from .geometry import Size
from .post_ops import Epilogue
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

    _ordered: ClassVar[tuple[str, ...]] = ("columns",)

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
        yield from self._operands()
        yield Argument("out", self.letters, self.shape(self.letters), of_y)

    def _spared(self) -> str:
        """See :class:`LetteredProblem`: a row has a letter, and so have rows."""
        return ""

    def _orders(self) -> list[str]:
        """See :class:`LetteredProblem`."""
        return [self.letters, *super()._orders()]
