# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's graphs through relay.frontend.from_tensorflow, against TensorFlow itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tvm import relay

from helpers.relay_imported import (
    assert_close,
    is_right,
    results,
    results_of_free_sizes,
    uncorrected,
)

tf1 = tf.compat.v1
RAW = tf.raw_ops

Build = Callable[[Any, Any], Any]
"""A node's result from its operand and a maker of constants."""


@dataclass(frozen=True)
class Model:
    """A graph of one operand.

    Parameters
    ----------
    build : callable
        The node that is imported.
    shape : tuple of int
        Of the operand.
    reference : callable, optional
        A node that computes the same, where TensorFlow itself can't compute the first on a CPU.
    is_wrong : bool
        Whether TVM alone gets it wrong.
    free : tuple of int
        Axes of the operand whose size the graph leaves open, `given` or not when it is imported.
    """

    build: Build
    shape: tuple[int, ...]
    reference: Build | None = None
    is_wrong: bool = True
    noted: bool = True
    layout: str = "NHWC"
    free: tuple[int, ...] = ()
    given: bool = True
    seed: int = field(default=0, repr=False)

    def graph(self, build: Build) -> tf.Graph:
        random = np.random.default_rng(self.seed)

        def constant(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype("float32")

        with tf.Graph().as_default() as graph:
            shape = [None if axis in self.free else n for axis, n in enumerate(self.shape)]
            tf.identity(build(tf1.placeholder(tf.float32, shape, "x"), constant), "y")
        return graph

    def check(self) -> None:
        data = np.random.default_rng(1).standard_normal(self.shape).astype("float32")
        with tf1.Session(graph=self.graph(self.reference or self.build)) as session:
            want = session.run("y:0", {"x:0": data})
        text = self.graph(self.build).as_graph_def(add_shapes=self.noted)
        is_open = self.free and not self.given
        shape = [relay.Any() if is_open and a in self.free else n for a, n in enumerate(self.shape)]
        mod, params = relay.frontend.from_tensorflow(
            text, layout=self.layout, shape={"x": tuple(shape)}, outputs=["y"]
        )
        run = results_of_free_sizes if is_open else results
        assert_close(run(mod, params, {"x": data}), [want])


def transposed(
    shape: Sequence[int], kernel: Sequence[int], strides: Any, padding: Any, out: Sequence[int],
    *, dilations: Any = 1, shape_of: Callable[[Any, list[int]], Any] | None = None, **how: Any,
) -> Model:  # fmt: skip
    """A transposed convolution to three channels, of a spatial output size."""
    rank = len(kernel)
    function = getattr(tf.nn, f"conv{rank}d_transpose")
    whole = [shape[0], *out, 3]

    def build(x: Any, constant: Any) -> Any:
        wanted = shape_of(x, whole) if shape_of else whole
        weight = constant(*kernel, 3, shape[-1])
        return function(x, weight, wanted, strides, padding, dilations=dilations)

    return Model(build, tuple(shape), **how)


def computed(x: Any, whole: list[int]) -> Any:
    return tf.stack([tf.shape(x)[0], *whole[1:]])


def twice(x: Any, whole: list[int]) -> Any:
    sizes = tf.shape(x)
    return tf.concat([sizes[:1], 2 * sizes[1:-1], whole[-1:]], 0)


def dilated(kernel: Sequence[int], dilations: Sequence[int], padding: str) -> Model:
    """On CPUs TensorFlow refuses dilation beside an output shape: zeros between taps do instead."""
    far = [d * (k - 1) + 1 for k, d in zip(kernel, dilations)]
    out = SHAPE[1:3] if padding == "SAME" else [n + r - 1 for n, r in zip(SHAPE[1:3], far)]

    def spread(x: Any, constant: Any) -> Any:
        weight = np.zeros((*far, 3, 4), "float32")
        weight[:: dilations[0], :: dilations[1]] = constant(*kernel, 3, 4)
        return tf.nn.conv2d_transpose(x, weight, [SHAPE[0], *out, 3], 1, padding)

    return transposed(SHAPE, kernel, 1, padding, out, dilations=dilations, reference=spread)


def channels_first(x: Any, constant: Any) -> Any:
    """A node of TensorFlow's own NCHW."""
    arguments = dict(input_sizes=[2, 3, 7, 9], filter=constant(2, 3, 3, 4), out_backprop=x)
    steps = dict(strides=[1, 1, 2, 3], dilations=[1] * 4, padding="SAME", data_format="NCHW")
    return RAW.Conv2DBackpropInput(**arguments, **steps)


def channels_last(x: Any, constant: Any) -> Any:
    y = tf.nn.conv2d_transpose(
        tf.transpose(x, (0, 2, 3, 1)), constant(2, 3, 3, 4), [2, 7, 9, 3], (2, 3), "SAME"
    )
    return tf.transpose(y, (0, 3, 1, 2))


def of_groups(x: Any, constant: Any) -> Any:
    arguments = dict(input_sizes=[2, 8, 10, 6], filter=constant(3, 3, 3, 4), out_backprop=x)
    return RAW.Conv2DBackpropInput(**arguments, strides=[1, 2, 2, 1], padding="SAME")


def by_groups(x: Any, constant: Any) -> Any:
    pairs = zip(tf.split(x, 2, 3), tf.split(constant(3, 3, 3, 4), 2, 3))
    return tf.concat([tf.nn.conv2d_transpose(a, w, [2, 8, 10, 3], 2, "SAME") for a, w in pairs], 3)


def spatial_part_alone(x: Any, constant: Any) -> Any:
    arguments = dict(input_sizes=[8, 9], filter=constant(3, 3, 3, 4), out_backprop=x)
    return RAW.Conv2DBackpropInput(**arguments, strides=[1, 2, 2, 1], padding="SAME")


NUMBERS = [[0, 0], [1, 0], [0, 2], [0, 0]]
SHAPE, SMALL = (2, 4, 5, 4), (1, 3, 4, 2, 2)

TRANSPOSED = {
    "SAME": transposed(SHAPE, (3, 4), 2, "SAME", (8, 10), is_wrong=False),
    "SAME, kernel < stride": transposed(SHAPE, (1, 2), (3, 4), "SAME", (12, 20)),
    "SAME, smaller output": transposed(SHAPE, (3, 4), 3, "SAME", (10, 14), is_wrong=False),
    "SAME, no shapes": transposed(SHAPE, (3, 2), 2, "SAME", (7, 9), noted=False),
    "SAME, computed shape": transposed(SHAPE, (2, 2), 3, "SAME", (12, 14), shape_of=computed),
    "SAME, computed size": transposed(SHAPE, (1, 1), 2, "SAME", (8, 10), shape_of=twice,
                                      noted=False),
    "SAME, NCHW wanted": transposed(SHAPE, (1, 4), 3, "SAME", (12, 14), layout="NCHW"),
    "SAME, dilated": dilated((3, 2), (2, 3), "SAME"),
    "VALID": transposed(SHAPE, (3, 4), 2, "VALID", (9, 12), is_wrong=False),
    "VALID, larger output": transposed(SHAPE, (3, 1), (2, 4), "VALID", (10, 20)),
    "VALID, computed shape": transposed(SHAPE, (3, 4), 3, "VALID", (14, 17), shape_of=computed),
    "VALID, NCHW wanted": transposed(SHAPE, (3, 4), 2, "VALID", (10, 12), layout="NCHW"),
    "VALID, dilated": dilated((3, 2), (2, 3), "VALID"),
    "numbers": transposed(SHAPE, (3, 4), 2, NUMBERS, (8, 11)),
    "numbers, smaller output": transposed(SHAPE, (3, 4), 3, NUMBERS, (12, 14)),
    "NCHW": Model(channels_first, (2, 4, 4, 3), channels_last, is_wrong=False),
    "groups": Model(of_groups, (2, 4, 5, 4), by_groups),
    "spatial part of a shape": Model(spatial_part_alone, SHAPE, is_wrong=False),
    "free batch, given": transposed(SHAPE, (2, 2), 3, "SAME", (12, 15), shape_of=computed,
                                    free=(0,), noted=False),
    "free batch": transposed(SHAPE, (2, 2), 3, "SAME", (11, 14), shape_of=computed, free=(0,),
                             given=False, is_wrong=False),
    "free batch, no shapes": transposed(SHAPE, (3, 2), 3, "VALID", (12, 15), shape_of=computed,
                                        free=(0,), given=False, noted=False),
    "1-D, SAME": transposed((2, 5, 4), (2,), 3, "SAME", (15,)),
    "1-D, VALID": transposed((2, 5, 4), (3,), 4, "VALID", (20,)),
    "3-D, SAME": transposed(SMALL, (3, 2, 3), 2, "SAME", (6, 8, 4), is_wrong=False),
    "3-D, SAME, kernel < stride": transposed(SMALL, (1, 2, 3), 3, "SAME", (9, 11, 5)),
    "3-D, SAME, no shapes": transposed(SMALL, (3, 2, 3), 2, "SAME", (5, 7, 3), noted=False),
    "3-D, VALID, larger output": transposed(SMALL, (1, 2, 3), 3, "VALID", (8, 12, 6)),
    "3-D, NCDHW wanted": transposed(SMALL, (1, 2, 3), 2, "SAME", (5, 8, 4), layout="NCDHW"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name: str) -> None:
    TRANSPOSED[name].check()
    if TRANSPOSED[name].is_wrong:
        with uncorrected():
            assert not is_right(TRANSPOSED[name].check)


def convolution(kernel: Sequence[int], strides: Any, padding: Any, **how: Any) -> Model:
    rank = len(kernel)
    shape = ((2, 11, 3), (2, 8, 9, 4), (1, 5, 6, 5, 2))[rank - 1]
    dilations, groups = how.pop("dilations", [1] * rank), how.pop("groups", 1)
    steps = [[1, *value, 1] if rank == 3 else value for value in (strides, dilations)]

    def build(x: Any, constant: Any) -> Any:
        weight = constant(*kernel, shape[-1] // groups, 6)
        return getattr(tf.nn, f"conv{rank}d")(x, weight, steps[0], padding, dilations=steps[1])

    return Model(build, shape, **how)


def depthwise(
    kernel: Sequence[int], stride: int, padding: Any, channels: int = 4, **how: Any
) -> Model:
    dilations, steps = how.pop("dilations", (1, 1)), [1, stride, stride, 1]

    def build(x: Any, constant: Any) -> Any:
        given = dict(strides=steps, padding=padding, dilations=[1, *dilations, 1])
        return RAW.DepthwiseConv2dNative(input=x, filter=constant(*kernel, channels, 2), **given)

    def by_batch(x: Any, constant: Any) -> Any:
        weight = constant(*kernel, channels, 2)
        return tf.nn.depthwise_conv2d(x, weight, steps, padding, None, dilations)

    return Model(build, (2, 8, 9, channels), by_batch, **how)


def grouped(x: Any, constant: Any) -> Any:
    weight = constant(3, 2, 2, 6)
    return RAW.Conv2D(input=x, filter=weight, strides=[1, 1, 2, 1], padding="SAME")


def by_group(x: Any, constant: Any) -> Any:
    pairs = zip(tf.split(x, 2, 3), tf.split(constant(3, 2, 2, 6), 2, 3))
    return tf.concat([tf.nn.conv2d(a, w, (1, 2), "SAME") for a, w in pairs], 3)


CONVOLUTIONS = {
    "SAME": convolution((3, 4), (2, 3), "SAME", is_wrong=False),
    "SAME, NCHW wanted": convolution((3, 4), (2, 3), "SAME", layout="NCHW", is_wrong=False),
    "SAME, dilated, NCHW wanted": convolution((3, 2), (1, 1), "SAME", dilations=[2, 3],
                                              layout="NCHW"),
    "VALID, dilated, NCHW wanted": convolution((3, 2), (1, 1), "VALID", dilations=[2, 3],
                                               layout="NCHW"),
    "numbers, NCHW wanted": convolution((3, 2), (2, 1), NUMBERS, layout="NCHW", is_wrong=False),
    "groups": Model(grouped, (2, 8, 9, 4), by_group),
    "free sizes": convolution((3, 2), (1, 2), "SAME", free=(0, 1), given=False, is_wrong=False),
    "depthwise": depthwise((3, 2), 2, "SAME", is_wrong=False),
    "depthwise, dilated, NCHW wanted": depthwise((3, 2), 1, "SAME", dilations=[2, 3],
                                                 layout="NCHW"),
    "depthwise of one channel": depthwise((3, 2), 2, "VALID", channels=1),
    "depthwise of one channel, NCHW wanted": depthwise((3, 2), 2, "VALID", channels=1,
                                                       layout="NCHW"),
    "1-D, SAME": convolution((4,), 3, "SAME", dilations=1, is_wrong=False),
    "3-D, SAME": convolution((3, 2, 2), (2, 1, 2), "SAME", is_wrong=False),
    "3-D, VALID, NCDHW wanted": convolution((3, 2, 2), (2, 1, 2), "VALID", layout="NCDHW",
                                            is_wrong=False),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    CONVOLUTIONS[name].check()
    if CONVOLUTIONS[name].is_wrong:
        with uncorrected():
            assert not is_right(CONVOLUTIONS[name].check)


# ------------------------------------------------------------------- errors


def test_what_is_not_known_at_import_is_refused_in_one_line() -> None:
    free = transposed(
        SHAPE, (2, 2), 2, "SAME", (8, 10), shape_of=twice, free=(1, 2), given=False, noted=False
    )
    with pytest.raises(ValueError) as error:
        free.check()
    assert str(error.value) == (
        "Conv2DBackpropInput: output shape (2, None, None, 3) must be known at import, "
        "but for the batch"
    )
    same = convolution((3, 2), (2, 2), "SAME", free=(1,), given=False)
    with pytest.raises(ValueError, match=r"^tf.nn.conv2d: size=None must be given: SAME"):
        same.check()
