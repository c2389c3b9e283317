# SPDX-License-Identifier: Apache-2.0
"""A transpose to be built, a letter for each axis: ``y[b, s, c] = x[b, c, s]``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from .geometry import Size
from .post_ops import Epilogue, without_letters
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
        orders = [step.order for step in self.epilogue if step.order]
        names = ["x", *(f"operand{number}" for number in range(len(orders))), "out"]
        for name, order in zip(names, (self.x, *orders, self.y)):
            yield Argument(name, order, self.shape(order), self.dtype)

    def shape(self, letters: str) -> tuple[Size, ...]:
        """Return the shape of a tensor with these letters."""
        size = dict(self.sizes)
        return tuple(size[a] for a in letters)

    @property
    def outer(self) -> str:
        """Letters of the matrices that are transposed."""
        return "".join(a for a in self.y if a not in (self.x[-1], self.y[-1]))

    @property
    def elements(self) -> Size:
        """Return how many there are."""
        return prod((size for _, size in self.sizes), start=1)

    def merged(self) -> Transpose:
        """Return the transpose with as few letters as possible."""
        made = self._without("".join(a for a, size in self.sizes if _is_one(size)))
        while True:
            pair = next(made._pairs(), None)
            if pair is None:
                return made
            kept, gone = pair
            size = dict(made.sizes)
            size[kept] = size[kept] * size[gone]
            made = replace(made, sizes=tuple(size.items()))._without(gone)

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield letters that are neighbours in every tensor that has one of them."""
        orders = [self.y, *(step.order for step in self.epilogue if step.order)]
        for one, other in zip(self.x, self.x[1:]):
            if all((one + other in a) or not {one, other} & set(a) for a in orders):
                yield one, other

    def _without(self, gone: str) -> Transpose:
        def rest(letters: str) -> str:
            return "".join(a for a in letters if a not in gone)

        steps = without_letters(self.epilogue, gone)
        sizes = tuple((a, size) for a, size in self.sizes if a not in gone)
        return replace(self, sizes=sizes, x=rest(self.x), y=rest(self.y), epilogue=steps)


def _is_one(size: Size) -> bool:
    return isinstance(size, int) and size == 1
