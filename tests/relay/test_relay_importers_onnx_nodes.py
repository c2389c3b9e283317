# SPDX-License-Identifier: Apache-2.0
"""ONNX's nodes by domain and by attributes that stock TVM does not read, against ONNX Runtime."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relay

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from helpers.onnx_node import CONTRIB, Node, by_onnxruntime  # noqa: E402
from helpers.relay_imported import (  # noqa: E402
    assert_close,
    is_right,
    results,
    results_of_free_sizes,
    uncorrected,
)

pytestmark = pytest.mark.usefixtures("mapping")

F = np.float32
_random = np.random.default_rng(0)


def real(*shape: int, dtype: str = "float32") -> np.ndarray:
    return _random.standard_normal(shape).astype(dtype)


def whole(*shape: int, dtype: str = "uint8") -> np.ndarray:
    """Integers of seven bits, so that pairs of products do not saturate 16 bits."""
    low = np.iinfo(dtype).min // 2
    return _random.integers(low, low + 128, shape).astype(dtype)


def imported(node: Node) -> list[np.ndarray]:
    shapes = {name: array.shape for name, array in node.feeds.items()}
    dtypes = {name: str(array.dtype) for name, array in node.feeds.items()}
    mod, params = relay.frontend.from_onnx(node.model(), shapes, dtypes)
    return results(mod, params, node.feeds)


def check(node: Node, want: list[np.ndarray] | None = None, steps: int = 0) -> None:
    """Results of integers may differ by some steps: ONNX Runtime rounds halves to even, TVM up."""
    want = by_onnxruntime(node.model(), node.feeds) if want is None else want
    got = imported(node)
    if np.issubdtype(want[0].dtype, np.integer):
        assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in want]
        assert len(np.unique(want[0])) > 5  # a constant would prove nothing
        differences = (np.abs(a.astype(int) - b.astype(int)).max() for a, b in zip(got, want))
        assert max(differences) <= steps
    else:
        assert_close(got, want)


def check_corrected(node: Node, want: list[np.ndarray] | None = None, steps: int = 0) -> None:
    """Ours is right, and TVM's own importer is not."""
    check(node, want, steps)
    with uncorrected():
        assert not is_right(lambda: check(node, want, steps))


# ----------------------------------------------------------------------- batch normalization


def batch_norm(
    data: np.ndarray, dtypes: tuple[str, str], opset: int = 17, names: int = 1, **attributes: Any
) -> Node:
    """Scale and offset of the first dtype, statistics of the second."""
    channels = data.shape[1]
    vectors = [real(channels, dtype=dtypes[which > 1]) for which in range(4)]
    vectors[3] = np.abs(vectors[3]) + vectors[3].dtype.type(0.5)
    return Node("BatchNormalization", [data, *vectors], attributes, results=names, opset=opset)


BOTH32 = ("float32", "float32")


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5), (2, 3, 4, 5), (2, 2, 3, 4, 2)])
def test_batch_normalization_in_training(shape: tuple[int, ...]) -> None:
    """By the batch; running = running * momentum + batch * (1 - momentum), biased."""
    attributes = dict(training_mode=1, momentum=0.7, epsilon=0.01)
    node = batch_norm(real(*shape), BOTH32, names=3, **attributes)
    check_corrected(node)
    want = by_onnxruntime(node.model(), node.feeds)  # which refuses fewer results than three
    check_corrected(replace(node, results=1), want[:1])


def test_batch_normalization_in_training_of_the_report() -> None:
    ones = [np.array([v], "float32") for v in (1, 0, 10, 5)]
    data = np.array([0, 2], "float32").reshape(2, 1, 1, 1)  # mean 1, variance 1
    attributes = dict(training_mode=1, momentum=0.9)
    node = Node("BatchNormalization", [data, *ones], attributes, results=3)
    y, mean, variance = imported(node)
    np.testing.assert_allclose(y.ravel(), [-1, 1], rtol=1e-4)  # epsilon is 1e-5
    np.testing.assert_allclose([*mean, *variance], [9.1, 4.6], rtol=1e-6)  # float32


def test_batch_normalization_of_version_9_with_five_results_is_in_training() -> None:
    """The last one, a variance, is one over its root in ONNX Runtime: not compared."""
    node = batch_norm(real(2, 3, 4), BOTH32, opset=9, names=5, momentum=0.7)
    want = by_onnxruntime(node.model(), node.feeds)[:4]
    assert_close(imported(node)[:4], want)
    with uncorrected():
        assert not is_right(lambda: assert_close(imported(node)[:4], want))


@pytest.mark.parametrize("training", [0, 1])
@pytest.mark.parametrize("dtypes", [BOTH32, ("float16", "float32")])
def test_batch_normalization_of_mixed_dtypes(dtypes: tuple[str, str], training: int) -> None:
    """float16 data is normalized in float32 and rounded once: an ulp beside the reference's."""
    data = real(2, 3, 4, dtype="float16")
    node = batch_norm(data, dtypes, training_mode=training, names=3 if training else 1)

    def check_mixed() -> None:
        want = ReferenceEvaluator(node.model()).run(None, node.feeds)
        got = imported(node)
        assert [a.dtype for a in got] == ["float16", *["float32"] * (len(got) - 1)]
        for one, other in zip(got, want):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)

    check_mixed()
    with uncorrected():
        assert not is_right(check_mixed)


# ---------------------------------------------------------------------------- a bias that fits


@pytest.mark.parametrize("length", [1, 2, 4])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "FusedConv"])
def test_a_bias_of_another_length_is_refused_in_one_line(op: str, length: int) -> None:
    weight = real(4, 3, 3, 3) if op == "ConvTranspose" else real(3, 4, 3, 3)
    fused = dict(activation="Relu") if op == "FusedConv" else {}
    domain = CONTRIB if fused else ""
    node = Node(op, [real(1, 4, 5, 5), weight, real(length)], fused, domain=domain)
    with pytest.raises(Exception, match=r"[Bb]ias"):
        by_onnxruntime(node.model(), node.feeds)
    said = f"^{op.removeprefix('Fused')}: bias of shape \\[{length}\\] must have one number"
    with pytest.raises(ValueError, match=said) as error:
        imported(node)
    assert "\n" not in str(error.value)
    with uncorrected(), pytest.raises(Exception) as stock:
        imported(node)
    assert "\n" in str(stock.value) or fused


# ------------------------------------------------------------------------------- com.microsoft

ACTIVATIONS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": (0.3,),
    "Clip": (-0.5, 0.7),
    "HardSigmoid": (0.3, 0.4),
    "HardSwish": (),
}


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fused_conv(name: str, added: bool) -> None:
    attributes = dict(activation=name, group=2, strides=[2, 1], pads=[1, 0, 1, 2])
    if ACTIVATIONS[name]:
        attributes["activation_params"] = ACTIVATIONS[name]
    operands = [real(2, 4, 5, 6), real(6, 2, 3, 2), real(6)]
    if added:
        operands = [*operands[:2], None, real(2, 6, 3, 7)]
    check_corrected(Node("FusedConv", operands, attributes, domain=CONTRIB))


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (dict(activation="Elu"), "activation='Elu' must be one of Relu, Tanh, Sigmoid"),
        (dict(activation="LeakyRelu"), r"activation_params=\[\] must be 1 of LeakyRelu"),
    ],
)
def test_another_activation_is_refused_in_one_line(attributes: dict, said: str) -> None:
    node = Node("FusedConv", [real(1, 2, 5), real(3, 2, 3)], attributes, domain=CONTRIB)
    with pytest.raises(ValueError, match=f"^FusedConv: {said}"):
        imported(node)


def optimized_by_onnxruntime(model: Any, level: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        settings = ort.SessionOptions()
        settings.log_severity_level = 4
        settings.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        ort.InferenceSession(model.SerializeToString(), settings)
        return onnx.load(settings.optimized_model_filepath)


def test_a_model_that_onnxruntime_has_optimized() -> None:
    convolution = Node("Conv", [real(1, 4, 6, 6), real(6, 4, 3, 3), real(6)]).model()
    convolution.graph.node[0].output[0] = "conv"
    convolution.graph.node.append(onnx.helper.make_node("Relu", ["conv"], ["y0"]))
    optimized = optimized_by_onnxruntime(convolution, "ORT_ENABLE_EXTENDED")
    assert [node.op_type for node in optimized.graph.node] == ["FusedConv"]
    feeds = {"x0": real(1, 4, 6, 6)}
    mod, params = relay.frontend.from_onnx(optimized, {"x0": (1, 4, 6, 6)})
    assert_close(results(mod, params, feeds), by_onnxruntime(convolution, feeds))
    assert [node.op_type for node in optimized.graph.node] == ["FusedConv"]


def qlinear_conv(shape: tuple[int, ...], weight: tuple[int, ...], attributes: dict) -> Node:
    channels = weight[0]
    operands = [
        *(whole(*shape), F(0.05), np.uint8(7), whole(*weight, dtype="int8")),
        *(np.linspace(0.01, 0.03, channels, dtype="float32"), np.zeros(channels, "int8")),
        *(F(0.9), np.uint8(120), whole(channels, dtype="int16").astype("int32")),
    ]
    return Node("QLinearConv", operands, dict(attributes, channels_last=1), domain=CONTRIB)


@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        # As many rows and columns as channels, where nothing but the values tells.
        ((1, 4, 4, 4), (4, 4, 2, 2), {}),
        ((2, 5, 6, 4), (6, 2, 3, 2), dict(group=2, strides=[2, 1], pads=[1, 0, 2, 1])),
        ((1, 7, 5, 3), (2, 3, 3, 3), dict(auto_pad="SAME_UPPER", strides=[2, 2])),
        ((2, 7, 4), (6, 2, 3), dict(group=2, dilations=[2])),
        ((1, 4, 5, 3, 2), (3, 2, 2, 3, 2), dict(pads=[1, 0, 1, 0, 2, 1])),
    ],
)
def test_qlinear_conv_of_channels_last(shape: tuple, weight: tuple, attributes: dict) -> None:
    """Convolved as it is stored; the weight stays what it is for channels first."""
    node = qlinear_conv(shape, weight, attributes)
    if len(shape) == 4:
        check_corrected(node, steps=1)
        return
    # ONNX Runtime takes two axes: the reference is channels first, by its own operands.
    first = Node(
        "QLinearConv", [np.moveaxis(node.operands[0], -1, 1), *node.operands[1:]], attributes
    )
    (want,) = by_onnxruntime(first.model(), first.feeds)
    check_corrected(node, [np.moveaxis(want, 1, -1)], steps=1)


def test_an_int8_model_that_onnxruntime_has_optimized() -> None:
    """Between quantize and dequantize, it writes QLinearConv of channels last and transposes."""
    weight = whole(8, 4, 3, 3, dtype="int8")
    operands = [real(1, 4, 8, 8), weight, F(0.02), np.int8(0), F(0.05), np.uint8(7), F(0.5)]
    model = Node("Conv", [*operands, np.uint8(120)]).model()
    del model.graph.node[:]
    for op, inputs, result in (
        ("QuantizeLinear", ["x0", "x4", "x5"], "q"),
        ("DequantizeLinear", ["q", "x4", "x5"], "x"),
        ("DequantizeLinear", ["x1", "x2", "x3"], "w"),
        ("Conv", ["x", "w"], "c"),
        ("QuantizeLinear", ["c", "x6", "x7"], "r"),
        ("DequantizeLinear", ["r", "x6", "x7"], "y0"),
    ):
        model.graph.node.append(onnx.helper.make_node(op, inputs, [result]))
    optimized = optimized_by_onnxruntime(model, "ORT_ENABLE_ALL")
    found = [node for node in optimized.graph.node if node.op_type == "QLinearConv"]
    if not (found and found[0].domain == CONTRIB):
        pytest.skip("ONNX Runtime keeps channels first on this processor")
    feeds = {"x0": operands[0]}

    def check_optimized() -> None:
        mod, params = relay.frontend.from_onnx(optimized, {"x0": operands[0].shape})
        (got,), (want,) = results(mod, params, feeds), by_onnxruntime(model, feeds)
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= 0.5 * 1.001  # a step, and the rounding of float32

    check_optimized()
    with uncorrected():
        assert not is_right(check_optimized)


def quantized(op: str, shape: tuple[int, ...], dtype: str, scale: float, **attributes: Any) -> Node:
    zero = np.array(3, dtype)
    operands = [whole(*shape, dtype=dtype), F(0.03), zero, F(scale), zero]
    return Node(op, operands, attributes, domain=CONTRIB)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("op", "shape", "scale", "attributes"),
    [
        ("QLinearGlobalAveragePool", (2, 3, 5, 16), 0.01, dict(channels_last=1)),
        ("QLinearAveragePool", (1, 3, 5, 6), 0.021,
         dict(channels_last=1, kernel_shape=[3, 2], pads=[1, 0, 1, 0], count_include_pad=1)),
        ("QLinearLeakyRelu", (2, 30), 0.001, {}),  # alpha is 0.01
        ("QLinearSoftmax", (3, 4, 2), 1 / 256, dict(opset=12, axis=1)),
        ("QLinearSoftmax", (3, 4, 2), 1 / 256, dict(opset=13)),
    ],
)  # fmt: skip
def test_attributes_of_quantized_operators(
    op: str, shape: tuple, scale: float, attributes: dict, dtype: str
) -> None:
    node = quantized(op, shape, dtype, scale, **attributes)
    if op == "QLinearLeakyRelu" and dtype == "uint8":
        node.operands[0][:] = whole(*shape) // 42  # at most the zero point: all negative
    if op == "QLinearLeakyRelu":
        wanted = by_onnxruntime(node.model(), node.feeds)
        got = imported(node)
        assert np.abs(got[0].astype(int) - wanted[0].astype(int)).max() <= 1
        with uncorrected():
            stock = imported(node)
        assert np.abs(stock[0].astype(int) - wanted[0].astype(int)).max() > 1
        return
    check_corrected(node, steps=1)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_what_a_name_tells_stays_what_it_is(op: str) -> None:
    zero = np.uint8(3)
    operands = [whole(2, 3, 4), F(0.1), zero, whole(3, 4), F(0.2), zero, F(0.9), zero]
    node = Node(op, operands, domain=CONTRIB)
    check(node, steps=1)
    with uncorrected():
        check(node, steps=1)


def attention(**attributes: Any) -> Node:
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], "int32")
    operands = [real(2, 4, 8), real(8, 24), real(24), mask]
    stated = dict(num_heads=2, unidirectional=0, **attributes)
    return Node("Attention", operands, stated, domain=CONTRIB)


def test_attention() -> None:
    """Its usual factor is 1 / sqrt(4); 0 is the usual one too."""
    check(attention())
    check(attention(scale=0.5))
    node = attention(scale=0.25)
    with pytest.raises(ValueError, match=r"^Attention: scale=0.25 must be 0.5$"):
        imported(node)
    with pytest.raises(ValueError, match=r"^Attention: mask_filter_value=-1 must be -10000$"):
        imported(attention(mask_filter_value=-1.0))
    with uncorrected():
        assert not is_right(lambda: check(node))


@pytest.mark.parametrize(
    "node",
    [
        Node("Unique", [np.array([3, 1, 2, 1], "float32")], results=3, domain=CONTRIB),
        Node("Conv", [real(1, 16, 5, 5), real(16, 16, 3, 3)], domain="com.microsoft.nchwc"),
        Node("MaxPool", [real(1, 16, 5, 5)], dict(kernel_shape=[2, 2]),
             domain="com.microsoft.nchwc"),
    ],
)  # fmt: skip
def test_another_meaning_of_a_name_is_refused_in_one_line(node: Node) -> None:
    with pytest.raises(ValueError, match=rf"^{node.op}: domain='{node.domain}' must be ''"):
        imported(node)
    with uncorrected():
        assert not is_right(lambda: check(node))


def test_nodes_in_branches_are_read_by_domain_too() -> None:
    """A graph in a node is another graph of the importer's."""
    inner = Node("FusedConv", [real(1, 2, 5), real(3, 2, 3)], dict(activation="Relu"), data=0)
    model = inner.model()
    model.graph.node[0].domain = CONTRIB
    branch = onnx.GraphProto()
    branch.CopyFrom(model.graph)
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    value = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    graph = onnx.helper.make_graph([node], "g", [value], [onnx.ValueInfoProto(name="y")])
    model.graph.CopyFrom(graph)
    mod, params = relay.frontend.from_onnx(model, {"c": ()}, {"c": "bool"})
    feeds = {"c": np.array(True)}
    assert_close(results_of_free_sizes(mod, params, feeds), by_onnxruntime(model, feeds))


# ------------------------------------------------------------------------- standard operators


def test_gelu_by_tanh() -> None:
    """ONNX Runtime's own differs from its exact one by 5e-4, the tolerance is 1e-4 of 3."""
    node = Node("Gelu", [np.linspace(-3, 3, 101, dtype="float32")], opset=20)
    check(node)
    by_tanh = Node("Gelu", node.operands, dict(approximate="tanh"), opset=20)
    (want,) = by_onnxruntime(by_tanh.model(), by_tanh.feeds)
    assert np.abs(imported(by_tanh)[0] - want).max() < 1e-5
    with uncorrected():
        assert np.abs(imported(by_tanh)[0] - want).max() > 1e-4


def test_dropout() -> None:
    data = real(2, 30)
    for ratio, training in ((0.5, False), (0.0, True)):
        check_corrected(Node("Dropout", [data, F(ratio), np.array(training)]))
    check(Node("Dropout", [data]))
    random = Node("Dropout", [data, F(0.5), np.array(True)])
    with pytest.raises(ValueError, match=r"^Dropout: training_mode must be false: the result is"):
        imported(random)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_scale_and_a_zero_point_of_one_element_or_none(dtype: str) -> None:
    zero, data = np.array([5], dtype), whole(2, 3, 4, dtype=dtype)
    scale = np.array([0.1], "float32")
    check_corrected(Node("QuantizeLinear", [real(2, 3, 4), scale, zero], opset=13), steps=1)
    check_corrected(Node("DequantizeLinear", [data, scale], opset=13))
    check(Node("DequantizeLinear", [data, scale, zero], opset=13))
    vectors = np.linspace(0.01, 0.1, 3, dtype="float32"), np.arange(3, dtype=dtype)
    check(Node("DequantizeLinear", [data, *vectors], dict(axis=1), opset=13))


# ------------------------------------------------------------------------------------ resizes

IMAGES = real(1, 2, 3, 5)


def factors(*values: float) -> np.ndarray:
    return np.array(values, "float32")


@pytest.mark.parametrize(
    "attributes",
    [
        *({"mode": "nearest", "nearest_mode": r} for r in ("round_prefer_floor", "floor", "ceil")),
        {"mode": "linear"},
        {"mode": "cubic"},
    ],
    ids=lambda attributes: "-".join(attributes.values()),
)
def test_resizes_by_factors_that_give_no_whole_size(attributes: dict[str, Any]) -> None:
    nodes = [
        Node(
            "Resize",
            [IMAGES, None, factors(1, 1, *pair)],
            {**attributes, "coordinate_transformation_mode": mode},
        )
        for mode in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
        for pair in ((1.5, 1.5), (0.6, 2))
    ]
    for node in nodes:
        check(node)
    with uncorrected():
        assert not all(is_right(lambda node=node: check(node)) for node in nodes)


RESIZES = {
    "corners, one element": Node(
        "Resize",
        [IMAGES, None, None, np.array([1, 2, 1, 7])],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "the first version": Node("Resize", [IMAGES, factors(1, 1, 1.5, 0.6)], opset=10),
    "the first version, linear": Node(
        "Resize", [IMAGES, factors(1, 1, 1.5, 0.6)], {"mode": "linear"}, opset=10
    ),
    "Upsample": Node("Upsample", [IMAGES, factors(1, 1, 1.5, 1.7)], opset=9),
    "Upsample, linear": Node(
        "Upsample", [IMAGES, factors(1, 1, 1.5, 1.7)], {"mode": "linear"}, opset=9
    ),
    "some axes": Node(
        "Resize", [IMAGES, None, factors(1.5, 1.4)], {"mode": "linear", "axes": [2, 3]}, opset=18
    ),
    "one axis": Node("Resize", [IMAGES[0], None, factors(1, 1, 1.5)], {"mode": "linear"}),
}


@pytest.mark.parametrize("name", RESIZES)
def test_resizes(name: str) -> None:
    check_corrected(RESIZES[name])


def test_an_empty_region_and_empty_factors() -> None:
    empty = factors()
    operands = [IMAGES, empty, empty, np.array([1, 2, 6, 7])]
    check(Node("Resize", operands, {"mode": "linear"}, opset=11))
