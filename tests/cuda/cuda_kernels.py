# SPDX-License-Identifier: Apache-2.0
"""Small kernels for the tests of the emulator, as TVMScript."""

from tvm.script import ir as I
from tvm.script import tirx as T

COPIES_AND_MATRICES = r"""
static __device__ __forceinline__ unsigned emu_test_shared(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}
template <class T>
static __device__ __forceinline__ void emu_test_copy(T* to, int at, const T* from, int where) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(emu_test_shared(to + at)), "l"(from + where), "r"(16) : "memory");
}
static __device__ __forceinline__ void emu_test_wait() {
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}
template <class T>
static __device__ __forceinline__ void emu_test_product(float* c, const T* a, const T* b, int i) {
  unsigned x[4], y[2];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(emu_test_shared(a + i % 16 * 16 + i / 16 * 8)) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(y[0]), "=r"(y[1])
               : "r"(emu_test_shared(b + i % 8 * 16 + i / 8 % 2 * 8)) : "memory");
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}
"""


@I.ir_module
class KERNELS:
    @T.prim_func(s_tir=True)
    def total(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, 64), "float32")
        B = T.match_buffer(b, (n,), "float32")
        with T.launch_thread("blockIdx.x", n) as bx:
            tx = T.launch_thread("threadIdx.x", 64)
            S = T.alloc_buffer((64,), "float32", scope="shared")
            S[tx] = A[bx, tx]
            T.evaluate(T.tvm_storage_sync("shared"))
            for i in range(6):
                if tx < T.shift_right(32, i):
                    S[tx] = S[tx] + S[tx + T.shift_right(32, i)]
                T.evaluate(T.tvm_storage_sync("shared"))
            if tx == 0:
                B[bx] = S[0]

    @T.prim_func(s_tir=True)
    def two_kernels(a: T.handle, b: T.handle, k: T.int64):
        n = T.int64()
        A = T.match_buffer(a, (n, 4), "float32")
        B = T.match_buffer(b, (n + k,), "float32")
        W = T.alloc_buffer((n, 4), "float32")
        with T.launch_thread("blockIdx.x", n) as bx:
            tx = T.launch_thread("threadIdx.x", 4)
            S = T.alloc_buffer((4,), "float32", scope="shared.dyn")
            S[tx] = A[bx, tx]
            T.evaluate(T.tvm_storage_sync("shared"))
            W[bx, tx] = S[tx] + S[3 - tx]
        with T.launch_thread("blockIdx.x", n + k) as by:
            ty = T.launch_thread("threadIdx.x", 4)
            if ty == 0:
                if by < n:
                    B[by] = W[by, 0] + W[by, 1] + W[by, 2] + W[by, 3] + T.Cast("float32", k)
                else:
                    B[by] = T.float32(7) + T.Cast("float32", k)

    @T.prim_func(s_tir=True)
    def matrices(
        A: T.Buffer((256,), "float16"),
        B: T.Buffer((128,), "float16"),
        C: T.Buffer((16, 8), "float32"),
    ):
        with T.launch_thread("blockIdx.x", 1):
            tx = T.launch_thread("threadIdx.x", 32)
            with T.attr(T.int32(0), "pragma_import_c", COPIES_AND_MATRICES):
                X = T.alloc_buffer((256,), "float16", scope="shared")
                Y = T.alloc_buffer((128,), "float16", scope="shared")
                Z = T.alloc_buffer((4,), "float32", scope="local")
                for i in range(4):
                    Z[i] = T.float32(0)
                T.call_extern("void", "emu_test_copy", X.data, tx * 8, A.data, tx * 8)
                if tx < 16:
                    T.call_extern("void", "emu_test_copy", Y.data, tx * 8, B.data, tx * 8)
                T.call_extern("void", "emu_test_wait")
                T.evaluate(T.tvm_storage_sync("shared"))
                T.call_extern("void", "emu_test_product", Z.data, X.data, Y.data, tx)
                for i in range(4):
                    C[tx // 4 + i // 2 * 8, tx % 4 * 2 + i % 2] = Z[i]

    @T.prim_func(s_tir=True)
    def halves(A: T.Buffer((64,), "float16"), B: T.Buffer((64,), "float16")):
        tx = T.launch_thread("threadIdx.x", 64)
        B[tx] = A[tx] * A[tx] + T.float16(1.5)

    @T.prim_func(s_tir=True)
    def bfloats(A: T.Buffer((64,), "bfloat16"), B: T.Buffer((64,), "bfloat16")):
        tx = T.launch_thread("threadIdx.x", 64)
        B[tx] = A[tx] * A[tx] + T.bfloat16(1.5)

    @T.prim_func(s_tir=True)
    def dots(
        A: T.Buffer((32, 4), "int8"), B: T.Buffer((32, 4), "int8"), C: T.Buffer((1,), "int32")
    ):
        tx = T.launch_thread("threadIdx.x", 32)
        S = T.alloc_buffer((1,), "int32", scope="local")
        S[0] = T.call_pure_extern(
            "int32", "__dp4a", A[tx, T.Ramp(0, 1, 4)], B[tx, T.Ramp(0, 1, 4)], T.int32(0)
        )
        for i in range(5):
            S[0] = S[0] + T.tvm_warp_shuffle_down(
                T.uint32(0xFFFFFFFF), S[0], T.shift_right(16, i), 32, 32
            )
        if tx == 0:
            C[0] = S[0]

    @T.prim_func(s_tir=True)
    def barriers(A: T.Buffer((128,), "float32")):
        tx = T.launch_thread("threadIdx.x", 128)
        S = T.alloc_buffer((128,), "float32", scope="shared")
        S[tx] = T.float32(0)
        for _ in range(1000):
            S[tx] = S[tx] + T.float32(2)
            T.evaluate(T.tvm_storage_sync("shared"))
        A[tx] = S[tx]

    @T.prim_func(s_tir=True)
    def racy(
        A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")
    ):
        # Through global memory: between uses of shared memory TVM puts barriers itself.
        tx = T.launch_thread("threadIdx.x", 64)
        B[tx] = A[tx]
        C[tx] = B[63 - tx]
