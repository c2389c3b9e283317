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

from helpers.imported import is_right, runner, uncorrected  # noqa: E402

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


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("per_channel", [True, False], ids=["per channel", "per tensor"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
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
    check(proto, oracle, values(dtype, shape, 7), steps=1)


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
