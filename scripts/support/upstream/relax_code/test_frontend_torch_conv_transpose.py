# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions and dtypes of convolutions from PyTorch"""

import numpy as np
import pytest
import torch
from torch import nn

import tvm
import tvm.testing
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program, from_fx


def _compare(mod, model, data):
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    out = vm["main"](tvm.runtime.tensor(data.numpy()))
    out = (out if hasattr(out, "numpy") else out[0]).numpy()
    expected = model(data).detach().numpy()
    assert out.dtype == expected.dtype and out.shape == expected.shape
    exact = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-10}[str(out.dtype)]
    np.testing.assert_allclose(out, expected, rtol=exact, atol=exact)


MODELS = [
    nn.ConvTranspose3d(4, 6, (2, 3, 4), (1, 2, 2), (0, 1, 1), (0, 1, 0), groups=2),
    nn.ConvTranspose3d(2, 3, 2, bias=False),
    nn.ConvTranspose2d(4, 6, 3, 2, 1, 1).double(),
    nn.ConvTranspose1d(4, 6, 4, 2, 1).double(),
    nn.Conv1d(4, 6, 3, padding=1).double(),
    nn.Conv2d(4, 6, 3, padding=1).double(),
    nn.Conv3d(4, 6, 3, padding=1).double(),
    nn.Conv2d(4, 6, 3, padding=1).half(),
]


def _data(model):
    rank = model.weight.dim() - 2
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(1, model.in_channels, *(5, 4, 3)[:rank], generator=generator)
    return data.to(model.weight.dtype)


@pytest.mark.parametrize("model", MODELS)
def test_from_exported_program(model):
    data = _data(model)
    _compare(from_exported_program(torch.export.export(model.eval(), (data,))), model, data)


@pytest.mark.parametrize("model", MODELS[:2])
def test_from_fx(model):
    data, model = _data(model), nn.Sequential(model)
    mod = from_fx(torch.fx.symbolic_trace(model.eval()), [(tuple(data.shape), "float32")])
    _compare(mod, model, data)


if __name__ == "__main__":
    tvm.testing.main()
