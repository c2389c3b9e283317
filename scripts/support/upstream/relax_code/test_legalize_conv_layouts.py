# SPDX-License-Identifier: Apache-2.0
"""Convolutions in every layout without channel chunks"""

import numpy as np
import pytest

import tvm
import tvm.testing
from tvm import relax
from tvm.script import relax as R
from tvm.topi.testing import conv_transpose_python

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
LAYOUTS = [
    ("NCW", "IOW", "NCW"),
    ("NWC", "WIO", "NWC"),
    ("CWN", "OWI", "NCW"),
    ("NCHW", "IOHW", "NCHW"),
    ("NHWC", "HWIO", "NHWC"),
    ("NHWC", "HWOI", "NCHW"),
    ("NCWH", "OWHI", "HWNC"),
    ("NCDHW", "IODHW", "NCDHW"),
    ("NDHWC", "DHWIO", "NDHWC"),
    ("NCDHW", "HOIWD", "NDHWC"),
]


def _permuted(array, layout, wanted):
    return np.ascontiguousarray(array.transpose([layout.index(axis) for axis in wanted]))


def _run(op, arrays, **attrs):
    data, weight = [relax.Var(name, R.Tensor(a.shape, "float32")) for name, a in zip("xw", arrays)]
    bb = relax.BlockBuilder()
    with bb.function("main", [data, weight]):
        with bb.dataflow():
            out = bb.emit_output(op(data, weight, **attrs))
        bb.emit_func_output(out)
    vm = relax.VirtualMachine(tvm.compile(bb.get(), "llvm"), tvm.cpu())
    return vm["main"](*(tvm.runtime.tensor(a.astype("float32")) for a in arrays)).numpy()


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_conv_transpose(layouts):
    data_layout, kernel_layout, out_layout = layouts
    rank = len(data_layout) - 2
    spatial = SPATIAL[rank]
    rng = np.random.default_rng(0)
    size, kernel = (4, 5, 3)[:rank], (3, 2, 4)[:rank]
    strides, dilation, output_padding = (2, 3, 1)[:rank], (1, 2, 2)[:rank], (1, 0, 0)[:rank]
    padding = (1, 0, 2)[:rank] + (0, 1, 1)[:rank]
    data, weight = rng.standard_normal((2, 4, *size)), rng.standard_normal((4, 3, *kernel))
    expected = conv_transpose_python(
        data, weight, strides, padding, output_padding, dilation, groups=2
    )
    out = _run(
        getattr(relax.op.nn, f"conv{rank}d_transpose"),
        (
            _permuted(data, "NC" + spatial, data_layout),
            _permuted(weight, "IO" + spatial, kernel_layout),
        ),
        strides=strides,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=2,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_layout=out_layout,
    )
    wanted = _permuted(expected, "NC" + spatial, out_layout)
    tvm.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_conv(layouts):
    data_layout, kernel_layout, out_layout = layouts
    rank = len(data_layout) - 2
    spatial = SPATIAL[rank]
    rng = np.random.default_rng(0)
    size, kernel = (7, 8, 6)[:rank], (3, 2, 2)[:rank]
    strides, dilation = (2, 3, 1)[:rank], (1, 2, 2)[:rank]
    padding = (1, 0, 2)[:rank] + (0, 1, 1)[:rank]
    data, weight = rng.standard_normal((2, 4, *size)), rng.standard_normal((6, 2, *kernel))
    out = _run(
        getattr(relax.op.nn, f"conv{rank}d"),
        (
            _permuted(data, "NC" + spatial, data_layout),
            _permuted(weight, "OI" + spatial, kernel_layout),
        ),
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=2,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_layout=out_layout,
    )
    # A convolution is the adjoint of the transposed convolution by the same weight.
    y = _permuted(out, out_layout, "NC" + spatial)
    seed = rng.standard_normal(y.shape)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    extra = [
        i - ((o - 1) * s + r - b - a)
        for i, o, s, r, b, a in zip(
            size, y.shape[2:], strides, reach, padding[:rank], padding[rank:]
        )
    ]
    adjoint = conv_transpose_python(seed, weight, strides, padding, extra, dilation, groups=2)
    tvm.testing.assert_allclose((y * seed).sum(), (adjoint * data).sum(), rtol=1e-4, atol=1e-3)


def test_channel_chunks_are_left_to_code_generators():
    data = relax.Var("x", R.Tensor((1, 2, 8, 8, 4), "float32"))
    weight = relax.Var("w", R.Tensor((2, 2, 3, 3, 4, 4), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [data, weight]):
        out = bb.emit(
            relax.op.nn.conv2d(data, weight, data_layout="NCHW4c", kernel_layout="OIHW4i4o")
        )
        bb.emit_func_output(out)
    mod = relax.transform.LegalizeOps()(bb.get())
    assert "R.nn.conv2d" in mod.script()


if __name__ == "__main__":
    tvm.testing.main()
