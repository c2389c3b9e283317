# SPDX-License-Identifier: Apache-2.0
"""Fusion rules without an IR: which problem a chain becomes, and which post-ops are refused."""

from __future__ import annotations

import numpy as np
import pytest

from topi_ext.fusion import post_ops, rows
from topi_ext.fusion.anchors import ConvAnchor
from topi_ext.fusion.chain import Chain
from topi_ext.fusion.products import ProductAnchor, W, X
from topi_ext.fusion.resizes import ResizeAnchor
from topi_ext.fusion.transposes import TransposeAnchor
from topi_ext.spec.conv import Convolution
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts
from topi_ext.spec.post_ops import PostOp

FLOAT = ("float32",) * 3


def product(x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]) -> ProductAnchor:
    anchor = ProductAnchor.of((x, w, y), FLOAT)
    assert anchor is not None
    return anchor


def conv(dtypes: tuple[str, str, str] = FLOAT) -> ConvAnchor:
    geometry = Geometry.of_conv("conv2d", (2, 3, 8, 9), (4, 3, 3, 3))
    return ConvAnchor(
        "conv2d", Convolution("conv", geometry, Layouts("NHWC", "OIHW", "NHWC"), 2, dtypes)
    )


def test_a_product_reads_a_transposed_and_broadcast_weight() -> None:
    """The batch that the weight is broadcast along becomes rows of one product."""
    anchor = product((2, 3, 8), (2, 8, 5), (2, 3, 5)).broadcast_from(W, (8, 5))
    assert anchor is not None
    problem = anchor.transposed_from(W, (1, 0)).problem(())
    assert problem.is_matrix_product and (problem.w, problem.rows) == ("yz", "a")
    assert dict(problem.sizes) == {"a": 6, "y": 5, "z": 8}


def test_what_is_no_product() -> None:
    for x, w, y in [((4,), (4, 5), (5,)), ((0, 4), (4, 5), (0, 5)), ((3, 4), (6, 5), (3, 5))]:
        assert ProductAnchor.of((x, w, y), FLOAT) is None
    assert ProductAnchor.of(((3, 4), (4, 5), (3, 5)), ("int8", "int8", "int16")) is None


def test_factors_of_a_product_are_moderate() -> None:
    anchor = product((3, 4), (4, 5), (3, 5))
    scaled = anchor.scaled_from(X, 0.125)
    assert scaled is not None and scaled.problem(()).epilogue == (PostOp("multiply", value=0.125),)
    assert scaled.scaled_from(X, 2.0**-6) is None and anchor.scaled_from(X, 2.0**9) is None


def test_a_viewed_product_names_its_operands_anew() -> None:
    """Heads split columns: an operand of before still varies along all of them."""
    anchor = product((2, 6, 8), (8, 12), (2, 6, 12))
    bias = anchor.post_op("add", (12,))
    heads = anchor.viewed((2, 6, 3, 4))
    assert bias is not None and heads is not None
    turned = heads.permuted((0, 2, 1, 3))
    assert turned is not None and turned.shape == (2, 3, 6, 4)
    assert heads.permuted((0, 1, 3, 2)) is None  # vectors would be written one by one
    (step,) = turned.problem((bias,)).epilogue
    assert len(step.order) == 2 and anchor.post_op("add", (5,)) is None


def test_operands_of_a_convolution() -> None:
    anchor = conv()
    assert anchor.axes == ("N", "H", "W", "C")
    assert anchor.sizes == {"N": 2, "C": 4, "H": 6, "W": 7}
    assert anchor.post_op("add", (1, 1, 4)) == PostOp("add", "HWC", "C")
    assert anchor.post_op("add", (3, 6, 7, 4)) is None
    assert anchor.converted("int8") is None
    bytes_ = conv(("uint8", "int8", "float32")).converted("uint8")
    assert bytes_ is not None and bytes_.problem(()).dtypes == ("uint8", "int8", "uint8")


def test_operands_where_axes_merge_have_an_axis() -> None:
    softmax = rows.softmax("softmax", (2, 5), 1, ("float32", "float32"))
    assert softmax is not None and softmax.post_op("multiply", (1, 1)) is None
    assert rows.softmax("softmax", (2, 5), 0, ("float32", "float32")) is None


def test_rows_of_norms() -> None:
    assert rows.layer_norm((2, 3, 4), (1, 2)) is not None
    assert rows.layer_norm((2, 3, 4), (2, 1)) is None  # its weights are in that order
    assert rows.layer_norm((2, 3, 4), (1,)) is None
    group = rows.group_norm((2, 6, 5), (2,), 1, 3)
    assert group is not None and dict(group.letters.sizes) == {"a": 2, "c": 5, "y": 3, "z": 2}
    assert rows.instance_norm((2, 6, 5), (1, 2), 1) is None


def test_transposes_and_resizes_that_are_left_to_tvm() -> None:
    assert TransposeAnchor.of((64, 2, 128), (2, 1, 0), "float32") is not None
    for shape, order in [((64, 128), (0, 1)), ((8, 8), (1, 0)), ((4096, 4), (1, 0))]:
        assert TransposeAnchor.of(shape, order, "float32") is None
    before, after, dtypes = (1, 2, 4, 4), (1, 2, 8, 8), ("float32", "float32")
    nearest = "nearest_neighbor", "asymmetric", "floor"
    assert ResizeAnchor.of(before, after, dtypes, "NCHW", nearest) is not None
    assert ResizeAnchor.of(before, (1, 2, 9, 8), dtypes, "NCHW", nearest) is None
    assert ResizeAnchor.of(before, after, dtypes, "NHWC", nearest) is None


def test_post_ops_that_are_refused() -> None:
    saturated = [PostOp("cast"), PostOp("quantize", value=0.0, dtype="int8")]
    assert post_ops.clip(0.5, 2.0, []) and not post_ops.clip(0.5, 2.0, saturated)
    assert not post_ops.clip(2.0, 1.0, [])
    assert post_ops.with_number("multiply", 0.0) is None
    assert post_ops.takes("int32", [], "add") and not post_ops.takes("int32", [], "multiply")
    assert not post_ops.quantize("float32", "int8", float("inf"), 0.0)
    assert not post_ops.truncate("float32", "int32", [PostOp("floor"), PostOp("relu")])
    assert not post_ops.dequantize("int8", "float32", 0.5, 0.0, [])


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(-128, 127, "int8"), (0, 255, "uint8"), (-9, 9, "int8")]
)
def test_what_is_within_limits_may_be_narrowed(low: int, high: int, dtype: str) -> None:
    below, above = PostOp("minimum", value=high), PostOp("maximum", value=low)
    for steps in ([below, above], [above, below], [PostOp("truncate"), below, PostOp("relu")]):
        assert post_ops.narrows(steps, dtype)
    beyond = [PostOp("minimum", value=high + 256), PostOp("maximum", value=low - 256)]
    for steps in ([], [below], [above], [below, above, PostOp("add", value=1)], beyond):
        assert not post_ops.narrows(steps, dtype)


@pytest.mark.parametrize("bias", [np.ones(4, "float32"), "an expression"])
def test_a_scale_goes_into_known_operands_only(bias: object) -> None:
    steps = [
        (PostOp("multiply", value=0.5), None),
        (PostOp("add", "C", "C"), bias),
        (PostOp("divide", value=0.25), None),
        (PostOp("quantize", dtype="int8"), None),
    ]
    ops = [step.op for step, _ in post_ops.simplified(steps)]
    known = isinstance(bias, np.ndarray)
    assert ops == ["multiply", "add", *([] if known else ["divide"]), "quantize"]


def test_a_chain_is_cut_to_the_state_of_a_link() -> None:
    chain = Chain(product((3, 4), (4, 5), (3, 5)))
    chain.link("y", "matmul")
    chain.add([(PostOp("add", "y", "y"), "b")])
    chain.link("z", "add")
    chain.anchor = chain.anchor.viewed((15,))
    chain.link("v", "reshape", moves=1)
    assert [link.moves for link in chain.links] == [0, 0, 1]
    chain.cut(1)
    assert (chain.steps, chain.operands, chain.anchor.shape) == ([], [], (3, 5))
