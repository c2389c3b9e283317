# SPDX-License-Identifier: Apache-2.0
"""Convolutions from PyTorch, of every rank with groups"""

import numpy as np
import pytest
import torch
from torch import nn

import tvm
import tvm.testing
from tvm import relay

MODELS = [
    nn.Conv1d(4, 6, 3, padding=1, groups=2),
    nn.Conv2d(4, 6, (4, 3), padding="same", dilation=2),
    nn.Conv3d(4, 8, 3, groups=4),
    nn.ConvTranspose2d(4, 6, 3, stride=2, dilation=2, output_padding=1, groups=2),
    nn.ConvTranspose3d(4, 6, 2, stride=2, groups=2),
]


@pytest.mark.parametrize("model", MODELS)
def test_conv(model):
    shape = (1, model.in_channels, *(6, 5, 4)[: model.weight.dim() - 2])
    data = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    mod, params = relay.frontend.from_pytorch(torch.jit.trace(model.eval(), data), [("x", shape)])
    func = relay.build_module.bind_params_by_name(mod["main"], params)
    mod = tvm.IRModule.from_expr(func)
    out = relay.create_executor("vm", mod=mod, target="llvm").evaluate()(data.numpy())
    expected = model(data).detach().numpy()
    assert out.numpy().shape == expected.shape
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-4)
    rank = model.weight.dim() - 2
    assert f"nn.conv{rank}d" in str(mod)


if __name__ == "__main__":
    tvm.testing.main()
