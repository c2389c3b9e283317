# SPDX-License-Identifier: Apache-2.0
"""ONNX: resizes by the factors that nodes state, against ONNX Runtime."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tvm.relax.frontend.onnx import from_onnx  # noqa: E402

from helpers.imported import assert_close, is_right, runner, uncorrected  # noqa: E402
from helpers.onnx_node import Node, by_onnxruntime  # noqa: E402

IMAGES = np.random.default_rng(0).standard_normal((1, 2, 3, 5), "float32")
MODES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
METHODS: dict[str, dict[str, Any]] = {
    **{
        f"nearest, {rounding}": {"mode": "nearest", "nearest_mode": rounding}
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    },
    "linear": {"mode": "linear"},
    "cubic": {"mode": "cubic"},
    "cubic inside": {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
}


def floats(*values: float) -> np.ndarray:
    return np.array(values, "float32")


def integers(*values: int) -> np.ndarray:
    return np.array(values, "int64")


def check(node: Node) -> None:
    run = runner(from_onnx(node.model()))
    got = run(*map(tvm.runtime.tensor, node.feeds.values())).numpy()
    want = by_onnxruntime(node.model(), node.feeds)[0]
    assert got.dtype == want.dtype
    assert_close(got, want)


def check_corrected(*nodes: Node) -> None:
    for node in nodes:
        check(node)
    with uncorrected():
        assert not all(is_right(partial(check, node)) for node in nodes)


@pytest.mark.parametrize("method", METHODS)
def test_factors_that_give_no_whole_size(method: str) -> None:
    attributes = METHODS[method]
    check_corrected(
        *(
            Node(
                "Resize",
                [IMAGES, None, floats(1, 1, *factors)],
                {**attributes, "coordinate_transformation_mode": mode},
            )
            for mode, factors in product(MODES, ((1.5, 1.5), (0.6, 2), (1.2, 0.5)))
        )
    )


WRONG: dict[str, Node] = {
    "symmetric": Node(
        "Resize",
        [IMAGES, None, floats(1, 1, 1.5, 1.7)],
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
        opset=19,
    ),
    "corners, one element": Node(
        "Resize",
        [IMAGES, None, None, integers(1, 2, 1, 7)],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "an empty region and empty factors": Node(
        "Resize", [IMAGES, floats(), floats(), integers(1, 2, 6, 7)], {"mode": "linear"}, opset=11
    ),
    "the first version": Node("Resize", [IMAGES, floats(1, 1, 1.5, 0.6)], opset=10),
    "the first version, linear": Node(
        "Resize", [IMAGES, floats(1, 1, 1.5, 0.6)], {"mode": "linear"}, opset=10
    ),
    "Upsample": Node("Upsample", [IMAGES, floats(1, 1, 1.5, 1.5)], opset=9),
    "Upsample with attributes": Node("Upsample", [IMAGES], {"scales": [1.0, 1, 2.5, 1.5]}, opset=7),
    "some axes": Node(
        "Resize", [IMAGES, None, floats(1.5, 1.4)], {"mode": "linear", "axes": [2, 3]}, opset=18
    ),
    "not larger": Node(
        "Resize",
        [IMAGES, None, None, integers(7, 8)],
        {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        opset=18,
    ),
    "one axis": Node("Resize", [IMAGES[0], None, floats(1, 1, 1.5)], {"mode": "linear"}),
    "three axes": Node(
        "Resize", [IMAGES[:, None], None, floats(1, 1, 1.5, 1.5, 1.5)], {"mode": "linear"}
    ),
    "channels too": Node("Resize", [IMAGES, None, floats(1, 1.5, 1.5, 1)]),
    "bytes": Node("Resize", [(IMAGES * 50).astype("uint8"), None, floats(1, 1, 1.5, 1.5)]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_stock_gets_wrong(name: str) -> None:
    check_corrected(WRONG[name])


def test_filtered_resizes_to_smaller_sizes_are_refused() -> None:
    attributes = {"mode": "linear", "antialias": 1}
    node = Node("Resize", [IMAGES, None, floats(1, 1, 0.5, 0.5)], attributes, opset=18)
    with pytest.raises(ValueError, match=r"^Resize: antialias=1 must come with larger sizes: .*$"):
        from_onnx(node.model())


def free(sizes: list[Any], nodes: list[Any], constants: dict[str, np.ndarray]) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check_free(proto: Any, *shapes: tuple[int, ...]) -> None:
    run = runner(from_onnx(proto))
    for shape in shapes:
        x = np.random.default_rng(1).standard_normal(shape, "float32")
        assert_close(run(tvm.runtime.tensor(x)).numpy(), by_onnxruntime(proto, {"x": x})[0])


def test_sizes_of_a_free_batch() -> None:
    """``interpolate`` to a stated size, as PyTorch exports it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "two", "zero"], ["first"]),
        helper.make_node("Concat", ["first", "stated"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear"),
    ]
    constants = {"zero": integers(0), "two": integers(2), "stated": integers(16, 12)}
    proto = free(["N", 2, 7, 5], nodes, constants)
    check_free(proto, (1, 2, 7, 5), (3, 2, 7, 5))
    with uncorrected():
        assert not is_right(lambda: check_free(proto, (1, 2, 7, 5)))


def test_whole_factors_of_free_sizes() -> None:
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")]
    proto = free(["N", 2, "H", "W"], nodes, {"scales": floats(1, 1, 2, 3)})
    check_free(proto, (1, 2, 7, 5), (3, 2, 4, 6))


def test_other_factors_of_free_sizes_are_refused() -> None:
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")]
    proto = free(["N", 2, "H", "W"], nodes, {"scales": floats(1, 1, 1.5, 1.5)})
    rule = r"^Resize: scales=1.5 of a size that is not known must be whole$"
    with pytest.raises(ValueError, match=rule):
        from_onnx(proto)
