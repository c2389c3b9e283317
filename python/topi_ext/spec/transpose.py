# SPDX-License-Identifier: Apache-2.0
"""A transpose to be built, a letter for each axis: ``y[b, s, c] = x[b, c, s]``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from .geometry import Size
from .post_ops import Epilogue
from .problem import Argument, LetteredProblem, by


@dataclass(frozen=True)
class Transpose(LetteredProblem):
    """One transpose.

    Attributes
    ----------
    sizes : tuple of (str, int or symbolic)
        Size of each letter.
    x, y : str
        Letters of the operand and of the result, in memory order; their last ones differ.
    dtype : str
        Dtype of operand and result.
    epilogue : tuple of PostOp
        Operands have the letters that they vary along, and no others.
    """

    sizes: tuple[tuple[str, Size], ...]
    x: str
    y: str
    dtype: str
    epilogue: Epilogue = ()

    _ordered: ClassVar[tuple[str, ...]] = ("x", "y")

    @property
    def kind(self) -> str:
        """Kind of operator, as :mod:`topi_ext.kernel.info` names it."""
        return "transpose"

    @property
    def shape_text(self) -> str:
        """Sizes of the operand and of the result."""
        return f"{by(self.shape(self.x))} -> {by(self.shape(self.y))} as {self.x}->{self.y}"

    @property
    def dtypes(self) -> tuple[str, str]:
        """Dtypes of the operand and of the result."""
        return self.dtype, self.dtype

    def arguments(self) -> Iterator[Argument]:
        """Yield the tensor, operands of the epilogue, and the result."""
        yield Argument("x", self.x, self.shape(self.x), self.dtype)
        yield from self._operands()
        yield Argument("out", self.y, self.shape(self.y), self.dtype)

    @property
    def outer(self) -> str:
        """Letters of the matrices that are transposed."""
        return "".join(a for a in self.y if a not in (self.x[-1], self.y[-1]))

    @property
    def elements(self) -> Size:
        """Return how many there are."""
        return self.extent(self.x)
