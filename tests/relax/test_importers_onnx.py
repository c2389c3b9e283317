# SPDX-License-Identifier: Apache-2.0
"""ONNX: ``output_shape`` and ``auto_pad`` as onnxruntime and the standard's own tests have them.

Each form is also seen to be wrong where it is said to be, with the corrections taken out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tvm.relax.frontend.onnx import from_onnx  # noqa: E402

from helpers.imported import assert_close, is_right, piped, runner, uncorrected  # noqa: E402
from helpers.onnx_node_tests import node_tests  # noqa: E402

FREE = ("N", "H", "W", "D")


def model(
    op: str, shape: tuple[Any, ...], weight: tuple[int, ...], bias: bool = True, **attrs: Any
) -> Any:
    """One node; `shape` may name sizes."""
    rng = np.random.default_rng(0)
    outputs = weight[1] * attrs.get("group", 1) if op == "ConvTranspose" else weight[0]
    arrays = {"w": rng.standard_normal(weight, "float32")}
    if bias:
        arrays["b"] = rng.standard_normal(outputs, "float32")
    node = helper.make_node(op, ["x", *arrays], ["y"], **attrs)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))
    graph = helper.make_graph(
        [node], "g", [x], [y], [numpy_helper.from_array(a, name) for name, a in arrays.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def check(proto: Any, *shapes: tuple[int, ...]) -> None:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    session = ort.InferenceSession(proto.SerializeToString(), settings, ["CPUExecutionProvider"])
    run = runner(from_onnx(proto))
    for shape in shapes:
        x = np.random.default_rng(1).standard_normal(shape, "float32")
        (want,) = session.run(None, {"x": x})
        assert_close(run(tvm.runtime.tensor(x)).numpy(), want)


def check_both(proto: Any, *shapes: tuple[int, ...]) -> None:
    """Right, and wrong without the corrections."""
    check(proto, *shapes)
    with uncorrected():
        assert not is_right(lambda: check(proto, *shapes))


@pytest.mark.parametrize("mode", [None, "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((2, 3, 5), (3, 2, 4), dict(strides=[2], output_shape=[9])),
        ((2, 3, 5), (3, 2, 2), dict(strides=[2], output_shape=[11])),
        ((2, 4, 5, 4), (4, 1, 3, 4), dict(strides=[2, 3], group=2, output_shape=[10, 9])),
        (
            (1, 2, 5, 4),
            (2, 3, 4, 4),
            dict(strides=[3, 3], output_padding=[1, 1], output_shape=[13, 11]),
        ),
        ((1, 2, 3, 4, 3), (2, 2, 3, 2, 3), dict(strides=[2, 1, 2], output_shape=[6, 4, 5])),
    ],
)
def test_output_shape(mode: str | None, shape: tuple, weight: tuple, attrs: dict) -> None:
    given = {**attrs, "auto_pad": mode} if mode else attrs
    check_both(model("ConvTranspose", shape, weight, **given), shape)


def test_output_shape_of_a_free_batch() -> None:
    attrs = dict(strides=[2, 2], output_shape=[10, 8])
    proto = model("ConvTranspose", ("N", 2, 5, 4), (2, 3, 3, 3), **attrs)
    check_both(proto, (2, 2, 5, 4), (3, 2, 5, 4))


def test_output_shape_of_free_sizes_is_refused_in_one_line() -> None:
    proto = model("ConvTranspose", (1, 2, "H"), (2, 3, 3), strides=[2], output_shape=[10])
    with pytest.raises(ValueError, match=r"^ConvTranspose: output_shape=.10,. needs sizes known"):
        from_onnx(proto)
    mod = from_onnx(proto, shape_dict={"x": [1, 2, 5]})
    assert runner(mod)(tvm.runtime.tensor(np.zeros((1, 2, 5), "float32"))).shape == (1, 3, 10)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_same_of_free_sizes(rank: int, mode: str) -> None:
    kernel = (4, 3, 1)[:rank]
    attrs = dict(auto_pad=mode, strides=[2] * rank)
    shape = ("N", 2, *FREE[1 : rank + 1])
    proto = model("Conv", shape, (3, 2, *kernel), bias=rank != 2, **attrs)
    sizes = [(2, 2, *(7, 6, 5)[:rank]), (3, 2, *(8, 9, 4)[:rank])]
    check_both(proto, *sizes)


@pytest.mark.parametrize(
    ("op", "shape", "weight", "attrs"),
    [
        ("Conv", (2, 4, 7, 6), (4, 2, 3, 2), dict(auto_pad="SAME_UPPER", strides=[2, 3], group=2)),
        ("Conv", (2, 2, 8), (3, 2, 4), dict(auto_pad="SAME_LOWER", strides=[3])),
        ("Conv", (2, 2, 7), (3, 2, 2), dict(auto_pad="SAME_UPPER", strides=[3])),
        ("Conv", ("N", 2, "W"), (3, 2, 4), dict(auto_pad="SAME_LOWER")),
        ("Conv", (2, 2, 7), (3, 2, 3), dict(auto_pad="VALID", strides=[2])),
        ("Conv", (2, 2, 7), (3, 2, 3), dict(auto_pad="NOTSET", pads=[2, 0])),
        ("ConvTranspose", (2, 2, 7), (2, 3, 3), dict(auto_pad="SAME_LOWER", strides=[2])),
        ("ConvTranspose", (2, 2, 7), (2, 3, 4), dict(pads=[1, 2], strides=[2])),
    ],
)
def test_what_was_right_stays_right(op: str, shape: tuple, weight: tuple, attrs: dict) -> None:
    fed = tuple(size if isinstance(size, int) else 7 for size in shape)
    check(model(op, shape, weight, **attrs), fed)


def test_same_is_padding_of_the_convolution_where_it_can_be() -> None:
    """No copy of the data in front of it: known sizes, or a stride of 1."""
    same = dict(auto_pad="SAME_UPPER")
    for proto in (
        model("Conv", (1, 2, 9, 9), (3, 2, 3, 3), strides=[2, 2], **same),
        model("Conv", (1, 2, "H", "W"), (3, 2, 3, 3), **same),
    ):
        assert "call_tir" not in from_onnx(proto)["main"].script()


@pytest.mark.parametrize("case", node_tests(), ids=lambda case: case.name)
def test_the_standards_own_tests(case: Any) -> None:
    run = runner(from_onnx(case.model))
    for inputs, (want,) in case.data_sets:
        assert_close(run(*map(tvm.runtime.tensor, inputs)).numpy(), want)


INFINITE, NOT_A_NUMBER = float("inf"), float("nan")
LIMITS = {
    (0.0, 6.0): "_maximum_minimum",
    (None, 0.5): "_minimum",
    (-0.5, None): "_maximum",
    (-INFINITE, 0.25): "_minimum",
    (1.0, -1.0): "_maximum_minimum",
    (None, None): "",
}


def clip(limits: tuple[float | None, float | None], opset: int, data: str = "float32") -> Any:
    """A convolution and a clip; limits are attributes or constants."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(data))
    weight = np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(data)
    arrays, names, attrs = [numpy_helper.from_array(weight, "w")], ["v"], {}
    for name, limit in zip(("min", "max"), limits):
        if opset == 6 and limit is not None:
            attrs[name] = limit
        elif opset != 6:
            names.append("" if limit is None else name)
            if limit is not None:
                arrays.append(numpy_helper.from_array(np.array(limit, data), name))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["v"]),
        helper.make_node("Clip", names, ["y"], **attrs),
    ]
    x, y = (helper.make_tensor_value_info(a, kind, (1, n, 5, 6)) for a, n in (("x", 3), ("y", 4)))
    graph = helper.make_graph(nodes, "g", [x], [y], arrays)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("opset", [6, 13])
@pytest.mark.parametrize("limits", LIMITS)
def test_clip_is_a_step_of_a_kernel(limits: tuple, opset: int) -> None:
    proto = clip(limits, opset)
    x = np.random.default_rng(1).standard_normal((1, 3, 5, 6), "float32")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    run, kernels = piped(from_onnx(proto))
    assert_close(run(tvm.runtime.tensor(x)).numpy(), want)
    assert kernels == [f"conv2d{LIMITS[limits]}"]
    assert_close(runner(from_onnx(proto))(tvm.runtime.tensor(x)).numpy(), want)


def test_clip_by_what_is_not_a_number_is_none() -> None:
    proto = clip((NOT_A_NUMBER, 0.5), 13)
    x = np.random.default_rng(1).standard_normal((1, 3, 5, 6), "float32")
    run, kernels = piped(from_onnx(proto))
    (want,) = (piped(from_onnx(clip((None, 0.5), 13)))[0](tvm.runtime.tensor(x)).numpy(),)
    np.testing.assert_array_equal(run(tvm.runtime.tensor(x)).numpy(), want)
    assert kernels == ["conv2d_minimum"]
