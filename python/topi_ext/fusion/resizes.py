# SPDX-License-Identifier: Apache-2.0
"""Resizes of images as anchors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..compat import same_size
from ..spec.geometry import Size
from ..spec.post_ops import QUANTIZED, PostOp
from ..spec.resize import ASYMMETRIC, CORNERS, HALF_PIXEL, NEAREST, Resize
from .anchors import Anchor

_LINEAR = {"half_pixel": HALF_PIXEL, "align_corners": CORNERS, "asymmetric": ASYMMETRIC}
"""Methods by coordinate transformation mode."""

_MOST_TIMES = 16
"""How often a nearest resize to symbolic sizes repeats each element at most."""

_NEAREST = {("half_pixel", "round"), ("half_pixel", ""), ("asymmetric", "floor")}
"""Modes and roundings that repeat each element equally often where sizes are whole multiples."""


@dataclass(frozen=True)
class ResizeAnchor(Anchor):
    """A resize.

    Attributes
    ----------
    base : Resize
        The resize without post-ops.
    shape : tuple of int or symbolic
        Shape of the result.
    """

    base: Resize
    shape: tuple[Size, ...]

    name, axes = "resize2d", tuple("NCHW")

    @classmethod
    def of(
        cls,
        before: Sequence[Size],
        after: Sequence[Size],
        dtypes: Sequence[str],
        layout: str,
        how: tuple[str, str, str],
    ) -> ResizeAnchor | None:
        """Return the resize of images of shape `before` to shape `after`.

        Parameters
        ----------
        before, after, dtypes
            Shapes and dtypes of the operand and of the result.
        layout : str
        how : tuple of str
            Method, coordinate transformation mode and rounding, as TVM's ``image.resize2d`` names
            them.

        Returns
        -------
        ResizeAnchor or None
            None for other layouts, methods and dtypes.
        """
        sizes = [*before, *after]
        if len(sizes) != 8 or any(isinstance(size, int) and size < 1 for size in sizes):
            return None
        if set(dtypes) != {"float32"} or layout != "NCHW":
            return None
        (n, c, *images), times = before, None
        if how[0] == "linear":
            method = _LINEAR.get(how[1])
        else:
            method, times = NEAREST if repeats(*how) else None, _times(images, after[2:])
        if method is None or (times is None and method == NEAREST):
            return None
        base = Resize(method, (n, c), (images[0], images[1]), (after[2], after[3]), times=times)
        return cls(base, tuple(after))

    @property
    def dtype(self) -> str:
        """Dtype of the result."""
        return self.base.result

    @property
    def sizes(self) -> Mapping[str, Size]:
        """Size of each letter."""
        return self.base.sizes

    def converted(self, dtype: str) -> ResizeAnchor | None:
        """Return the anchor whose result is quantized, or None."""
        return replace(self, base=replace(self.base, result=dtype)) if dtype in QUANTIZED else None

    def problem(self, epilogue: Sequence[PostOp]) -> Resize:
        """Return the resize with post-ops; their operands have the axes that they vary along."""
        return replace(self.base, epilogue=tuple(replace(s, order=s.varies) for s in epilogue))


def _times(before: Sequence[Size], after: Sequence[Size]) -> tuple[int, int] | None:
    """Return how often each row and each column is repeated; None where the numbers differ."""
    found = [
        b // a * (b % a == 0)
        if isinstance(a, int) and isinstance(b, int)
        else next((n for n in range(1, _MOST_TIMES + 1) if same_size(a * n, b)), 0)
        for a, b in zip(before, after)
    ]
    return (found[0], found[1]) if all(found) else None


def repeats(method: str, mode: str, rounding: str) -> bool:
    """Return whether a resize by whole multiples repeats each element equally often.

    Parameters are those of ``how`` of :meth:`ResizeAnchor.of`.
    """
    return method == "nearest_neighbor" and (mode, rounding) in _NEAREST
