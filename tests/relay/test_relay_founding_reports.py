# SPDX-License-Identifier: Apache-2.0
"""The users' reports that this package began with, as they were told: about Relay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relay

from helpers import compare
from helpers.cases import Case
from helpers.relay import check_gradients, gradients, module, run


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
    (got,) = run(module([case])[0], [data, weight])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [(8, 9), (9, 11)])
def test_report_0_gradient_of_a_strided_conv_needs_the_same_rows(size, rng) -> None:
    """Input sizes that the stride does not divide."""
    check_gradients(
        Case("conv", size, (2, 2), n=1, stride=(2, 4), padding=(1, 0, 0, 1), dtype="float64"), rng
    )


@pytest.mark.slow
def test_report_1_transposed_conv3d_with_kernel_7_matches_pytorch(rng) -> None:
    """Kernels of 5 and below did, 7 did not."""
    model = nn.ConvTranspose3d(2, 3, 7, stride=2, padding=3, output_padding=1).eval()
    shape = (1, 2, 3, 4, 3)
    traced = torch.jit.trace(model, torch.zeros(shape))
    mod, params = relay.frontend.from_pytorch(traced, [("data", shape)])
    bound = relay.build_module.bind_params_by_name(mod["main"], params)
    data = rng.standard_normal(shape).astype("f")
    (got,) = run(tvm.IRModule.from_expr(bound), [data])
    want = model.double()(torch.tensor(data).double()).detach().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


REPORT_3 = """
#[version = "0.0.5"]
def @main(%data: Tensor[(1, 32, 224, 224), float32], %weight: Tensor[(32, 1, 3, 3), float32],
          %unused: Tensor[(32, 1, 3, 3), float32], %another: Tensor[(16, 32, 1, 1), float32])
          -> Tensor[(1, 32, 224, 224), float32] {
  nn.conv2d(%data, %weight, strides=[1, 1], padding=[1, 1, 1, 1], groups=32, CHANNELS
            kernel_size=[3, 3])
}
"""


@pytest.mark.parametrize("channels", ["channels=32,", ""])
def test_report_3_gradient_of_a_depthwise_conv(channels: str, rng: np.random.Generator) -> None:
    """Parsed from text, differentiated in every parameter, two of them unused."""
    case = Case("conv", (224, 224), (3, 3), n=1, ins=32, outs=32, groups=32, padding=(1,) * 4)
    mod = relay.transform.InferType()(tvm.relay.parse(REPORT_3.replace("CHANNELS", channels)))
    mod = tvm.IRModule.from_expr(relay.transform.gradient(mod["main"], mode="first_order"))
    data, weight = case.arrays(rng)
    unused, another = np.ones((32, 1, 3, 3), "float32"), np.ones((16, 32, 1, 1), "float32")
    _, ddata, dweight, *nothing = run(mod, [data, weight, unused, another])
    arrays = [*(a.astype(np.float64) for a in (data, weight)), np.ones(case.out_shape)]
    wanted = gradients(case, *arrays)
    limits = gradients(case, *map(np.abs, arrays))
    f32 = ("float32",) * 3
    compare.assert_close(ddata, wanted[0], limits[0], case.data_terms, dtypes=f32)
    compare.assert_close(dweight, wanted[1], limits[1], case.weight_terms, dtypes=f32)
    assert [a.shape for a in nothing] == [unused.shape, another.shape]
    assert not any(a.any() for a in nothing)
