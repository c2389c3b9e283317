# SPDX-License-Identifier: Apache-2.0
"""Products of tensor cores, and copies to shared memory that need no register, from PTX.

TVM has intrinsics of its own for these, whose names and arguments change from release to release.
Places in shared memory are bytes behind the start of one array.
"""

from __future__ import annotations

COPIES = r"""
static __device__ __forceinline__ unsigned topi_shared(const void* place) {
  return (unsigned)__cvta_generic_to_shared(place);
}
// 16 bytes to shared memory, or zeros; at once where the tensor begins anywhere.
template <class T> static __device__ __forceinline__ void topi_copy16(
    float* arena, int byte, const T* from, long long at, bool here) {
  const T* source = from + (here ? at : 0);
  if (((size_t)from & 15) == 0) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "r"(topi_shared(arena) + byte), "l"(source), "r"(here ? 16 : 0) : "memory");
  } else {
    T* to = (T*)((char*)arena + byte);
    for (int i = 0; i < (int)(16 / sizeof(T)); ++i) to[i] = here ? source[i] : T(0.0f);
  }
}
static __device__ __forceinline__ void topi_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void topi_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
static __device__ __forceinline__ void topi_wait0() { topi_wait<0>(); }
static __device__ __forceinline__ void topi_wait1() { topi_wait<1>(); }
static __device__ __forceinline__ void topi_wait2() { topi_wait<2>(); }
static __device__ __forceinline__ void topi_wait3() { topi_wait<3>(); }
template <class T> static __device__ __forceinline__ void topi_keep2(
    float* arena, int byte, T value) {
  *(T*)((char*)arena + byte) = value;
}
// 16 bytes of registers to shared memory.
template <class T> static __device__ __forceinline__ void topi_keep16(
    float* arena, int byte, const T* from, int at) {
  const unsigned short* bits = (const unsigned short*)(from + at);
  uint4 made;
  made.x = bits[0] | (unsigned)bits[1] << 16;
  made.y = bits[2] | (unsigned)bits[3] << 16;
  made.z = bits[4] | (unsigned)bits[5] << 16;
  made.w = bits[6] | (unsigned)bits[7] << 16;
  *(uint4*)((char*)arena + byte) = made;
}
"""
"""Of halves: 8 at a time."""

FRAGMENTS = r"""
static __device__ __forceinline__ void topi_load_matrix(
    unsigned* to, int at, const float* arena, int byte) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(to[at]), "=r"(to[at + 1]), "=r"(to[at + 2]), "=r"(to[at + 3])
    : "r"(topi_shared(arena) + byte) : "memory");
}
static __device__ __forceinline__ void topi_load_matrix_transposed(
    unsigned* to, int at, const float* arena, int byte) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(to[at]), "=r"(to[at + 1]), "=r"(to[at + 2]), "=r"(to[at + 3])
    : "r"(topi_shared(arena) + byte) : "memory");
}
"""

_PRODUCT = r"""
static __device__ __forceinline__ void topi_multiply(
    float* sums, int at, const unsigned* a, int i, const unsigned* b, int j) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 "
    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(sums[at]), "+f"(sums[at + 1]), "+f"(sums[at + 2]), "+f"(sums[at + 3])
    : "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3]), "r"(b[j]), "r"(b[j + 1]));
}
"""

_NAMES = {"float16": "f16", "bfloat16": "bf16"}


def functions(dtype: str) -> str:
    """The device functions of products of float16 or bfloat16, added up in float32."""
    return COPIES + FRAGMENTS + _PRODUCT.replace("TYPE", _NAMES[dtype])
