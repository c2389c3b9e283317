# SPDX-License-Identifier: Apache-2.0
"""ONNX in Relay: what onnxruntime and the standard's own tests make of padding, integers, dtypes.

What stock TVM makes of each form is stated beside it, and seen with the corrections taken out.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import relay_ext  # noqa: E402
from helpers.onnx_node_tests import node_tests  # noqa: E402
from helpers.relay_imported import (  # noqa: E402
    assert_close,
    results,
    results_of_free_sizes,
    uncorrected,
)

SCALE = 0.05


def wrapped(nodes: list[Any], shape: tuple[Any, ...], arrays: dict, dtype: Any, made: Any) -> Any:
    """A model of nodes that read x and arrays and give y."""
    x = helper.make_tensor_value_info("x", dtype, shape)
    y = helper.make_tensor_value_info("y", made, [None] * len(shape))
    constants = [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def model(op: str, shape: tuple[Any, ...], weight: tuple[int, ...], **attrs: Any) -> Any:
    """One Conv or ConvTranspose with a bias; `shape` may name sizes."""
    rng = np.random.default_rng(0)
    outputs = weight[1] * attrs.get("group", 1) if op == "ConvTranspose" else weight[0]
    arrays = {"w": rng.standard_normal(weight, "float32")}
    arrays["b"] = rng.standard_normal(outputs, "float32")
    node = helper.make_node(op, ["x", "w", "b"], ["y"], **attrs)
    return wrapped([node], shape, arrays, TensorProto.FLOAT, TensorProto.FLOAT)


def by_onnxruntime(proto: Any, x: np.ndarray) -> np.ndarray:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    session = ort.InferenceSession(proto.SerializeToString(), settings, ["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def typed(mod: tvm.IRModule) -> tuple[int, ...]:
    return tuple(map(int, relay.transform.InferType()(mod)["main"].ret_type.shape))


def verdict(proto: Any, x: np.ndarray, want: np.ndarray) -> str:
    """Return the outcome of importing a model."""
    try:
        mod, params = relay.frontend.from_onnx(proto, {"x": x.shape})
        if typed(mod) != want.shape:
            return "another shape"
        got = results(mod, params, {"x": x})
    except Exception:
        return "raises"
    try:
        assert_close(got, [want])
    except AssertionError:
        return "wrong values"
    return "right"


def check(proto: Any, shape: tuple[int, ...], stock: str) -> None:
    x = np.random.default_rng(1).standard_normal(shape, "float32")
    want = by_onnxruntime(proto, x)
    assert verdict(proto, x, want) == "right"
    with uncorrected():
        assert verdict(proto, x, want) == stock


UPPER, LOWER = dict(auto_pad="SAME_UPPER"), dict(auto_pad="SAME_LOWER")
NOTSET, VALID = dict(auto_pad="NOTSET"), dict(auto_pad="VALID")
TRANSPOSED = [
    # A kernel shorter than the stride.
    ((2, 3, 5), (3, 2, 1), dict(strides=[3], **UPPER), "another shape"),
    ((2, 4, 5, 4), (4, 1, 2, 1), dict(strides=[3, 2], group=2, **LOWER), "another shape"),
    ((1, 2, 3, 4, 3), (2, 2, 1, 2, 1), dict(strides=[2, 3, 2], **UPPER), "another shape"),
    ((1, 2, 3), (2, 1, 2), dict(strides=[4], output_padding=[1], **LOWER), "another shape"),
    # output_shape, the total of whose padding is odd.
    ((2, 3, 5), (3, 2, 4), dict(strides=[2], output_shape=[9], **NOTSET), "wrong values"),
    ((2, 4, 5, 4), (4, 1, 3, 4), dict(strides=[2, 3], group=2, output_shape=[10, 9], **NOTSET),
     "wrong values"),
    ((1, 2, 3, 4, 3), (2, 2, 3, 2, 3), dict(strides=[2, 1, 2], output_shape=[6, 4, 5], **NOTSET),
     "wrong values"),
    # output_shape beyond the last tap.
    ((1, 2, 4, 3), (2, 3, 1, 2), dict(strides=[2, 3], output_shape=[8, 9], **UPPER),
     "wrong values"),
    # What is right in stock TVM stays right.
    ((2, 3, 5), (3, 2, 4), dict(strides=[2], output_shape=[9]), "right"),
    ((2, 3, 5), (3, 2, 2), dict(strides=[2], output_shape=[11]), "right"),
    ((1, 2, 5, 4), (2, 3, 4, 4),
     dict(strides=[3, 3], output_padding=[1, 1], output_shape=[13, 11], **LOWER), "right"),
    ((1, 2, 5, 4), (2, 3, 4, 3), dict(strides=[2, 3], dilations=[2, 1], **UPPER), "right"),
    ((2, 2, 7), (2, 3, 4), dict(pads=[1, 2], strides=[2]), "right"),
    ((2, 2, 7), (2, 3, 4), dict(strides=[2], **VALID), "right"),
]  # fmt: skip


@pytest.mark.usefixtures("mapping")
@pytest.mark.parametrize(("shape", "weight", "attrs", "stock"), TRANSPOSED)
def test_conv_transpose(shape: tuple, weight: tuple, attrs: dict, stock: str) -> None:
    check(model("ConvTranspose", shape, weight, **attrs), shape, stock)


@pytest.mark.usefixtures("mapping")
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((2, 4, 7, 6), (4, 2, 3, 2), dict(strides=[2, 3], group=2, **UPPER)),
        ((2, 2, 8), (3, 2, 4), dict(strides=[3], **LOWER)),
        ((1, 2, 5, 4, 6), (2, 2, 2, 3, 1), dict(strides=[2, 1, 3], **UPPER)),
        ((2, 2, 7), (3, 2, 3), dict(pads=[2, 0], **NOTSET)),
        ((2, 2, 7), (3, 2, 3), dict(strides=[2], **VALID)),
    ],
)
def test_conv(shape: tuple, weight: tuple, attrs: dict) -> None:
    check(model("Conv", shape, weight, **attrs), shape, "right")


@pytest.mark.usefixtures("mapping")
def test_same_is_padding_of_the_convolution() -> None:
    """No copy of the data in front of it, which stock TVM makes."""
    proto = model("Conv", (1, 2, 9, 9), (3, 2, 3, 3), strides=[2, 2], **UPPER)
    assert "nn.pad" not in str(relay.frontend.from_onnx(proto)[0])
    with uncorrected():
        assert "nn.pad" in str(relay.frontend.from_onnx(proto)[0])


def test_free_sizes() -> None:
    """Sizes may stay free where padding does not depend on them; a batch may always."""
    for attrs, free, fed in (
        (dict(strides=[2, 3], **UPPER), ("N", 2, "H", "W"), (2, 2, 4, 3)),
        (dict(strides=[2, 3], output_shape=[8, 9]), ("N", 2, 4, 3), (3, 2, 4, 3)),
    ):
        proto = model("ConvTranspose", free, (2, 3, 1, 2), **attrs)
        x = np.random.default_rng(1).standard_normal(fed, "float32")
        mod, params = relay.frontend.from_onnx(proto)
        assert_close(results_of_free_sizes(mod, params, {"x": x}), [by_onnxruntime(proto, x)])


@pytest.mark.usefixtures("mapping")
def test_output_shape_of_free_sizes_is_refused_in_one_line() -> None:
    proto = model("ConvTranspose", (1, 2, "H"), (2, 3, 3), strides=[2], output_shape=[10])
    with pytest.raises(ValueError, match=r"^ConvTranspose: output_shape=.10. needs sizes known"):
        relay.frontend.from_onnx(proto)
    with uncorrected(), pytest.raises(ValueError, match="must be integers"):
        relay.frontend.from_onnx(proto)


@pytest.mark.usefixtures("mapping")
def test_an_optional_bias_that_is_left_out_by_name() -> None:
    proto = model("ConvTranspose", (1, 2, 4), (2, 3, 3), strides=[2])
    proto.graph.node[0].input[2] = ""
    x = np.ones((1, 2, 4), "float32")
    want = by_onnxruntime(proto, x)
    assert verdict(proto, x, want) == "right"
    with uncorrected():
        assert verdict(proto, x, want) == "raises"


# ----------------------------------------------------------------------------------- integers


def integers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype)


def conv_integer(shape: tuple, weight: tuple, zeros: bool, **attrs: Any) -> Any:
    arrays: dict[str, Any] = {"w": integers(weight, "int8", 0)}
    if zeros:
        arrays.update(x_zero=np.uint8(7), w_zero=np.int8(-3))
    node = helper.make_node("ConvInteger", ["x", *arrays], ["y"], **attrs)
    return wrapped([node], shape, arrays, TensorProto.UINT8, TensorProto.INT32)


def qlinear_conv(shape: tuple, weight: tuple, per_channel: bool, **attrs: Any) -> Any:
    channels = (weight[0],) if per_channel else ()
    # Of seven bits: without VNNI, onnxruntime adds pairs of products in 16 bits, which saturate.
    arrays = {
        "x_scale": np.float32(SCALE),
        "x_zero": np.uint8(7),
        "w": integers(weight, "int8", 0) // 2,
        "w_scale": np.linspace(0.01, 0.03, weight[0], dtype="float32").reshape(channels)
        if per_channel
        else np.float32(0.02),
        "w_zero": np.zeros(channels, "int8"),
        "y_scale": np.float32(3.0),
        "y_zero": np.uint8(120),
        "b": integers((weight[0],), "int16", 2).astype("int32"),
    }
    node = helper.make_node("QLinearConv", ["x", *arrays], ["y"], **attrs)
    return wrapped([node], shape, arrays, TensorProto.UINT8, TensorProto.UINT8)


RANKS = [
    ((2, 4, 7), (6, 2, 3), dict(group=2, strides=[2], **UPPER)),
    ((2, 2, 5, 7), (3, 2, 3, 2), dict(dilations=[2, 1], pads=[1, 0, 2, 1])),
    ((1, 2, 5, 4, 6), (3, 2, 2, 3, 2), dict(pads=[1, 0, 1, 0, 2, 1])),
    ((1, 2, 4, 4, 4), (3, 2, 2, 3, 2), dict(**VALID)),
]


@pytest.mark.parametrize(("shape", "weight", "attrs"), RANKS)
def test_conv_integer(shape: tuple, weight: tuple, attrs: dict) -> None:
    has_zeros = attrs is not RANKS[-1][-1]
    proto, x = conv_integer(shape, weight, has_zeros, **attrs), integers(shape, "uint8", 1)
    want = by_onnxruntime(proto, x)
    mod, params = relay.frontend.from_onnx(proto, {"x": shape})
    (got,) = results(mod, params, {"x": x})
    assert got.dtype == want.dtype and (got == want).all()


@pytest.mark.parametrize(("shape", "weight", "attrs"), RANKS)
def test_qlinear_conv(shape: tuple, weight: tuple, attrs: dict) -> None:
    """To one step of the result: onnxruntime rounds halves to even, TVM up."""
    per_channel = attrs is not RANKS[-1][-1]
    proto, x = qlinear_conv(shape, weight, per_channel, **attrs), integers(shape, "uint8", 1)
    want = by_onnxruntime(proto, x)
    mod, params = relay.frontend.from_onnx(proto, {"x": shape})
    (got,) = results(mod, params, {"x": x})
    assert got.dtype == want.dtype and got.shape == want.shape and len(np.unique(want)) > 5
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


@pytest.mark.usefixtures("mapping")
@pytest.mark.parametrize("make", [conv_integer, qlinear_conv])
def test_stock_takes_integers_of_two_axes_only(make: Any) -> None:
    shape, weight, attrs = RANKS[-1]
    with uncorrected(), pytest.raises(tvm.error.OpAttributeInvalid, match="Only 2D kernels"):
        relay.frontend.from_onnx(make(shape, weight, False, **attrs), {"x": shape})


# ------------------------------------------------------------- the standard's own tests, dtypes


@pytest.mark.parametrize("case", node_tests(), ids=lambda case: case.name)
def test_the_standards_own_tests(case: Any) -> None:
    for arrays, (want,) in case.data_sets:
        names = [value.name for value in case.model.graph.input]
        feeds = {name: np.asarray(array) for name, array in zip(names, arrays)}
        shapes = {name: array.shape for name, array in feeds.items()}
        mod, params = relay.frontend.from_onnx(case.model, shapes)
        assert_close(results(mod, params, feeds), [want])


def cast() -> Any:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)
    return wrapped([node], (2,), {}, TensorProto.FLOAT, TensorProto.FLOAT16)


def test_dtypes_of_any_release_of_onnx() -> None:
    """Stock TVM asks ``onnx.mapping``, which ONNX had up to 1.18."""
    mod, _ = relay.frontend.from_onnx(cast())
    assert relay.transform.InferType()(mod)["main"].ret_type.dtype == "float16"
    from importlib.util import find_spec

    if find_spec("onnx.mapping"):
        return
    with relay_ext.stock(), pytest.raises(ImportError, match=r"onnx\.mapping"):
        relay.frontend.from_onnx(cast())
    assert "onnx.mapping" not in sys.modules
