# SPDX-License-Identifier: Apache-2.0
"""torch.export of PT2E's quantized models: layers become kernels of bytes.

torchao's ``convert_pt2e`` writes the operators that are written here by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

torch = pytest.importorskip("torch")

from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

from helpers.imported import TARGET, is_right, piped, runner, uncorrected  # noqa: E402
from helpers.pt2e import (  # noqa: E402
    INT8,
    OPS,
    SEVEN_BITS,
    SYMMETRIC,
    UINT8,
    Classifier,
    Decoder,
    assert_within_steps,
)
from helpers.whole import Function as Model  # noqa: E402
from relax_ext.fusion.patterns import Function, is_operator  # noqa: E402
from relax_ext.pipeline import first_passes  # noqa: E402
from topi_ext.compat import dtype_name, tensor_type_of  # noqa: E402


@pytest.mark.parametrize("decomposed", [True, False], ids=["export", "raw"])
@pytest.mark.parametrize("single", [True, False], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("limits", [UINT8, INT8, SEVEN_BITS, SYMMETRIC], ids=str)
def test_layers_are_kernels_of_bytes(
    limits: Any, single: bool, decomposed: bool, rng: np.random.Generator
) -> None:
    model = Decoder(rng, limits, single).eval()
    x = torch.from_numpy(rng.standard_normal((1, 3, 12, 12), "float32")) * 2
    exported = torch.export.export(model, (x,))

    def imported() -> Any:
        return from_exported_program(exported, run_ep_decomposition=decomposed)

    with torch.no_grad():
        want = model(x).numpy()
    run, kernels = piped(imported())
    for function in (run, runner(imported())):
        got = function(tvm.runtime.from_dlpack(x)).numpy()
        assert_within_steps(got, want, Decoder.STEP)
    convolutions = [name for name in kernels if name.startswith("conv")]
    assert len(convolutions) == 3
    assert all("_cast_multiply_add" in name and "quantize" in name for name in convolutions)
    with uncorrected():
        assert not is_right(imported)


@pytest.mark.parametrize("chosen", [False, True], ids=["known", "chosen"])
@pytest.mark.parametrize("single", [True, False], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("limits", [UINT8, SYMMETRIC], ids=str)
def test_bytes_between_layers(
    limits: Any, single: bool, chosen: bool, rng: np.random.Generator
) -> None:
    """Pools, resizes, concatenations and views are of bytes, and linear layers are their
    products."""
    model = Classifier(rng, limits, single, chosen).eval()
    x = torch.from_numpy(rng.standard_normal((2, 3, 12, 12), "float32")) * 2
    module = from_exported_program(torch.export.export(model, (x,)))
    with torch.no_grad():
        want = model(x).numpy()
    run, kernels = piped(module)
    assert_within_steps(run(tvm.runtime.from_dlpack(x)).numpy(), want, Classifier.STEP)
    assert len([name for name in kernels if name.startswith("conv") and "cast" in name]) == 2
    assert len([name for name in kernels if name.startswith("matmul") and "cast" in name]) == 2
    with TARGET:
        module = tvm.transform.Sequential(first_passes(module))(module)
    dtypes = {
        call.op.name: tensor_type_of(call).dtype
        for call in Function.of(module["main"]).values.values()
        if is_operator(call)
    }
    moved = ("relax.nn.max_pool2d", "relax.image.resize2d", "relax.concat")
    assert {dtype_name(dtypes[name]) for name in moved} == {str(limits[2]).rpartition(".")[2]}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_each_operator(dtype: Any, rng: np.random.Generator) -> None:
    """Values of each operator alone, with limits narrower than the dtype's."""
    x = torch.from_numpy(rng.standard_normal((2, 3, 4), "float32")) * 5
    scales = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    zeros, low = torch.tensor([3, 0, 7]), 0 if dtype is torch.uint8 else -5

    def per_channel(x: Any) -> Any:
        stored = OPS.quantize_per_channel(x, scales, zeros, 1, low, 12, dtype)
        return OPS.dequantize_per_channel(stored, scales, zeros, 1, low, 12, dtype)

    def per_tensor(x: Any) -> Any:
        scale, zero = torch.tensor([0.25], dtype=torch.float64), torch.tensor([4])
        stored = OPS.quantize_per_tensor.tensor(x, scale, zero, low, 12, dtype)
        return OPS.dequantize_per_tensor.tensor(stored, scale, zero, low, 12, dtype)

    for function in (per_channel, per_tensor):
        want = function(x)
        run = runner(from_exported_program(torch.export.export(Model(function), (x,))))
        got = run(tvm.runtime.from_dlpack(x)).numpy()
        np.testing.assert_array_equal(got, want.numpy())  # scales are powers of two


def test_biases_of_int32() -> None:
    values = torch.arange(-(2**20), 2**20, 2**17, dtype=torch.int32)

    def fractions(x: Any) -> Any:
        return OPS.dequantize_per_tensor(x, 0.25, 3, -(2**31), 2**31 - 1, torch.int32)

    run = runner(from_exported_program(torch.export.export(Model(fractions), (values,))))
    got = run(tvm.runtime.from_dlpack(values)).numpy()
    np.testing.assert_array_equal(got, fractions(values).numpy())  # the scale is a power of two


def test_refusals_are_one_line() -> None:
    def fractions(x: Any) -> Any:
        return OPS.dequantize_per_tensor(x.to(torch.int64), 0.5, 0, -5, 5, torch.int64)

    exported = torch.export.export(Model(fractions), (torch.zeros(3),))
    said = r"^dequantize: dtype=int64 must be one of int8, uint8, int16, int32$"
    with pytest.raises(ValueError, match=said):
        from_exported_program(exported)
