# SPDX-License-Identifier: Apache-2.0
"""Matrix products as anchors, whose operands may be views of other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase

from ..compat import same_size
from ..spec.conv import BYTE_RANGES
from ..spec.dtypes import FLOATS
from ..spec.geometry import Size
from ..spec.matmul import MatMul
from ..spec.post_ops import NO_ZERO_POINTS, PostOp, ZeroPoints
from .anchors import MatrixAnchor
from .axes import Letters

X, W, Y = range(3)
"""Numbers of the tensors of :class:`.axes.Letters`."""

_BATCH, ROW_LETTER, COLUMN_LETTER, TERM_LETTER = ascii_lowercase[:8], "x", "y", "z"
"""Letters of a product before views divide them."""

_MODERATE = 2.0**8


@dataclass(frozen=True)
class ProductAnchor(MatrixAnchor):
    """A matrix product.

    Attributes
    ----------
    dtypes : tuple of str
        Dtypes of both operands, as they are stored, and of the result.
    factor : float
        Number that multiplies the sums, in place of an operand.
    zero_points : tuple of int
        Numbers that stand for zero in both operands, of integers.
    """

    dtypes: tuple[str, str, str]
    factor: float = 1.0
    zero_points: ZeroPoints = NO_ZERO_POINTS

    name = "matmul"
    has_weight = True

    @classmethod
    def of(
        cls, shapes: Sequence[Sequence[Size]], dtypes: tuple[str, str, str]
    ) -> ProductAnchor | None:
        """Return the product of two tensors, batched and broadcast as NumPy's ``matmul``.

        Parameters
        ----------
        shapes, dtypes
            Shapes and dtypes of both operands and of the result.

        Returns
        -------
        ProductAnchor or None
            None for sums of other integers than int32, operands of one axis, batch sizes that are
            not known to be equal, and tensors without elements.
        """
        is_float = all(dtype in FLOATS for dtype in dtypes)
        if dtypes[X] != dtypes[W] or not (is_float or dtypes[Y] == "int32"):
            return None
        sizes = [size for shape in shapes for size in shape]
        if any(len(shape) < 2 for shape in shapes) or any(_is_zero(size) for size in sizes):
            return None
        letters = letters_of_product(*shapes)
        return None if letters is None else cls(letters, tuple(shapes[Y]), dtypes)

    @property
    def dtype(self) -> str:
        """Dtype of the result."""
        return self.dtypes[Y]

    @property
    def sums_integers(self) -> bool:
        """Return whether both operands are bytes."""
        return self.dtypes[X] in BYTE_RANGES and self.dtypes[W] in BYTE_RANGES

    @property
    def is_served(self) -> bool:
        """Return whether kernels multiply operands of these dtypes."""
        return self.sums_integers or self.dtypes[X] in FLOATS

    def converted(self, dtype: str) -> ProductAnchor | None:
        """Return the anchor with this dtype; only kernels of integers can convert."""
        return replace(self, dtypes=(*self.dtypes[:2], dtype)) if self.sums_integers else None

    def widened_from(self, number: int, dtype: str) -> ProductAnchor | None:
        """Return the anchor that reads tensor `number` before its cast from `dtype`: bytes in
        integer sums, or weights that are bytes beside floating point.
        """
        if dtype not in BYTE_RANGES or (number == X and self.dtypes[Y] in FLOATS):
            return None
        dtypes = (dtype, self.dtypes[W]) if number == X else (self.dtypes[X], dtype)
        return replace(self, dtypes=(*dtypes, self.dtypes[Y]))

    def scaled_from(self, number: int, factor: float) -> ProductAnchor | None:
        """Return the anchor that multiplies its sums by one more factor."""
        del number
        factor *= self.factor
        return replace(self, factor=factor) if is_moderate(factor) else None

    def kept_axes(self, number: int) -> str:
        """Return the letters of rows, columns and terms."""
        del number
        return self.letters.current(ROW_LETTER + COLUMN_LETTER + TERM_LETTER)

    def problem(self, epilogue: Sequence[PostOp]) -> MatMul:
        """Return the product; its post-ops name only letters that their operands vary along."""
        first = () if self.factor == 1.0 else (PostOp("multiply", value=self.factor),)
        steps = (*first, *self.epilogue(epilogue, before=len(first)))
        x, w, y = ("".join(axes) for axes in self.letters.tensors)
        sizes = tuple(self.letters.sizes.items())
        return MatMul(sizes, x, w, y, self.dtypes, steps, zero_points=self.zero_points).merged()


def is_moderate(factor: float) -> bool:
    """Return whether sums may be multiplied in place of an operand: their range changes little."""
    return 1 / _MODERATE <= abs(factor) <= _MODERATE


def letters_of_product(x: Sequence[Size], w: Sequence[Size], y: Sequence[Size]) -> Letters | None:
    """Return a letter for each axis of the result, and one for the axis that is summed over."""
    batch = len(y) - 2
    if batch > len(_BATCH) or not same_size(x[-1], w[-2]):
        return None
    of_y = (*_BATCH[:batch], ROW_LETTER, COLUMN_LETTER)
    sizes = {**dict(zip(of_y, y)), TERM_LETTER: x[-1]}
    operands = []
    for shape, ends in ((x, (ROW_LETTER, TERM_LETTER)), (w, (TERM_LETTER, COLUMN_LETTER))):
        names = _BATCH[batch - len(shape) + 2 : batch]
        axes = []
        for size, name in zip(shape[:-2], names):
            if not (same_size(size, sizes[name]) or same_size(size, 1)):
                return None
            axes.append(name if same_size(size, sizes[name]) else "")
        operands.append((*axes, *ends))
    return Letters(sizes, (*operands, of_y))


def _is_zero(size: Size) -> bool:
    return isinstance(size, int) and size == 0
