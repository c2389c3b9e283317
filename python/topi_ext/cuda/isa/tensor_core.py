# SPDX-License-Identifier: Apache-2.0
"""Products on tensor cores, and copies to shared memory that need no register, as PTX.

TVM has intrinsics for these, but their names and arguments change from release to release.
Addresses in shared memory are byte offsets from the start of one array.
"""

from __future__ import annotations

from . import once

COPIES = r"""
static __device__ __forceinline__ unsigned topi_shared(const void* place) {
  return (unsigned)__cvta_generic_to_shared(place);
}
// Whether one more tensor begins at a multiple of 16.
static __device__ __forceinline__ void topi_begins_at_16(int* all, const void* tensor) {
  *all &= ((size_t)tensor & 15) == 0;
}
// 16 bytes to shared memory, or zeros, of a tensor that begins at a multiple of 16.
template <class T> static __device__ __forceinline__ void topi_copy16(
    float* arena, int byte, const T* from, long long at, bool here) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
    :: "r"(topi_shared(arena) + byte), "l"(from + (here ? at : 0)), "r"(here ? 16 : 0) : "memory");
}
// The same of a tensor that begins anywhere, at once.
template <class T> static __device__ __forceinline__ void topi_copy16_anywhere(
    float* arena, int byte, const T* from, long long at, bool here) {
  const T* source = from + (here ? at : 0);
  T* to = (T*)((char*)arena + byte);
  for (int i = 0; i < (int)(16 / sizeof(T)); ++i) to[i] = here ? source[i] : T(0.0f);
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
  struct alignas(16) Chunk { T part[16 / sizeof(T)]; } made;
#pragma unroll
  for (int i = 0; i < (int)(16 / sizeof(T)); ++i) made.part[i] = from[at + i];
  *(Chunk*)((char*)arena + byte) = made;
}
"""

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
static __device__ __forceinline__ void topi_multiply_TYPE(
    float* sums, int at, const unsigned* a, int i, const unsigned* b, int j) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 "
    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(sums[at]), "+f"(sums[at + 1]), "+f"(sums[at + 2]), "+f"(sums[at + 3])
    : "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3]), "r"(b[j]), "r"(b[j + 1]));
}
"""

_PRODUCT_3XTF32 = r"""
static __device__ __forceinline__ void topi_add_tf32(
    float* sums, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// A number as a sum of two of TF32: the bits that TF32 has, and what is left.
static __device__ __forceinline__ void topi_split(
    unsigned value, unsigned* large, unsigned* small) {
  *large = value & 0xffffe000u;
  *small = __float_as_uint(__uint_as_float(value) - __uint_as_float(*large));
}
static __device__ __forceinline__ void topi_multiply_tf32(
    float* sums, int at, const unsigned* a, int i, const unsigned* b, int j) {
  unsigned large_a[4], small_a[4], large_b[2], small_b[2];
#pragma unroll
  for (int n = 0; n < 4; ++n) topi_split(a[i + n], &large_a[n], &small_a[n]);
#pragma unroll
  for (int n = 0; n < 2; ++n) topi_split(b[j + n], &large_b[n], &small_b[n]);
  // Tensor cores cut sums off, float32 rounds them: each step's is added by the lanes.
  float step[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  topi_add_tf32(step, small_a, large_b);
  topi_add_tf32(step, large_a, small_b);
  topi_add_tf32(step, large_a, large_b);
#pragma unroll
  for (int n = 0; n < 4; ++n) sums[at + n] += step[n];
}
"""

_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}
"""PTX type of the operands, by their dtype."""


def multiply(dtype: str) -> str:
    """Return the name of the function that multiplies fragments of this dtype."""
    return f"topi_multiply_{_TYPES[dtype]}"


def functions(dtype: str) -> str:
    """Return the device functions that multiply float16, bfloat16 or float32 and sum in float32."""
    name = _TYPES[dtype]
    product = _PRODUCT_3XTF32 if dtype == "float32" else _PRODUCT.replace("TYPE", name)
    texts = {"COPIES": COPIES, "FRAGMENTS": FRAGMENTS, f"MULTIPLY_{name.upper()}": product}
    return "".join(once(*item) for item in texts.items())
