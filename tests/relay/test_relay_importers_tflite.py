# SPDX-License-Identifier: Apache-2.0
"""TFLite in Relay: models written by TensorFlow's converter, and what LiteRT made of them.

``tests/data/tflite.npz`` holds models, inputs and LiteRT's results, by kind of model.  Names that
end in ``wrong`` are those that stock TVM gets wrong; in Relay it has no convolutions of three axes
either.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relay

tflite = pytest.importorskip("tflite")

from helpers.relay_imported import assert_close, is_right, results, uncorrected  # noqa: E402

STORED = Path(__file__).parents[1] / "data" / "tflite.npz"
NAMES = sorted({name.rpartition("|")[0] for name in np.load(STORED).files})


def stored(name: str) -> tuple[bytes, np.ndarray, np.ndarray]:
    found = np.load(STORED)
    return found[f"{name}|model"].tobytes(), found[f"{name}|x"], found[f"{name}|y"]


def imported(name: str) -> tuple[tvm.IRModule, dict]:
    file, x, _ = stored(name)
    made = tflite.Model.GetRootAsModel(file, 0)
    graph = made.Subgraphs(0)
    data = graph.Tensors(graph.Inputs(0)).Name().decode()
    return relay.frontend.from_tflite(made, {data: x.shape}, {data: str(x.dtype)})


def check(name: str) -> None:
    _, x, want = stored(name)
    mod, params = imported(name)
    typed = relay.transform.InferType()(mod)["main"].ret_type
    assert tuple(map(int, typed.shape)) == want.shape
    (data,) = [var.name_hint for var in mod["main"].params if var.name_hint not in params]
    (got,) = results(mod, params, {data: x})
    if want.dtype == np.int8:
        assert got.dtype == want.dtype
        assert np.abs(got.astype(int) - want.astype(int)).max() <= 1  # a half, rounded elsewhere
    else:
        assert_close([got], [want])


@pytest.mark.parametrize("name", NAMES)
def test_as_in_litert(name: str) -> None:
    check(name)
    if name.endswith("wrong") and "CONV_3D" not in name:
        with uncorrected():
            assert not is_right(lambda: check(name))


@pytest.mark.parametrize("op", ["CONV_3D", "CONV_3D_TRANSPOSE"])
def test_stock_has_no_convolutions_of_three_axes(op: str) -> None:
    name = next(name for name in NAMES if name.startswith(op + " "))
    with uncorrected(), pytest.raises(tvm.error.OpNotImplemented, match=f"'{op}'"):
        imported(name)


def test_output_shape_that_is_free_but_for_the_batch_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = next(name for name in NAMES if "unknown batch" in name)
    free = np.array([-1, -1, -1, 3])
    monkeypatch.setattr(tflite.Tensor, "ShapeSignatureAsNumpy", lambda self: free)
    with pytest.raises(ValueError, match=r"^TRANSPOSE_CONV: output shape .* but for the batch$"):
        imported(name)


def test_quantized_convolutions_of_three_axes_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    converter = relay.frontend.tflite.OperatorConverter
    operands = converter.get_input_tensors

    def quantized(self: object, op: object) -> list:
        tensors = operands(self, op)
        for tensor in tensors:
            tensor.qnn_params = {"scale": 1.0}
        return tensors

    monkeypatch.setattr(converter, "get_input_tensors", quantized)
    with pytest.raises(ValueError, match=r"^CONV_3D: quantized operands must be dequantized"):
        imported(next(name for name in NAMES if name.startswith("CONV_3D ")))
