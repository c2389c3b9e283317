# SPDX-License-Identifier: Apache-2.0
"""Small kernels for the tests of the emulator, as TVMScript."""

import tvm
from tvm.script import tirx as T

# TVM pastes the text once for each kernel that asks for it, so it guards itself.
COPIES_AND_MATRICES = r"""
#ifndef EMU_TEST_HELPERS
#define EMU_TEST_HELPERS
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
               : "r"(emu_test_shared(a + (i % 16 * 32 + i / 16 * 16) / sizeof(T))) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(y[0]), "=r"(y[1])
               : "r"(emu_test_shared(b + (i % 8 * 32 + i / 8 % 2 * 16) / sizeof(T))) : "memory");
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}
#endif
"""


@T.prim_func(s_tir=True)
def total(x: T.handle, y: T.handle):
    n = T.int64()
    a = T.match_buffer(x, (n, 64), "float32")
    b = T.match_buffer(y, (n,), "float32")
    with T.launch_thread("blockIdx.x", n) as bx:
        tx = T.launch_thread("threadIdx.x", 64)
        s = T.alloc_buffer((64,), "float32", scope="shared")
        s[tx] = a[bx, tx]
        T.evaluate(T.tvm_storage_sync("shared"))
        for i in range(6):
            if tx < T.shift_right(32, i):
                s[tx] = s[tx] + s[tx + T.shift_right(32, i)]
            T.evaluate(T.tvm_storage_sync("shared"))
        if tx == 0:
            b[bx] = s[0]


@T.prim_func(s_tir=True)
def pairs(x: T.handle, y: T.handle):
    n = T.int64()
    a = T.match_buffer(x, (n,), "float32")
    b = T.match_buffer(y, (T.shift_right(n, T.int64(1)),), "float32")
    bx = T.launch_thread("blockIdx.x", T.shift_right(n, T.int64(1)))
    b[bx] = a[2 * bx] + a[2 * bx + 1]


@T.prim_func(s_tir=True)
def two_kernels(x: T.handle, y: T.handle, k: T.int64):
    n = T.int64()
    a = T.match_buffer(x, (n, 4), "float32")
    b = T.match_buffer(y, (n + k,), "float32")
    w = T.alloc_buffer((n, 4), "float32")
    with T.launch_thread("blockIdx.x", n) as bx:
        tx = T.launch_thread("threadIdx.x", 4)
        s = T.alloc_buffer((4,), "float32", scope="shared.dyn")
        s[tx] = a[bx, tx]
        T.evaluate(T.tvm_storage_sync("shared"))
        w[bx, tx] = s[tx] + s[3 - tx]
    with T.launch_thread("blockIdx.x", n + k) as by:
        ty = T.launch_thread("threadIdx.x", 4)
        if ty == 0:
            if by < n:
                b[by] = w[by, 0] + w[by, 1] + w[by, 2] + w[by, 3] + T.Cast("float32", k)
            else:
                b[by] = T.float32(7) + T.Cast("float32", k)


def product(dtype: str, width: int):
    """Multiply two matrices with rows of 32 bytes by one mma for halves, whatever it computes for
    other dtypes.

    `width` is the number of elements of 16 bytes, which a thread copies.
    """

    @T.prim_func(s_tir=True)
    def kernel(a_: T.handle, b_: T.handle, c: T.Buffer((16, 8), "float32")):
        a = T.match_buffer(a_, (32 * width,), dtype)
        b = T.match_buffer(b_, (16 * width,), dtype)
        with T.launch_thread("blockIdx.x", 1):
            tx = T.launch_thread("threadIdx.x", 32)
            with T.attr(T.int32(0), "pragma_import_c", COPIES_AND_MATRICES):
                p = T.alloc_buffer((32 * width,), dtype, scope="shared")
                q = T.alloc_buffer((16 * width,), dtype, scope="shared")
                z = T.alloc_buffer((4,), "float32", scope="local")
                for i in range(4):
                    z[i] = T.float32(0)
                T.call_extern("void", "emu_test_copy", p.data, tx * width, a.data, tx * width)
                if tx < 16:
                    T.call_extern("void", "emu_test_copy", q.data, tx * width, b.data, tx * width)
                T.call_extern("void", "emu_test_wait")
                T.evaluate(T.tvm_storage_sync("shared"))
                T.call_extern("void", "emu_test_product", z.data, p.data, q.data, tx)
                for i in range(4):
                    c[tx // 4 + i // 2 * 8, tx % 4 * 2 + i % 2] = z[i]

    return kernel


@T.prim_func(s_tir=True)
def halves(a: T.Buffer((64,), "float16"), b: T.Buffer((64,), "float16")):
    tx = T.launch_thread("threadIdx.x", 64)
    b[tx] = a[tx] * a[tx] + T.float16(1.5)


@T.prim_func(s_tir=True)
def bfloats(a: T.Buffer((64,), "bfloat16"), b: T.Buffer((64,), "bfloat16")):
    tx = T.launch_thread("threadIdx.x", 64)
    b[tx] = a[tx] * a[tx] + T.bfloat16(1.5)


@T.prim_func(s_tir=True)
def dots(a: T.Buffer((32, 4), "int8"), b: T.Buffer((32, 4), "int8"), c: T.Buffer((1,), "int32")):
    tx = T.launch_thread("threadIdx.x", 32)
    s = T.alloc_buffer((1,), "int32", scope="local")
    s[0] = T.call_pure_extern(
        "int32", "__dp4a", a[tx, T.Ramp(0, 1, 4)], b[tx, T.Ramp(0, 1, 4)], T.int32(0)
    )
    for i in range(5):
        s[0] = s[0] + T.tvm_warp_shuffle_down(
            T.uint32(0xFFFFFFFF), s[0], T.shift_right(16, i), 32, 32
        )
    if tx == 0:
        c[0] = s[0]


@T.prim_func(s_tir=True)
def barriers(a: T.Buffer((128,), "float32")):
    tx = T.launch_thread("threadIdx.x", 128)
    s = T.alloc_buffer((128,), "float32", scope="shared")
    s[tx] = T.float32(0)
    for _ in range(1000):
        s[tx] = s[tx] + T.float32(2)
        T.evaluate(T.tvm_storage_sync("shared"))
    a[tx] = s[tx]


@T.prim_func(s_tir=True)
def racy(
    a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32"), c: T.Buffer((64,), "float32")
):
    # Through global memory: between uses of shared memory TVM puts barriers itself.
    tx = T.launch_thread("threadIdx.x", 64)
    b[tx] = a[tx]
    c[tx] = b[63 - tx]


KERNELS = tvm.IRModule(
    {
        name: function.with_attr("global_symbol", name)
        for name, function in {
            "total": total,
            "pairs": pairs,
            "two_kernels": two_kernels,
            "matrices": product("float16", 8),
            "rows_of_bytes": product("uint8", 16),
            "halves": halves,
            "bfloats": bfloats,
            "dots": dots,
            "barriers": barriers,
            "racy": racy,
        }.items()
    }
)
