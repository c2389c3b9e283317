# SPDX-License-Identifier: Apache-2.0
"""Convolutions of ``tvm.relax.frontend.nn`` with groups, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm.relax.frontend import nn

from helpers.imported import assert_close, is_right, runner, uncorrected

LAYERS = {
    "Conv1D": (torch.nn.Conv1d, (2, 4, 9)),
    "Conv2D": (torch.nn.Conv2d, (2, 4, 5, 6)),
    "Conv3D": (torch.nn.Conv3d, (2, 4, 5, 6, 5)),
    "ConvTranspose1D": (torch.nn.ConvTranspose1d, (2, 4, 9)),
}


def check(name: str, groups: int) -> None:
    kind, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = kind(4, 6, 3, groups=groups), torch.randn(shape)

    class Model(nn.Module):
        def __init__(self) -> None:
            self.layer = getattr(nn, name)(4, 6, 3, groups=groups)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    spec = {"forward": {"x": nn.spec.Tensor(shape, "float32")}}
    mod, params = Model().export_tvm(spec)
    stated = [tuple(int(size) for size in parameter.shape) for _, parameter in params]
    assert stated == [tuple(layer.weight.shape), (6,)]
    mod["main"] = mod["forward"].with_attr("global_symbol", "main")
    del mod["forward"]
    operands = [x, layer.weight, layer.bias]
    got = runner(mod)(*(tvm.runtime.tensor(one.detach().numpy()) for one in operands)).numpy()
    assert_close(got, layer.double()(x.double()).detach().numpy())


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", LAYERS)
def test_groups(name: str, groups: int) -> None:
    check(name, groups)
    if name == "Conv3D" and groups > 1:
        with uncorrected():
            assert not is_right(lambda: check(name, groups))


def test_a_module_holds_what_it_was_told() -> None:
    layer = nn.Conv3D(4, 6, [1, 2, 3], groups=2, bias=False, dtype="float16")
    assert layer.weight.dtype == "float16" and layer.bias is None
    assert np.prod([int(size) for size in layer.weight.shape]) == 6 * 2 * 6
