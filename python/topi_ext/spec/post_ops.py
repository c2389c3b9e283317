# SPDX-License-Identifier: Apache-2.0
"""Operations of a kernel beside its sums of products.

Before them, zero points are subtracted from what is multiplied.  Behind them come bias, scale,
residual and activation: element-wise steps behind an operator that would each be a pass over memory
of their own.  They are computed in the dtype of the sums; one rounding to the dtype of the result
comes last.  Behind the step ``cast`` values are float32, and behind ``quantize`` and ``truncate``
integers again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import copysign, inf

BINARY = ("add", "subtract", "multiply", "divide", "minimum", "maximum", "prelu")
"""The value so far on the left; a constant, an operand or an earlier value on the right.
``prelu`` multiplies negative values by what is on the right."""

UNARY = ("relu", "leaky_relu", "sigmoid", "silu", "tanh", "erf", "gelu", "gelu_tanh")

CONVERSIONS = ("cast", "quantize", "floor", "truncate")
"""From integers to float32; from float32 to an integer of few bits, by a zero point; from float32
to the whole number below, and from a whole number to int32."""

QUANTIZED = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
}
"""Dtypes of ``quantize``, and the numbers between which it saturates."""


@dataclass(frozen=True)
class PostOp:
    """One step.

    Attributes
    ----------
    op : str
        One of `BINARY`, `UNARY` or `CONVERSIONS`.
    order : str
        The axes, in memory order, of the operand on the right; empty without one.
    varies : str
        The axes along which the operand varies; its size along the others is one.
    value : float
        The constant on the right where there is no operand; the slope of ``leaky_relu``; the zero
        point of ``quantize``.
    dtype : str
        Dtype of the operand, if it is not that of the result; dtype of ``quantize``.
    scale, zero_point : float, int
        An operand of integers stands for ``scale * (operand - zero_point)``, in float32.
    earlier : int or None
        The number of steps after which the value was the one on the right, 0 for the sum itself:
        ``x * sigmoid(x)`` is a sigmoid, and a multiplication by the value after 0 steps.
    """

    op: str
    order: str = ""
    varies: str = ""
    value: float = 0.0
    dtype: str = ""
    scale: float = 1.0
    zero_point: int = 0
    earlier: int | None = None

    def __post_init__(self) -> None:
        known: tuple[str, ...] = (*BINARY, *UNARY, *CONVERSIONS)
        if self.op not in known:
            raise ValueError(f"epilogue: step {self.op!r} must be one of {known}")
        if self.op == "quantize" and self.dtype not in QUANTIZED:
            known = tuple(QUANTIZED)
            raise ValueError(f"epilogue: quantize to {self.dtype!r} must be to one of {known}")
        if self.op == "divide" and not self.order and self.earlier is None and not self.value:
            # The same, NaN included.  TVM does not divide by a constant zero, and steps that
            # divide by 0 and by -0 would be equal.
            object.__setattr__(self, "op", "multiply")
            object.__setattr__(self, "value", copysign(inf, self.value))

    @property
    def is_quantized(self) -> bool:
        """Return whether the operand stands for fractions."""
        return self.scale != 1.0 or self.zero_point != 0


Epilogue = tuple[PostOp, ...]
"""Steps, first to last."""

ZeroPoints = tuple[int, int]
"""Zero points of the first and of the second operand."""

NO_ZERO_POINTS: ZeroPoints = (0, 0)


@dataclass(frozen=True)
class Fused:
    """Operations of a kernel beside its sums of products.

    Attributes
    ----------
    epilogue : tuple of PostOp
        Post-ops that are applied to the sums before they are written.
    zero_points : tuple of int
        Numbers subtracted from every element of the first and second operand, which are of
        int8 or uint8, before it is multiplied.  Padding contributes nothing: it stands for the
        zero point.  As ONNX (QLinearConv) and TFLite define it.
    """

    epilogue: Epilogue = ()
    zero_points: ZeroPoints = NO_ZERO_POINTS


UNFUSED = Fused()
"""Nothing but sums."""


def without_letters(epilogue: Epilogue, gone: str) -> Epilogue:
    """Return the steps of a kernel that these letters are no axes of any more.

    Raises
    ------
    ValueError
        Where an operand has no other letter: the step would be one without an operand.
    """

    def rest(letters: str) -> str:
        return "".join(a for a in letters if a not in gone)

    for step in epilogue:
        if step.order and not rest(step.order):
            raise ValueError(f"epilogue: operand of {step.op!r} must vary along some axis")
    return tuple(
        replace(step, order=rest(step.order), varies=rest(step.varies)) for step in epilogue
    )


def step_dtypes(epilogue: Epilogue, sums: str) -> Iterator[str]:
    """Yield the dtype in front of each step, and behind the last, of sums of this dtype."""
    dtype = sums
    yield dtype
    for step in epilogue:
        if step.op == "cast":
            dtype = "float32"
        elif step.op in ("quantize", "truncate"):
            dtype = "int32"
        yield dtype


def finished(epilogue: Epilogue, sums: str) -> str:
    """Return the dtype behind the last step, of sums of this dtype."""
    *_, last = step_dtypes(epilogue, sums)
    return last
