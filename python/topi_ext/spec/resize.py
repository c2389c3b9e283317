# SPDX-License-Identifier: Apache-2.0
"""A resize of images to be built: planes of which each element comes from one or four.

===========  =====================================================
method       coordinate of element o, of f = size before / after
===========  =====================================================
nearest      o // (1 / f), of whole multiples
half_pixel   (o + 1/2) f - 1/2
asymmetric   o f
corners      o (before - 1) / (after - 1)
===========  =====================================================

In the last three, elements beside the coordinate are weighted by how near they are; beyond the
border the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .post_ops import Epilogue
from .problem import Argument, Problem, by

NEAREST, HALF_PIXEL, ASYMMETRIC, CORNERS = "nearest", "half_pixel", "asymmetric", "corners"


@dataclass(frozen=True)
class Resize(Problem):
    """One resize of float32, with axes N, C, H, W.

    Attributes
    ----------
    method : str
        ``"nearest"``, ``"half_pixel"``, ``"asymmetric"`` or ``"corners"``.
    planes : tuple of int
        N and C.
    before, after : tuple of int
        H and W.
    epilogue : tuple of PostOp
        Operands have the letters that they vary along, and no others.
    """

    method: str
    planes: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    epilogue: Epilogue = ()

    @property
    def kind(self) -> str:
        """Kind of operator, as :mod:`topi_ext.kernel.info` names it."""
        return "resize"

    @property
    def shape_text(self) -> str:
        """Sizes of the operand and of the result, and the method."""
        return f"{by((*self.planes, *self.before))} -> {by(self.after)} {self.method}"

    @property
    def dtypes(self) -> tuple[str, str]:
        """Dtypes of the operand and of the result."""
        return "float32", "float32"

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the result, by letter."""
        return dict(zip("NCHW", (*self.planes, *self.after)))

    def arguments(self) -> Iterator[Argument]:
        """Yield the images, operands of the epilogue, and the result."""
        sizes = self.sizes
        yield Argument("x", "NCHW", (*self.planes, *self.before), "float32")
        for number, step in enumerate(step for step in self.epilogue if step.order):
            shape = tuple(sizes[letter] for letter in step.order)
            yield Argument(f"operand{number}", step.order, shape, "float32")
        yield Argument("out", "NCHW", (*self.planes, *self.after), "float32")

    def coordinate(self, axis: int) -> tuple[float, float]:
        """Scale and offset: where element o is, ``o * scale + offset``."""
        before, after = self.before[axis], self.after[axis]
        if self.method == CORNERS:
            return ((before - 1) / (after - 1) if after > 1 else 0.0), 0.0
        scale = before / after
        return scale, (scale / 2 - 0.5 if self.method == HALF_PIXEL else 0.0)
