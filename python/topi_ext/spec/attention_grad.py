# SPDX-License-Identifier: Apache-2.0
"""The gradients of attention in query, key and value.

With scores ``s = scale q k^T + masks``, ``l = log sum exp(s)`` and ``p = exp(s - l)``, the result
is ``y = p v``.  Its gradients are (Dao, *FlashAttention-2*, 2023, algorithm 2)

    dv = p^T dy,   ds = p (dy v^T - sum(dy y)),   dq = scale ds k,   dk = scale ds^T q

They are computed from q, k, v, masks, y, dy and l, so that scores need not be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from .attention import MULTIPLY, Attention
from .geometry import fail
from .problem import Argument


@dataclass(frozen=True)
class AttentionGrad(Attention):
    """Description of the gradients of an attention, which is described by the other attributes.

    Attributes
    ----------
    dy, dq, dk, dv : str
        Letters of the gradient of the result, and of those of the operands, in memory order.
        Letters of the batch that an operand does not have are summed over.

    Notes
    -----
    ``sums`` are the letters of l.  There is no epilogue, and no mask is a factor.
    """

    dy: str = ""
    dq: str = ""
    dk: str = ""
    dv: str = ""

    kind = "attention_grad"
    _ordered: ClassVar[tuple[str, ...]] = (*Attention._ordered, "dy", "dq", "dk", "dv")

    def __post_init__(self) -> None:
        super().__post_init__()
        same = ((self.dq, self.q), (self.dk, self.k), (self.dv, self.v), (self.dy, self.y))
        for gradient, operand in same:
            if set(gradient) != set(operand):
                raise fail(self.kind, f"letters {gradient!r} must be those of {operand!r}")
        if set(self.own) != set(self.outer) & set(self.v):
            raise fail(self.kind, f"letters {self.k!r} and {self.v!r} must have the same batch")
        if not self.sums or self.epilogue or any(mask.op == MULTIPLY for mask in self.masks):
            raise fail(self.kind, "needs sums, no epilogue, and masks that are no factors")

    @property
    def own(self) -> str:
        """Letters of the batch that keys and values have."""
        return "".join(a for a in self.outer if a in self.k)

    def arguments(self) -> Iterator[Argument]:
        """Query, key, value, masks, result, its gradient, logarithms of sums, and the gradients."""
        *inputs, out, sums = super().arguments()
        yield from inputs
        yield out._replace(name="y")
        yield Argument("dy", self.dy, self.shape(self.dy), self.dtypes[3])
        yield sums
        for name, dtype in zip(("dq", "dk", "dv"), self.dtypes):
            letters = getattr(self, name)
            yield Argument(name, letters, self.shape(letters), dtype)
