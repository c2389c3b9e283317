# SPDX-License-Identifier: Apache-2.0
"""Softmax and normalizations as anchors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import NamedTuple

from ..spec.dtypes import FLOATS
from ..spec.geometry import Size
from ..spec.post_ops import PostOp
from ..spec.rowwise import NORMALIZE, SOFTMAX, RowWise
from .anchors import ViewedAnchor
from .axes import Axes, Letters

_NAMES = ascii_lowercase[:20]

_GROUP, _CHANNEL = "yz"


@dataclass(frozen=True)
class RowsAnchor(ViewedAnchor):
    """A softmax or a normalization.

    Attributes
    ----------
    name : str
    op : str
        Operator, one of :data:`topi_ext.spec.rowwise.OPS`.
    columns : str
        Letters of a row.
    dtypes : tuple of str
        Dtypes of the operand and of the result.
    epsilon : float
        Number that is added to the variance.
    """

    name: str
    op: str
    columns: str
    dtypes: tuple[str, str]
    epsilon: float = 0.0

    @property
    def dtype(self) -> str:
        """Dtype of the result."""
        return self.dtypes[1]

    def problem(self, epilogue: Sequence[PostOp]) -> RowWise:
        """Return the operator with post-ops."""
        letters = self.letters
        sizes = tuple((a, letters.sizes[a]) for a in "".join(self.axes))
        columns, steps = letters.current(self.columns), self.epilogue(epilogue)
        return RowWise(self.op, sizes, columns, self.dtypes, self.epsilon, steps).merged()


def can_be_rows(shape: Sequence[Size], dtype: str) -> bool:
    """Return whether row-wise kernels compute results of this shape and dtype."""
    is_empty = any(_is(size, 0) for size in shape)
    return dtype in FLOATS and 0 < len(shape) <= len(_NAMES) and not is_empty


def softmax(
    name: str, shape: Sequence[Size], axis: int, dtypes: tuple[str, str]
) -> RowsAnchor | None:
    """Return a softmax along an axis; None where elements of other axes lie behind it."""
    if not all(_is(size, 1) for size in shape[axis + 1 :]):
        return None
    axes = tuple(_NAMES[: len(shape)])
    letters = Letters(dict(zip(axes, shape)), (axes,))
    return RowsAnchor(letters, tuple(shape), name, SOFTMAX, axes[axis], dtypes)


class Normalized(NamedTuple):
    """The rows of a normalization.

    Attributes
    ----------
    letters : Letters
    columns : str
        Letters of a row.
    varies : str
        Letters along which scale and shift vary.
    """

    letters: Letters
    columns: str
    varies: str

    def anchor(
        self, name: str, shape: Sequence[Size], dtypes: tuple[str, str], epsilon: float
    ) -> RowsAnchor:
        """Return the normalization, without its scale and shift."""
        return RowsAnchor(
            self.letters, tuple(shape), name, NORMALIZE, self.columns, dtypes, epsilon
        )

    def post_op(self, op: str) -> PostOp:
        """Return the post-op that scales or shifts."""
        return PostOp(op, self.varies, self.varies)


def layer_norm(shape: Sequence[Size], axes: Sequence[int]) -> Normalized | None:
    """Return the rows of a layer norm; None where they are not the last axes in their order."""
    count = len(shape) - len(axes)
    if list(axes) != list(range(count, len(shape))):
        return None
    names = tuple(_NAMES[: len(shape)])
    columns = "".join(names[count:])
    return _normalized(names, shape, columns, columns)


def instance_norm(shape: Sequence[Size], axes: Sequence[int], channel: int) -> Normalized | None:
    """Return the rows of an instance norm; None where they are not the axes behind the channels."""
    if not _are_behind(channel, axes, shape):
        return None
    names = tuple(_NAMES[: len(shape)])
    return _normalized(names, shape, "".join(names[channel + 1 :]), names[channel])


def group_norm(
    shape: Sequence[Size], axes: Sequence[int], channel: int, groups: int
) -> Normalized | None:
    """Return the rows of a group norm; see :func:`instance_norm`.  Channels may be last, too."""
    channels = shape[channel]
    is_first, is_last = (are(channel, axes, shape) for are in (_are_behind, _are_before))
    if not ((is_first or is_last) and isinstance(channels, int)):
        return None
    names = list(_NAMES[: len(shape)])
    places = names[channel + 1 :] if is_first else names[1:channel]
    names[channel] = _GROUP + _CHANNEL
    columns = "".join([_CHANNEL, *places] if is_first else [*places, _CHANNEL])
    sizes = {a: size for a, size in zip(names, shape) if len(a) == 1}
    sizes |= {_GROUP: groups, _CHANNEL: channels // groups}
    return Normalized(Letters(sizes, (tuple(names),)), columns, _GROUP + _CHANNEL)


def _normalized(names: Axes, shape: Sequence[Size], columns: str, varies: str) -> Normalized:
    return Normalized(Letters(dict(zip(names, shape)), (names,)), columns, varies)


def _are_behind(channel: int, axes: Sequence[int], shape: Sequence[Size]) -> bool:
    """Return whether the axes of a norm are those behind the channels; axes of one element do not
    count."""
    normalized = {axis for axis in axes if not _is(shape[axis], 1)}
    behind = {axis for axis in range(channel + 1, len(shape)) if not _is(shape[axis], 1)}
    return normalized == behind and len(shape) > channel + 1


def _are_before(channel: int, axes: Sequence[int], shape: Sequence[Size]) -> bool:
    """Return whether the axes of a norm are those between the batch and the channels, the last
    axis."""
    normalized = {axis for axis in axes if not _is(shape[axis], 1)}
    before = {axis for axis in range(1, channel) if not _is(shape[axis], 1)}
    return normalized == before and channel == len(shape) - 1 and channel > 1


def _is(size: Size, number: int) -> bool:
    return isinstance(size, int) and size == number
