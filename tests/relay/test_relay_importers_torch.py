# SPDX-License-Identifier: Apache-2.0
"""PyTorch's modules, traced, through relay.frontend.from_pytorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relay

import relay_ext
from helpers.relay import target


def imported(model: nn.Module, shape: tuple[int, ...]) -> tuple[tvm.IRModule, dict, np.ndarray]:
    traced = torch.jit.trace(model.eval(), torch.zeros(shape))
    mod, params = relay.frontend.from_pytorch(traced, [("data", shape)])
    return mod, params


def convolution(mod: tvm.IRModule) -> relay.Call:
    """The only convolution of a module."""
    found = []

    def visit(node: relay.Expr) -> None:
        if isinstance(node, relay.Call) and str(getattr(node.op, "name", "")).startswith("nn.conv"):
            found.append(node)

    relay.analysis.post_order_visit(mod["main"], visit)
    (call,) = found
    return call


@pytest.mark.parametrize(
    ("model", "shape", "name", "layout"),
    [
        (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2), (1, 4, 9),
         "nn.conv1d_transpose", "IOW"),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2, dilation=2),
         (1, 4, 5, 6), "nn.conv2d_transpose", "IOHW"),
        (nn.ConvTranspose2d(4, 4, (3, 2), padding=(2, 1), bias=False), (2, 4, 5, 6),
         "nn.conv2d_transpose", "IOHW"),
        (nn.ConvTranspose3d(4, 6, 3, stride=2, output_padding=1, groups=2, dilation=2),
         (1, 4, 3, 4, 2), "nn.conv3d_transpose", "IODHW"),
        (nn.Conv1d(4, 6, 3, groups=2, dilation=2), (1, 4, 9), "nn.conv1d", "OIW"),
        (nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9), "nn.conv1d", "OIW"),
        (nn.Conv2d(4, 8, 3, groups=4), (1, 4, 5, 6), "nn.conv2d", "OIHW"),
        (nn.Conv2d(4, 6, (4, 3), padding="same", dilation=(1, 2)), (1, 4, 5, 6),
         "nn.conv2d", "OIHW"),
        (nn.Conv2d(4, 6, 3, padding="valid"), (1, 4, 5, 6), "nn.conv2d", "OIHW"),
        (nn.Conv1d(4, 6, 4, padding="same"), (1, 4, 9), "nn.conv1d", "OIW"),
        (nn.Conv3d(4, 8, 3, groups=4), (1, 4, 5, 4, 3), "nn.conv3d", "OIDHW"),
        (nn.Conv3d(2, 3, 2, padding="same"), (1, 2, 3, 4, 3), "nn.conv3d", "OIDHW"),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_module(
    model: nn.Module, shape: tuple[int, ...], name: str, layout: str, rng: np.random.Generator
) -> None:
    """Right values, the rank of the module, and the layout that its weight really has."""
    mod, params = imported(model, shape)
    call = convolution(mod)
    assert call.op.name == name
    assert call.attrs.kernel_layout == layout
    weight = relay.transform.InferType()(mod)["main"].params[1].checked_type
    assert tuple(map(int, weight.shape)) == tuple(model.weight.shape)
    data = rng.standard_normal(shape).astype("f")
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=target(), params=params)
    runner = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cpu()))
    runner.set_input("data", data)
    runner.run()
    want = model.double()(torch.tensor(data).double()).detach().numpy()
    assert runner.get_output(0).shape == want.shape
    np.testing.assert_allclose(runner.get_output(0).numpy(), want, rtol=1e-4, atol=1e-4)


def test_stock_has_its_own_converters() -> None:
    model = nn.Conv1d(4, 6, 3, groups=2)
    with relay_ext.stock():
        mod, _ = imported(model, (1, 4, 9))
        assert convolution(mod).op.name == "nn.conv2d"
    mod, _ = imported(model, (1, 4, 9))
    assert convolution(mod).op.name == "nn.conv1d"
