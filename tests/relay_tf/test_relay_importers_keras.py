# SPDX-License-Identifier: Apache-2.0
"""Keras's layers through relay.frontend.from_keras, against Keras itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tvm import relay
from tvm.relay.frontend import keras as importer

import relay_ext
from helpers.relay_imported import assert_close, is_right, results, uncorrected
from relay_ext.importers import HOOKS

layers = tf.keras.layers
LAYOUTS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
SHAPES = {1: (2, 7, 4), 2: (2, 5, 6, 4), 3: (1, 4, 3, 5, 2)}


@dataclass(frozen=True)
class Model:
    """A model of one layer, or of what `make` makes of its operand.

    Parameters
    ----------
    make : callable
        A layer, or a function of layers.
    shape : tuple of int
        Of the operand.
    layout : str
        Asked of TVM.
    free : bool
        Whether Keras is left to know neither batch nor spatial sizes.
    is_wrong : bool
        Whether TVM alone gets it wrong.
    """

    make: Callable[[], Callable[[Any], Any]]
    shape: tuple[int, ...]
    layout: str
    free: bool = False
    is_wrong: bool = True

    def check(self) -> None:
        tf.keras.utils.set_random_seed(0)
        sizes = (None,) * (len(self.shape) - 2) if self.free else self.shape[1:-1]
        batch = None if self.free else self.shape[0]
        operand = layers.Input((*sizes, self.shape[-1]), batch_size=batch, name="x")
        model = tf.keras.Model(operand, self.make()(operand))
        random = np.random.default_rng(1)
        drawn = [(w.name, random.standard_normal(w.shape)) for w in model.weights]
        model.set_weights([np.abs(v) if "variance" in name else v for name, v in drawn])
        data = random.standard_normal(self.shape).astype("float32")
        shown = np.ascontiguousarray(np.moveaxis(data, -1, 1)) if self.layout[1] == "C" else data
        mod, params = relay.frontend.from_keras(model, {"x": shown.shape}, layout=self.layout)
        want = model(data).numpy()  # which changes the statistics of a layer in training
        if self.layout[1] == "C":
            want = np.moveaxis(want, -1, 1)
        assert_close(results(mod, params, {"x": shown}), [want])


def model(
    name: str, kernel: Any, layout: str = "", *, free: bool = False, is_wrong: bool = True,
    **arguments: Any,
) -> Model:  # fmt: skip
    """A layer, of three filters where it has filters, and an operand of four channels."""
    channels = arguments.pop("channels", 4)
    rank = int(name.partition("Conv")[2][0])
    filters = () if name.startswith("Depthwise") else (arguments.pop("filters", 3),)

    def make() -> Callable[[Any], Any]:
        return getattr(layers, name)(*filters, kernel, **arguments)

    shape = (*SHAPES[rank][:-1], channels)
    return Model(make, shape, layout or LAYOUTS[rank], free, is_wrong)


def two(name: str) -> dict[str, Model]:
    """Keras's transposed convolutions of two axes, in both layouts."""
    asked = dict(layout=name)
    layer = "Conv2DTranspose"
    return {
        f"{name}, same": model(layer, (3, 4), strides=(2, 3), padding="same", **asked),
        f"{name}, valid": model(layer, (3, 4), strides=2, activation="relu", is_wrong=False,
                                **asked),
        f"{name}, same, kernel < stride": model(layer, (1, 2), strides=(2, 3), padding="same",
                                                activation="swish", **asked),
        f"{name}, valid, kernel < stride": model(layer, (1, 2), strides=(2, 3), **asked),
        f"{name}, same, output_padding": model(layer, (3, 4), strides=(2, 3), padding="same",
                                               output_padding=(0, 1), **asked),
        f"{name}, valid, output_padding": model(layer, (3, 1), strides=(2, 3), is_wrong=False,
                                                output_padding=(1, 2), **asked),
        f"{name}, same, dilated": model(layer, (3, 2), padding="same", dilation_rate=2,
                                        use_bias=False, is_wrong=False, **asked),
        f"{name}, free sizes": model(layer, (3, 3), strides=2, padding="same", free=True,
                                     activation="elu", **asked),
    }  # fmt: skip


def shared() -> Callable[[Any], Any]:
    """A layer of operands of two sizes."""
    layer = layers.Conv2DTranspose(3, 3, strides=2, padding="same")
    return lambda x: layers.Concatenate(1)(
        [layer(x), layer(layers.Cropping2D(((0, 1), (0, 0)))(x))]
    )


TRANSPOSED = {
    **two("NCHW"),
    **two("NHWC"),
    "a shared layer": Model(shared, SHAPES[2], "NHWC"),
    "1-D, same": model("Conv1DTranspose", 3, strides=2, padding="same", activation="relu"),
    "1-D, same, kernel < stride": model("Conv1DTranspose", 2, strides=3, padding="same"),
    "1-D, valid": model("Conv1DTranspose", 4, strides=3, use_bias=False),
    "1-D, output_padding": model("Conv1DTranspose", 3, strides=3, output_padding=2),
    "1-D, NCW": model("Conv1DTranspose", 3, "NCW", strides=2, padding="same"),
    "1-D beside 2-D": model("Conv1DTranspose", 3, "NHWC", strides=2, padding="same"),
    "3-D, same": model("Conv3DTranspose", (3, 1, 2), strides=(2, 3, 1), padding="same"),
    "3-D, valid": model("Conv3DTranspose", (3, 1, 2), strides=(2, 3, 1)),
    "3-D, output_padding": model("Conv3DTranspose", 3, strides=(2, 3, 2), padding="same",
                                 output_padding=(1, 2, 0)),
    "3-D, dilated": model("Conv3DTranspose", (3, 1, 2), dilation_rate=2, padding="same"),
    "3-D, NCDHW": model("Conv3DTranspose", (3, 1, 2), "NCDHW", strides=2, activation="tanh"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name: str) -> None:
    TRANSPOSED[name].check()
    if TRANSPOSED[name].is_wrong:
        with uncorrected():
            assert not is_right(TRANSPOSED[name].check)


CONVOLUTIONS = {
    "2-D": model("Conv2D", (3, 2), strides=(2, 3), padding="same", is_wrong=False),
    "2-D, NCHW": model("Conv2D", (3, 2), "NCHW", dilation_rate=2, padding="same", is_wrong=False),
    "2-D, groups": model("Conv2D", (3, 2), filters=4, groups=2, padding="same"),
    "2-D, groups, NCHW": model("Conv2D", (3, 2), "NCHW", filters=4, groups=2),
    "2-D, free sizes": model("Conv2D", 3, "NCHW", strides=2, padding="same", free=True),
    "depthwise": model("DepthwiseConv2D", (3, 2), strides=2, padding="same", depth_multiplier=2,
                       is_wrong=False),
    "depthwise, NCHW": model("DepthwiseConv2D", (3, 2), "NCHW", strides=2, depth_multiplier=2,
                             is_wrong=False),
    "depthwise of one channel": model("DepthwiseConv2D", 3, depth_multiplier=2, channels=1),
    "separable": model("SeparableConv2D", 3, strides=2, padding="same", activation="relu",
                       is_wrong=False),
    "separable, dilated": model("SeparableConv2D", 3, padding="same", dilation_rate=2),
    "separable, dilated, NCHW": model("SeparableConv2D", 3, "NCHW", padding="same",
                                      dilation_rate=2, depth_multiplier=2),
    "1-D": model("Conv1D", 4, strides=3, padding="same", is_wrong=False),
    "1-D, causal": model("Conv1D", 3, padding="causal", dilation_rate=2),
    "1-D, NCW": model("Conv1D", 4, "NCW", strides=3, padding="same"),
    "1-D, depthwise": model("DepthwiseConv1D", 3, strides=2, padding="same", depth_multiplier=2),
    "1-D, separable": model("SeparableConv1D", 3, padding="same", dilation_rate=2),
    "3-D": model("Conv3D", (3, 1, 2), strides=(2, 1, 2), padding="same", is_wrong=False),
    "3-D, NCDHW": model("Conv3D", (3, 1, 2), "NCDHW", strides=(2, 1, 2), padding="same"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    CONVOLUTIONS[name].check()
    if CONVOLUTIONS[name].is_wrong:
        with uncorrected():
            assert not is_right(CONVOLUTIONS[name].check)


def normalized(rank: int) -> Callable[[Any], Any]:
    """Return a layer as in a decoder, with as many channels as a stock importer might take for
    another axis."""
    layer = getattr(layers, f"Conv{rank}D")((7, 0, 5)[rank - 1], 1)
    norm, relu = layers.BatchNormalization(), layers.ReLU()
    return lambda x: relu(norm(layer(x)))


@pytest.mark.parametrize("rank", [1, 3])
def test_batch_normalization_behind_layers_of_one_and_three_axes(rank: int) -> None:
    made = Model(lambda: normalized(rank), SHAPES[rank], LAYOUTS[rank])
    made.check()
    with uncorrected():
        assert not is_right(made.check)


def test_batch_normalization_of_an_axis_that_is_stated() -> None:
    made = Model(lambda: layers.BatchNormalization(axis=1), (2, 4, 4), "NWC", is_wrong=False)
    made.check()


def normalization(
    shape: tuple[int, ...], layout: str, axis: int = -1, is_wrong: bool = True, **options: Any
) -> Model:
    """A batch normalization; `training` is stated at its call."""
    called = {name: options.pop(name) for name in ("training",) if name in options}

    def make() -> Callable[[Any], Any]:
        layer = layers.BatchNormalization(axis=axis, **options)
        return lambda x: layer(x, **called)

    return Model(make, shape, layout, is_wrong=is_wrong)


SQUARE = (2, 4, 4, 4)
"""As many rows and columns as channels: another axis gives wrong values, and no other shape."""

NORMALIZATIONS = {
    **{
        f"axis {axis}, {layout}": normalization(SQUARE, layout, axis, axis not in (3, -1))
        for axis in (1, 2, 3, -1, -2)
        for layout in ("NHWC", "NCHW")
    },
    "axis 1 of three": normalization((2, 4, 5), "NWC", 1, is_wrong=False),
    "axis 1 of five": normalization((1, 4, 3, 5, 2), "NDHWC", 1),
    "axis 2 of five": normalization((1, 4, 3, 5, 2), "NDHWC", 2),
    "training": normalization((2, 5, 6, 3), "NHWC", training=True),
    "training, NCHW": normalization((2, 5, 6, 3), "NCHW", training=True),
    "training, axis 1": normalization(SQUARE, "NHWC", 1, training=True),
    "training, three axes": normalization((2, 4, 5), "NWC", training=True),
    "training, five axes": normalization((2, 4, 3, 5, 2), "NDHWC", training=True),
    "training, neither scale nor center": normalization(
        (2, 5, 6, 3), "NHWC", training=True, scale=False, center=False
    ),
    # One that is not trainable normalizes by its statistics in training too.
    "training, not trainable": normalization(
        (2, 5, 6, 3), "NHWC", training=True, trainable=False, is_wrong=False
    ),
    "training=False": normalization((2, 5, 6, 3), "NHWC", training=False, is_wrong=False),
    "no scale": normalization((2, 5, 6, 3), "NHWC", scale=False, is_wrong=False),
    "no center": normalization((2, 5, 6, 3), "NCHW", center=False, is_wrong=False),
}


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_batch_normalization(name: str) -> None:
    NORMALIZATIONS[name].check()
    with uncorrected():
        assert is_right(NORMALIZATIONS[name].check) is not NORMALIZATIONS[name].is_wrong


def test_a_layer_that_is_called_in_training_and_without() -> None:
    def make() -> Callable[[Any], Any]:
        layer = layers.BatchNormalization()
        return lambda x: layers.Concatenate()([layer(x), layer(x, training=True)])

    made = Model(make, (2, 5, 6, 3), "NHWC")
    made.check()
    with uncorrected():
        assert not is_right(made.check)


def inner(*made: Any) -> tf.keras.Model:
    operand = result = layers.Input((5, 6, 3))
    for layer in made:
        result = layer(result)
    return tf.keras.Model(operand, result)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x: layers.Dropout(0.5)(x, training=True), "Dropout: training=True must be False"),
        (lambda x: layers.Dropout(0.5)(x, True), "Dropout: training=True must be False"),
        (lambda x: layers.GaussianNoise(0.5)(x, training=True), "GaussianNoise: training=True"),
        (lambda x: layers.SpatialDropout2D(0.5)(x, training=True), "SpatialDropout2D: training"),
        (lambda x: inner(layers.BatchNormalization())(x, training=True), "Functional: training"),
        (lambda x: layers.BatchNormalization(axis=[1, 2])(x), r"BatchNormalization: axis=\[1, 2\]"),
    ],
)
def test_what_training_makes_random_is_refused_in_one_line(make: Any, said: str) -> None:
    operand = layers.Input((5, 6, 3), batch_size=1, name="x")
    made = tf.keras.Model(operand, make(operand))
    with pytest.raises(ValueError, match=f"^{said}") as error:
        relay.frontend.from_keras(made, {"x": (1, 5, 6, 3)}, layout="NHWC")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: layers.Dropout(0.0)(x, training=True),
        lambda x: layers.Dropout(0.5)(x),
        lambda x: inner(layers.Conv2D(2, 2), layers.ReLU())(x, training=True),
        lambda x: inner(layers.BatchNormalization())(x),
    ],
)
def test_what_training_does_not_change(make: Any) -> None:
    Model(lambda: make, (2, 5, 6, 3), "NHWC").check()


def test_what_cannot_be_is_refused_in_one_line() -> None:
    operand = layers.Input((4, 4), batch_size=1, name="x")
    made = tf.keras.Model(operand, layers.Conv1DTranspose(3, 2)(operand))
    with pytest.raises(ValueError) as error:
        relay.frontend.from_keras(made, {"x": (1, 4, 4)}, layout="NCHW")
    assert str(error.value) == "Conv1DTranspose: layout='NCHW' must be NWC or NCW"
    with pytest.raises(ValueError, match=r"^from_keras: shape=None must be given for layout='NCW'"):
        relay.frontend.from_keras(made, layout="NCW")


def test_stock_has_its_own_table_and_function() -> None:
    """An entry that TVM's table lacks is gone again."""
    relay_ext.unregister()
    for name in HOOKS.importers:
        assert HOOKS.unknown(name, sys.modules[name]) == ""
    stock = dict(importer._convert_map), importer.from_keras, relay.frontend.from_keras
    assert "Conv1DTranspose" not in stock[0] and stock[1] is stock[2]
    relay_ext.register()
    assert "Conv1DTranspose" in importer._convert_map
    assert relay.frontend.from_keras is not stock[2]
    with relay_ext.stock():
        assert (importer._convert_map, importer.from_keras, relay.frontend.from_keras) == stock
