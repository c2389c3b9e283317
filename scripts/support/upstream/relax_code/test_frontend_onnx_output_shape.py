# SPDX-License-Identifier: Apache-2.0
"""ConvTranspose with output_shape: padding is what gives it"""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm
import tvm.testing
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.topi.testing import conv_transpose_python

# data size, kernel size, strides, auto_pad, output_shape, the padding that follows
CASES = [
    ((4, 5), (3, 4), (2, 2), "NOTSET", (8, 10), (1, 1, 0, 1), (0, 0)),
    ((4, 5), (3, 4), (2, 2), "SAME_UPPER", (8, 10), (0, 1, 1, 1), (0, 0)),
    ((4, 5), (3, 3), (2, 3), "SAME_LOWER", (8, 12), (1, 2, 0, 1), (0, 0)),
    ((4,), (3,), (3,), "NOTSET", (13,), (0, 0), (1,)),
]


@pytest.mark.parametrize("case", CASES)
def test_output_shape(case):
    size, kernel, strides, auto_pad, output_shape, padding, output_padding = case
    node = helper.make_node(
        "ConvTranspose",
        ["x", "w", "b"],
        ["y"],
        strides=strides,
        auto_pad=auto_pad,
        output_shape=output_shape,
    )
    shapes = {"x": (1, 2, *size), "w": (2, 3, *kernel), "b": (3,)}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3, *output_shape))
    graph = helper.make_graph([node], "conv_transpose", inputs, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)])
    onnx.checker.check_model(model)

    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape).astype("float32") for shape in shapes.values())
    vm = relax.VirtualMachine(tvm.compile(from_onnx(model), "llvm"), tvm.cpu())
    y = vm["main"](*(tvm.runtime.tensor(array) for array in (x, w, b))).numpy()
    expected = conv_transpose_python(
        x, w, strides, padding, output_padding, (1,) * len(size)
    ) + b.reshape(1, 3, *(1,) * len(size))
    assert y.shape == (1, 3, *output_shape)
    tvm.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    tvm.testing.main()
