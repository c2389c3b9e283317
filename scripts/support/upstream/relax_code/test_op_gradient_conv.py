# SPDX-License-Identifier: Apache-2.0
"""Gradients of convolutions

Convolutions are linear in each operand: <grad of x, v> is <conv(v, w), output grad> for every v.
"""

import numpy as np
import pytest

import tvm
import tvm.testing
from tvm import relax
from tvm.script import relax as R

# operator, data shape, weight shape, attributes
CASES = [
    ("conv1d", (2, 4, 13), (6, 4, 3), {"strides": 2, "padding": 2, "dilation": 3}),
    ("conv1d", (2, 13, 4), (3, 4, 6), {"data_layout": "NWC", "kernel_layout": "WIO"}),
    ("conv2d", (2, 4, 7, 8), (6, 4, 3, 3), {"strides": 2, "padding": 1}),
    ("conv2d", (2, 4, 11, 12), (6, 2, 3, 2), {"strides": 2, "dilation": 2, "groups": 2}),
    ("conv2d", (1, 4, 9, 9), (4, 1, 3, 3), {"groups": 4, "padding": (1, 0, 2, 1)}),
    (
        "conv2d",
        (2, 7, 8, 4),
        (3, 3, 4, 6),
        {"strides": 2, "padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
    ("conv2d", (2, 4, 7, 8), (6, 4, 3, 3), {"dtype": "float16", "out_dtype": "float32"}),
    ("conv3d", (1, 3, 5, 6, 7), (4, 3, 3, 2, 3), {"strides": (1, 2, 2), "padding": 1}),
    ("conv1d_transpose", (2, 4, 7), (4, 6, 4), {"strides": 2, "padding": 1}),
    (
        "conv2d_transpose",
        (2, 4, 4, 5),
        (4, 3, 4, 3),
        {"strides": 2, "padding": 1, "output_padding": 1, "groups": 2},
    ),
    (
        "conv2d_transpose",
        (2, 4, 5, 4),
        (3, 2, 6, 4),
        {"dilation": (2, 3), "strides": (3, 2), "data_layout": "NCWH", "kernel_layout": "HWOI"},
    ),
    (
        "conv3d_transpose",
        (1, 2, 3, 3, 3),
        (2, 3, 2, 3, 4),
        {
            "strides": 2,
            "padding": 1,
            "output_padding": 1,
            "data_layout": "NDHWC",
            "kernel_layout": "DHWIO",
        },
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_gradient(case):
    name, data_shape, weight_shape, attrs = case
    rng = np.random.default_rng(0)
    rank = len(data_shape) - 2
    attrs = {"data_layout": "NC" + "DHW"[3 - rank :], **attrs}
    default = "IO" if name.endswith("transpose") else "OI"
    attrs = {"kernel_layout": default + "DHW"[3 - rank :], **attrs}
    for key, count in (("strides", 1), ("dilation", 1), ("padding", 2), ("output_padding", 1)):
        if isinstance(attrs.get(key), int):
            attrs[key] = (attrs[key],) * (rank * count)
    dtype = attrs.pop("dtype", "float32")
    op = getattr(relax.op.nn, name)

    x = relax.Var("x", R.Tensor(data_shape, dtype))
    w = relax.Var("w", R.Tensor(weight_shape, dtype))
    bb = relax.BlockBuilder()
    out = bb.normalize(op(x, w, **attrs))
    out_shape = [int(extent) for extent in out.ty.shape]
    seed = relax.Var("seed", R.Tensor(out_shape, "float32"))
    with bb.function("main", [x, w, seed]):
        with bb.dataflow():
            y = bb.emit(op(x, w, **attrs))
            loss = bb.emit_output(relax.op.sum(relax.op.multiply(y, seed)))
        bb.emit_func_output(loss)
    mod = relax.transform.Gradient("main", require_grads=[x, w])(bb.get())
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())

    def random(shape, dtype=dtype):
        return rng.standard_normal(shape).astype(dtype)

    def run(func, *arrays):
        return vm[func](*(tvm.runtime.tensor(array) for array in arrays))

    data, weight, output_grad = (
        random(data_shape),
        random(weight_shape),
        random(out_shape, "float32"),
    )
    _, (data_grad, weight_grad) = run("main_adjoint", data, weight, output_grad)
    assert data_grad.numpy().shape == data.shape
    assert weight_grad.numpy().shape == weight.shape

    def dot(grad, v):
        return (grad.numpy().astype("float64") * v).sum()

    # gradients in float16 are rounded to 11 bits
    rtol, atol = (1e-2, 0.5) if dtype == "float16" else (1e-3, 1e-2)
    for _ in range(3):
        v = random(data_shape)
        expected = run("main", v, weight, output_grad).numpy()
        tvm.testing.assert_allclose(dot(data_grad, v), expected, rtol=rtol, atol=atol)
        v = random(weight_shape)
        expected = run("main", data, v, output_grad).numpy()
        tvm.testing.assert_allclose(dot(weight_grad, v), expected, rtol=rtol, atol=atol)


def test_gradient_of_channel_chunks_is_refused():
    x = relax.Var("x", R.Tensor((1, 2, 8, 8, 4), "float32"))
    w = relax.Var("w", R.Tensor((2, 2, 3, 3, 4, 4), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.conv2d(x, w, data_layout="NCHW4c", kernel_layout="OIHW4i4o"))
            loss = bb.emit_output(relax.op.sum(y))
        bb.emit_func_output(loss)
    with pytest.raises(ValueError, match="channel chunks"):
        relax.transform.Gradient("main")(bb.get())


if __name__ == "__main__":
    tvm.testing.main()
