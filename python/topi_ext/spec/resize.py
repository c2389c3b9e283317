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
from dataclasses import dataclass, replace

from .geometry import Size
from .post_ops import Epilogue
from .problem import Argument, FreshSize, Problem, by

NEAREST, HALF_PIXEL, ASYMMETRIC, CORNERS = "nearest", "half_pixel", "asymmetric", "corners"


@dataclass(frozen=True)
class Resize(Problem):
    """One resize of float32, with axes N, C, H, W.

    The result may be bytes, if the epilogue quantizes.

    Attributes
    ----------
    method : str
        ``"nearest"``, ``"half_pixel"``, ``"asymmetric"`` or ``"corners"``.
    planes : tuple of int or symbolic
        N and C.
    before, after : tuple of int or symbolic
        H and W.
    epilogue : tuple of PostOp
        Operands have the letters that they vary along, and no others.
    times : tuple of int, optional
        How often a nearest resize repeats each row and column, which known sizes state as well.
    result : str
        Dtype of the result.
    """

    method: str
    planes: tuple[Size, Size]
    before: tuple[Size, Size]
    after: tuple[Size, Size]
    epilogue: Epilogue = ()
    times: tuple[int, int] | None = None
    result: str = "float32"

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
        return "float32", self.result

    @property
    def is_static(self) -> bool:
        """Return whether all sizes are numbers."""
        sizes = (*self.planes, *self.before, *self.after)
        return all(isinstance(size, int) for size in sizes)

    def anonymous(self) -> Resize:
        """See :meth:`Problem.anonymous`."""

        def known(sizes: tuple[Size, Size]) -> tuple[Size, Size]:
            first, second = (size if isinstance(size, int) else None for size in sizes)
            return first, second

        planes, before, after = map(known, (self.planes, self.before, self.after))
        return replace(self, planes=planes, before=before, after=after)

    def with_sizes(self, fresh: FreshSize) -> Resize:
        """See :meth:`Problem.with_sizes`."""

        def stated(sizes: tuple[Size, Size], names: str) -> tuple[Size, Size]:
            pairs = zip(names, sizes)
            first, second = (fresh(f"size_{a}") if size is None else size for a, size in pairs)
            return first, second

        planes, before = stated(self.planes, "NC"), stated(self.before, "HW")
        if self.times is None:
            after = stated(self.after, "hw")
        else:
            after = before[0] * self.times[0], before[1] * self.times[1]
        return replace(self, planes=planes, before=before, after=after)

    @property
    def sizes(self) -> dict[str, Size]:
        """Sizes of the result, by letter."""
        return dict(zip("NCHW", (*self.planes, *self.after)))

    def arguments(self) -> Iterator[Argument]:
        """Yield the images, operands of the epilogue, and the result."""
        sizes = self.sizes
        yield Argument("x", "NCHW", (*self.planes, *self.before), "float32")
        for number, step in enumerate(step for step in self.epilogue if step.order):
            shape = tuple(sizes[letter] for letter in step.order)
            yield Argument(f"operand{number}", step.order, shape, "float32")
        yield Argument("out", "NCHW", (*self.planes, *self.after), self.result)

    def repetitions(self, axis: int) -> int:
        """Return how often a nearest resize repeats each element along an axis."""
        times = self.times[axis] if self.times else self.after[axis] // self.before[axis]
        assert isinstance(times, int)
        return times
