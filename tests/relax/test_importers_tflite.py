# SPDX-License-Identifier: Apache-2.0
"""TFLite: models written by TensorFlow's converter, and what LiteRT made of them.

``tests/data/tflite.npz`` holds models, inputs and LiteRT's results, by kind of model; the names of
those that TVM alone gets wrong end in ``wrong``, or in ``wrong in Relax``, and are seen to be so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

tflite = pytest.importorskip("tflite")

from tvm.relax.frontend.tflite import from_tflite  # noqa: E402

from helpers.imported import assert_close, assert_stock_is_wrong, piped, runner  # noqa: E402

STORED = Path(__file__).parents[1] / "data" / "tflite.npz"
NAMES = sorted({name.rpartition("|")[0] for name in np.load(STORED).files})


def stored(name: str) -> tuple[bytes, np.ndarray, np.ndarray]:
    found = np.load(STORED)
    return found[f"{name}|model"].tobytes(), found[f"{name}|x"], found[f"{name}|y"]


def imported(name: str, **options: object) -> tvm.IRModule:
    return from_tflite(tflite.Model.GetRootAsModel(stored(name)[0], 0), **options)


def check(name: str) -> None:
    file, x, want = stored(name)
    graph = tflite.Model.GetRootAsModel(file, 0).Subgraphs(0)
    data = graph.Tensors(graph.Inputs(0)).Name().decode()
    mod = imported(name, **({"shape_dict": {data: x.shape}} if "free sizes" in name else {}))
    is_bound = len(mod["main"].params) == 1
    params = [] if is_bound else mod["main"].attrs["params"]
    got = runner(mod)(tvm.runtime.tensor(x), *params).numpy()
    assert got.dtype == want.dtype
    if got.dtype.kind == "i":
        assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
    else:
        assert_close(got, want.astype("float64"))


@pytest.mark.parametrize("name", NAMES)
def test_as_in_litert(name: str) -> None:
    check(name)
    if name.endswith(("wrong", "wrong in Relax")):
        assert_stock_is_wrong(lambda: check(name))


QUANTIZED = [name for name in NAMES if "int8" in name]


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantized_layer_is_one_kernel(name: str) -> None:
    _, x, want = stored(name)
    run, kernels = piped(imported(name))
    got = run(tvm.runtime.tensor(x)).numpy()
    assert got.dtype == want.dtype
    # LiteRT multiplies by integers that stand for scales.
    assert np.abs(got.astype("float64") - want).max() <= (1 if got.dtype == np.int8 else 2e-2)
    assert kernels and all("quantize" in kernel for kernel in kernels)
    assert all(kernel.startswith("conv") for kernel in kernels)


def test_output_shape_that_is_free_but_for_the_batch_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = next(name for name in NAMES if "unknown batch" in name)
    free = np.array([-1, -1, -1, 3])
    monkeypatch.setattr(tflite.Tensor, "ShapeSignatureAsNumpy", lambda self: free)
    with pytest.raises(ValueError, match=r"^TRANSPOSE_CONV: output shape .* but for the batch$"):
        imported(name)
