# SPDX-License-Identifier: Apache-2.0
"""The users' reports that this package began with, as they were told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tvm.script import from_source

from helpers import build
from helpers.cases import Case


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_report_0_output_padding_is_computed_from_the_data(dtype: str) -> None:
    """The last output row held zeros; PyTorch computes it from the data."""
    case = Case(
        "conv_transpose", (2, 3), (2, 2), n=1, ins=1, outs=1, stride=(2, 1), padding=(1,) * 4,
        output_padding=(1, 0), dtype=dtype,
    )  # fmt: skip
    data = np.array([[[[1, 2, 3], [4, 5, 6]]]], dtype)
    weight = np.array([[[[1, 10], [100, 1000]]]], dtype)
    want = torch.nn.functional.conv_transpose2d(
        torch.tensor(data), torch.tensor(weight), None, (2, 1), 1, (1, 0)
    ).numpy()
    assert want.tolist() == [[[[1200, 2300], [45, 56], [4500, 5600]]]]
    vm = build.compiled(build.forward_module([case]))
    (got,) = build.run(vm, "f0", data, weight)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_report_0_gradient_of_a_strided_conv_needs_the_same_rows(dtype: str, rng) -> None:
    """Input sizes that the stride does not divide."""
    case = Case("conv", (8, 9), (2, 2), n=1, stride=(2, 4), padding=(1, 0, 0, 1), dtype=dtype)
    build.check_gradients([case, case.with_(size=(9, 10)), case.with_(size=(9, 11))], rng)


REPORT_3 = """
# from tvm.script import ir as I
# from tvm.script import relax as R

@I.ir_module
class Module:
    @R.function
    def main(
        data: R.Tensor((1, 32, 224, 224), dtype="float32"),
        weight: R.Tensor((32, 1, 3, 3), dtype="float32"),
        unused: R.Tensor((32, 1, 3, 3), dtype="float32"),
        another: R.Tensor((16, 32, 1, 1), dtype="float32"),
        seed: R.Tensor((1, 32, 224, 224), dtype="float32"),
    ) -> R.Tensor((), dtype="float32"):
        with R.dataflow():
            out: R.Tensor((1, 32, 224, 224), dtype="float32") = R.nn.conv2d(
                data, weight, strides=[1, 1], padding=[1, 1, 1, 1], groups=32
            )
            seeded: R.Tensor((1, 32, 224, 224), dtype="float32") = R.multiply(out, seed)
            loss: R.Tensor((), dtype="float32") = R.sum(seeded)
            R.output(loss)
        return loss
"""


def test_report_3_gradient_of_a_depthwise_conv(rng: np.random.Generator) -> None:
    """Parsed from text, differentiated in every parameter, two of them unused."""
    case = Case("conv", (224, 224), (3, 3), n=1, ins=32, outs=32, groups=32, padding=(1,) * 4)
    mod = from_source(REPORT_3)
    mod = build.differentiated(mod, "main", 4)
    data, weight = case.arrays(rng)
    seed = rng.standard_normal(case.out_shape).astype("float32")
    unused, another = np.ones((32, 1, 3, 3), "float32"), np.ones((16, 32, 1, 1), "float32")
    vm = build.compiled(mod)
    _, ddata, dweight, *nothing = build.run(vm, "main_adjoint", data, weight, unused, another, seed)
    arrays = [a.astype(np.float64) for a in (data, weight, seed)]
    wanted = build.gradients(case, *arrays)
    limits = build.gradients(case, *map(np.abs, arrays))
    f32 = ("float32",) * 3
    build.compare.assert_close(ddata, wanted[0], limits[0], case.data_terms, dtypes=f32)
    build.compare.assert_close(dweight, wanted[1], limits[1], case.weight_terms, dtypes=f32)
    assert [a.shape for a in nothing] == [unused.shape, another.shape]
    assert not any(a.any() for a in nothing)


def test_report_3_weight_is_the_same_memory_both_ways(rng: np.random.Generator) -> None:
    """OIHW for the convolution, IOHW for the transposed one that is its gradient."""
    forward = Case("conv", (7, 8), (3, 2), ins=4, outs=6, groups=2, stride=(2, 2))
    back = Case("conv_transpose", forward.out_size, (3, 2), ins=6, outs=4, groups=2, stride=(2, 2))
    assert forward.weight_shape == back.weight_shape
    data, weight = forward.arrays(rng)
    seed = rng.standard_normal(forward.out_shape).astype("float32")
    mod = build.gradient_module([forward])
    mod.update(build.forward_module([back.with_(output_padding=(0, 0))]))
    vm = build.compiled(mod)
    _, ddata, _ = build.run(vm, "f0_adjoint", data, weight, seed)
    (same,) = build.run(vm, "f0", seed, weight)
    rows, columns = same.shape[2:]
    np.testing.assert_allclose(ddata[:, :, :rows, :columns], same, rtol=1e-5, atol=1e-5)
    assert ddata.shape == data.shape
