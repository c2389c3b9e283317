# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions of any layout, dilation and groups, and gradients of convolutions"""

import numpy as np
import pytest

import tvm
import tvm.testing
from tvm import relay
from tvm.topi.testing import conv_transpose_python

# operator, data shape, weight shape, attributes
FORWARD = [
    ("conv1d_transpose", (2, 4, 7), (4, 3, 3), dict(groups=2, strides=3, dilation=2)),
    ("conv2d_transpose", (2, 4, 5, 6), (4, 6, 4, 3), dict(strides=2, padding=1, dilation=2)),
    ("conv2d_transpose", (1, 2, 4, 4), (2, 2, 2, 2), dict(output_padding=2, dilation=3)),
    (
        "conv2d_transpose",
        (2, 5, 6, 4),
        (4, 3, 6, 4),
        dict(strides=2, padding=1, data_layout="NHWC", kernel_layout="HWOI"),
    ),
    ("conv3d_transpose", (1, 4, 3, 2, 3), (4, 3, 2, 3, 2), dict(strides=2, groups=2)),
]
GRADIENTS = [
    ("conv1d", (2, 4, 13), (6, 4, 3), dict(strides=2, padding=2, dilation=3)),
    ("conv2d", (2, 4, 11, 12), (6, 4, 3, 2), dict(strides=2, padding=1, dilation=2)),
    ("conv2d", (2, 4, 11, 12), (6, 2, 3, 2), dict(strides=2, groups=2)),
    ("conv2d", (1, 4, 8, 8), (4, 1, 3, 3), dict(groups=4, padding=1)),
    ("conv3d", (1, 4, 5, 6, 4), (4, 2, 2, 3, 2), dict(strides=2, groups=2)),
    ("conv1d_transpose", (2, 4, 7), (4, 3, 4), dict(strides=2, padding=1, groups=2)),
    ("conv2d_transpose", (2, 4, 4, 5), (4, 3, 4, 3), dict(strides=2, output_padding=1, groups=2)),
    ("conv3d_transpose", (1, 4, 3, 2, 3), (4, 2, 2, 3, 2), dict(strides=2, padding=1)),
]


def _call(name, data_shape, weight_shape, attrs):
    rank = len(data_shape) - 2
    spatial = "DHW"[3 - rank :]
    transposed = name.endswith("transpose")
    attrs = {
        "data_layout": "NC" + spatial,
        "kernel_layout": ("IO" if transposed else "OI") + spatial,
        **attrs,
    }
    for key in ("strides", "padding", "dilation", "output_padding"):
        if key in attrs:
            attrs[key] = (attrs[key],) * rank
    size = dict(zip(attrs["kernel_layout"], weight_shape))
    attrs["channels"] = size["O"] * (attrs.get("groups", 1) if transposed else 1)
    attrs["kernel_size"] = tuple(size[axis] for axis in spatial)
    x = relay.var("x", shape=data_shape)
    w = relay.var("w", shape=weight_shape)
    return relay.Function([x, w], getattr(relay.nn, name)(x, w, **attrs)), attrs


def _run(func, *arrays):
    mod = tvm.IRModule.from_expr(func)
    out = relay.create_executor("vm", mod=mod, target="llvm").evaluate()(*arrays)
    return out


@pytest.mark.parametrize("case", FORWARD)
def test_conv_transpose(case):
    func, attrs = _call(*case)
    _, data_shape, weight_shape, _ = case
    rank = len(data_shape) - 2
    spatial = "DHW"[3 - rank :]
    rng = np.random.default_rng(0)
    data, weight = (rng.standard_normal(s).astype("float32") for s in (data_shape, weight_shape))

    def to_layout(array, layout, wanted):
        return array.transpose([layout.index(axis) for axis in wanted])

    expected = conv_transpose_python(
        to_layout(data, attrs["data_layout"], "NC" + spatial),
        to_layout(weight, attrs["kernel_layout"], "IO" + spatial),
        attrs.get("strides", (1,) * rank),
        attrs.get("padding", (0,) * rank) * 2,
        attrs.get("output_padding", (0,) * rank),
        attrs.get("dilation", (1,) * rank),
        attrs.get("groups", 1),
    )
    out = _run(func, data, weight).numpy()
    wanted = to_layout(expected, "NC" + spatial, attrs["data_layout"])
    tvm.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradient(case):
    """Convolutions are linear: <grad of x, v> is <conv(v, w), grad of the output> for every v"""
    func, _ = _call(*case)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(func))
    gradient = relay.transform.gradient(mod["main"], mode="first_order")
    rng = np.random.default_rng(0)

    def random(which):
        return rng.standard_normal(case[1 + which]).astype("float32")

    arrays = [random(0), random(1)]
    # the gradient of the output is one everywhere
    grads = _run(gradient, *arrays)[1]
    for which in (0, 1):
        v = random(which)
        operands = list(arrays)
        operands[which] = v
        expected = _run(func, *operands).numpy().sum()
        found = grads[which].numpy()
        assert found.shape == v.shape
        tvm.testing.assert_allclose((found * v).sum(), expected, rtol=1e-3, atol=1e-2)


if __name__ == "__main__":
    tvm.testing.main()
