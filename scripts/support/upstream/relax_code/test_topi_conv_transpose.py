# SPDX-License-Identifier: Apache-2.0
"""Transposed convolution of any rank, in any layout"""

import numpy as np
import pytest

import tvm
import tvm.testing
from tvm import te, topi
from tvm.topi.testing import conv_transpose_python

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}

# data size, kernel size, strides, padding, output_padding, dilation
WINDOWS = [
    ((7,), (4,), (2,), (1, 1), (0,), (1,)),
    ((5,), (3,), (3,), (0, 2), (2,), (2,)),
    ((4,), (3,), (2,), (1, 0), (2,), (4,)),
    ((5, 6), (4, 3), (2, 2), (1, 1, 1, 1), (0, 1), (1, 1)),
    ((3, 4), (2, 3), (3, 1), (0, 2, 1, 0), (2, 0), (1, 2)),
    ((1, 4), (1, 2), (4, 3), (0, 1, 0, 1), (3, 2), (1, 3)),
    ((3, 2, 3), (2, 3, 2), (2, 1, 2), (1, 0, 1, 0, 1, 0), (1, 0, 1), (1, 2, 1)),
]
LAYOUTS = {
    1: [("NCW", "IOW", "NCW"), ("NWC", "WIO", "NWC"), ("WNC", "OWI", "CNW")],
    2: [("NCHW", "IOHW", "NCHW"), ("NHWC", "HWOI", "NHWC"), ("CNWH", "HOIW", "NHWC")],
    3: [("NCDHW", "IODHW", "NCDHW"), ("NDHWC", "DHWIO", "NCDHW")],
}


def _permuted(array, layout, wanted):
    return np.ascontiguousarray(array.transpose([layout.index(axis) for axis in wanted]))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("window", WINDOWS)
def test_conv_transpose(window, groups):
    size, kernel, strides, padding, output_padding, dilation = window
    rank = len(size)
    canonical = "NC" + SPATIAL[rank], "IO" + SPATIAL[rank]
    rng = np.random.default_rng(0)
    a_np = rng.standard_normal((2, 4, *size))
    w_np = rng.standard_normal((4, 6 // groups, *kernel))
    expected = conv_transpose_python(a_np, w_np, strides, padding, output_padding, dilation, groups)
    for data_layout, kernel_layout, out_layout in LAYOUTS[rank]:
        a = _permuted(a_np, canonical[0], data_layout)
        w = _permuted(w_np, canonical[1], kernel_layout)
        A = te.placeholder(a.shape, "float64", "A")
        W = te.placeholder(w.shape, "float64", "W")
        B = topi.nn.conv_transpose(
            A,
            W,
            strides,
            padding,
            output_padding,
            dilation,
            groups,
            data_layout,
            kernel_layout,
            out_layout,
        )
        b = _permuted(expected, canonical[0], out_layout)
        assert tuple(int(extent) for extent in B.shape) == b.shape
        func = tvm.compile(te.create_prim_func([A, W, B]), "llvm")
        out = tvm.runtime.tensor(np.full(b.shape, np.nan))
        func(tvm.runtime.tensor(a), tvm.runtime.tensor(w), out)
        tvm.testing.assert_allclose(out.numpy(), b, rtol=1e-10, atol=1e-10)


def test_conv_transpose_float16_accumulates_in_float32():
    rng = np.random.default_rng(0)
    a_np = rng.standard_normal((1, 512, 3, 3)).astype("float16")
    w_np = rng.standard_normal((512, 2, 4, 4)).astype("float16")
    A = te.placeholder(a_np.shape, "float16", "A")
    W = te.placeholder(w_np.shape, "float16", "W")
    args = ((2, 2), (1, 1, 1, 1), (0, 0), (1, 1), 1)
    B = topi.nn.conv_transpose(A, W, *args, "NCHW", "IOHW")
    expected = conv_transpose_python(a_np.astype("float64"), w_np.astype("float64"), *args)
    func = tvm.compile(te.create_prim_func([A, W, B]), "llvm")
    out = tvm.runtime.tensor(np.zeros(expected.shape, "float16"))
    func(tvm.runtime.tensor(a_np), tvm.runtime.tensor(w_np), out)
    # rounded once, at the end: half a unit of 11 bits
    limit = 6e-4 * np.abs(expected).max()
    assert np.abs(out.numpy().astype("float64") - expected).max() < limit


def test_conv_transpose_multiplies_no_inserted_zeros():
    A = te.placeholder((1, 8, 5, 5), "float32", "A")
    W = te.placeholder((8, 4, 4, 4), "float32", "W")
    plan = topi.nn.ConvTranspose.of(
        A.shape, W.shape, (2, 2), (1, 1, 1, 1), (0, 0), (1, 1), 1, "NCHW", "IOHW"
    )
    phases = plan.phases(A, W, "float32")
    assert [int(axis.dom.extent) for axis in phases.op.reduce_axis] == [8, 2, 2]


if __name__ == "__main__":
    tvm.testing.main()
