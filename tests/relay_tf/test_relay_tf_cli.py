# SPDX-License-Identifier: Apache-2.0
"""``python -m relay_ext`` of frozen graphs and Keras models, compared with TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.command_line import refused, report
from relay_ext.cli import main

pytestmark = pytest.mark.usefixtures("threads_given_back")

tf1 = tf.compat.v1
random = np.random.default_rng(0).standard_normal


def frozen(path: Path, shape: Any, build: Callable[[Any], Any]) -> Path:
    """A graph of a placeholder ``x``."""
    graph = tf1.Graph()
    with graph.as_default():
        build(tf1.placeholder(tf.float32, shape, "x"))
    path.write_bytes(graph.as_graph_def(add_shapes=True).SerializeToString())
    return path


def up(x: Any, size: int = 2, stride: int = 3) -> Any:
    """A transposed convolution, SAME."""
    weight = random((size, size, 3, 2)).astype("float32")
    return tf.nn.conv2d_transpose(x, weight, [1, 4 * stride, 5 * stride, 3], stride, "SAME")


def test_graph(tmp_path: Path) -> None:
    """Stock makes another shape of SAME with a kernel below its stride."""
    found = report(main, frozen(tmp_path / "up.pb", (1, 4, 5, 2), lambda x: tf.nn.relu(up(x))))
    assert found["status"] == 0 and found["framework"] == "TensorFlow"
    assert "outputs: Relu:0" in found["notes"]
    assert found["whole"]["stock"]["note"] == "wrong shape (1, 11, 14, 3), not (1, 12, 15, 3)"


def test_outputs_and_free_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(x: Any) -> None:
        weight = random((3, 3, 2, 3)).astype("float32")
        tf.split(tf.nn.conv2d(x, weight, 1, "SAME"), 3, axis=3, name="parts")
        tf.nn.relu(x, "other")

    path = frozen(tmp_path / "net.pb", (None, 4, None, 2), build)
    assert refused(main, capsys, path) == (
        "input x: shape (?, 4, ?, 2) has free sizes, choose them as in --shape x=1,4,64,2"
    )
    found = report(main, path, "--shape", "x=2,4,5,2", "--output", "parts:1", "--output", "other")
    assert found["status"] == 0 and len(found["operators"]) == 1
    assert refused(main, capsys, path, "--output", "y") == (
        "--output y:0: not in the graph, whose last ones are: parts:0, other:0"
    )
    unknown = frozen(tmp_path / "unknown.pb", None, build)
    assert "the file states no shape, give --shape x=" in refused(main, capsys, unknown)


def test_refused_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = frozen(tmp_path / "net.pb", (1, 4, 5, 2), lambda x: tf.raw_ops.Cumprod(x=up(x), axis=1))
    line = "TVM's importer stopped: The following operators are not implemented: {'Cumprod'}"
    assert refused(main, capsys, path) == f"net.pb: {line}"
    path.write_bytes(path.read_bytes()[:-60])
    assert "it is a frozen TensorFlow graph that is cut short" in refused(main, capsys, path)
    path = frozen(
        tmp_path / "free.pb",
        (1, 4, 5, 2),
        lambda x: x * tf1.get_variable("v", (2,), use_resource=1),
    )
    assert "v is a variable: freeze the graph" in refused(main, capsys, path)


LAYERS = keras.layers


@pytest.mark.parametrize(
    ("shape", "layer", "note"),
    [
        ((5, 6, 2), LAYERS.Conv2DTranspose(3, 2, strides=3, padding="same"), "wrong shape"),
        ((4, 2), LAYERS.Conv1D(3, 3), ""),
        ((3, 4, 3, 2), LAYERS.Conv3DTranspose(3, 3, strides=2, padding="same"), "wrong shape"),
    ],
    ids=["2-D", "1-D", "3-D"],
)
def test_keras(
    shape: tuple[int, ...],
    layer: Any,
    note: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = LAYERS.Input(shape, name="x")
    path = tmp_path / "net.keras"
    keras.Model(x, layer(x)).save(path)
    assert "has free sizes, choose them as in --shape x=1," in refused(main, capsys, path)
    sizes = ",".join(map(str, (2, *shape)))
    found = report(main, path, "--shape", f"x={sizes}")
    assert found["status"] == 0 and len(found["operators"]) == 1
    assert found["whole"]["stock"]["note"].startswith(note)


def test_inputs_in_the_order_of_the_model(tmp_path: Path) -> None:
    """TVM lists them as the graph meets them, and leaves out what it does not use."""
    a, b, c = (LAYERS.Input((4, 5, 2), batch_size=1, name=name) for name in "abc")
    result = LAYERS.Concatenate()([LAYERS.Conv2D(2, 3, padding="same")(c), a])
    keras.Model([a, b, c], result).save(tmp_path / "net.keras")
    found = report(main, tmp_path / "net.keras")
    assert found["status"] == 0 and found["whole"]["ours"]["note"] == ""


def test_refused_keras(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = LAYERS.Input((4, 5, 2), batch_size=1, name="x")
    path = tmp_path / "net.keras"
    keras.Model(x, LAYERS.UnitNormalization()(x)).save(path)
    line = "Operator UnitNormalization is not supported for frontend Keras."
    assert refused(main, capsys, path).endswith(f"importer stopped: OpNotImplemented: {line}")
    path.write_bytes(path.read_bytes()[:300])
    assert "it is a zip archive that is cut short or damaged" in refused(main, capsys, path)
