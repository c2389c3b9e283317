# SPDX-License-Identifier: Apache-2.0
"""Loads and stores of neighbours by one instruction, where TVM cannot prove alignment."""

from __future__ import annotations

from . import once

FUNCTIONS = once(
    "VECTORS",
    r"""
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) TopiVector {
  T part[N];
};
// To shared memory, at a multiple of as many.
template <class T> static __device__ __forceinline__ void topi_put4(
    T* to, int at, T a, T b, T c, T d) {
  *(TopiVector<T, 4>*)(to + at) = {{a, b, c, d}};
}
template <class T> static __device__ __forceinline__ void topi_put2(T* to, int at, T a, T b) {
  *(TopiVector<T, 2>*)(to + at) = {{a, b}};
}
// To registers, from a multiple of four.
template <class T> static __device__ __forceinline__ void topi_load4(
    T* to, int at, const T* from, long long place) {
  TopiVector<T, 4> made = *(const TopiVector<T, 4>*)(from + place);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[at + i] = made.part[i];
}
// The same from a tensor that may begin anywhere, or zeros.
template <class To, class From> static __device__ __forceinline__ void topi_read4(
    To* to, int at, const From* from, long long place, bool here) {
  if (here && ((size_t)from & (sizeof(TopiVector<From, 4>) - 1)) == 0) {
    TopiVector<From, 4> made = *(const TopiVector<From, 4>*)(from + place);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[at + i] = (To)made.part[i];
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[at + i] = here ? (To)from[place + i] : To(0);
  }
}
""",
)
