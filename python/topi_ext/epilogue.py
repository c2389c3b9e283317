# SPDX-License-Identifier: Apache-2.0
"""What a kernel does beside its sums of products.

Before them, zero points are subtracted from what is multiplied.  Behind them come bias, scale,
residual and activation: element-wise steps behind an operator that would each be a pass over memory
of their own.  They are computed in the dtype of the sums; one rounding to the dtype of the result
comes last.
"""

from __future__ import annotations

from dataclasses import dataclass

BINARY = ("add", "subtract", "multiply", "divide")
"""The value so far on the left, a constant or an operand on the right."""

UNARY = ("relu", "leaky_relu", "sigmoid", "silu", "tanh")


@dataclass(frozen=True)
class PostOp:
    """One step.

    Attributes
    ----------
    op : str
        One of `BINARY` or `UNARY`.
    order : str
        The axes, in memory order, of the operand on the right; empty without one.
    varies : str
        Those of them along which the operand varies; its size along the others is one.
    value : float
        The constant on the right where there is no operand; the slope of ``leaky_relu``.
    """

    op: str
    order: str = ""
    varies: str = ""
    value: float = 0.0

    def __post_init__(self) -> None:
        if self.op not in (*BINARY, *UNARY):
            raise ValueError(f"epilogue: step {self.op!r} must be one of {(*BINARY, *UNARY)}")


Epilogue = tuple[PostOp, ...]
"""Steps, first to last."""

ZeroPoints = tuple[int, int]
"""Of the first and of the second operand."""

NO_ZERO_POINTS: ZeroPoints = (0, 0)


@dataclass(frozen=True)
class Fused:
    """What a kernel does beside its sums of products.

    Attributes
    ----------
    epilogue : tuple of PostOp
        What is done to the sums before they are written.
    zero_points : tuple of int
        What is subtracted from every element of the first and of the second operand, which are of
        int8 or uint8, before it is multiplied.  Padding contributes nothing: it stands for the
        zero point.  As ONNX (QLinearConv) and TFLite define it.
    """

    epilogue: Epilogue = ()
    zero_points: ZeroPoints = NO_ZERO_POINTS


UNFUSED = Fused()
"""Nothing but sums."""
