# SPDX-License-Identifier: Apache-2.0
"""ONNX's ConvInteger and QLinearConv, as onnxruntime has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tvm.relax.frontend.onnx import from_onnx  # noqa: E402

from helpers.imported import is_right, piped, runner, uncorrected  # noqa: E402

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}
WINDOWS = [
    (1, (2, 4, 9), (6, 2, 3), dict(strides=[2], pads=[2, 1], group=2)),
    (2, (2, 4, 7, 6), (4, 1, 3, 2), dict(auto_pad="SAME_UPPER", strides=[2, 1], group=4)),
    (2, (1, 3, 5, 5), (5, 3, 1, 1), {}),
    (3, (1, 2, 5, 4, 5), (3, 2, 2, 3, 2), dict(dilations=[2, 1, 1], pads=[1, 0, 1, 0, 2, 1])),
]


def values(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def session(
    op: str, dtype: str, shape: tuple[Any, ...], inputs: list[Any], attrs: dict, out: str
) -> tuple[Any, Any]:
    """One node whose inputs but "x" are constants, as a model and in onnxruntime."""
    names = ["x" if array is None else f"c{i}" for i, array in enumerate(inputs)]
    node = helper.make_node(op, names, ["y"], **attrs)
    x = helper.make_tensor_value_info("x", TYPES[dtype], shape)
    y = helper.make_tensor_value_info("y", TYPES[out], [None] * len(shape))
    constants = [numpy_helper.from_array(a, n) for a, n in zip(inputs, names) if a is not None]
    graph = helper.make_graph([node], "g", [x], [y], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    return proto, ort.InferenceSession(proto.SerializeToString(), settings)


def check(proto: Any, oracle: Any, x: np.ndarray, steps: int) -> None:
    (want,) = oracle.run(None, {"x": x})
    got = runner(from_onnx(proto))(tvm.runtime.tensor(x)).numpy()
    assert got.dtype == want.dtype and got.shape == want.shape
    assert np.abs(got.astype("int64") - want.astype("int64")).max() <= steps


@pytest.mark.parametrize("zeros", [True, False], ids=["zero points", "none"])
@pytest.mark.parametrize(("rank", "shape", "weight", "attrs"), WINDOWS)
def test_conv_integer(rank: int, shape: tuple, weight: tuple, attrs: dict, zeros: bool) -> None:
    # onnxruntime has int8 data only with int8 weights.
    inputs = [None, values("uint8", weight, rank)]
    if zeros:
        inputs += [np.uint8(131), np.uint8(17)]
    proto, oracle = session("ConvInteger", "uint8", shape, inputs, attrs, "int32")
    check(proto, oracle, values("uint8", shape, 7), steps=0)  # integers: exact
    with uncorrected():
        assert not is_right(lambda: from_onnx(proto))


@pytest.mark.parametrize(
    ("dtype", "per_channel", "bias"),
    # Every pair of two of them.
    [("uint8", True, True), ("uint8", False, False), ("int8", True, False), ("int8", False, True)],
)
@pytest.mark.parametrize(("rank", "shape", "weight", "attrs"), WINDOWS)
def test_qlinear_conv(
    rank: int, shape: tuple, weight: tuple, attrs: dict, dtype: str, per_channel: bool, bias: bool
) -> None:
    rng = np.random.default_rng(rank)
    channels = weight[0]
    scale = rng.uniform(0.005, 0.02, channels if per_channel else ()).astype("float32")
    zero = np.zeros(channels if per_channel else (), "int8")
    # Of seven bits: without VNNI, onnxruntime adds pairs of products in 16 bits, which saturate.
    narrow = values("int8", weight, rank) // 2
    inputs = [None, np.float32(0.03), np.dtype(dtype).type(5), narrow]
    inputs += [scale, zero, np.float32(0.4), np.dtype(dtype).type(-3 if dtype == "int8" else 120)]
    if bias:
        inputs.append(rng.integers(-2000, 2000, channels).astype("int32"))
    proto, oracle = session("QLinearConv", dtype, shape, inputs, attrs, dtype)
    # One step: onnxruntime multiplies the three scales first, and halves then round elsewhere.
    x = values(dtype, shape, 7)
    check(proto, oracle, x, steps=1)
    run, kernels = piped(from_onnx(proto))
    (want,) = oracle.run(None, {"x": x})
    got = run(tvm.runtime.tensor(x)).numpy()
    assert np.abs(got.astype("int64") - want.astype("int64")).max() <= 1
    offset = "_add" if bias else ""
    assert kernels == [f"conv{rank}d{offset}_cast_multiply_quantize"]


def qdq(rng: np.random.Generator) -> Any:
    """An encoder and a decoder with a residual, as quantizers write models: weights and biases of
    integers, and every activation quantized."""
    nodes, constants = [], []

    def constant(value: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(value, f"c{len(constants)}"))
        return constants[-1].name

    def node(op: str, *inputs: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attrs))
        return nodes[-1].output[0]

    def bytes_of(value: str, scale: float, zero: int) -> str:
        parts = [constant(np.float32(scale)), constant(np.uint8(zero))]
        return node("DequantizeLinear", node("QuantizeLinear", value, *parts), *parts)

    def layer(value: str, scale: float, shape: tuple[int, ...], op: str, **attrs: Any) -> str:
        outs = shape[1] if op == "ConvTranspose" else shape[0]
        # Of seven bits, as above.
        weight = constant(values("int8", shape, len(nodes)) // 2)
        scales = rng.uniform(0.002, 0.004, outs).astype("float32")
        zeros = constant(np.zeros(outs, "int8"))
        axis = 1 if op == "ConvTranspose" else 0
        weight = node("DequantizeLinear", weight, constant(scales), zeros, axis=axis)
        bias = constant(rng.integers(-999, 999, outs).astype("int32"))
        of_bias = constant((scales * np.float32(scale)).astype("float32"))
        bias = node("DequantizeLinear", bias, of_bias, constant(np.zeros(outs, "int32")), axis=0)
        return node(op, value, weight, bias, **attrs)

    x = bytes_of("x", 0.02, 128)
    down = node("Relu", layer(x, 0.02, (8, 4, 3, 3), "Conv", pads=[1] * 4, strides=[2, 2]))
    down = bytes_of(down, 0.03, 0)
    inner = bytes_of(layer(down, 0.03, (8, 8, 3, 3), "Conv", pads=[1] * 4), 0.04, 121)
    inner = bytes_of(node("Relu", node("Add", inner, down)), 0.05, 0)
    attrs = dict(strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    up = bytes_of(layer(inner, 0.05, (8, 4, 3, 3), "ConvTranspose", **attrs), 0.05, 130)
    out = node("Clip", node("Add", up, x), constant(np.float32(-3)), constant(np.float32(3)))
    out = bytes_of(out, 0.03, 127)
    shape = (2, 4, 12, 10)
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", out)
    )
    graph = helper.make_graph(nodes, "g", [given], [made], constants)
    opset = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def test_a_model_with_operators_between_quantizations(rng: np.random.Generator) -> None:
    proto = qdq(rng)
    settings = ort.SessionOptions()
    # As the graph says: optimized, onnxruntime merges nodes and scales.
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), settings)
    x = rng.uniform(-2.5, 2.5, (2, 4, 12, 10)).astype("float32")
    (want,) = session.run(None, {"x": x})
    run, kernels = piped(from_onnx(proto))
    got = run(tvm.runtime.tensor(x)).numpy()
    # Sums of float32, in another order, may round to a neighbour, and layers behind it too.
    steps = np.abs(got - want) / 0.03
    assert steps.max() < 2.01 and (steps > 0.5).mean() < 0.02 and np.unique(want).size > 50
    assert kernels == [
        "conv2d_cast_multiply_add_quantize_subtract_cast_multiply_add_relu_quantize",
        "conv2d_cast_multiply_add_relu_quantize",
        "conv2d_transpose_cast_multiply_add_quantize_subtract_cast_multiply_add_maximum_minimum_quantize",
    ]


def test_free_batch_and_sizes() -> None:
    inputs = [None, values("uint8", (3, 2, 3, 3), 0), np.uint8(4)]
    attrs = dict(pads=[1, 1, 1, 1])
    proto, oracle = session("ConvInteger", "uint8", ("N", 2, "H", "W"), inputs, attrs, "int32")
    for shape in ((1, 2, 5, 6), (3, 2, 4, 4)):
        check(proto, oracle, values("uint8", shape, 7), steps=0)
    attrs = dict(auto_pad="SAME_UPPER", strides=[2, 2])
    proto, _ = session("ConvInteger", "uint8", ("N", 2, "H", "W"), inputs, attrs, "int32")
    said = r"^ConvInteger: auto_pad=SAME with strides=.2, 2. needs sizes known at import$"
    with pytest.raises(ValueError, match=said):
        from_onnx(proto)
