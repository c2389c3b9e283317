# SPDX-License-Identifier: Apache-2.0
"""The users' reports that this package began with, as they were told: about TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import torch
from tvm import relay

from helpers.relay_imported import assert_close, results
from topi_ext.padding import Window, same_from_valid, translate

tf1 = tf.compat.v1


def test_report_2_same_is_valid_with_the_border_cut_off() -> None:
    """Kernels 1 to 7 and strides 1 to 4, in one graph; VALID is asked for the rows of SAME where
    its kernel is shorter than the stride."""
    pairs = [(k, s) for k in range(1, 8) for s in range(1, 5)]
    size, random = 3, np.random.default_rng(2)
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, (1, size, size, 2), "x")
        for number, (two, other) in enumerate(zip(pairs[::2], pairs[1::2])):
            kernel, strides = zip(two, other)
            weight = random.standard_normal((*kernel, 2, 2)).astype("float32")
            for padding in ("SAME", "VALID"):
                short = [max(k, s) if padding == "VALID" else s for k, s in (two, other)]
                out = [1, *((size - 1) * s + more for s, more in zip(strides, short)), 2]
                y = tf.nn.conv2d_transpose(x, weight, out, strides, padding)
                tf.identity(y, f"{padding}{number}")
    names = [f"{padding}{n}" for n in range(len(pairs) // 2) for padding in ("SAME", "VALID")]
    data = random.standard_normal((1, size, size, 2)).astype("float32")
    with tf1.Session(graph=graph) as session:
        want = session.run([f"{name}:0" for name in names], {"x:0": data})
    mod, params = relay.frontend.from_tensorflow(
        graph.as_graph_def(), shape={"x": data.shape}, outputs=names
    )
    got = results(mod, params, {"x": data})
    assert_close(got, want)
    for same, valid, two, other in zip(got[::2], got[1::2], pairs[::2], pairs[1::2]):
        kernel, strides = zip(two, other)
        ends = same_from_valid(Window(kernel, strides, (1, 1), transposed=True))
        rows = [slice(first, first + n) for (first, _), n in zip(ends, same.shape[1:3])]
        assert np.allclose(same, valid[:, rows[0], rows[1]], atol=1e-5)


@pytest.mark.parametrize(
    ("data", "weight", "stride", "padding", "output_padding"),
    [
        ((2, 1, 7), (1, 2, 3), 3, 5, 2),
        ((2, 258, 249), (258, 1, 7), 6, 9, 4),
        ((2, 258, 249), (258, 1, 256), 128, 64, 5),
        ((2, 258, 249), (258, 1, 256), 128, 0, 127),
        ((1, 2, 9), (2, 3, 4), 2, 1, 0),
        ((1, 2, 9), (2, 3, 1), 4, 0, 3),
    ],
)
def test_report_4_conv_transpose1d_of_pytorch_in_tensorflow(
    data: tuple[int, ...], weight: tuple[int, ...], stride: int, padding: int, output_padding: int,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """``translate`` gives the call in TensorFlow itself and imported into Relay."""
    x, w = (rng.standard_normal(shape).astype("float32") for shape in (data, weight))
    layer = dict(stride=stride, padding=padding, output_padding=output_padding)
    want = torch.nn.functional.conv_transpose1d(
        torch.tensor(x).double(), torch.tensor(w).double(), **layer
    )
    found = translate(
        "torch", "tensorflow", "conv_transpose", size=data[2], kernel_size=weight[2], **layer
    )
    assert found.function == "tf.nn.conv1d_transpose"
    arguments = dict(found.arguments)
    whole = [data[0], *arguments.pop("output_shape"), weight[1]]
    ((before, after),) = found.crop
    with tf.Graph().as_default() as graph:
        operand = tf1.placeholder(tf.float32, (data[0], data[2], data[1]), "x")
        full = tf.nn.conv1d_transpose(operand, w.transpose(2, 1, 0), whole, **arguments)
        grown = tf.pad(full, [(0, 0), (max(-before, 0), max(-after, 0)), (0, 0)])
        tf.identity(grown[:, max(before, 0) : grown.shape[1] - max(after, 0)], "y")
    last = np.ascontiguousarray(x.transpose(0, 2, 1))
    with tf1.Session(graph=graph) as session:
        theirs = session.run("y:0", {"x:0": last})
    expected = want.numpy().transpose(0, 2, 1).astype("float32")
    assert_close([theirs], [expected])
    mod, params = relay.frontend.from_tensorflow(
        graph.as_graph_def(), shape={"x": last.shape}, outputs=["y"]
    )
    assert_close(results(mod, params, {"x": last}), [expected])
