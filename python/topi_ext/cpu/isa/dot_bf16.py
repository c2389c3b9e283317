# SPDX-License-Identifier: Apache-2.0
"""Dot products of pairs of bfloat16 numbers.

A pair has 32 bits, the even element in the lower half.  Numbers below the normal range count as
zero where pairs are multiplied; sums are float32 and rounded to nearest.

Source: Intel Architecture Instruction Set Extensions Programming Reference, AVX512_BF16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ... import compat
from .. import emit
from ..emit import Array, Expr, Operand

PAIR = "int32"
"""Dtype of a pair."""

LANES = 16
"""Pairs that one instruction multiplies."""

_DOT = "topi_ext_dot"

INSTRUCTION = f"""
define <{LANES} x float> @{_DOT}(<{LANES} x float> %sum, <{LANES} x i32> %a, <{LANES} x i32> %b) {{
  %x = bitcast <{LANES} x i32> %a to <{2 * LANES} x bfloat>
  %y = bitcast <{LANES} x i32> %b to <{2 * LANES} x bfloat>
  %result = call <{LANES} x float> @llvm.x86.avx512bf16.dpbf16ps.512(
      <{LANES} x float> %sum, <{2 * LANES} x bfloat> %x, <{2 * LANES} x bfloat> %y)
  ret <{LANES} x float> %result
}}
declare <{LANES} x float> @llvm.x86.avx512bf16.dpbf16ps.512(
    <{LANES} x float>, <{2 * LANES} x bfloat>, <{2 * LANES} x bfloat>)
"""
"""LLVM's intrinsic with pairs for operands: TVM has no vectors of bfloat16 to call it with."""


@contextmanager
def instruction() -> Iterator[None]:
    """Statements inside may call :func:`add_products`."""
    with compat.imported_llvm(INSTRUCTION):
        yield


def add_products(sums: Expr, a: Expr, b: Expr) -> Expr:
    """``sums + a.even * b.even + a.odd * b.odd`` of vectors of :data:`LANES` pairs."""
    return compat.extern_value(f"float32x{LANES}", _DOT, sums, a, b)


class Pairs(Operand):
    """An operand of bfloat16 read in pairs of neighbouring channels, its number of channels even.

    Takes the place of an :class:`~topi_ext.emit.operands.Operand` whose channels are the pairs.
    """

    def __init__(self, operand: Operand):
        Array.__init__(self, operand.buffer, operand.dtype)
        self.step = operand.strides["C"]
        self.strides = {**operand.strides, "C": 2 * self.step}

    def load(self, index: Expr, dtype: str) -> Expr:
        """Return the pair whose first element is at `index`, as `dtype`."""
        return emit.cast(pair(self[index], self[index + self.step]), PAIR, dtype)


class Halves(Operand):
    """An operand of bfloat16 that is stored in pairs, behind `start` of them; it is only read."""

    def __init__(self, pairs: Array, start: int, order: str, shape: Sequence[Expr]):
        super().__init__(pairs.buffer, pairs.dtype, order, shape)
        self.start = start

    def load(self, index: Expr, dtype: str) -> Expr:
        """One element as `dtype`."""
        both = self[self.start + emit.quotient(index, 2)]
        shift = emit.constant(16, PAIR)
        high = both & emit.constant(-(1 << 16), PAIR)
        bits = emit.select(emit.remainder(index, 2) > 0, high, both << shift)
        return emit.cast(emit.bits(bits, "float32"), "float32", dtype)


def pair(even: Expr, odd: Expr) -> Expr:
    """Two numbers of dtype bfloat16 as a pair."""
    low, high = (emit.bits(value, "uint16").astype(PAIR) for value in (even, odd))
    return low | (high << emit.constant(16, PAIR))
