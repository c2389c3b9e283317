# SPDX-License-Identifier: Apache-2.0
"""Attention, ``y = softmax(scale * q k^T + masks) v``, with a letter for each axis as in
``einsum``.

======  ==================================  =======================
letter  axis                                operands
======  ==================================  =======================
m       queries                             q, y, perhaps masks
n       keys: softmax is along them         k, v, perhaps masks
d       head size: scores are summed over   q, k
e       head size of values                 v, y
others  batch, heads                        y, and some of the rest
======  ==================================  =======================

Each operand names its letters in the order in which it is stored, so transposes cost nothing.  An
operand without a letter of the batch is broadcast along it: keys and values that a group of heads
shares have no letter for the head within the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, ClassVar

from .dtypes import accumulator
from .geometry import Size, fail
from .matmul import MatMul
from .post_ops import Epilogue, PostOp
from .problem import Argument, LetteredProblem, by, is_one
from .rowwise import SOFTMAX, RowWise

if TYPE_CHECKING:
    from typing_extensions import Self

QUERY, KEY, INNER, COLUMN = ROLES = "mnde"

OPERAND_ROLES = (QUERY + INNER, KEY + INNER, KEY + COLUMN, QUERY + COLUMN)
"""Letters that q, k, v and y have in addition to those of the batch."""

ADD, KEEP, HIDE, MULTIPLY = MASK_OPS = ("add", "keep", "hide", "multiply")

TOP_LEFT, BOTTOM_RIGHT = "top_left", "bottom_right"
"""Causal attention: query i reads keys up to i, or up to ``i + |n - m|``; then both end together if
there are no more queries than keys.  TVM defines both."""


@dataclass(frozen=True)
class Mask:
    """Change of the scores before the softmax, element by element.

    Attributes
    ----------
    op : str
        ``add``: it is added; ``keep``: a score becomes `fill` where it is false; ``hide``: where it
        is true; ``multiply``: it is a factor, such as the learned temperature of a head.
    order : str
        Its letters, in memory order.
    dtype : str
        ``bool`` unless it is added or a factor.
    fill : float
    """

    op: str
    order: str
    dtype: str
    fill: float = -inf


@dataclass(frozen=True)
class Attention(LetteredProblem):
    """Description of an attention.

    Attributes
    ----------
    sizes : tuple of (str, int or symbolic)
        Size of each letter; `d` and `e` are numbers.
    q, k, v, y : str
        Letters of the operands and of the result, in memory order.
    dtypes : tuple of str
        Dtypes of q, k, v and y.
    scale : float
        Factor of the sums of products.
    masks : tuple of Mask
        In the order in which they are applied.
    causal : str
        Empty, ``top_left`` or ``bottom_right``: the keys that a query reads.
    zeros_empty : bool
        Whether a query without a score above minus infinity gives zeros; otherwise it gives NaN.
    epilogue : tuple of PostOp
        Post-ops of the result; operands have the letters that they vary along, and no others.
    sums : str
        Letters of the second result, in memory order: the logarithm of the sum of the exponentials
        of each query's scores, in the dtype of the arithmetic.  Empty if it is not computed.
    """

    sizes: tuple[tuple[str, Size], ...]
    q: str
    k: str
    v: str
    y: str
    dtypes: tuple[str, str, str, str]
    scale: float = 1.0
    masks: tuple[Mask, ...] = ()
    causal: str = ""
    zeros_empty: bool = False
    epilogue: Epilogue = ()
    sums: str = ""

    kind = "attention"
    _ordered: ClassVar[tuple[str, ...]] = ("q", "k", "v", "y", "sums")

    def __post_init__(self) -> None:
        for letters, needed in zip((self.q, self.k, self.v, self.y), OPERAND_ROLES):
            other = set(ROLES) - set(needed)
            if not set(needed) <= set(letters) or other & set(letters):
                raise fail(self.kind, f"letters {letters!r} must be {needed!r} and the batch")
        if not all(isinstance(self.size[a], int) for a in INNER + COLUMN):
            raise fail(self.kind, "head sizes must be known")
        for mask in self.masks:
            if mask.op not in MASK_OPS:
                raise fail(self.kind, f"mask {mask.op!r} must be one of {MASK_OPS}")

    @property
    def shape_text(self) -> str:
        """Sizes of the operands and of the result."""
        tensors = (self.q, self.k, self.v, self.y)
        q, k, v, y = (by(self.shape(letters)) for letters in tensors)
        masks = "".join(f" {mask.op} {by(self.shape(mask.order))}" for mask in self.masks)
        causal = f" {self.causal}" if self.causal else ""
        return f"{q}, {k}{masks}{causal}, {v} -> {y} as {','.join(tensors[:3])}->{self.y}"

    @cached_property
    def acc_dtype(self) -> str:
        """Dtype of the arithmetic."""
        q, k, v, y = self.dtypes
        return accumulator(self.kind, q, "float64" if "float64" in (k, v) else k, y)

    @property
    def outer(self) -> str:
        """Letters of the batch: all of y but queries and columns."""
        return "".join(a for a in self.y if a not in ROLES)

    def arguments(self) -> Iterator[Argument]:
        """Query, key, value, masks, operands of the epilogue, and the results."""
        for name, letters, dtype in zip("qkv", (self.q, self.k, self.v), self.dtypes):
            yield Argument(name, letters, self.shape(letters), dtype)
        for number, mask in enumerate(self.masks):
            name = f"mask{number or ''}"
            yield Argument(name, mask.order, self.shape(mask.order), mask.dtype)
        yield from self._operands()
        yield Argument("out", self.y, self.shape(self.y), self.dtypes[3])
        if self.sums:
            yield Argument("sums", self.sums, self.shape(self.sums), self.acc_dtype)

    def _spared(self) -> str:
        """See :class:`LetteredProblem`: those of the batch."""
        return self.outer

    def _orders(self) -> list[str]:
        """See :class:`LetteredProblem`."""
        return super()._orders() + [mask.order for mask in self.masks]

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """See :class:`LetteredProblem`; heads that share keys and values become queries."""
        for pair in super()._pairs():
            if not (COLUMN in pair or (self.causal and QUERY in pair)):
                kept, gone = sorted(pair, key=ROLES.find, reverse=True)
                yield kept, gone

    def _without(self, gone: str, sizes: dict[str, Size] | None = None) -> Self:
        """See :class:`LetteredProblem`."""
        masks = tuple(
            replace(mask, order="".join(a for a in mask.order if a not in gone))
            for mask in self.masks
        )
        return replace(super()._without(gone, sizes), masks=masks)

    def separate(self) -> tuple[MatMul, RowWise, MatMul]:
        """Return both products and the softmax between them, with scores in memory."""
        scores = "".join(a for a in self.outer if a in self.q + self.k) + QUERY + KEY
        dtype_q, dtype_k, dtype_v, dtype_y = self.dtypes
        steps: Epilogue = (PostOp("multiply", value=self.scale),)
        for mask in self.masks:
            varies = (a for a in mask.order if a in scores and not is_one(self.size[a]))
            order = "".join(varies)
            op = MULTIPLY if mask.op == MULTIPLY else ADD
            steps = (*steps, PostOp(op, order, order)) if order else steps

        def sized(letters: str) -> tuple[tuple[str, Size], ...]:
            return tuple((a, self.size[a]) for a in letters)

        first = MatMul(
            sized(scores + INNER), self.q, self.k, scores, (dtype_q, dtype_k, dtype_q), steps
        )
        softmax = RowWise(SOFTMAX, sized(scores), KEY, (dtype_q, dtype_q))
        last = MatMul(sized(scores + COLUMN), scores, self.v, self.y, (dtype_q, dtype_v, dtype_y))
        return first.merged(), softmax.merged(), last.merged()
