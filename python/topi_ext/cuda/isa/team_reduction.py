# SPDX-License-Identifier: Apache-2.0
"""Sums and maxima over teams of threads: neighbouring threads of a block, a power of two of them.

Lanes of a warp exchange values by shuffles, warps of a team by shared memory.  The order of
additions is the same in every run, and all threads of a team get the same bits.
"""

from __future__ import annotations

from . import once

FUNCTIONS = once(
    "TEAM_REDUCTION",
    r"""
struct TopiSum {
  template <class T> static __device__ __forceinline__ T of(T a, T b) { return a + b; }
};
struct TopiMaximum {
  template <class T> static __device__ __forceinline__ T of(T a, T b) { return a > b ? a : b; }
};
template <class Op, int Lanes, class T> static __device__ __forceinline__ T topi_of_lanes(T value) {
#pragma unroll
  for (int apart = Lanes / 2; apart > 0; apart /= 2)
    value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, apart));
  return value;
}
// The values of a team's threads, combined in each of them.  All threads of a block call it; teams
// of several warps exchange them in held[slot] and behind it, which no other call uses.
template <class Op, int Team, class T> static __device__ __forceinline__ void topi_team(
    T* value, T* held, int slot, int thread) {
  constexpr int lanes = Team < 32 ? Team : 32, warps = Team / lanes;
  T all = topi_of_lanes<Op, lanes>(*value);
  if (warps > 1) {
    if (thread % 32 == 0) held[slot + thread / 32] = all;
    __syncthreads();
    all = topi_of_lanes<Op, warps>(held[slot + thread / Team * warps + thread % warps]);
  }
  *value = all;
}
""",
)
