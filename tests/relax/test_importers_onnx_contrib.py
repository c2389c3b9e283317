# SPDX-License-Identifier: Apache-2.0
"""ONNX models as onnxruntime's quantizer and optimizer write them, against onnxruntime.

Tolerance of quantized results: one step, since scales are multiplied in another order and halves
then round elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from helpers import build

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from tvm.relax.frontend.onnx import from_onnx  # noqa: E402

from helpers.imported import piped, uncorrected  # noqa: E402
from helpers.whole import compiled, ours  # noqa: E402

RUNTIME = "com.microsoft"


def model(
    nodes: Sequence[Any],
    shape: Sequence[int],
    dtype: str,
    result: str,
    consts: dict,
    opset: int = 21,
) -> Any:
    """A model with input x and output y."""
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(one)) for one in (dtype, result)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kinds[0], shape)],
        [helper.make_tensor_value_info("y", kinds[1], None)],
        [
            v if isinstance(v, TensorProto) else numpy_helper.from_array(v, k)
            for k, v in consts.items()
        ],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(RUNTIME, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def oracle(proto: Any, x: np.ndarray) -> np.ndarray:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    session = ort.InferenceSession(proto.SerializeToString(), settings)
    return session.run(None, {"x": x})[0]


def check(proto: Any, x: np.ndarray, steps: float = 1) -> list[str]:
    """Compare plain and pipeline; the kernels of the pipeline."""
    want = oracle(proto, x).astype("float64")
    mod = from_onnx(proto)
    vm = build.compiled(mod, "llvm")
    run, kernels = piped(mod)
    for one in (vm["main"], run):
        got = one(tvm.runtime.tensor(x))
        got = got if isinstance(got, tvm.runtime.Tensor) else got[0]
        assert got.shape == want.shape
        assert np.abs(got.numpy().astype("float64") - want).max() <= steps
    return kernels


def scalar(scale: float, zero: int, dtype: str = "uint8") -> tuple[np.ndarray, np.ndarray]:
    return np.float32(scale), np.array(zero, dtype)


# ---------------------------------------------------------------- QLinear operators


def unary(op: str, **attrs: Any) -> tuple[Any, dict]:
    node = helper.make_node(op, ["x", "xs", "xz", "ys", "yz"], ["y"], domain=RUNTIME, **attrs)
    return node, dict(zip(("xs", "xz", "ys", "yz"), (*scalar(0.05, 120), *scalar(0.02, 100))))


def binary(op: str, **attrs: Any) -> tuple[Any, dict]:
    names = ["x", "xs", "xz", "b", "bs", "bz", "ys", "yz"]
    node = helper.make_node(op, names, ["y"], domain=RUNTIME, **attrs)
    b = np.random.default_rng(1).integers(0, 256, (6, 6)).astype("uint8")
    values = (*scalar(0.05, 120), b, *scalar(0.03, 9), *scalar(0.2, 100))
    return node, dict(zip(names[1:], values))


def concat() -> tuple[Any, dict]:
    names = ["ys", "yz", "x", "xs", "xz", "x", "bs", "bz"]
    node = helper.make_node("QLinearConcat", names, ["y"], domain=RUNTIME, axis=1)
    return node, {
        **dict(zip(("ys", "yz", "xs", "xz"), (*scalar(0.06, 90), *scalar(0.05, 120)))),
        **dict(zip(("bs", "bz"), scalar(0.01, 3))),
    }


def product() -> tuple[Any, dict]:
    node, consts = binary("QLinearMatMul")
    node.domain = ""
    return node, {**consts, "bs": np.full(6, 0.03, "float32"), "bz": np.full(6, 9, "uint8")}


NODES = {
    "add": lambda: binary("QLinearAdd"),
    "mul": lambda: binary("QLinearMul"),
    "matmul": product,
    "sigmoid": lambda: unary("QLinearSigmoid"),
    "leaky": lambda: unary("QLinearLeakyRelu", alpha=0.1),
    "softmax": lambda: unary("QLinearSoftmax", axis=-1, opset=13),
    "softmax of all behind": lambda: unary("QLinearSoftmax", axis=2, opset=11),
    "average": lambda: unary(
        "QLinearAveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    ),
    "average last": lambda: unary("QLinearAveragePool", kernel_shape=[2, 2], channels_last=1),
    "global": lambda: unary("QLinearGlobalAveragePool", channels_last=0),
    "global last": lambda: unary("QLinearGlobalAveragePool", channels_last=1),
    "concat": concat,
}


@pytest.mark.parametrize("name", NODES)
def test_quantized_operator(name: str) -> None:
    node, consts = NODES[name]()
    shape = (1, 3, 6, 6)
    proto = model([node], shape, "uint8", "uint8", consts)
    check(proto, np.random.default_rng(0).integers(0, 256, shape).astype("uint8"))
    with uncorrected(), pytest.raises(tvm.error.OpNotImplemented):
        from_onnx(proto)


@pytest.mark.parametrize("bias", [False, True])
def test_gemm(bias: bool) -> None:
    names = ["x", "xs", "xz", "b", "bs", "bz", "c" if bias else "", "ys", "yz"]
    node = helper.make_node("QGemm", names, ["y"], domain=RUNTIME, transB=1)
    rng = np.random.default_rng(0)
    consts = {
        **dict(zip(("xs", "xz", "ys", "yz"), (*scalar(0.05, 120), *scalar(0.5, 100)))),
        "b": rng.integers(-50, 50, (5, 6)).astype("int8"),
        "bs": rng.uniform(0.01, 0.03, 5).astype("float32"),
        "bz": np.zeros(5, "int8"),
    }
    if bias:
        consts["c"] = rng.integers(-900, 900, 5).astype("int32")
    proto = model([node], (4, 6), "uint8", "uint8", consts)
    check(proto, rng.integers(0, 256, (4, 6)).astype("uint8"))


CHANNELS_LAST = [
    (1, (2, 9, 4), (6, 4, 3), {"pads": [1, 1]}),
    (2, (1, 4, 4, 4), (4, 4, 3, 3), {"pads": [1] * 4}),
    (2, (1, 7, 6, 4), (6, 2, 3, 3), {"strides": [2, 1], "group": 2, "auto_pad": "SAME_UPPER"}),
]


@pytest.mark.parametrize(("rank", "shape", "weight", "attrs"), CHANNELS_LAST)
def test_qlinear_conv_with_channels_last(
    rank: int, shape: tuple, weight: tuple, attrs: dict
) -> None:
    """With 4 rows and 4 channels it was computed as channels first, without a word."""
    rng = np.random.default_rng(rank)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    values = (
        *scalar(0.1, 7),
        rng.integers(-60, 60, weight).astype("int8"),
        rng.uniform(0.05, 0.1, weight[0]).astype("float32"),
        np.zeros(weight[0], "int8"),
        *scalar(5, 120),
        rng.integers(-2000, 2000, weight[0]).astype("int32"),
    )
    node = helper.make_node("QLinearConv", names, ["y"], domain=RUNTIME, channels_last=1, **attrs)
    proto = model([node], shape, "uint8", "uint8", dict(zip(names[1:], values)))
    kernels = check(proto, rng.integers(0, 256, shape).astype("uint8"))
    assert kernels == [f"conv{rank}d_add_cast_multiply_quantize"]


def decoder() -> Any:
    """An encoder and a decoder of float32 with what surrounds convolutions."""
    rng = np.random.default_rng(0)
    weights = {
        "w0": (8, 3, 3, 3),
        "w1": (8, 8, 3, 3),
        "w2": (8, 8, 1, 1),
        "w3": (16, 10),
    }
    consts = {k: rng.standard_normal(v, "float32") / 4 for k, v in weights.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        helper.make_node("LeakyRelu", ["a"], ["b"], alpha=0.1),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1] * 4),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node("AveragePool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["e", "w2"], ["f"]),
        helper.make_node("Sigmoid", ["f"], ["g"]),
        helper.make_node("Mul", ["g", "e"], ["h"]),
        helper.make_node("Concat", ["h", "g"], ["i"], axis=1),
        helper.make_node("GlobalAveragePool", ["i"], ["j"]),
        helper.make_node("Flatten", ["j"], ["k"]),
        helper.make_node("MatMul", ["k", "w3"], ["y"]),
    ]
    return model(nodes, (1, 3, 12, 12), "float32", "float32", consts, opset=17)


def quantized(folder: Path, form: str, weights: str = "QInt8") -> Any:
    """The model as onnxruntime's quantizer writes it."""
    from onnxruntime import quantization

    class Samples(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            self.left = [rng.standard_normal((1, 3, 12, 12), "float32") for _ in range(8)]

        def get_next(self) -> Any:
            return {"x": self.left.pop()} if self.left else None

    source, made = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(decoder(), str(source))
    quantization.quantize_static(
        str(source),
        str(made),
        Samples(),
        quant_format=getattr(quantization.QuantFormat, form),
        weight_type=getattr(quantization.QuantType, weights),
        reduce_range=weights == "QInt8",
        per_channel=weights == "QInt8",
    )
    return onnx.load(str(made))


@pytest.mark.parametrize(
    ("form", "weights"), [("QOperator", "QInt8"), ("QDQ", "QInt8"), ("QDQ", "QInt4")]
)
def test_quantizer(form: str, weights: str, tmp_path: Path) -> None:
    """Ten values of a whole model agree: one step of each of ten layers moves the last one by less
    than a twentieth of the largest."""
    proto = quantized(tmp_path, form, weights)
    x = np.random.default_rng(2).standard_normal((1, 3, 12, 12), "float32")
    want = oracle(proto, x)
    kernels = check(proto, x, 0.05 * np.abs(want).max())
    assert sum("quantize" in name for name in kernels) >= 3
    if form == "QOperator":
        with uncorrected(), pytest.raises(tvm.error.OpNotImplemented):
            from_onnx(proto)


def test_optimized(tmp_path: Path) -> None:
    """Saved after onnxruntime's optimizations: channels last, FusedConv."""
    for form in ("QOperator", None):
        proto = quantized(tmp_path, form) if form else decoder()
        settings = ort.SessionOptions()
        settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        settings.log_severity_level = 4
        settings.graph_optimization_level = (
            ort.GraphOptimizationLevel.ORT_ENABLE_ALL
            if form
            else ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        )
        ort.InferenceSession(proto.SerializeToString(), settings)
        made = onnx.load(str(tmp_path / "optimized.onnx"))
        ops = {node.op_type for node in made.graph.node}
        assert ("QLinearConv" if form else "FusedConv") in ops
        x = np.random.default_rng(2).standard_normal((1, 3, 12, 12), "float32")
        want = oracle(proto, x)
        check(made, x, (0.05 if form else 1e-5) * np.abs(want).max())


@pytest.mark.parametrize("z", [False, True], ids=["", "sum"])
@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 0.75]),
        ("HardSigmoid", [0.3, 0.4]),
        ("HardSwish", []),
    ],
)
def test_fused_conv(activation: str, parameters: list, z: bool) -> None:
    rng = np.random.default_rng(0)
    consts = {
        "w": rng.standard_normal((4, 3, 3, 3), "float32"),
        "b": rng.standard_normal(4, "float32"),
    }
    if z:
        consts["z"] = rng.standard_normal((1, 4, 6, 6), "float32")
    attrs: dict[str, Any] = {"activation_params": parameters} if parameters else {}
    node = helper.make_node(
        "FusedConv",
        ["x", *consts],
        ["y"],
        domain=RUNTIME,
        activation=activation,
        pads=[1] * 4,
        **attrs,
    )
    proto = model([node], (1, 3, 6, 6), "float32", "float32", consts, opset=17)
    check(proto, rng.standard_normal((1, 3, 6, 6), "float32"), 1e-5)


# ---------------------------------------------------------------- narrow weights


def narrow(name: str, kind: int, values: np.ndarray) -> Any:
    return helper.make_tensor(name, kind, values.shape, values.ravel().tolist())


def dequantized_conv(consts: dict, **attrs: Any) -> Any:
    """A convolution of float32 data by weights that are dequantized."""
    names = ["w", "ws", *(["wz"] if "wz" in consts else [])]
    nodes = [
        helper.make_node("DequantizeLinear", names, ["v"], **attrs),
        helper.make_node("Conv", ["x", "v"], ["y"]),
    ]
    return model(nodes, (1, 8, 5, 5), "float32", "float32", consts)


@pytest.mark.parametrize("block", [0, 3], ids=["per channel", "blocks"])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT8"])
def test_weights_of_four_bits(kind: str, zero: bool, block: int) -> None:
    """Per channel, and by blocks of 3 of 8 input channels, of which the last is shorter."""
    rng = np.random.default_rng(0)
    low, high = {"INT4": (-8, 8), "UINT4": (0, 16), "INT8": (-128, 128)}[kind]
    number = getattr(TensorProto, kind)
    shape = (4, 3, 1, 1) if block else (4,)
    consts = {
        "w": narrow("w", number, rng.integers(low, high, (4, 8, 1, 1))),
        "ws": rng.uniform(0.05, 0.1, shape).astype("float32"),
    }
    if zero:
        consts["wz"] = narrow("wz", number, rng.integers(low, high, shape))
    proto = dequantized_conv(
        consts, axis=1 if block else 0, **({"block_size": block} if block else {})
    )
    x = rng.standard_normal((1, 8, 5, 5), "float32")
    want = ReferenceEvaluator(proto).run(None, {"x": x})[0] if block else oracle(proto, x)
    got = compiled(from_onnx(proto))[0](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_weights_of_float8(kind: str) -> None:
    rng = np.random.default_rng(0)
    consts = {
        "w": narrow("w", getattr(TensorProto, kind), rng.standard_normal((4, 8, 1, 1))),
        "ws": rng.uniform(0.05, 0.1, 4).astype("float32"),
    }
    proto = dequantized_conv(consts, axis=0)
    x = rng.standard_normal((1, 8, 5, 5), "float32")
    want = oracle(proto, x)
    got = compiled(from_onnx(proto))[0](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_int4_weights_are_multiplied_as_bytes() -> None:
    rng = np.random.default_rng(0)
    consts = {
        "s": np.float32(0.05),
        "z": np.uint8(100),
        "w": narrow("w", TensorProto.INT4, rng.integers(-8, 8, (4, 8, 3, 3))),
        "ws": rng.uniform(0.05, 0.1, 4).astype("float32"),
        "ys": np.float32(0.5),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["v"], axis=0),
        helper.make_node("Conv", ["d", "v"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "z"], ["y"]),
    ]
    proto = model(nodes, (1, 8, 5, 5), "uint8", "uint8", consts)
    kernels = check(proto, rng.integers(0, 256, (1, 8, 5, 5)).astype("uint8"))
    assert kernels == ["conv2d_cast_multiply_quantize"]


# ---------------------------------------------------------------- what is refused


def one_node(op: str, dtype: str = "float32", **attrs: Any) -> Any:
    return model([helper.make_node(op, ["x"], ["y"], **attrs)], (1, 4, 4, 4), dtype, dtype, {})


REFUSED = [
    (one_node("IsInf", detect_negative=0), "IsInf: detect_negative=0 is not supported"),
    (one_node("MaxPool", kernel_shape=[2, 2], storage_order=1), "MaxPool: storage_order=1"),
    (one_node("Relu", domain="example"), "Relu: of domain example is another operator"),
    (one_node("Attention"), "Attention: of domain com.microsoft is supported"),
    (
        model(
            [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
            (4,),
            "float32",
            "int8",
            {"s": np.float32(1), "z": narrow("z", TensorProto.INT4, np.array(0))},
        ),
        "QuantizeLinear: the result must have 8 bits or more",
    ),
]


@pytest.mark.parametrize(("proto", "line"), REFUSED)
def test_refused(proto: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        from_onnx(proto)


@pytest.mark.parametrize(
    ("op", "channels", "length"),
    [("Conv", 3, 1), ("Conv", 1, 2), ("ConvTranspose", 3, 1), ("ConvTranspose", 1, 4)],
)
def test_a_bias_of_another_length_is_refused(op: str, channels: int, length: int) -> None:
    weight = np.ones((channels, 2, 3, 3) if op == "Conv" else (2, channels, 3, 3), "float32")
    consts = {"w": weight, "b": np.ones(length, "float32")}
    proto = model(
        [helper.make_node(op, ["x", "w", "b"], ["y"])], (1, 2, 5, 5), "float32", "float32", consts
    )
    with pytest.raises(
        ValueError, match=rf"{op}: bias of shape \[{length}\] must have one element"
    ):
        from_onnx(proto)
    with uncorrected():
        from_onnx(proto)


@pytest.mark.parametrize("momentum", [0.9, 0.25])
def test_batch_normalization_in_training(momentum: float) -> None:
    """TVM's momentum is the share of the batch, ONNX's that of the running statistics."""
    rng = np.random.default_rng(0)
    consts = {name: rng.uniform(0.5, 2, 4).astype("float32") for name in "sbmv"}
    node = helper.make_node(
        "BatchNormalization",
        ["x", *"sbmv"],
        ["y", "mean", "var"],
        training_mode=1,
        momentum=momentum,
    )
    proto = model([node], (3, 4, 5, 5), "float32", "float32", consts, opset=15)
    for name in ("mean", "var"):
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]))
    x = rng.standard_normal((3, 4, 5, 5), "float32")
    want = ReferenceEvaluator(proto).run(None, {"x": x})
    run, module = compiled(from_onnx(proto))
    for got, one in zip(run(tvm.runtime.tensor(x)), want):
        np.testing.assert_allclose(got.numpy(), one, rtol=1e-4, atol=1e-5)
    assert not ours(module)
