# SPDX-License-Identifier: Apache-2.0
"""Attention as an anchor, whose operands may be views of other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_letters

from ..compat import same_size
from ..spec.attention import (
    COLUMN,
    INNER,
    KEY,
    MULTIPLY,
    OPERAND_ROLES,
    QUERY,
    TOP_LEFT,
    Attention,
    Mask,
)
from ..spec.dtypes import FLOATS
from ..spec.geometry import Size
from ..spec.post_ops import PostOp
from .anchors import MatrixAnchor
from .axes import Axes, Letters
from .products import (
    COLUMN_LETTER,
    ROW_LETTER,
    TERM_LETTER,
    is_moderate,
    letters_of_product,
)

Q, K, V, SCORES, MASKS = range(5)
"""Numbers of the tensors of :class:`.axes.Letters`; masks follow, and the result is last."""

_INNER = "D"
"""Letter of the head size; letters of the product of weights and values are lower case."""


@dataclass(frozen=True)
class AttentionAnchor(MatrixAnchor):
    """Attention.

    It is read backwards: from the product of weights and values, by views of the scores, to the
    product of query and key.

    Attributes
    ----------
    dtypes : tuple of str
        Dtypes of q, k, v and the result.
    scale : float
    masks : tuple of Mask
        In the order in which they are applied; their letters are those of the tensors from `MASKS`
        on.
    causal : str
    zeros_empty : bool
        As :class:`~topi_ext.spec.attention.Attention` has them.
    """

    dtypes: tuple[str, str, str, str]
    scale: float = 1.0
    masks: tuple[Mask, ...] = ()
    causal: str = ""
    zeros_empty: bool = False

    name = "attention"

    @classmethod
    def of_values(
        cls, shapes: Sequence[Sequence[Size]], dtypes: tuple[str, str, str, str]
    ) -> AttentionAnchor | None:
        """Return the product of weights and values, whose shapes and that of the result are given.

        Returns
        -------
        AttentionAnchor or None
            None for dtypes that are not floating point, and for batch sizes that are not known to
            be equal.
        """
        if any(dtype not in FLOATS for dtype in dtypes) or _is_empty(shapes):
            return None
        letters = letters_of_product(*shapes)
        if letters is None:
            return None
        scores, v, y = letters.tensors
        letters = replace(letters, tensors=((), (), v, scores, y))
        return cls(letters, tuple(shapes[-1]), dtypes)

    @classmethod
    def of_operator(
        cls, shapes: Sequence[Sequence[Size]], dtypes: tuple[str, str, str, str]
    ) -> AttentionAnchor | None:
        """Return the attention of q (a, m, h, d), k (a, n, h, d) and v (a, n, h, e)."""
        if any(dtype not in FLOATS for dtype in dtypes) or _is_empty(shapes):
            return None
        (a, m, h, d), (_, n, _, _), (_, _, _, e) = shapes
        row, term, column = ROW_LETTER, TERM_LETTER, COLUMN_LETTER
        sizes = {"a": a, "b": h, row: m, term: n, _INNER: d, column: e}
        tensors = (
            ("a", row, "b", _INNER), ("a", term, "b", _INNER), ("a", term, "b", column),
            ("a", "b", row, term), ("a", row, "b", column),
        )  # fmt: skip
        return cls(Letters(sizes, tensors), (a, m, h, e), dtypes)

    @property
    def dtype(self) -> str:
        """Dtype of the result."""
        return self.dtypes[-1]

    def post_op(self, op: str, shape: Sequence[Size]) -> None:
        """Return None: post-ops have no operands."""
        del op, shape

    def viewed(self, shape: Sequence[Size]) -> AttentionAnchor | None:
        """Return the anchor whose result is reshaped, where the kernel can write it so."""
        anchor = super().viewed(shape)
        return anchor if anchor is not None and anchor.is_attention else None

    # ------------------------------------------------------------ reading backwards

    def kept_axes(self, number: int) -> str:
        """Return all letters of scores, those of q, k and v that are not of the batch, and none of
        masks."""
        if number == SCORES:
            return "".join(self.letters.sizes)
        return "" if number >= MASKS else "".join(map(self._of_role, _ROLES.values()))

    def is_along_keys(self) -> bool:
        """Return whether the last axis of the scores is all keys."""
        axis = self.letters.tensors[SCORES][-1:]
        return axis == (self._of_role(TERM_LETTER),)

    def masked(self, mask: Mask, shape: Sequence[Size]) -> AttentionAnchor | None:
        """Return the anchor with a mask of this shape, which is broadcast to that of the scores
        and is applied before the present masks.

        None if `shape` does not broadcast.
        """
        axes = self.letters.tensors[SCORES]
        if len(shape) > len(axes):
            return None
        found = _broadcast_axes(self.letters, axes[len(axes) - len(shape) :], shape)
        if found is None or not "".join(found):
            return None
        tensors = self.letters.tensors
        letters = replace(self.letters, tensors=(*tensors[:MASKS], found, *tensors[MASKS:]))
        return replace(self, letters=letters, masks=(mask, *self.masks))

    def hiding_later_keys(self) -> AttentionAnchor | None:
        """Return the anchor whose queries read keys up to their own number, as the last two axes of
        the scores count both; None where these are something else."""
        axes = self.letters.tensors[SCORES][-2:]
        counts = axes == (self._of_role(ROW_LETTER), self._of_role(TERM_LETTER))
        is_plain = counts and not self.causal and self.scale > 0
        is_plain = is_plain and all(mask.op != MULTIPLY for mask in self.masks)
        return replace(self, causal=TOP_LEFT) if is_plain else None

    def scaled_from(self, number: int, factor: float) -> AttentionAnchor | None:
        """Return the anchor whose scores have one more factor; None for values and masks."""
        factor *= self.scale
        is_scaled = number in (Q, K, SCORES) and is_moderate(factor)
        return replace(self, scale=factor) if is_scaled else None

    def of_scores(
        self, q: Sequence[Size], k: Sequence[Size], dtypes: tuple[str, str]
    ) -> AttentionAnchor | None:
        """Return the anchor that reads q (..., m, d) and k (..., d, n) instead of their product."""
        *batch, row, term = self.letters.tensors[SCORES]
        if len(q) < 2 or len(k) < 2 or not same_size(q[-1], k[-2]) or _is_empty([q]):
            return None
        letters = replace(self.letters, sizes={**self.letters.sizes, _INNER: q[-1]})
        for number, shape, ends in ((Q, q, (row, _INNER)), (K, k, (_INNER, term))):
            outer = tuple(batch[len(batch) - len(shape) + 2 :])
            axes = _broadcast_axes(letters, outer, shape[:-2])
            if axes is None:
                return None
            letters = letters.with_axes(number, (*axes, *ends))
        return replace(self, letters=letters, dtypes=(*dtypes, *self.dtypes[2:]))

    # ------------------------------------------------------------ the problem

    @property
    def is_attention(self) -> bool:
        """Return whether a kernel can compute it: queries, keys and columns are one axis each."""
        head_sizes = (self.letters.extent(self._of_role(a)) for a in (_INNER, COLUMN_LETTER))
        orders = self._orders()
        if orders is None or not all(isinstance(size, int) for size in head_sizes):
            return False
        q, k, v, *_, y = (set(order) & set(_ROLES) for order in orders)
        return [q, k, v, y] == list(map(set, OPERAND_ROLES))

    def problem(self, epilogue: Sequence[PostOp]) -> Attention:
        """Return the attention with post-ops, if :attr:`is_attention`."""
        orders = self._orders()
        assert orders is not None
        q, k, v, _, *masks, y = orders
        sizes = {name: self.letters.extent(self._of_role(a)) for name, a in _ROLES.items()}
        sizes |= {name: self.letters.sizes[a] for a, name in self._batch().items()}
        stated = tuple(replace(mask, order=order) for mask, order in zip(self.masks, masks))
        return Attention(
            tuple(sizes.items()), q, k, v, y, self.dtypes, self.scale, stated, self.causal,
            self.zeros_empty, tuple(epilogue),
        ).merged()  # fmt: skip

    def _of_role(self, letter: str) -> str:
        """Return the letters that views have made of a letter."""
        return self.letters.current(letter)

    def _batch(self) -> dict[str, str]:
        """Return the letters of the batch, and the name that the problem has for each."""
        taken = "".join(map(self._of_role, _ROLES.values()))
        return dict(zip((a for a in self.letters.sizes if a not in taken), _BATCH))

    def _orders(self) -> list[str] | None:
        """Return the letters of all tensors as the problem names them; None where the letters that
        a role has are not side by side."""
        names = {self._of_role(letter): name for name, letter in _ROLES.items()} | self._batch()
        orders = []
        for axes in self.letters.tensors:
            left, order = "".join(axes), ""
            while left:
                run = next((run for run in names if left.startswith(run)), "")
                if not run:
                    return None
                left, order = left[len(run) :], order + names[run]
            orders.append(order)
        return orders


_ROLES = {QUERY: ROW_LETTER, KEY: TERM_LETTER, INNER: _INNER, COLUMN: COLUMN_LETTER}
"""The letter of each axis before views divide it."""

_BATCH = [a for a in ascii_letters if a not in _ROLES]


def _broadcast_axes(letters: Letters, axes: Axes, shape: Sequence[Size]) -> Axes | None:
    """Return the axes of a tensor of this shape that is broadcast to `axes`; None of another."""
    found = []
    for axis, size in zip(axes, shape):
        is_whole = same_size(size, letters.extent(axis))
        if not (is_whole or same_size(size, 1)):
            return None
        found.append(axis if is_whole else "")
    return tuple(found)


def _is_empty(shapes: Sequence[Sequence[Size]]) -> bool:
    return any(isinstance(size, int) and size == 0 for shape in shapes for size in shape)
