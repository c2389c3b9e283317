# SPDX-License-Identifier: Apache-2.0
"""Sums over the threads of a block, halved in each step, in the same order in every run.

TVM inserts its own barriers between statements on shared memory, and rejects them in a branch.
"""

from __future__ import annotations

from . import once

FUNCTIONS = once(
    "BLOCK_SUMS",
    r"""
// Each of N values of threads whose numbers are equal modulo `apart`, added up in the first ones.
template <int N, class T> static __device__ __forceinline__ void topi_block_sums(
    T* held, T* values, int thread, int threads, int apart) {
#pragma unroll
  for (int i = 0; i < N; ++i) held[i * threads + thread] = values[i];
  for (int half = threads / 2; half >= apart; half /= 2) {
    __syncthreads();
    if (thread < half) {
#pragma unroll
      for (int i = 0; i < N; ++i) held[i * threads + thread] += held[i * threads + thread + half];
    }
  }
  if (thread < apart) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = held[i * threads + thread];
  }
}
""",
)
