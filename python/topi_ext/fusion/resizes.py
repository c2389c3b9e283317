# SPDX-License-Identifier: Apache-2.0
"""Resizes of images as anchors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..spec.geometry import Size
from ..spec.post_ops import PostOp
from ..spec.resize import ASYMMETRIC, CORNERS, HALF_PIXEL, NEAREST, Resize
from .anchors import Anchor

_LINEAR = {"half_pixel": HALF_PIXEL, "align_corners": CORNERS, "asymmetric": ASYMMETRIC}
"""Methods by coordinate transformation mode."""

_NEAREST = {("half_pixel", "round"), ("half_pixel", ""), ("asymmetric", "floor")}
"""Modes and roundings that repeat each element equally often where sizes are whole multiples."""


@dataclass(frozen=True)
class ResizeAnchor(Anchor):
    """A resize.

    Attributes
    ----------
    base : Resize
        The resize without post-ops.
    shape : tuple of int
        Shape of the result.
    """

    base: Resize
    shape: tuple[int, ...]

    name, dtype, axes = "resize2d", "float32", tuple("NCHW")

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
            None for other layouts, methods and dtypes, and for symbolic sizes.
        """
        sizes = [*before, *after]
        if len(sizes) != 8 or not all(isinstance(size, int) and size > 0 for size in sizes):
            return None
        if set(dtypes) != {"float32"} or layout != "NCHW":
            return None
        method = _method(*how, before[2:], after[2:])
        if method is None:
            return None
        base = Resize(method, tuple(before[:2]), tuple(before[2:]), tuple(after[2:]))
        return cls(base, tuple(after))

    @property
    def sizes(self) -> Mapping[str, int]:
        """Size of each letter."""
        return self.base.sizes

    def problem(self, epilogue: Sequence[PostOp]) -> Resize:
        """Return the resize with post-ops; their operands have the axes that they vary along."""
        return replace(self.base, epilogue=tuple(replace(s, order=s.varies) for s in epilogue))


def _method(
    method: str, mode: str, rounding: str, before: Sequence[int], after: Sequence[int]
) -> str | None:
    """Return the method of :class:`Resize`, or None where it has none."""
    if method == "linear":
        return _LINEAR.get(mode)
    is_multiple = all(b % a == 0 for a, b in zip(before, after))
    return NEAREST if is_multiple and repeats(method, mode, rounding) else None


def repeats(method: str, mode: str, rounding: str) -> bool:
    """Return whether a resize by whole multiples repeats each element equally often.

    Parameters are those of ``how`` of :meth:`ResizeAnchor.of`.
    """
    return method == "nearest_neighbor" and (mode, rounding) in _NEAREST
