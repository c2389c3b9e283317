# SPDX-License-Identifier: Apache-2.0
"""Four products of bytes by one instruction, summed in 32 bits."""

from __future__ import annotations

from collections.abc import Callable

from ...compat import extern_value
from ..emit import Array, Expr
from . import once

BYTES = {"int8": "s32", "uint8": "u32"}
"""PTX type of four bytes, by their dtype."""

_TEXT = r"""
// Four bytes, of which those from `count` on are zero.
template <class T> static __device__ __forceinline__ int topi_word(
    const T* from, long long at, long long stride, int count) {
  const T* place = from + at;
  if (stride == 1 && count >= 4 && ((size_t)place & 3) == 0) return *(const int*)place;
  int made = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) made |= (int)(unsigned char)place[i * stride] << (8 * i);
  return made;
}
"""

_PRODUCT = r"""
static __device__ __forceinline__ int topi_dp4a_A_B(int a, int b, int total) {
  int made;
  asm volatile("dp4a.A.B %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(b), "r"(total));
  return made;
}
"""


def functions(first: str, second: str) -> str:
    """Return the device functions for these dtypes of data and weights."""
    a, b = BYTES[first], BYTES[second]
    product = _PRODUCT.replace("A_B", f"{a}_{b}").replace("A.B", f"{a}.{b}")
    return once("WORDS", _TEXT) + once(f"DP4A_{a}_{b}".upper(), product)


def word(source: Array, at: Expr, stride: Expr, count: Expr) -> Expr:
    """Return four elements `stride` apart as one word; if there are fewer, the others are zero."""
    return extern_value("int32", "topi_word", source.buffer.data, at, stride, count)


def add_four(first: str, second: str) -> Callable[[Expr, Expr, Expr], Expr]:
    """Return the function that adds four products of these dtypes to a sum."""
    name = f"topi_dp4a_{BYTES[first]}_{BYTES[second]}"
    return lambda total, a, b: extern_value("int32", name, a, b, total)
