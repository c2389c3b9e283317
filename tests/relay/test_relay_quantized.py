# SPDX-License-Identifier: Apache-2.0
"""Relay's qnn.conv2d_transpose, and what leads to it from ONNX and PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization as quantization
import tvm
from torch import nn
from tvm import relay

import relay_ext
from helpers.relay_imported import is_right, results

CHANNELS = 6
KERNEL = (3, 2)


def stored(array: np.ndarray, order: str, wanted: str) -> np.ndarray:
    return np.ascontiguousarray(array.transpose([order.index(letter) for letter in wanted]))


def operator(
    groups: int,
    scale: Any,
    data_zero: Any,
    weight_zero: Any,
    data: np.ndarray | None = None,
    weight: np.ndarray | None = None,
    **attributes: Any,
) -> tvm.IRModule:
    """A typed module of the operator, its data "x"."""
    data = np.zeros((1, 4, 5, 5), "uint8") if data is None else data
    weight = np.zeros((4, CHANNELS // groups, *KERNEL), "int8") if weight is None else weight
    operand = relay.var("x", shape=data.shape, dtype=str(data.dtype))
    body = relay.qnn.op.conv2d_transpose(
        operand,
        relay.const(weight),
        *(relay.const(np.asarray(zero, "int32")) for zero in (data_zero, weight_zero)),
        *(relay.const(np.asarray(one, "float32")) for one in (0.5, scale)),
        groups=groups,
        channels=CHANNELS,
        kernel_size=KERNEL,
        out_dtype="int32",
        **attributes,
    )
    mod = tvm.IRModule.from_expr(relay.Function([operand], body))
    return relay.transform.InferType()(mod)


def check(
    groups: int,
    scale: Any = 0.5,
    data_zero: Any = 7,
    weight_zero: Any = 0,
    layouts: tuple[str, str] = ("NCHW", "IOHW"),
    dtype: str = "uint8",
    **attributes: Any,
) -> None:
    """Sums of products of integers less their zero points, exactly, by PyTorch in float64."""
    random = np.random.default_rng(0)
    data = random.integers(0, 100, (2, 4, 5, 6)).astype(dtype)
    weight = random.integers(-9, 9, (4, CHANNELS // groups, *KERNEL)).astype("int8")
    zeros = np.broadcast_to(weight_zero, (CHANNELS,)).reshape(groups, -1)
    want = nn.functional.conv_transpose2d(
        torch.tensor(data.astype("float64") - np.asarray(data_zero).item()),
        torch.tensor(weight - np.repeat(zeros, 4 // groups, axis=0)[..., None, None].astype(float)),
        groups=groups,
        stride=attributes.get("strides", 1),
        padding=attributes.get("padding", 0),
        output_padding=attributes.get("output_padding", 0),
    ).numpy()
    shown = stored(data, "NCHW", layouts[0])
    filters = stored(weight, "IOHW", layouts[1])
    attributes.update(data_layout=layouts[0], kernel_layout=layouts[1])
    mod = operator(groups, scale, data_zero, weight_zero, shown, filters, **attributes)
    (got,) = results(mod, {}, {"x": shown})
    assert got.dtype == "int32"
    np.testing.assert_array_equal(stored(got, layouts[0], "NCHW"), want)


SIX = np.full(CHANNELS, 0.5)
GEOMETRY = dict(strides=(2, 1), padding=(1, 0), output_padding=(1, 0))


@pytest.mark.parametrize("weight_zero", [0, [3], np.arange(CHANNELS)], ids=["", "[3]", "six"])
@pytest.mark.parametrize("data_zero", [7, [7]])
@pytest.mark.parametrize("scale", [0.5, [0.5], SIX], ids=["", "[0.5]", "six"])
@pytest.mark.parametrize("groups", [1, 2])
def test_scales_and_zero_points(groups: int, scale: Any, data_zero: Any, weight_zero: Any) -> None:
    check(groups, scale, data_zero, weight_zero, **GEOMETRY)


@pytest.mark.parametrize("layouts", [("NHWC", "HWOI"), ("NCHW", "OIHW"), ("NHWC", "HWIO")])
@pytest.mark.parametrize("groups", [1, 2])
def test_layouts(groups: int, layouts: tuple[str, str]) -> None:
    check(groups, SIX, 7, np.arange(CHANNELS), layouts, **GEOMETRY)


def test_data_of_either_sign() -> None:
    check(2, SIX, -3, dtype="int8")
    check(2, SIX, 0, dtype="int16")


@pytest.mark.parametrize(
    "arguments", [(2, SIX), (1, 0.5, [7]), (1, 0.5, 7, [0])], ids=["groups", "data", "weight"]
)
def test_stock_raises(arguments: Sequence[Any]) -> None:
    check(*arguments)
    with relay_ext.stock():
        assert not is_right(lambda: check(*arguments))
        check(2, 0.5)
    check(*arguments)


@pytest.mark.parametrize(
    ("scale", "data_zero", "weight_zero", "said"),
    [
        (np.full(3, 0.5), 7, 0, r"kernel_scale of shape \[3\] must have 1 or 6 elements"),
        (0.5, [1, 2], 0, r"input_zero_point of shape \[2\] must have 1 elements"),
        (0.5, 7, [0] * 4, r"kernel_zero_point of shape \[4\] must have 1 or 6 elements"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    scale: Any, data_zero: Any, weight_zero: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=f"^qnn.conv2d_transpose: {said}$"):
        operator(2, scale, data_zero, weight_zero)


# ---------------------------------------------------------------------------------- from ONNX


def quantized_onnx(groups: int, per_channel: bool, of_one: bool) -> Any:
    """Quantize, dequantize, ConvTranspose, quantize, dequantize; scales as a scalar or [1]."""
    onnx = pytest.importorskip("onnx")
    random, columns = np.random.default_rng(0), CHANNELS // groups
    shape = (1,) if of_one else ()

    def one(value: float, dtype: str) -> np.ndarray:
        return np.full(shape, value, dtype)

    arrays = {
        "w": random.integers(-99, 99, (4, columns, *KERNEL)).astype("int8"),
        "ws": np.linspace(0.01, 0.03, columns, dtype="float32")
        if per_channel
        else one(0.02, "float32"),
        "wz": np.zeros(columns, "int8") if per_channel else one(0, "int8"),
        "xs": one(0.05, "float32"),
        "xz": one(7, "uint8"),
        "ys": one(0.3, "float32"),
        "yz": one(120, "uint8"),
    }
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1),
        node("ConvTranspose", ["xd", "wd"], ["c"], group=groups, strides=[2, 2]),
        node("QuantizeLinear", ["c", "ys", "yz"], ["cq"]),
        node("DequantizeLinear", ["cq", "ys", "yz"], ["y"]),
    ]
    constants = [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()]
    x, y = info("x", 1, (1, 4, 5, 5)), info("y", 1, None)
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], constants)
    opset = onnx.helper.make_opsetid("", 13)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def check_onnx(groups: int, per_channel: bool, of_one: bool) -> None:
    """To one step, 0.3: ONNX Runtime rounds halves to even, TVM up."""
    from helpers.onnx_node import by_onnxruntime

    model = quantized_onnx(groups, per_channel, of_one)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 4, 5, 5)).astype("float32")}
    (want,) = by_onnxruntime(model, feeds)
    mod, params = relay.frontend.from_onnx(model, {"x": (1, 4, 5, 5)})
    mod = relay.transform.InferType()(mod)
    mod = relay.transform.FakeQuantizationToInteger(hard_fail=True)(mod)
    assert "qnn.conv2d_transpose" in str(mod)
    (got,) = results(mod, params, feeds)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 0.3 * 1.001  # and the rounding of float32


@pytest.mark.usefixtures("mapping")
@pytest.mark.parametrize("of_one", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_onnx(groups: int, per_channel: bool, of_one: bool) -> None:
    check_onnx(groups, per_channel, of_one)
    with relay_ext.stock():
        is_wrong = of_one or (groups > 1 and per_channel)
        assert is_right(lambda: check_onnx(groups, per_channel, of_one)) is not is_wrong


# ------------------------------------------------------------------------------- from PyTorch


def check_torch(groups: int, bias: bool) -> None:
    """To one step of the result: PyTorch adds the bias in float32 before it rounds."""
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=groups, bias=bias)
    model = nn.Sequential(quantization.QuantStub(), layer, quantization.DeQuantStub()).eval()
    model.qconfig = quantization.QConfig(  # seven bits, as products of bytes would saturate
        activation=quantization.HistogramObserver.with_args(reduce_range=True),
        weight=quantization.default_weight_observer,
    )
    data = torch.randn(1, 6, 5, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = quantization.prepare(model)
        prepared(data)
        converted = quantization.convert(prepared)
        traced = torch.jit.trace(converted, data)
    want = traced(data).numpy()
    mod, params = relay.frontend.from_pytorch(traced, [("x", tuple(data.shape))])
    (got,) = results(mod, params, {"x": data.numpy()})
    assert got.shape == want.shape
    steps = np.abs(got - want) / float(converted[1].scale)
    assert steps.max() < 1.001 and (steps > 0.5).mean() < 0.05


@pytest.mark.parametrize(("groups", "bias"), [(1, True), (2, True), (3, False), (6, True)])
def test_torch(groups: int, bias: bool) -> None:
    check_torch(groups, bias)
    if groups > 1:
        with relay_ext.stock():
            assert not is_right(lambda: check_torch(groups, bias))
