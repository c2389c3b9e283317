# SPDX-License-Identifier: Apache-2.0
"""Loads and stores of neighbouring elements: 16 bytes at a time where the address is a multiple of
16, else one at a time.
"""

from __future__ import annotations

from . import once

FUNCTIONS = once(
    "RUNS",
    r"""
// N values of at most 16 bytes from in[at] on, as registers from to[first] on; or zeros.
template <int N, class To, class From> static __device__ __forceinline__ void topi_read_run(
    To* to, int first, const From* in, long long at, bool here) {
  struct alignas(sizeof(From) * N) Wide { From part[N]; };
  const From* from = in + at;
  if (here && ((size_t)from & (sizeof(Wide) - 1)) == 0) {
    Wide read = *(const Wide*)from;
#pragma unroll
    for (int i = 0; i < N; ++i) to[first + i] = (To)read.part[i];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[first + i] = here ? (To)from[i] : To(0);
  }
}
// The first `count` of N values, to out[at] and behind it.
template <int N, class T> static __device__ __forceinline__ void topi_store_run(
    T* out, long long at, const T* values, int count) {
  constexpr int most = 16 / sizeof(T), even = N & -N, wide = even < most ? even : most;
  struct alignas(sizeof(T) * wide) Wide { T part[wide]; };
  T* to = out + at;
  if (count >= N && ((size_t)to & (sizeof(Wide) - 1)) == 0) {
#pragma unroll
    for (int i = 0; i < N / wide; ++i) {
      Wide made;
#pragma unroll
      for (int j = 0; j < wide; ++j) made.part[j] = values[i * wide + j];
      ((Wide*)to)[i] = made;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) if (i < count) to[i] = values[i];
  }
}
""",
)
