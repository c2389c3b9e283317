# SPDX-License-Identifier: Apache-2.0
"""Emit the post-ops of sums while they are written; see :mod:`topi_ext.spec.post_ops`.

All of them are arithmetic and selections, so that LLVM makes vectors of them: a call of ``tanhf``
for each element would take longer than most kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import NamedTuple

from ..spec.conv import DATA, Convolution
from ..spec.dtypes import FLOATS
from ..spec.post_ops import QUANTIZED, PostOp, step_dtypes
from .builder import via_memory
from .expressions import (
    Expr,
    bits,
    broadcast,
    cast,
    constant,
    function,
    least,
    let,
    limited,
    most,
    opaque_base,
    select,
)
from .operands import Array, Operand


class RowEpilogue(NamedTuple):
    """The post-ops of the elements of one row of the result.

    Attributes
    ----------
    steps : tuple of PostOp
    dtype : str
        The dtype of the sums.
    sources : list
        For each step with an operand: the operand, the offset of the row in it, and the distance of
        the row's elements there.
    kept : callable
        ``kept(value, dtype)`` passes `value` through memory that the target turns into a register.
    """

    steps: Sequence[PostOp]
    dtype: str
    sources: Sequence[tuple[Array, Expr, Expr]]
    kept: Callable[[Expr, str], Expr] = via_memory

    @classmethod
    def emitted(
        cls, problem: Convolution, operands: Sequence[Operand], channel: Expr, outer: Sequence[Expr]
    ) -> RowEpilogue:
        """Return the epilogue of the row of a channel, at index `outer` along the other axes."""
        where = dict(zip("C" + DATA, (channel, *outer, 0)))
        return cls.along(problem.epilogue, problem.acc_dtype, operands, where, DATA[-1])

    @classmethod
    def along(
        cls,
        steps: Sequence[PostOp],
        dtype: str,
        operands: Sequence[Operand],
        where: dict[str, Expr],
        row: str,
    ) -> RowEpilogue:
        """Return the epilogue of elements along the axis `row`, the first of which is at
        `where`."""
        sources = []
        for step, operand in zip((step for step in steps if step.order), operands):
            start = operand.at(step.varies, *(where[letter] for letter in step.varies))
            stride = operand.strides[row] if row and row in step.varies else 0
            sources.append((operand, opaque_base(start), stride))
        return cls(steps, dtype, sources)

    def __call__(self, value: Expr, position: Expr) -> Expr:
        """Apply the steps to `value`, the sum at `position` along the row."""
        sources = iter(self.sources)
        is_function = False
        saved = {step.earlier for step in self.steps}
        values: dict[int, Expr] = {}
        dtypes = step_dtypes(tuple(self.steps), self.dtype)
        for number, (step, dtype) in enumerate(zip(self.steps, dtypes)):
            if number in saved:
                # Not a variable, for the same reason as below.
                values[number] = value = self.kept(value, dtype)
            if step.op in _BINARY:
                if step.earlier is not None:
                    other = values[step.earlier]
                elif step.order:
                    other = self._operand(step, next(sources), position, dtype)
                else:
                    other = constant(step.value, dtype)
                if step.op == "subtract" and dtype in FLOATS:
                    # TVM's simplifier replaces x - x by 0 and (x + y) - y by x, also of floats.
                    value = value + other * constant(-1, dtype)
                else:
                    functions = _BINARY if dtype in FLOATS else {**_BINARY, **_WHOLE}
                    value = functions[step.op](value, other)
            elif step.op == "cast":
                value = cast(value, dtype, "float32")
            elif step.op == "floor":
                value = function("floor", value)
            elif step.op == "truncate":
                value = cast(value, dtype, "int32")
            elif step.op == "relu" and dtype not in FLOATS:
                value = most(value, constant(0, dtype))
            else:
                if is_function:
                    # TVM substitutes variables by their values: it would simplify a function of a
                    # function for minutes. It does not look into memory.
                    value = self.kept(value, dtype)
                value, is_function = _unary(step)(let(value), dtype), True
        return value

    def _operand(
        self, step: PostOp, source: tuple[Array, Expr, Expr], position: Expr, dtype: str
    ) -> Expr:
        """Load the operand of a step at `position`, in the dtype of the step."""
        operand, start, stride = source
        index = start + position * stride
        if step.is_quantized:
            whole = operand.load(index, "int32") - constant(step.zero_point, "int32")
            return self.kept(cast(whole, "int32", dtype), dtype) * constant(step.scale, dtype)
        other = operand.load(index, dtype)
        return other if operand.dtype == dtype else self.kept(other, dtype)


_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,  # of integers
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    # NaN stays NaN.
    "minimum": lambda a, b: select(a > b, b, a),
    "maximum": lambda a, b: select(a < b, b, a),
    "prelu": lambda a, b: select(a < 0, a * b, a),
}


_WHOLE: dict[str, Callable[[Expr, Expr], Expr]] = {"minimum": least, "maximum": most}
"""For integers: a selection contains its value twice, and TVM simplifies all copies of nested
ones.
"""


def _unary(step: PostOp) -> Callable[[Expr, str], Expr]:
    functions: dict[str, Callable[[Expr, str], Expr]] = {
        "relu": lambda x, dtype: leaky_relu(x, dtype, 0.0),
        "leaky_relu": lambda x, dtype: leaky_relu(x, dtype, step.value),
        "sigmoid": sigmoid,
        "silu": lambda x, dtype: x * sigmoid(x, dtype),
        "tanh": tanh,
        "erf": erf,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "quantize": lambda x, dtype: quantized(x, dtype, step.dtype, int(step.value)),
    }
    return functions[step.op]


def leaky_relu(x: Expr, dtype: str, slope: float) -> Expr:
    """Return ``x`` where it is not negative, else ``slope * x``; NaN stays NaN."""
    zero = constant(0, dtype)
    below = x * constant(slope, dtype) if slope else zero
    return select(x < zero, below, x)


def quantized(x: Expr, dtype: str, result: str, zero_point: int) -> Expr:
    """Return ``saturate(round(x) + zero_point)`` as int32: halves to the even number, and NaN to
    the smallest number of the dtype `result`.

    `x` is clamped first: a number below 2**22 is rounded by the sum with a large one.
    """
    low, high = (constant(limit - zero_point, dtype) for limit in QUANTIZED[result])
    shifted = limited(x, low, high) + constant(SHIFT, dtype)
    return bits(shifted, "int32") - constant(SHIFT_BITS - zero_point, "int32")


def sigmoid(x: Expr, dtype: str) -> Expr:
    """``1 / (1 + exp(-x))``; an error of about 2 units in the last place in float32."""
    one = constant(1, dtype)
    return one / (one + exp(constant(0, dtype) - x, dtype))


def tanh(x: Expr, dtype: str) -> Expr:
    """Hyperbolic tangent; an error of about 3 units in the last place in float32.

    In float32 a rational function, of degree 13 over 6, on the interval beyond which the result is
    1 (coefficients of Eigen's ``ptanh``, a minimax fit).
    """
    if dtype != "float32":
        return function("tanh", x)
    return _to_one(x, TANH, TANH_LIMIT, dtype)


def erf(x: Expr, dtype: str) -> Expr:
    """Error function; an error of about 5 units in the last place in float32.

    In float32 a rational function, of degree 9 over 12, on the interval beyond which the result is
    1 (coefficients of Eigen's ``erf``).
    """
    if dtype != "float32":
        return function("erf", x)
    return _to_one(x, ERF, ERF_LIMIT, dtype)


def _to_one(
    x: Expr, parts: tuple[Sequence[float], Sequence[float]], limit: float, dtype: str
) -> Expr:
    """Return an odd rational function of `x`; beyond the limit it is exactly 1, so that gelu
    vanishes there."""
    square = let(x * x)
    above, below = (_polynomial(square, part, dtype) for part in parts)
    value = let(x * (above / below))
    one, most = constant(1, dtype), constant(limit, dtype)
    value = let(select(x >= most, one, value))
    return let(select(x <= -most, -one, value))


def gelu(x: Expr, dtype: str) -> Expr:
    """Return ``x`` times the distribution function of the normal distribution."""
    half, one = constant(0.5, dtype), constant(1, dtype)
    return x * half * (one + erf(x * constant(sqrt(0.5), dtype), dtype))


def gelu_tanh(x: Expr, dtype: str) -> Expr:
    """Return gelu, approximated by a hyperbolic tangent."""
    half, one, cube = (constant(value, dtype) for value in (0.5, 1, 0.044715))
    inner = x * constant(sqrt(2 / pi), dtype) * (one + cube * x * x)
    return x * half * (one + tanh(let(inner), dtype))


def exp(x: Expr, dtype: str) -> Expr:
    """Exponential function; an error of about 1 unit in the last place in float32.

    In float32, ``2**n * exp(r)`` with ``|r| <= log(2) / 2``: adding a large number rounds ``n``
    into the last bits of the sum, ``log(2)`` is subtracted in two parts, ``exp(r)`` is a polynomial
    of degree 7 (Cephes' ``expf``), and ``2**n`` is two factors made of their bits, which reach what
    one could not: the subnormal numbers, and infinity.
    """
    if dtype != "float32":
        return function("exp", x)
    low, high = (constant(limit, dtype) for limit in EXP_LIMITS)
    x = let(select(x < low, low, x))
    x = let(select(x > high, high, x))
    shifted = x * constant(LOG2_E, dtype) + constant(SHIFT, dtype)
    # By way of the bits: TVM would take `shifted - shift` apart again.
    n = let(bits(shifted, "int32") - constant(SHIFT_BITS, "int32"))
    whole = cast(n, "int32", dtype)
    rest = x - whole * constant(LOG_2[0], dtype)
    rest = let(rest - whole * constant(LOG_2[1], dtype))
    series = _polynomial(rest, EXP, dtype) * rest * rest + rest + constant(1, dtype)
    half = let(n >> 1)
    return series * _power_of_two(half, dtype) * _power_of_two(n - half, dtype)


def exp_below_zero(x: Expr, dtype: str, lanes: int) -> Expr:
    """Return the exponential function of a vector without positive elements, as softmax has it; an
    error of about 1.4 units in the last place of the result, plus 0.4 of those of 1, in float32.

    In float32, ``2**n * 2**r`` with ``|r| <= 1/2``: the sum with a large number has ``n + 127`` in
    its last bits, which are the exponent of ``2**n``, and ``2**r`` is a polynomial of degree 6 (a
    minimax fit of the relative error, 2e-9).  Results below the normal numbers are zero.
    """
    if dtype != "float32":
        return function("exp", x)
    shift, zero = SHIFT + EXPONENT_BIAS, broadcast(constant(0, dtype), lanes)
    binary = let(x * constant(LOG2_E, dtype))
    shifted = via_memory(binary + constant(shift, dtype), dtype, lanes)
    rest = let(binary - (shifted - constant(shift, dtype)))
    power = bits(bits(shifted, f"int32x{lanes}") << constant(23, "int32"), f"{dtype}x{lanes}")
    value = _polynomial(rest, EXP2, dtype) * power
    return select(x < broadcast(constant(EXP_NORMAL, dtype), lanes), zero, value)


def _power_of_two(n: Expr, dtype: str) -> Expr:
    return bits((n + constant(127, "int32")) << 23, dtype)


def _polynomial(x: Expr, coefficients: Sequence[float], dtype: str) -> Expr:
    """Evaluate a polynomial by Horner's rule; coefficients of the highest power first."""
    result = constant(coefficients[0], dtype)
    for coefficient in coefficients[1:]:
        result = result * x + constant(coefficient, dtype)
    return result


SHIFT = 12582912.0
"""1.5 * 2**23: a sum with it has no fraction, and the rounded number in its last bits."""

SHIFT_BITS = 0x4B400000
"""The bits of that number."""

LOG2_E = 1.44269504088896341

LOG_2 = (0.693359375, -2.12194440e-4)
"""The logarithm as a sum of two: products of the first with whole numbers are exact."""

EXP_LIMITS = (-104.0, 89.0)
"""Below the first exp is 0, above the second it is infinite."""

EXP_NORMAL = -87.3
"""Above it exp is a normal number."""

EXPONENT_BIAS = 127
"""Bias of the stored exponent of a float32 number."""

EXP2 = (
    1.5353362e-4, 1.3398875e-3, 9.6184369e-3, 5.5503324e-2, 2.4022648e-1, 6.9314718e-1, 1.0,
)  # fmt: skip
"""Coefficients of 2^r."""

TANH_LIMIT = 7.90531110763549805
"""Beyond it tanh is 1."""

TANH = (
    (
        -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
        1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)  # fmt: skip
"""Numerator and denominator, the highest power of x^2 first."""

ERF_LIMIT = 3.832506856900711
"""Beyond it erf is 1."""

ERF = (
    (
        2.2905065861350646e-4, 3.4082910107109506e-3, 5.0955695062380861e-2,
        1.8520832239976145e-1, 1.128379143519084,
    ),
    (
        -1.1791602954361697e-7, 2.3547966471313185e-5, 1.0179625278914885e-3,
        1.4070470171167667e-2, 1.1098505178285362e-1, 4.9746925110067538e-1, 1.0,
    ),
)  # fmt: skip
"""Numerator and denominator, the highest power of x^2 first."""

EXP = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
"""Coefficients of (exp(r) - 1 - r) / r^2."""
