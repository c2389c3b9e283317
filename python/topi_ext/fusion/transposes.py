# SPDX-License-Identifier: Apache-2.0
"""Transposes as anchors: those whose last axis becomes another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from ..spec.geometry import Size
from ..spec.post_ops import PostOp
from ..spec.transpose import Transpose
from .anchors import ViewedAnchor
from .axes import Letters

_ELEMENTS = 1 << 13
"""Smaller transposes are left to TVM, which can fuse them with the operators that read them."""

_SIDE = 8
"""Minimum number of rows and columns of the matrices that are transposed."""


@dataclass(frozen=True)
class TransposeAnchor(ViewedAnchor):
    """A transpose.

    Attributes
    ----------
    dtypes : tuple of str
        Dtypes of the operand and of the result, which are equal.
    """

    dtypes: tuple[str, str]

    name = "transpose"

    @property
    def dtype(self) -> str:
        """Dtype of the result."""
        return self.dtypes[1]

    @classmethod
    def of(cls, shape: Sequence[Size], order: Sequence[int], dtype: str) -> TransposeAnchor | None:
        """Return the transpose to `shape` whose axes were axes `order` of the operand.

        Returns
        -------
        TransposeAnchor or None
            None for dtypes other than float32, small tensors, and where the last axis stays.
            Symbolic sizes are taken for large ones.
        """
        if not shape or any(_is_less(size, 1) for size in shape):
            return None
        if dtype != "float32" or len(shape) > len(ascii_lowercase) // 2:
            return None
        given = tuple(ascii_lowercase[: len(order)])
        turned = tuple(given[axis] for axis in order)
        letters = Letters(dict(zip(turned, shape)), (given, turned))
        anchor = cls(letters, tuple(shape), (dtype, dtype))
        problem = anchor.problem(())
        if _is_less(problem.elements, _ELEMENTS) or problem.x[-1:] == problem.y[-1:]:
            return None
        sides = problem.shape(problem.x[-1] + problem.y[-1])
        return None if any(_is_less(side, _SIDE) for side in sides) else anchor

    def problem(self, epilogue: Sequence[PostOp]) -> Transpose:
        """Return the transpose with post-ops."""
        x, y = ("".join(axes) for axes in self.letters.tensors)
        sizes = tuple(self.letters.sizes.items())
        return Transpose(sizes, x, y, self.dtype, self.epilogue(epilogue)).merged()


def _is_less(size: Size, number: int) -> bool:
    """Return whether a size is known to be less than a number."""
    return isinstance(size, int) and size < number
