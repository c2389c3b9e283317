# SPDX-License-Identifier: Apache-2.0
"""The operator that a fused chain begins with.

An anchor never changes.  A view or a conversion behind the operator gives another anchor, or None
where the kernel cannot write its result so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from ..compat import same_size
from ..spec.conv import NOT_JOINED, RESULT, Convolution, Joined
from ..spec.dtypes import FLOATS
from ..spec.geometry import Size
from ..spec.layout import SPATIAL
from ..spec.post_ops import Epilogue, PostOp
from ..spec.problem import Problem
from .axes import Axes, Letters

if TYPE_CHECKING:
    from typing_extensions import Self


class Anchor(ABC):
    """An operator that a kernel computes together with post-ops.

    Attributes
    ----------
    name : str
        Name of the operator, with which the kernel's name begins.
    merges_axes : bool
        Whether the problem merges axes.  The kernel's operands are then reshaped to the shapes that
        the problem states, its result to `shape`, and the operand of a post-op must vary along some
        axis.
    shape : tuple
        Shape of the result, of anchors that merge axes.
    has_weight : bool
        Whether the second operand can be packed ahead where it is known.
    """

    name: str
    shape: tuple[Size, ...]
    merges_axes = True
    has_weight = False

    @property
    @abstractmethod
    def dtype(self) -> str:
        """Dtype of the result."""

    @property
    @abstractmethod
    def axes(self) -> Axes:
        """Letters of each axis of the result: one, or several where the result is a view."""

    @property
    @abstractmethod
    def sizes(self) -> Mapping[str, Size]:
        """Size of each letter."""

    @property
    def sums_integers(self) -> bool:
        """Return whether operands of post-ops may have other dtypes than the result."""
        return False

    def viewed(self, shape: Sequence[Size]) -> Self | None:
        """Return the anchor whose result is reshaped to `shape`, or None."""
        del shape
        return None

    def permuted(self, order: Sequence[int]) -> Self | None:
        """Return the anchor whose result is transposed by `order`, or None."""
        del order
        return None

    def converted(self, dtype: str) -> Self | None:
        """Return the anchor whose result has another dtype, or None."""
        del dtype
        return None

    @abstractmethod
    def problem(self, epilogue: Sequence[PostOp]) -> Problem:
        """Return the problem that a kernel solves: the operator and these post-ops."""

    def post_op(self, op: str, shape: Sequence[Size]) -> PostOp | None:
        """Return the post-op whose operand has this shape.

        The operand may be broadcast.  The result is None where the operand would enlarge the
        anchor's result, and where `merges_axes` forbids an operand of one element.
        """
        axes = self.axes[len(self.axes) - len(shape) :]
        varies = ""
        for letters, size in zip(axes, shape):
            if same_size(size, 1):
                continue
            if not same_size(size, prod((self.sizes[a] for a in letters), start=1)):
                return None
            varies += letters
        if not varies and self.merges_axes:
            return None
        return PostOp(op, "".join(axes), varies)


@dataclass(frozen=True)
class ConvAnchor(Anchor):
    """A convolution or transposed convolution.

    Attributes
    ----------
    name : str
    base : Convolution
        The convolution without post-ops.
    joined : pair of tuples
        As :class:`~topi_ext.spec.conv.Convolution` has it.
    """

    name: str
    base: Convolution
    joined: Joined = NOT_JOINED

    merges_axes = False
    has_weight = True

    @property
    def dtype(self) -> str:
        """Dtype of the result."""
        return self.base.dtypes[2]

    @property
    def sums_integers(self) -> bool:
        """Return whether the operands are integers."""
        return self.base.dtypes[1] not in FLOATS

    @property
    def axes(self) -> Axes:
        """Letter of each axis of the result."""
        return tuple(getattr(self.base.layouts, RESULT[self.base.kind]))

    @property
    def sizes(self) -> dict[str, Size]:
        """Size of each letter of the result."""
        base, rank = self.base, len(self.axes) - 2
        spatial = dict(zip(SPATIAL[rank], base.out_sizes[-rank:]))
        channels = base.geometry.c if base.transposed else base.geometry.k
        return {"N": base.n, "C": channels, **spatial}

    def converted(self, dtype: str) -> Self | None:
        """Return the anchor with this dtype; only kernels of integers can convert."""
        if not self.sums_integers:
            return None
        dtypes = (*self.base.dtypes[:2], dtype)
        return replace(self, base=replace(self.base, dtypes=dtypes))

    def problem(self, epilogue: Sequence[PostOp]) -> Convolution:
        """Return the convolution with post-ops."""
        return replace(self.base, epilogue=tuple(epilogue), joined=self.joined)


@dataclass(frozen=True)
class ViewedAnchor(Anchor):
    """An operator whose axes are letters, which views split and merge.

    Attributes
    ----------
    letters : Letters
        The axes of all tensors; the result is the last.
    shape : tuple
        Shape of the result.
    """

    letters: Letters
    shape: tuple[Size, ...]

    @property
    def axes(self) -> Axes:
        """Letters of each axis of the result."""
        return self.letters.tensors[-1]

    @property
    def sizes(self) -> Mapping[str, Size]:
        """Size of each letter."""
        return self.letters.sizes

    def viewed(self, shape: Sequence[Size]) -> Self | None:
        """Return the anchor whose result is reshaped, where letters can be split and merged so."""
        letters = self.letters.reshaped(len(self.letters.tensors) - 1, shape)
        return None if letters is None else replace(self, letters=letters, shape=tuple(shape))

    def epilogue(self, steps: Sequence[PostOp], before: int = 0) -> Epilogue:
        """Return post-ops in the letters that views have left.

        Parameters
        ----------
        steps : sequence of PostOp
        before : int
            Number of other post-ops that come first.
        """
        renamed = []
        for step in steps:
            varies = self.letters.current(step.varies)
            earlier = None if step.earlier is None else step.earlier + before
            renamed.append(replace(step, order=varies, varies=varies, earlier=earlier))
        return tuple(renamed)


@dataclass(frozen=True)
class MatrixAnchor(ViewedAnchor):
    """One or two matrix products, whose kernel writes vectors along the last axis of the result."""

    def permuted(self, order: Sequence[int]) -> Self | None:
        """Return the anchor whose result is transposed, where its last letter stays.

        Otherwise the kernel would write the elements of its vectors one by one.
        """
        turned = tuple(self.axes[axis] for axis in order)
        if "".join(turned)[-1:] != "".join(self.axes)[-1:]:
            return None
        letters = self.letters.with_axes(len(self.letters.tensors) - 1, turned)
        return replace(self, letters=letters, shape=tuple(self.shape[axis] for axis in order))

    def transposed_from(self, number: int, order: Sequence[int]) -> Self:
        """Return the anchor that reads tensor `number` before its transpose by `order`."""
        return replace(self, letters=self.letters.permuted(number, order))

    def reshaped_from(self, number: int, shape: Sequence[Size]) -> Self | None:
        """Return the anchor that reads tensor `number` before it was reshaped from `shape`."""
        letters = self.letters.reshaped(number, shape)
        return None if letters is None else replace(self, letters=letters)

    def broadcast_from(self, number: int, shape: Sequence[Size]) -> Self | None:
        """Return the anchor that reads tensor `number` before it was broadcast from `shape`.

        None where it would lose an axis that the kernel needs.
        """
        letters = self.letters.broadcast(number, shape, kept=self.kept_axes(number))
        return None if letters is None else replace(self, letters=letters)

    @abstractmethod
    def kept_axes(self, number: int) -> str:
        """Return the letters that tensor `number` has even where it is broadcast."""

    @abstractmethod
    def scaled_from(self, number: int, factor: float) -> Self | None:
        """Return the anchor that reads tensor `number` before it was multiplied by a number.

        The range of finite sums changes by the factor, so it must stay moderate: attention's
        ``1 / sqrt(head size)`` is.
        """
